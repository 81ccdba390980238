"""A transformers model on this machine behind the protocol of all models: calls that wait together go in one batch."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rolellm.core.errors import ModelError, SettingsError
from rolellm.core.fingerprint import hash_json
from rolellm.llm.model import CallError, Finish, Json, Message, Price, Reply, Request
from rolellm.llm.scripted import read_plain
from rolellm.models.local_model import MOST_ROWS, Completion, Decoding, Draft, complete_drafts

if TYPE_CHECKING:
    from rolellm.models.local_model import LocalModel


@dataclass(slots=True)
class _WaitingCall:
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
        """The settings that calls in one batch share."""
        return self.decoding, self.request.sampling.top_logprobs


class LocalChat:
    """A `rolellm.llm.model.Model` on this machine.

    Replies are seeded by the prompt, the repeat and the attempt, so that they depend neither on what else is asked nor
    on the order. A schema is not enforced: the prompt has to say what form it wants.

    Args:
        model: The model; its weights are loaded when first asked.
        batch_size: The most calls that go through the model together; by default 256 on a GPU and 8 on a CPU.

    Raises:
        SettingsError: For a batch size below 1.
    """

    #: A budget counts it as costing nothing.
    free = True

    def __init__(self, model: LocalModel, *, batch_size: int | None = None) -> None:
        if batch_size is None:
            batch_size = MOST_ROWS[model.device]
        if batch_size < 1:
            raise SettingsError(f"the batch size is {batch_size}; it has to be at least 1")
        self.model = model
        self.concurrency = batch_size
        self.price = Price()
        self._waiting: deque[_WaitingCall] = deque()
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
        prepared = self._prepare_call(request, attempt)
        job = _WaitingCall(request, *prepared, asyncio.get_running_loop().create_future())
        self._waiting.append(job)
        if self._working is None or self._working.done():
            self._working = asyncio.create_task(self._run_batches())
        return await job.done

    async def stream(self, request: Request, ended: Callable[[Finish], object] | None = None) -> AsyncGenerator[str]:
        """Answer alone, and give the reply's text as it arrives.

        Args:
            request: What to ask.
            ended: Called with how the reply ended.

        Raises:
            ModelError: For a prompt that leaves no room, or weights that cannot be loaded.
        """
        prompt, decoding, key = self._prepare(request, 1)
        draft, events = Draft.begin(self.model, prompt, decoding, is_trimmed=True, key=key)

        def run_generation() -> None:
            try:
                complete_drafts(self.model.weights, [draft])
            except Exception as error:
                draft.emit(error)

        thread = threading.Thread(target=run_generation, daemon=True)
        thread.start()
        try:
            event = await events.get()
            while isinstance(event, str):
                yield event
                event = await events.get()
            if isinstance(event, Exception):
                raise event
            if ended is not None:
                ended(event.finish)
        finally:
            draft.is_abandoned = True
            thread.join()

    async def context(self) -> int | None:
        """The most tokens of prompt and reply."""
        return self.model.context

    def encode(self, messages: Sequence[Message]) -> list[int]:
        """Encode a prompt as the model gets it."""
        return self.model.encode([asdict(message) for message in messages])

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

    def _prepare_call(self, request: Request, attempt: int) -> tuple[list[int], Decoding, str]:
        try:
            return self._prepare(request, attempt)
        except (ModelError, SettingsError) as error:
            raise CallError("bad_request", str(error), retry=False) from None

    def _prepare(self, request: Request, attempt: int) -> tuple[list[int], Decoding, str]:
        """The prompt's tokens, how to decode, and what seeds the sampling."""
        sampling = request.sampling
        if sampling.top_logprobs and sampling.max_tokens > 1:
            raise SettingsError("local models give log probabilities for one token only; set max_tokens to 1")
        prompt = self.encode(request.messages)
        room, context = sampling.max_tokens, self.model.context
        if context is not None:
            room = min(room, context - len(prompt))
        if room < 1:
            raise ModelError(f"the prompt's {len(prompt)} tokens leave no room in the model's context of {context}")
        if max(prompt, default=0) >= self.model.vocabulary:
            raise ModelError("the tokenizer produces tokens that the model does not know")
        decoding = Decoding(
            max_new_tokens=room, temperature=sampling.temperature, top_p=sampling.top_p, seed=sampling.seed or 0
        )
        key = hash_json([request.payload()["messages"], request.repeat, attempt])
        return prompt, decoding, key

    async def _run_batches(self) -> None:
        # The calls that start in the same turn of the loop come to wait, too.
        await asyncio.sleep(0)
        while True:
            batch = self._take_batch()
            if not batch:
                return
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

    def _take_batch(self) -> list[_WaitingCall]:
        """The calls that have waited longest and are decoded alike."""
        batch: list[_WaitingCall] = []
        remaining: deque[_WaitingCall] = deque()
        for job in self._waiting:
            if job.done.done():
                continue
            if len(batch) < self.concurrency and (not batch or job.alike == batch[0].alike):
                batch.append(job)
            else:
                remaining.append(job)
        self._waiting = remaining
        return batch

    def _generate(self, batch: list[_WaitingCall]) -> list[Json]:
        most = batch[0].request.sampling.top_logprobs
        if most:
            return [self._rank_tokens(job.prompt, most) for job in batch]
        prompts, keys = [job.prompt for job in batch], [job.key for job in batch]
        completions = self.model.generate_batch(prompts, batch[0].decoding, keys)
        return [self._read_completion(completion) for completion in completions]

    def _rank_tokens(self, prompt: list[int], most: int) -> Json:
        return self._make_ranking(len(prompt), self.model.rank_next_tokens(prompt, most))

    def _make_ranking(self, prompt_tokens: int, tokens: Sequence[tuple[str, float]]) -> Json:
        """A reply of one token, with log probabilities where OpenAI's API has them."""
        likeliest = [{"token": token, "logprob": value} for token, value in tokens]
        raw = _make_raw(self.name, tokens[0][0], "length", prompt_tokens, 1)
        return {**raw, "choices": [{"logprobs": {"content": [{"top_logprobs": likeliest}]}}]}

    def _read_completion(self, completion: Completion) -> Json:
        counts = (completion.prompt_tokens, completion.new_tokens)
        raw = _make_raw(self.name, completion.text, completion.finish, *counts)
        raw["usage"]["cached"] = completion.cached_tokens
        return raw


def _make_raw(model: str, text: str, finish: Finish, prompt: int, completion: int) -> dict[str, Any]:
    usage = {"prompt": prompt, "completion": completion}
    return {"backend": "local", "model": model, "text": text, "finish": finish, "usage": usage}
