"""The OpenAI Batch API: half the price, an answer within a day, and no batch twice however often a run is killed.

A run's folder holds ``batches.json``, which names every batch before it is made, and ``batches/`` with what is sent. A
batch carries its name at the server, too: one that was made just before a kill is found again in the server's list.
What comes back is handed on line by line; only then is a batch noted as collected. So a reply may be handed on twice,
after a kill in between, but is never lost and never paid for twice.
"""

from __future__ import annotations

import asyncio
import base64
import json
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rolellm.core.errors import DataError, EndpointError, SettingsError
from rolellm.core.files import whole_file, write_json
from rolellm.core.jsonl import read_jsonl
from rolellm.llm.estimate import BATCH_SHARE
from rolellm.llm.model import CallError, Json, Model, Outcome, Request, T
from rolellm.llm.openai_format import UNREADABLE, Structured, encode_body
from rolellm.llm.run import Run, StopAskingError, Task, judge

if TYPE_CHECKING:
    from openai.types import Batch as ServerBatch

    from rolellm.llm.endpoint import Endpoint

# --- The lines of a batch: a request on its way into a file, files as large as servers take, and what comes back


#: What OpenAI takes in one batch; the bytes a little less than its 200 MB.
MOST_REQUESTS = 50_000
MOST_BYTES = 190_000_000


@dataclass(frozen=True, slots=True)
class BatchItem:
    """A request on its way into a batch.

    Attributes:
        key: What its reply is kept under: `rolellm.llm.model.request_key`, 64 hexadecimal digits.
        attempt: The how-many-th reply to it this is to be, from 1.
        request: What is asked.
    """

    key: str
    attempt: int
    request: Request

    @property
    def custom_id(self) -> str:
        """Key and attempt in the 64 characters that servers take."""
        return f"{base64.b32encode(bytes.fromhex(self.key)).decode().rstrip('=')}-{self.attempt}"


def chunks(lines: Iterable[str]) -> Iterator[list[str]]:
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


def key_and_attempt(custom_id: str) -> tuple[str, int]:
    """Key and attempt of a custom id of ours."""
    key, _, attempt = custom_id.rpartition("-")
    return base64.b32decode(key + "=" * (-len(key) % 8)).hex(), int(attempt)


async def objects(pieces: AsyncIterator[bytes], most: int) -> AsyncIterator[Json]:
    """The objects of a JSON Lines file that comes in pieces; what is none, or longer than `most`, is passed over."""
    rest = b""
    async for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            if (found := _object(line)) is not None:
                yield found
        if len(rest) > most:
            rest = b""
    if (found := _object(rest)) is not None:
        yield found


def _object(line: bytes) -> Json | None:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


# --- What batches a run's folder has: ``batches.json``, and in ``batches/`` the requests of those on their way


STATE = "batches.json"
FOLDER = "batches"


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
        collected: Whether all that came of it was handed on.
    """

    name: str
    count: int
    form: Structured
    file: str | None = None
    id: str | None = None
    status: str = "new"
    collected: bool = False


class BatchState:
    """The batches of one folder, read from it where it has any.

    Args:
        folder: The run's folder; the caller holds its lock.

    Attributes:
        run: What all batches of this folder carry at the server.
        batches: All of them, in the order in which they were made.

    Raises:
        DataError: For a state file that is no such thing, or that names requests which are not there.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run = uuid.uuid4().hex
        self.batches: list[Batch] = []
        self._load()

    @property
    def open(self) -> list[Batch]:
        """Those not yet collected."""
        return [batch for batch in self.batches if not batch.collected]

    def underway(self) -> frozenset[str]:
        """The custom ids of all requests in them (see `rolellm.llm.batch.BatchItem`)."""
        return frozenset(name for batch in self.open for name in self.ids(batch))

    def ids(self, batch: Batch) -> Iterator[str]:
        """The custom ids of a batch's requests."""
        for _, line in read_jsonl(self.path(batch)):
            yield line["custom_id"]

    def path(self, batch: Batch) -> Path:
        """The file of a batch's requests; gone once it is collected."""
        return self.folder / FOLDER / f"{batch.name}.jsonl"

    def save(self) -> None:
        """Write the state, complete or not at all."""
        write_json(self.folder / STATE, {"run": self.run, "batches": [asdict(batch) for batch in self.batches]})

    def _load(self) -> None:
        path = self.folder / STATE
        if not path.is_file():
            return
        try:
            state = json.loads(path.read_bytes())
            self.run, self.batches = str(state["run"]), [Batch(**batch) for batch in state["batches"]]
        except (ValueError, KeyError, TypeError) as error:
            raise DataError("not a record of batches; move it away to begin anew", path=path) from error
        for lost in (file for batch in self.open if not (file := self.path(batch)).is_file()):
            raise DataError(f"names a batch whose requests are not at {lost}; put that file back", path=path)


# --- The OpenAI Batch API: half the price, an answer within a day, and no batch twice however often a run is


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
            async for line in objects(response.iter_bytes(), self.endpoint.settings.max_bytes):
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


# --- A run by the Batch API: the same journal, the same judgement, at half the price and in the server's time


def batch_endpoint(models: list[Model]) -> Endpoint:
    """The endpoint that batches go to.

    Raises:
        SettingsError: When the model is none, or there are several.
    """
    from rolellm.llm.endpoint import Endpoint

    if len(models) != 1 or not isinstance(models[0], Endpoint):
        raise SettingsError("--batch takes one endpoint that has the OpenAI Batch API; leave it out for other models")
    return models[0]


class BatchRun(Run[T]):
    """Asks all in batches, those that need another try in a further one; see `rolellm.llm.run.Run`."""

    async def go(self, requests: Iterable[tuple[int, Request]], done: Callable[[int, Outcome[T]], None]) -> None:
        """Ask all of them; each outcome goes to `done` with the place that came with its request.

        Args:
            requests: All are read before any is sent.
            done: Called once for each request that is settled.
        """
        self._done = done
        self._exhausted = True
        tasks = [task for item in requests if (task := self._begin(*item)) is not None]
        while tasks and self.stopped is None:
            tasks = await self._round(tasks)

    async def _round(self, tasks: list[Task[T]]) -> list[Task[T]]:
        """Have one batch answered; the tasks that go into the next one."""
        endpoint = batch_endpoint([pace.model for pace in self.paces])
        waiting = self._note_sent(endpoint, tasks)
        again: list[Task[T]] = []

        def reply(key: str, attempt: int, raw: Json) -> None:
            # Handed on twice where a kill came between the journal and the note that the batch was collected.
            if self._journal.count(key) < attempt:
                self._came(endpoint, key, attempt, raw, waiting, again)

        def error(key: str, attempt: int, problem: CallError) -> None:
            task, worst = waiting.pop(key, (None, 0.0))
            cost = worst if problem.billed else 0.0
            self._lost(key, attempt, problem, cost)
            self._budget.settle(worst, cost)
            if task is not None:
                self._failed(task, problem, again)

        def progress(done: int, total: int) -> None:
            self.counts.in_flight = total - done

        handlers = Handlers(reply, error, progress, kept=self._journal.sync)
        items = [_item(task) for task, _ in waiting.values()]
        self.counts.in_flight = len(items)
        await self._until_stopped(
            asyncio.create_task(run_batch(endpoint, items, self._folder, handlers, poll=self._options.batch_poll))
        )
        self.counts.in_flight = 0
        if len(items) < len(tasks):
            self.stop(StopAskingError(self._budget.reached, "a larger --budget"))
        return again

    @property
    def _folder(self) -> Path:
        return self._journal.path.parent

    def _note_sent(self, endpoint: Endpoint, tasks: list[Task[T]]) -> dict[str, tuple[Task[T], float]]:
        """The tasks that the budget has room for, with what was set aside for each."""
        underway = BatchState(self._folder).underway()
        waiting: dict[str, tuple[Task[T], float]] = {}
        for task in tasks:
            key = task.keys[0]
            if _item(task).custom_id in underway:
                worst = self._journal.worst_open(key)
                self._budget.set_aside_again(worst)
            else:
                worst = BATCH_SHARE * self._budget.worst(endpoint, task.next_request)
                if not self._budget.reserve(worst):
                    break
                self._journal.sent(key, task.paid + 1, endpoint.name, worst)
                self.counts.calls += 1
            waiting[key] = task, worst
        return waiting

    def _came(
        self,
        endpoint: Endpoint,
        key: str,
        attempt: int,
        raw: Json,
        waiting: dict[str, tuple[Task[T], float]],
        again: list[Task[T]],
    ) -> None:
        if key not in waiting:
            # Of another stage: what it says of tokens cannot be checked here, and the budget has all it can cost.
            self._keep(endpoint, key, attempt, None, raw, self._journal.worst_open(key))
            return
        task, worst = waiting.pop(key)
        raw = endpoint.counted(dict(raw), task.request)
        cost = self._keep(endpoint, key, attempt, task.request, raw, worst, share=BATCH_SHARE)
        self._budget.settle(worst, cost)
        self.counts.in_flight = len(waiting)
        task.paid += 1
        task.tries += 1
        answer = judge(task, endpoint, raw, self._accept, self._also)
        if answer is not None:
            self._finish(task, answer)
        else:
            self._again(task, again)

    def _failed(self, task: Task[T], problem: CallError, again: list[Task[T]]) -> None:
        task.tries += 1
        task.last = problem.kind, problem.reason, None
        if problem.retry:
            self._again(task, again)
        else:
            self._finish(task, task.failure())

    def _again(self, task: Task[T], again: list[Task[T]]) -> None:
        if task.tries < task.allowed and task.may_change:
            again.append(task)
        else:
            self._finish(task, task.failure())

    async def _until_stopped(self, work: asyncio.Task[None]) -> None:
        """Wait for a batch; a request to stop leaves it on its way, to be collected by the next run."""
        while not work.done() and self.stopped is None:
            changed = asyncio.create_task(self._changed.wait())
            await asyncio.wait({work, changed}, return_when=asyncio.FIRST_COMPLETED)
            changed.cancel()
        if not work.done():
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
        elif (error := work.exception()) is not None:
            self.stop(error if isinstance(error, Exception) else RuntimeError(str(error)))


def _item(task: Task[T]) -> BatchItem:
    return BatchItem(task.keys[0], task.paid + 1, task.next_request)
