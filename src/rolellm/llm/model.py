"""What is asked of a model and what comes back: requests, raw replies, and outcomes, each way to fail with a type."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Generic, Literal, Protocol, TypeVar, cast, runtime_checkable

from pydantic import NonNegativeFloat

from rolellm.core.errors import SettingsError
from rolellm.core.fingerprint import hash_json
from rolellm.core.settings import Field, settings

T = TypeVar("T")
Json = Mapping[str, Any]

#: How a reply ended that is not an answer, by what the model says of it.
Unfinished = Literal["length", "filtered", "refused", "empty"]
Finish = Literal["stop"] | Unfinished
#: What `accept` says of a reply that it does not take.
Rejection = Literal["unacceptable", "malformed"]
#: What never became a reply: the server refused the request, or something broke on the way.
Refusal = Literal["bad_request", "unauthorized", "forbidden", "not_found"]
Fault = Literal["rate_limited", "server_error", "timeout", "connection"]
FailureKind = Unfinished | Rejection | Refusal | Fault


@settings
class Sampling:
    """Sampling settings of a reply. The defaults are the paper's for replies (arXiv 2310.00746, by secondary notes).

    Attributes:
        temperature: 0 is greedy.
        top_p: Sampling keeps the smallest set of tokens whose probabilities reach this sum.
        max_tokens: The most tokens of a reply; the paper's 200 for replies, 2,000 for profiles and question generation.
        seed: Sent to servers that know it, together with the request's `repeat`; ``None`` sends none.
        top_logprobs: For how many of the likeliest tokens at each place the reply has log probabilities, up to 20.
    """

    temperature: float = 0.7
    top_p: float = 0.95
    max_tokens: int = 200
    seed: int | None = None
    top_logprobs: int = 0


@dataclass(frozen=True, slots=True)
class Schema:
    """The JSON schema that a reply has to follow, sent as structured output where a server takes it."""

    name: str
    schema: Json


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a prompt: its role and its text; ``tool`` is the result of a tool that the assistant called."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str


@dataclass(frozen=True, slots=True)
class Request:
    """One thing to ask of a model.

    Attributes:
        messages: The prompt; what many requests share should come first, as servers cache prefixes.
        sampling: How the reply is drawn.
        repeat: Which of several replies to the same prompt this is, from 0.
        schema: Structured output, where the reply is to be JSON.
        tag: What the caller knows it by, such as ``general/12``; shown in messages, not part of the key.
        repair: What is said to the model where its reply is not taken, with ``{problem}`` for the reason: it is then
            asked with that reply and this in two more messages, which is a request of its own. Without it, the same is
            asked again.
        quotes: Whether a repair shows the reply. Where it may quote what the prompt fences in, `repair` alone is added
            to the last message.
    """

    messages: tuple[Message, ...]
    sampling: Sampling = field(default_factory=Sampling)
    repeat: int = 0
    schema: Schema | None = None
    tag: str = ""
    repair: str = ""
    quotes: bool = True

    def payload(self) -> dict[str, Any]:
        """Return all that decides the reply but the model; keys are made of it."""
        return {
            "messages": self._texts,
            "sampling": asdict(self.sampling),
            "repeat": self.repeat,
            "schema": None if self.schema is None else [self.schema.name, dict(self.schema.schema)],
        }

    @property
    def prompt_hash(self) -> str:
        """SHA-256 of the messages alone, in hex: what a receipt names the prompt by."""
        return hash_json(self._texts)

    @property
    def _texts(self) -> list[list[str]]:
        return [[message.role, message.content] for message in self.messages]


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens as the server counted them; `cached` is the part of `prompt` that it took from its cache."""

    prompt: int = 0
    completion: int = 0
    cached: int = 0

    def __add__(self, addend: Usage) -> Usage:
        return Usage(self.prompt + addend.prompt, self.completion + addend.completion, self.cached + addend.cached)


@dataclass(frozen=True, slots=True)
class Reply:
    """A model's reply, read from its raw form.

    Attributes:
        text: The reply's text; empty where there is none.
        finish: How it ended.
        usage: Tokens, as counted by the server (estimated where it counts none).
        model: The model that answered, by its own word.
        endpoint: The endpoint's name; never a key.
        raw: The body as it came, parsed; with secrets taken out.
    """

    text: str
    finish: Finish
    usage: Usage
    model: str
    endpoint: str
    raw: Json


class UnacceptableError(Exception):
    """Raised by an `accept` function for a reply that it cannot take: the request is asked again, then given up.

    Args:
        reason: In words, such as ``"says that it is an AI"``; counted and kept.
        kind: ``unacceptable``, or ``malformed`` where the reply is not of the form asked for.
        feedback: The reason as the model is told it, in the language of the prompt; by default `reason`.
        usable: The value of a reply that is better than none; kept if no reply without defects comes.
        defects: What is wrong with that, in words.
    """

    def __init__(
        self,
        reason: str,
        kind: Rejection = "unacceptable",
        *,
        feedback: str | None = None,
        usable: Any = None,
        defects: tuple[str, ...] = (),
    ) -> None:
        super().__init__(reason)
        self.reason, self.kind, self.feedback = reason, kind, feedback or reason
        self.usable, self.defects = usable, defects


#: Makes a value of a reply, or raises `UnacceptableError`. It is called again on journaled replies, so it must not
#: depend on anything but the reply (and the request).
Accept = Callable[[Request, Reply], T]


@dataclass(frozen=True, slots=True)
class Answer(Generic[T]):
    """A request that was answered.

    Attributes:
        request: What was asked.
        value: What `accept` made of the reply.
        reply: The reply.
        attempts: How many replies were paid for until this one, itself included.
        refused: Why `accept` turned down the earlier ones, in order.
        key: What the journal has the reply under, see `request_key`.
        defects: What is wrong with the value, in words: every reply had something, and this is the best.
    """

    request: Request
    value: T
    reply: Reply
    attempts: int = 1
    refused: tuple[str, ...] = ()
    key: str = ""
    defects: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Failure:
    """A request that has no answer.

    Attributes:
        request: What was asked.
        kind: How the last attempt failed.
        reason: In words; never with a key, a header or an environment value.
        attempts: How often it was tried.
        reply: The last reply, where there was one.
        refused: Why earlier replies were not taken, in order.
    """

    request: Request
    kind: FailureKind
    reason: str
    attempts: int = 1
    reply: Reply | None = None
    refused: tuple[str, ...] = ()


Outcome = Answer[T] | Failure


@dataclass(frozen=True, slots=True)
class Price:
    """US dollars a million tokens; `cached` is for prompt tokens that the server had cached, by default as `prompt`."""

    prompt: NonNegativeFloat = 0.0
    completion: NonNegativeFloat = 0.0
    cached: NonNegativeFloat | None = None

    def __bool__(self) -> bool:
        """True if it is known."""
        return bool(self.prompt or self.completion)

    @property
    def worst(self) -> Price:
        """The price with each prompt token at the dearest that it can be."""
        return Price(max(self.prompt, self.cached or 0.0), self.completion)

    def cost(self, usage: Usage) -> float:
        """Compute the cost of a reply, in US dollars."""
        cached = self.prompt if self.cached is None else self.cached
        fresh = max(usage.prompt - usage.cached, 0)
        return (fresh * self.prompt + usage.cached * cached + usage.completion * self.completion) / 1e6


@dataclass(eq=False)
class CallError(Exception):
    """A call that brought no reply; raised by a `Model` and turned into a retry or a `Failure`.

    Attributes:
        kind: How it failed.
        reason: In words, secrets taken out.
        retry: Whether the same call may do better later.
        after: Seconds to wait before the next call to this endpoint, where it says so; checked and capped by the run.
        billed: Whether the call may have been charged all the same: a timeout or a reset, after which nobody knows.
        wants_other_form: Whether the server refused the way in which JSON was asked for.
        too_long: Whether the server refused the prompt as longer than its context.
    """

    kind: FailureKind
    reason: str
    retry: bool = field(kw_only=True)
    after: float | None = None
    billed: bool = False
    wants_other_form: bool = False
    too_long: bool = False

    def __str__(self) -> str:
        return self.reason


@runtime_checkable
class Model(Protocol):
    """A model that can be asked: an endpoint, one on this machine, or a scripted one."""

    @property
    def name(self) -> str:
        """The name in messages and records: host and model; never a key."""

    @property
    def identity(self) -> Json:
        """The facts that decide its replies: endpoint and model, or the hash of weights or rules. Part of every key."""

    @property
    def concurrency(self) -> int:
        """Maximum calls at once."""

    @property
    def price(self) -> Price:
        """The price of its tokens."""

    async def call(self, request: Request, attempt: int = 1) -> Json:
        """Ask once; give back the raw reply as JSON, secrets taken out, for the journal.

        Args:
            request: What to ask.
            attempt: The how-many-th reply to this request it is to be, from 1. With a seed, each has to be drawn again,
                or asking again for a reply that was not taken brings the same.

        Raises:
            CallError: When no reply came.
        """

    def read(self, raw: Json) -> Reply:
        """Read a raw reply; called again for each journaled one.

        Raises:
            UnacceptableError: With the kind ``malformed``, for one that is not a reply at all.
        """

    async def close(self) -> None:
        """Let go of connections."""


@runtime_checkable
class ServedModel(Protocol):
    """A model with a server of its own, which lives from the first call of a run to its end."""

    async def start(self, folder: Path, is_stopped: Callable[[], bool]) -> None:
        """Start the server, unless it runs.

        Args:
            folder: The run's.
            is_stopped: Tells whether the run was stopped meanwhile.
        """

    def stop(self) -> None:
        """End the server."""


def request_key(model: Model, request: Request) -> str:
    """Compute the key of a reply: SHA-256 over endpoint, model, every sampling setting, prompt, schema and repeat."""
    identity = dict(model.identity)
    if request.schema is None and "structured" in identity:
        # How JSON is asked for changes nothing where none is; "auto" is what journals have from when it counted.
        identity["structured"] = "auto"
    return hash_json([identity, request.payload()])


def convert_turns(turns: Iterable[Mapping[str, str]]) -> tuple[Message, ...]:
    """Messages of turns as chat templates have them, with ``role`` and ``content``."""
    return tuple(Message(cast(Any, turn["role"]), turn["content"]) for turn in turns)


def system(content: str) -> Message:
    """A system message."""
    return Message("system", content)


def user(content: str) -> Message:
    """A user message."""
    return Message("user", content)


def assistant(content: str) -> Message:
    """An assistant message."""
    return Message("assistant", content)


def accept_text(_: Request, reply: Reply) -> str:
    """The `accept` that takes any text, trimmed."""
    return reply.text.strip()


def strip_thoughts(text: str) -> str:
    """A reply without what a reasoning model thought before it; empty where that has no end.

    >>> strip_thoughts("<think>Who asks?</think> I keep the light."), strip_thoughts("<think>Who")
    ('I keep the light.', '')
    """
    speech = text.rpartition("</think>")[2].strip()
    return "" if speech.startswith("<think>") else speech


def accept_speech(_: Request, reply: Reply) -> str:
    """The `accept` that takes any text but thoughts, trimmed."""
    speech = strip_thoughts(reply.text)
    if speech:
        return speech
    raise UnacceptableError("the reply has no text but thoughts; allow more tokens")


@settings
class Limits:
    """Limits and ways of sending requests.

    Attributes:
        max_attempts: Maximum attempts per request, after a fault or after a reply that was not taken.
        budget: Maximum US dollars for a run folder in all, earlier runs of it included; needs prices.
        batch: Use the OpenAI Batch API, at half the price, where the first model has one.
        ray: Ray cluster whose workers send the requests: its address, or ``local`` for one on this machine.
        workers: With `ray`: how many; by default one a CPU of the cluster, for local models one a GPU where there are
            any.

    Raises:
        SettingsError: For a value out of range.
    """

    max_attempts: int = Field(default=5, ge=1, le=100)
    budget: float | None = Field(default=None, ge=0)
    batch: bool = False
    ray: str | None = None
    workers: int | None = Field(default=None, ge=1)

    def __post_init__(self) -> None:
        if self.ray and self.batch:
            raise SettingsError("ray and batch exclude each other: a batch is asked from one machine; leave one out")
        if self.workers and not self.ray:
            raise SettingsError("workers needs ray: a cluster's address, or local")


@settings
class RunOptions(Limits):
    """The options of a run.

    Attributes:
        retry_failed: Ask again what an earlier run of this folder gave up on after replies that were not taken.
        show_progress: Show a progress bar on work that takes over two seconds.
        max_wait: The longest pause that a server's Retry-After is granted, in seconds.
        batch_poll: Seconds between two looks at a batch.
    """

    retry_failed: bool = False
    show_progress: bool = True
    max_wait: float = 60.0
    batch_poll: float = 30.0
