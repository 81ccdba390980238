"""A transformers model on this machine behind the protocol of all models: calls that wait together go in one batch."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rolellm.core.errors import ModelError, SettingsError
from rolellm.core.fingerprint import hash_json
from rolellm.llm.model import CallError, Json, Price, Reply, Request
from rolellm.llm.scripted import read_plain
from rolellm.models.local_model import Decoding

if TYPE_CHECKING:
    from rolellm.models.local_model import Completion, LocalModel


@dataclass(slots=True)
class _Job:
    """A call that waits.

    Attributes:
        request: What is asked.
        prompt: Its tokens.
        decoding: How it is answered.
        key: What seeds its sampling.
        done: Where the raw reply goes.
    """

    request: Request
    prompt: list[int]
    decoding: Decoding
    key: str
    done: asyncio.Future[Json]

    @property
    def alike(self) -> tuple[Decoding, int]:
        """What calls share that go together."""
        return self.decoding, self.request.sampling.top_logprobs


class LocalChat:
    """A `rolellm.llm.model.Model` on this machine.

    Replies are seeded by the prompt, the repeat and the attempt, so that they depend neither on what else is asked nor
    on the order. A schema is not enforced: the prompt has to say what form it wants. Penalties are not known here.

    Args:
        model: The model; its weights are loaded when first asked.
        batch_size: The most calls that go through the model together.

    Raises:
        SettingsError: For a batch size below 1.
    """

    #: A budget counts it as costing nothing.
    free = True

    def __init__(self, model: LocalModel, *, batch_size: int = 8) -> None:
        if batch_size < 1:
            raise SettingsError(f"the batch size is {batch_size}; it has to be at least 1")
        self.model = model
        self.concurrency = batch_size
        self.price = Price()
        self._waiting: deque[_Job] = deque()
        self._working: asyncio.Task[None] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(LocalChat, batch_size=self.concurrency), (self.model,)

    @property
    def name(self) -> str:
        """The name of the model's folder, or its id."""
        source = self.model.source.adapter or self.model.source.base
        return f"local/{Path(source).name if Path(source).is_dir() else source}"

    @cached_property
    def identity(self) -> Json:
        """The hashes of weights and tokenizer, the text form of prompts, and the weights' type."""
        return {"backend": "local", **self.model.hashes, **self.model.prompt_form, "dtype": self.model.dtype}

    async def call(self, request: Request, attempt: int = 1) -> Json:
        """Answer, together with other calls that wait.

        Raises:
            CallError: For a prompt or a setting that the model cannot take.
            ModelError: When the weights cannot be loaded.
        """
        try:
            job = self._job(request, attempt)
        except (ModelError, SettingsError) as error:
            raise CallError("bad_request", str(error), retry=False) from None
        self._waiting.append(job)
        if self._working is None or self._working.done():
            self._working = asyncio.create_task(self._work())
        return await job.done

    def read(self, raw: Json) -> Reply:
        """Read what `call` gave.

        Raises:
            UnacceptableError: With the kind ``malformed``, for anything else.
        """
        return read_plain(raw, self.name)

    async def close(self) -> None:
        """Let a batch that is on its way end; the weights stay in memory."""
        working, self._working = self._working, None
        if working is not None and working.get_loop() is asyncio.get_running_loop():
            await asyncio.gather(working, return_exceptions=True)

    def _job(self, request: Request, attempt: int) -> _Job:
        sampling = request.sampling
        if sampling.presence_penalty or sampling.frequency_penalty:
            raise SettingsError("a model on this machine knows no penalties; set them to 0")
        if sampling.top_logprobs and sampling.max_tokens > 1:
            raise SettingsError("a model on this machine gives log probabilities of one token; set max_tokens to 1")
        prompt = self.model.encode([asdict(message) for message in request.messages])
        context = self.model.context
        room = sampling.max_tokens if context is None else min(sampling.max_tokens, context - len(prompt))
        if room < 1:
            raise ModelError(f"the prompt's {len(prompt)} tokens leave no room in the model's context of {context}")
        if max(prompt, default=0) >= self.model.vocabulary:
            raise ModelError("the tokenizer gives tokens that the model does not know")
        seed = sampling.seed or 0
        decoding = Decoding(max_new_tokens=room, temperature=sampling.temperature, top_p=sampling.top_p, seed=seed)
        key = hash_json([request.payload()["messages"], request.repeat, attempt])
        return _Job(request, prompt, decoding, key, asyncio.get_running_loop().create_future())

    async def _work(self) -> None:
        # The calls that start in the same turn of the loop come to wait, too.
        await asyncio.sleep(0)
        while batch := self._batch():
            try:
                replies = await asyncio.to_thread(self._generate, batch)
            except Exception as error:
                for job in batch:
                    if not job.done.done():
                        job.done.set_exception(error)
                continue
            for job, reply in zip(batch, replies, strict=True):
                if not job.done.done():
                    job.done.set_result(reply)
            # Those who were answered have their next calls ready after this.
            await asyncio.sleep(0)

    def _batch(self) -> list[_Job]:
        """The calls that have waited longest and are decoded alike."""
        waiting = [job for job in self._waiting if not job.done.done()]
        batch = [job for job in waiting if job.alike == waiting[0].alike][: self.concurrency]
        taken = set(map(id, batch))
        self._waiting = deque(job for job in waiting if id(job) not in taken)
        return batch

    def _generate(self, batch: list[_Job]) -> list[Json]:
        most = batch[0].request.sampling.top_logprobs
        if most:
            return [_likeliest(self.model.next_tokens(job.prompt, most), len(job.prompt), self.name) for job in batch]
        prompts, keys = [job.prompt for job in batch], [job.key for job in batch]
        made = self.model.generate_batch(prompts, batch[0].decoding, keys)
        return [_raw(job.request, reply, self.name) for job, reply in zip(batch, made, strict=True)]


def _likeliest(tokens: list[tuple[str, float]], prompt: int, name: str) -> Json:
    """A reply of one token, with log probabilities where OpenAI's API has them."""
    given = [{"token": token, "logprob": value} for token, value in tokens]
    choices = [{"logprobs": {"content": [{"top_logprobs": given}]}}]
    usage = {"prompt": prompt, "completion": 1}
    return {"backend": "local", "model": name, "text": tokens[0][0], "finish": "length", "usage": usage} | {
        "choices": choices
    }


def _raw(request: Request, completion: Completion, name: str) -> Json:
    text, finish = completion.text, completion.finish
    ends = [place for stop in request.sampling.stop if (place := text.find(stop)) >= 0]
    if ends:
        text, finish = text[: min(ends)], "stop"
    usage = {"prompt": completion.prompt_tokens, "completion": completion.new_tokens}
    return {"backend": "local", "model": name, "text": text, "finish": finish, "usage": usage}
