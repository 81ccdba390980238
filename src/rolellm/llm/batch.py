"""The OpenAI Batch API: half the price, an answer within a day, and no batch twice however often a run is killed.

A run's folder holds ``batches.json``, which names every batch before it is made, and ``batches/`` with what is sent. A
batch carries its name at the server, too: one that was made just before a kill is found again in the server's list.
Every reply goes into the journal as it comes; only then is a batch noted as collected. So a line may be read twice,
after a kill in between, but no reply is lost or paid for twice.
"""

from __future__ import annotations

import asyncio
import base64
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from rolellm.core.errors import DataError, EndpointError, SettingsError
from rolellm.core.files import open_atomic, write_json
from rolellm.core.jsonl import read_json, read_jsonl
from rolellm.core.typed_json import read_as
from rolellm.llm.dispatcher import Dispatcher, PendingRequest, compute_worst_cost
from rolellm.llm.estimate import BATCH_SHARE
from rolellm.llm.model import CallError, Json, Outcome, Request, T
from rolellm.llm.openai_format import UNREADABLE, Structured, encode_body, parse_body
from rolellm.llm.retry import compute_delay

if TYPE_CHECKING:
    from openai.types import Batch as ServerBatch

_Found = TypeVar("_Found")

STATE = "batches.json"
#: What OpenAI takes in one batch; the bytes a little less than its 200 MB.
MOST_REQUESTS = 50_000
MOST_BYTES = 190_000_000
_PATH: Literal["/v1/chat/completions"] = "/v1/chat/completions"
_BEING_MADE = "being made"
_OVER = frozenset({"completed", "failed", "expired", "cancelled"})
# How often something is tried over HTTP: for some minutes, which a restarting server takes.
_TRIES = 8
# For a file to go up or come down; the SDK's own default.
_FILE_SECONDS = 600.0


@dataclass(slots=True)
class Batch:
    """A batch, as `batches.json` has it.

    Attributes:
        name: Of its file, and what it is found by at the server.
        count: How many requests are in it.
        form: In which its schemas are asked for.
        file: The id of its file at the server, once it is there.
        id: Its id at the server, once it is made.
        status: As the server last said.
        collected: Whether all that came of it is in the journal.
    """

    name: str
    count: int
    form: Structured
    file: str | None = None
    id: str | None = None
    status: str = "new"
    collected: bool = False


@dataclass(slots=True)
class BatchState:
    """The batches of one folder.

    Attributes:
        run: What all of them carry at the server.
        batches: All of them, in the order in which they were made.
    """

    run: str
    batches: list[Batch]
    folder: Path

    @classmethod
    def of(cls, folder: Path) -> BatchState:
        """Read the state of a run's folder; empty if it has no batches yet.

        Raises:
            DataError: For a state file that is damaged, or that names requests which are not there.
        """
        path = folder / STATE
        if not path.is_file():
            return cls(uuid.uuid4().hex, [], folder)
        state = read_as(cls, read_json(path) | {"folder": folder}, "the record of batches", path=path)
        for batch in state.open:
            file = state.path(batch)
            if not file.is_file():
                raise DataError(f"lists a batch whose requests file {file} is missing; restore it", path=path)
        return state

    @property
    def open(self) -> list[Batch]:
        """Those not yet collected."""
        return [batch for batch in self.batches if not batch.collected]

    def list_underway(self) -> frozenset[str]:
        """The custom ids of all requests in them."""
        return frozenset(name for batch in self.open for name in self.ids(batch))

    def ids(self, batch: Batch) -> Iterator[str]:
        """The custom ids of a batch's requests."""
        return (line["custom_id"] for _, line in read_jsonl(self.path(batch)))

    def path(self, batch: Batch) -> Path:
        """The file of a batch's requests; gone once it is collected."""
        return self.folder / "batches" / f"{batch.name}.jsonl"

    def save(self) -> None:
        """Write the state, complete or not at all."""
        batches = list(map(asdict, self.batches))
        write_json(self.folder / STATE, {"run": self.run, "batches": batches})


class BatchDispatcher(Dispatcher[T]):
    """Asks all in batches, those that need another try in a further one; see `rolellm.llm.dispatcher.Dispatcher`.

    A request to stop leaves batches on their way, to be collected by the next run of the folder.
    """

    _working: asyncio.Task[None] | None = None

    async def go(self, requests: Iterable[tuple[int, Request]], done: Callable[[int, Outcome[T]], None]) -> None:
        """Ask all of them; each outcome goes to `done` with the place that came with its request.

        Args:
            requests: All are read before any is sent.
            done: Called once for each request that is settled.
        """
        from rolellm.llm.endpoint import Endpoint

        model = self.paces[0].model
        if len(self.paces) != 1 or not isinstance(model, Endpoint):
            self.stop(
                SettingsError("batch: true takes one endpoint with the OpenAI Batch API; leave it out for other models")
            )
            return
        self._endpoint = model
        self._waiting: dict[str, PendingRequest[T]] = {}
        self._done, self._exhausted = done, True
        self._working = asyncio.create_task(self._run_rounds(requests))
        try:
            await self._working
        except asyncio.CancelledError:
            if self.stopped is None:
                raise
        except Exception as error:
            self.stop(error)

    def stop(self, error: Exception) -> None:
        """Send and collect nothing more."""
        super().stop(error)
        if self._working is not None:
            self._working.cancel()

    async def _run_rounds(self, requests: Iterable[tuple[int, Request]]) -> None:
        self._state = BatchState.of(self.journal.path.parent)
        self._now.extend(self._begin_all(requests))
        while self._now:
            tasks = list(self._now)
            self._now.clear()
            for lines in _split_chunks(self._lines(tasks)):
                name = f"{self._state.run}-{len(self._state.batches) + 1:04}"
                batch = Batch(name, len(lines), self._endpoint.structured)
                with open_atomic(self._state.path(batch)) as stream:
                    stream.writelines(lines)
                self._state.batches.append(batch)
                self._state.save()
            short = len(self._waiting) < len(tasks)
            await self._finish_open()
            if short:
                raise self._make_budget_error()

    def _lines(self, tasks: Iterable[PendingRequest[T]]) -> Iterator[str]:
        """Make the lines to send for tasks within the budget that are not on their way already."""
        underway = self._state.list_underway()
        for task in tasks:
            key = task.keys[0]
            attempt = self.journal.count(key) + 1
            name = _make_custom_id(key, attempt)
            if name in underway:
                self._waiting[key] = task
                continue
            worst = BATCH_SHARE * compute_worst_cost(self._endpoint, task.chain[-1])
            if not self._has_budget(worst):
                continue
            self._waiting[key] = task
            self.journal.record_sent(key, attempt, self._endpoint.name, worst)
            self.calls += 1
            body = self._endpoint.make_body(task.chain[-1], task.paid + 1)
            yield encode_body({"custom_id": name, "method": "POST", "url": _PATH, "body": body}).decode() + "\n"

    async def _finish_open(self) -> None:
        """Make what is not made, wait for all, and keep what came."""
        for batch in self._state.open:
            if batch.id is None:
                await self._make(batch)
        problems: list[str] = []
        while self._state.open:
            in_flight = 0
            for batch in self._state.open:
                in_flight += batch.count - await self._look(batch, problems)
            self.in_flight = in_flight
            if self._state.open:
                await asyncio.sleep(self.options.batch_poll)
        if problems:
            raise EndpointError("; ".join(problems))

    async def _make(self, batch: Batch) -> None:
        """Send the file and make the batch, unless it was made before a kill or behind a broken connection."""
        if batch.file is None:
            batch.file = await self._retry(partial(self._send, batch), _FILE_SECONDS)
            self._state.save()
        server_batch = await self._retry(partial(self._find_or_create, batch))
        batch.id, batch.status = server_batch.id, server_batch.status
        self._state.save()

    async def _send(self, batch: Batch) -> str:
        with self._state.path(batch).open("rb") as stream:
            file = (f"{batch.name}.jsonl", stream)
            sent = await self._endpoint.get_sdk().files.create(file=file, purpose="batch")
        return sent.id

    async def _find_or_create(self, batch: Batch) -> ServerBatch:
        batches = self._endpoint.get_sdk().batches
        if batch.status == _BEING_MADE:
            async for server_batch in batches.list(limit=100):
                metadata = server_batch.metadata or {}
                if metadata.get("rolellm_batch") == batch.name:
                    return server_batch
        batch.status = _BEING_MADE
        self._state.save()
        return await batches.create(
            completion_window="24h",
            endpoint=_PATH,
            input_file_id=batch.file or "",
            metadata={"rolellm_run": self._state.run, "rolellm_batch": batch.name},
        )

    async def _look(self, batch: Batch, problems: list[str]) -> int:
        """Look at a batch, and collect it if it is over; return how many of its requests are done."""
        endpoint = self._endpoint
        server_batch = await self._retry(lambda: endpoint.get_sdk().batches.retrieve(batch.id or ""))
        if server_batch.status != batch.status:
            batch.status = server_batch.status
            self._state.save()
        if server_batch.status not in _OVER:
            counts = server_batch.request_counts
            return counts.completed + counts.failed if counts else 0
        missing = set(self._state.ids(batch))
        ended = CallError("timeout", f"the batch ended ({server_batch.status}) before this request", retry=True)
        if server_batch.status == "failed":
            ended = self._read_refusal(server_batch)
            problems.append(f"{endpoint.name} refused a batch of {batch.count} requests: {ended.reason}")
        for file in filter(None, (server_batch.output_file_id, server_batch.error_file_id)):
            await self._retry(partial(self._collect, batch, file, missing), _FILE_SECONDS)
        for name in sorted(missing):
            self._handle_result(name, ended)
        self.journal.sync()
        batch.collected = True
        self._state.save()
        self._state.path(batch).unlink(missing_ok=True)
        return batch.count

    def _read_refusal(self, server_batch: ServerBatch) -> CallError:
        errors = server_batch.errors.data if server_batch.errors else None
        messages = "; ".join(error.message or "" for error in errors or [])
        reason = self._endpoint.make_error(400, messages.encode()).reason
        return CallError("bad_request", reason.removeprefix("HTTP 400: "), retry=True)

    async def _collect(self, batch: Batch, file: str, missing: set[str]) -> None:
        """Keep the lines of a file; after a broken connection, those that were not."""
        files = self._endpoint.get_sdk().files.with_streaming_response
        async with files.content(file) as response:
            async for content in _iterate_lines(response.iter_bytes()):
                line = parse_body(content)
                name = str(line.get("custom_id"))
                if name in missing:
                    self._handle_result(name, self._read(batch, name, line))
                    missing.discard(name)

    def _read(self, batch: Batch, name: str, line: Json) -> Json | CallError:
        """Read the raw reply of a line, or the error that it holds."""
        response: Any = line.get("response") or {}
        status, body = response.get("status_code"), response.get("body")
        if not isinstance(status, int):
            return CallError("timeout", "the batch ended before this request", retry=True)
        if status == 200:
            raw = body if isinstance(body, dict) else {UNREADABLE: str(body)[:1000]}
            try:
                return self._endpoint.clean_body(raw, self._find_request(name))
            except CallError as error:
                return error
        content = body if isinstance(body, dict) else {"error": body}
        refused = self._endpoint.make_error(status, encode_body(content))
        form = self._endpoint.get_next_form(batch.form, refused)
        if form is not None:
            self._endpoint.keep_form(form)
            refused.retry = True
        return refused

    def _find_request(self, name: str) -> Request | None:
        """The request with this custom id; ``None`` for one of another stage."""
        task = self._waiting.get(_parse_custom_id(name)[0])
        return task.chain[-1] if task else None

    def _handle_result(self, name: str, came: Json | CallError) -> None:
        """Keep what came of a request, and settle it or have it asked again."""
        key, attempt = _parse_custom_id(name)
        if self.journal.count(key) >= attempt:
            return
        task = self._waiting.pop(key, None)
        if isinstance(came, CallError):
            self._handle_loss(key, attempt, came)
            if task is None:
                return
            _, may_retry = self._wait_of(task, came)
            if may_retry:
                self._now.append(task)
            else:
                self._finish(task, task.make_failure())
            return
        if task is None:
            # It is another stage's, which reads it from the journal.
            self._keep(self._endpoint, key, attempt, None, came, share=BATCH_SHARE)
            return
        self._keep(self._endpoint, key, attempt, task.chain[-1], came, share=BATCH_SHARE)
        self._handle_reply(self.paces[0], task, came)

    async def _retry(self, work: Callable[[], Awaitable[_Found]], seconds: float | None = None) -> _Found:
        """Do something over HTTP; again, for some minutes, where the server or the way to it is in trouble."""
        for number in range(1, _TRIES + 1):
            try:
                return await self._endpoint.send(work, seconds or self._endpoint.settings.timeout)
            except CallError as error:
                failure = error
            if not failure.retry or number == _TRIES:
                break
            await asyncio.sleep(compute_delay(failure, number, self._state.run, self.options.max_wait))
        raise EndpointError(
            f"{self._endpoint.name} cannot process batches now: {failure.reason}. Submitted work is kept in "
            f"{self._state.folder / STATE}; rerun the same command to continue"
        )


async def _iterate_lines(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the lines of a file; the SDK's own also end at the other line breaks of Unicode, which texts may have."""
    rest = b""
    async for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            yield line
    yield rest


def _split_chunks(lines: Iterable[str]) -> Iterator[list[str]]:
    """Lines in as many at a time as one batch takes."""
    chunk: list[str] = []
    size = 0
    for line in lines:
        length = len(line.encode("utf-8"))
        if chunk and (len(chunk) == MOST_REQUESTS or size + length > MOST_BYTES):
            yield chunk
            chunk, size = [], 0
        chunk.append(line)
        size += length
    if chunk:
        yield chunk


def _make_custom_id(key: str, attempt: int) -> str:
    """A key of 64 hexadecimal digits and an attempt in the 64 characters that servers take."""
    return f"{base64.b32encode(bytes.fromhex(key)).decode().rstrip('=')}-{attempt}"


def _parse_custom_id(custom_id: str) -> tuple[str, int]:
    code, _, attempt = custom_id.rpartition("-")
    padding = "=" * (-len(code) % 8)
    return base64.b32decode(code + padding).hex(), int(attempt)
