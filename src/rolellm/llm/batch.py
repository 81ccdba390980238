"""The OpenAI Batch API: half the price, an answer within a day, and no batch twice however often a run is killed.

A run's folder holds ``batches.json``, which names every batch before it is made, and ``batches/`` with what is sent. A
batch carries its name at the server, too: one that was made just before a kill is found again in the server's list.
What comes back is handed on line by line; only then is a batch noted as collected. So a reply may be handed on twice,
after a kill in between, but is never lost and never paid for twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

from rolellm.errors import EndpointError
from rolellm.files import whole_file
from rolellm.llm.batch_lines import BatchItem, chunks, key_and_attempt, objects
from rolellm.llm.batch_state import STATE, Batch, BatchState
from rolellm.llm.endpoint import Endpoint
from rolellm.llm.model import CallError, Json
from rolellm.llm.wire import UNREADABLE, encode_body

if TYPE_CHECKING:
    from openai.types import Batch as ServerBatch

T = TypeVar("T")

_PATH: Literal["/v1/chat/completions"] = "/v1/chat/completions"
_BEING_MADE = "being made"
_RUN, _NAME = "rolellm_run", "rolellm_batch"
_OVER = frozenset({"completed", "failed", "expired", "cancelled"})
# How often something is tried over HTTP, and the most seconds between two tries (our choice).
_TRIES = 8
_LONGEST_WAIT = 60.0
# For a file of 200 MB to go up or come down (our choice).
_FILE_SECONDS = 1800.0


@dataclass(frozen=True, slots=True)
class Handlers:
    """Who hears what comes of a batch; each is called from the event loop.

    Attributes:
        reply: Called with key, attempt and raw reply. It may come twice for one key and attempt, after a kill.
        error: Called with key, attempt and what went wrong, for a request without a reply.
        progress: Called with how many requests are done, and of how many.
        kept: Called once all of a batch was handed on, before it is noted as collected and never looked at again; so
            what was handed on has to be on the disk when this returns.
    """

    reply: Callable[[str, int, Json], None]
    error: Callable[[str, int, CallError], None]
    progress: Callable[[int, int], None] = lambda done, total: None
    kept: Callable[[], None] = lambda: None


async def run_batch(
    endpoint: Endpoint, items: Iterable[BatchItem], folder: str | Path, handlers: Handlers, *, poll: float = 30.0
) -> None:
    """Have requests answered by the Batch API, those of an earlier run of this folder first.

    Args:
        endpoint: Where.
        items: The requests; those that are in a batch on its way already are not sent again.
        folder: The run's folder; the caller holds its lock.
        handlers: Who hears of replies and failures. Every item is heard of once, or again after a kill.
        poll: Seconds between two looks at the server.

    Raises:
        EndpointError: When the server takes no batch, or cannot be reached for long. Batches that are on their way are
            kept, and the same call goes on with them.
        DataError: For a state file that is no such thing.
    """
    run = _Run(endpoint, Path(folder), handlers)
    try:
        run.add(items)
        await run.finish(poll)
    finally:
        await endpoint.close()


class _Run:
    """The batches of one folder."""

    def __init__(self, endpoint: Endpoint, folder: Path, handlers: Handlers) -> None:
        self.endpoint = endpoint
        self.folder = folder
        self.handlers = handlers
        self.problems: list[str] = []
        self.state = BatchState(folder)

    def add(self, items: Iterable[BatchItem]) -> None:
        """Write those that are not on their way into files, and note batches for them; nothing is sent."""
        underway = self.state.underway()
        for lines in chunks(self._line(item) for item in items if item.custom_id not in underway):
            name = f"{self.state.run}-{len(self.state.batches) + 1:04}"
            batch = Batch(name, len(lines), self.endpoint.structured)
            with whole_file(self.state.path(batch)) as stream:
                stream.writelines(lines)
            self.state.batches.append(batch)
            self.state.save()

    async def finish(self, poll: float) -> None:
        """Make what is not made, wait for all, and hand on what came."""
        for batch in self.state.open:
            if batch.id is None:
                await self._make(batch)
        while waiting := self.state.open:
            done = sum(batch.count for batch in self.state.batches if batch.collected)
            for batch in waiting:
                done += await self._look(batch)
            self.handlers.progress(done, sum(batch.count for batch in self.state.batches))
            if self.state.open:
                await asyncio.sleep(poll)
        if self.problems:
            raise EndpointError("; ".join(self.problems))

    async def _make(self, batch: Batch) -> None:
        """Send the file and make the batch, unless it was made before a kill or behind a broken connection."""
        if batch.file is None:
            batch.file = await self._steadily(lambda: self._send(batch), _FILE_SECONDS)
            self.state.save()
        found = await self._steadily(lambda: self._find_or_create(batch))
        batch.id, batch.status = found.id, found.status
        self.state.save()

    async def _send(self, batch: Batch) -> str:
        with self.state.path(batch).open("rb") as stream:
            sent = await self.endpoint.sdk().files.create(
                file=(f"{batch.name}.jsonl", stream), purpose="batch", extra_headers=self.endpoint.headers()
            )
        return sent.id

    async def _find_or_create(self, batch: Batch) -> ServerBatch:
        sdk, headers = self.endpoint.sdk(), self.endpoint.headers()
        if batch.status == _BEING_MADE:
            async for found in sdk.batches.list(limit=100, extra_headers=headers):
                if (found.metadata or {}).get(_NAME) == batch.name:
                    return found
        batch.status = _BEING_MADE
        self.state.save()
        assert batch.file is not None
        return await sdk.batches.create(
            completion_window="24h",
            endpoint=_PATH,
            input_file_id=batch.file,
            metadata={_RUN: self.state.run, _NAME: batch.name},
            extra_headers=headers,
        )

    async def _look(self, batch: Batch) -> int:
        """See how a batch stands, and hand it on if it is over; how many of its requests are done."""
        identity = batch.id
        assert identity is not None

        def retrieve() -> Awaitable[ServerBatch]:
            return self.endpoint.sdk().batches.retrieve(identity, extra_headers=self.endpoint.headers())

        found = await self._steadily(retrieve)
        if found.status != batch.status:
            batch.status = found.status
            self.state.save()
        counts = found.request_counts
        if found.status not in _OVER:
            return 0 if counts is None else counts.completed + counts.failed
        if found.status == "failed":
            said = "; ".join(error.message or "" for error in (found.errors.data if found.errors else None) or [])
            reason = self.endpoint.refusal(400, said.encode()).reason.removeprefix("HTTP 400: ")
            self.problems.append(f"{self.endpoint.name} refused a batch of {batch.count} requests: {reason}")
            for name in self.state.ids(batch):
                self.handlers.error(*key_and_attempt(name), CallError("bad_request", reason, retry=True))
        else:
            await self._collect(batch, found)
            self.handlers.kept()
        batch.collected = True
        self.state.save()
        self.state.path(batch).unlink(missing_ok=True)
        return batch.count

    async def _collect(self, batch: Batch, found: ServerBatch) -> None:
        missing = set(self.state.ids(batch))
        for file in (found.output_file_id, found.error_file_id):
            if file is not None:
                await self._steadily(partial(self._hand_on, batch, file, missing), _FILE_SECONDS)
        for name in sorted(missing):
            ended = CallError("timeout", f"the batch ended ({found.status}) before this request", retry=True)
            self.handlers.error(*key_and_attempt(name), ended)

    async def _hand_on(self, batch: Batch, file: str, missing: set[str]) -> None:
        """Hand on the lines of a file; after a broken connection, those that were not."""
        content = self.endpoint.sdk().files.with_streaming_response.content(file, extra_headers=self.endpoint.headers())
        async with content as response:
            async for line in objects(response.iter_bytes(), self.endpoint.settings.most_bytes):
                name = str(line.get("custom_id"))
                if name in missing:
                    self._line_came(batch, name, line)
                    missing.discard(name)

    def _line_came(self, batch: Batch, name: str, line: Json) -> None:
        response = line.get("response")
        status = response.get("status_code") if isinstance(response, dict) else None
        body = response.get("body") if isinstance(response, dict) else None
        try:
            if status == 200:
                raw = self.endpoint.received(body if isinstance(body, dict) else {UNREADABLE: str(body)[:1000]}, None)
            elif isinstance(status, int):
                content = encode_body({"error": body} if not isinstance(body, dict) else body)
                refused = self.endpoint.refusal(status, content)
                again = refused.retry or self.endpoint.learns_form(batch.form, status, content)
                raise CallError(refused.kind, refused.reason, retry=again, billed=refused.billed)
            else:
                raise CallError("timeout", "the batch ended before this request", retry=True)
        except CallError as error:
            self.handlers.error(*key_and_attempt(name), error)
        else:
            self.handlers.reply(*key_and_attempt(name), raw)

    async def _steadily(self, work: Callable[[], Awaitable[T]], seconds: float | None = None) -> T:
        """Do something over HTTP; again, for some minutes, where the server or the way to it is in trouble."""
        import openai

        for number in range(_TRIES):
            try:
                async with asyncio.timeout(seconds or self.endpoint.settings.timeout):
                    return await work()
            except TimeoutError:
                failure = CallError("timeout", "no answer in time", retry=True)
            except CallError as error:
                failure = CallError(error.kind, error.reason, retry=error.retry)
            except openai.APIStatusError as error:
                failure = self.endpoint.refusal(error.status_code, error.response.content, error.response.headers)
            except openai.OpenAIError as error:
                failure = CallError("malformed", f"the answer cannot be read ({type(error).__name__})", retry=True)
            if not failure.retry:
                break
            if number + 1 < _TRIES:
                wait = 0.5 * 2.0**number if failure.after is None else failure.after
                await asyncio.sleep(min(wait, _LONGEST_WAIT))
        raise EndpointError(
            f"{self.endpoint.name} does not do batches now: {failure.reason}. What is on its way is kept in "
            f"{self.folder / STATE}; the same command goes on with it"
        )

    def _line(self, item: BatchItem) -> str:
        body = self.endpoint.body(item.request, item.attempt)
        return encode_body({"custom_id": item.custom_id, "method": "POST", "url": _PATH, "body": body}).decode() + "\n"
