"""Asking many requests at once: bounded concurrency, retries that hold nobody up, replies on disk before read."""

from __future__ import annotations

import asyncio
import heapq
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final, Generic

from rolellm.llm.journal import Journal, JournalFullError
from rolellm.llm.model import (
    Accept,
    Answer,
    CallError,
    Failure,
    FailureKind,
    Finish,
    Json,
    Model,
    Outcome,
    Reply,
    Request,
    RunOptions,
    ServedModel,
    T,
    UnacceptableError,
    Usage,
    assistant,
    request_key,
    user,
)
from rolellm.llm.retry import Pace, compute_delay, is_of_the_endpoint
from rolellm.llm.tokens import count_most_prompt_tokens

_ENDED: dict[Finish, str] = {
    "length": "the reply was cut off at the token limit",
    "filtered": "the server's content filter removed the reply",
    "refused": "the model refused",
    "empty": "the reply is empty",
}


@dataclass(slots=True, eq=False)
class PendingRequest(Generic[T]):
    """A request on its way.

    Attributes:
        position: The caller's number of the request.
        request: The request as the caller made it.
        chain: `request` and the repairs that followed it; the last of them is sent next.
        keys: The journal's key of the last of the chain, for each model.
        first_keys: The same of `request`, by which an equal request is found.
        tries: Calls that count against `allowed`: replies ever paid for, and faults in this run.
        paid: Replies ever paid for.
        allowed: The most tries.
        started_at: When it was first sent in this run, by `time.monotonic`.
        limited: How often it was over the rate limit, which counts against nothing.
        waited: Seconds that it was told to wait for that.
        refused: Why replies were not taken.
        best: The best reply so far that is better than none, as an answer.
        refused_by: The indices of endpoints that refuse it.
        last: How the last try failed.
        feedback: Why the last reply was not taken, for the model.
        followers: Requests that ask the same, and are settled with it.
    """

    position: int
    request: Request
    chain: list[Request]
    keys: tuple[str, ...]
    first_keys: tuple[str, ...]
    tries: int = 0
    paid: int = 0
    allowed: int = 0
    started_at: float = 0.0
    limited: int = 0
    waited: float = 0.0
    refused: list[str] = field(default_factory=list)
    best: Answer[T] | None = None
    refused_by: set[int] = field(default_factory=set)
    last: tuple[FailureKind, str, Reply | None] = ("connection", "was not asked", None)
    feedback: str = ""
    followers: list[tuple[int, Request]] = field(default_factory=list)

    def make_failure(self) -> Outcome[T]:
        """Return the best reply, or a failure if there is none."""
        if self.best is not None:
            return replace(self.best, attempts=self.paid, refused=tuple(self.refused))
        kind, reason, reply = self.last
        attempts = self.tries + self.limited + len(self.refused_by)
        return Failure(self.request, kind, reason, attempts, reply, tuple(self.refused))

    @property
    def may_change(self) -> bool:
        """True if another attempt can bring another reply.

        A reply that was cut off, filtered or refused was so for what is in the request; at temperature 0 so is any
        other. A model that was shown what was wrong and wrote the same again will go on doing so. What was no reply at
        all, or an empty one, was a fault.
        """
        kind, _, reply = self.last
        if reply is None or kind == "empty":
            return True
        if kind in _ENDED:
            return False
        is_shown = self.request.repair and self.request.quotes
        is_sampled = self.request.sampling.temperature > 0 and not is_shown
        return is_sampled or self.repair is not None

    @property
    def repair(self) -> Request | None:
        """The request to repair the last reply; ``None`` if there is none, or it was sent before."""
        kind, _, reply = self.last
        if not self.request.repair or reply is None or kind in _ENDED:
            return None
        *before, last = self.request.messages
        if self.request.quotes:
            instruction = self.request.repair.replace("{problem}", self.feedback)
            added = [last, assistant(reply.text), user(instruction)]
        else:
            added = [replace(last, content=f"{last.content}\n\n{self.request.repair}")]
        mended = replace(self.request, messages=(*before, *added))
        return None if mended in self.chain else mended


#: Journaled replies read in one go, before others get a turn.
_AT_ONCE = 64
#: A request that was told to wait this many times the longest pause, and is still over the limit, is given up.
_PATIENCE = 10
# What sums of many small amounts may be off by, in US dollars.
_DUST = 1e-12

#: The reason of a stop on Ctrl-C.
STOP_REQUEST: Final = "asked to stop"


class StopAskingError(Exception):
    """Raised within a run to end it: nothing more is sent, and calls in flight are waited for.

    Args:
        reason: What stopped it, in words.
        need: What it takes to go on, in words.
    """

    def __init__(self, reason: str, need: str = "") -> None:
        super().__init__(reason)
        self.need = need


def compute_worst_cost(model: Model, request: Request) -> float:
    """The most that a call can cost, in US dollars: no text has more tokens than bytes."""
    if not model.price:
        return 0.0
    return model.price.worst.cost(Usage(count_most_prompt_tokens(request), request.sampling.max_tokens))


@dataclass(eq=False)
class Dispatcher(Generic[T]):
    """One pass over requests; see `rolellm.llm.client.Client`, which makes and drives it.

    Attributes:
        models: Who is asked; each is given as many calls at once as it takes.
        journal: Where replies are kept and looked up.
        options: How often, for how much, and how long to wait.
        accept: Makes a value of a reply.
        also: Ways for a reply to end, next to ``stop``, that `accept` judges.
        stopped: The error that ended the pass early.
        settled: Requests with an outcome so far.
        failed: Those of them without an answer.
        in_flight: Calls that wait for a reply.
        calls: Calls that went out.
        from_journal: Requests that journaled replies settled.
    """

    models: Sequence[Model]
    journal: Journal
    options: RunOptions
    accept: Accept[T]
    also: Collection[Finish] = ()
    stopped: Exception | None = None

    def __post_init__(self) -> None:
        self.settled = self.failed = self.in_flight = self.calls = self.from_journal = 0
        self.paces = [Pace(model, index) for index, model in enumerate(self.models)]
        self._active: dict[tuple[str, ...], PendingRequest[T]] = {}
        self._now: deque[PendingRequest[T]] = deque()
        self._later: list[tuple[float, int, PendingRequest[T]]] = []
        self._exhausted = False
        self._changed = asyncio.Event()

    async def go(self, requests: Iterable[tuple[int, Request]], done: Callable[[int, Outcome[T]], None]) -> None:
        """Ask all of them; each outcome goes to `done` with the place that came with its request.

        Args:
            requests: Taken from one at a time, as there is room to ask.
            done: Called once for each request that is settled: all of them, unless the run is stopped.
        """
        self._source = iter(requests)
        self._done = done
        syncing = asyncio.create_task(self._sync())
        try:
            async with asyncio.TaskGroup() as workers:
                for pace in self.paces:
                    for _ in range(max(pace.model.concurrency, 1)):
                        workers.create_task(self._run_worker(pace))
        finally:
            syncing.cancel()
            await asyncio.gather(syncing, return_exceptions=True)
        if any(pace.ever_answered for pace in self.paces):
            for pace in self.paces:
                pace.alive = pace.alive and not pace.is_hopeless

    def stop(self, error: Exception) -> None:
        """Send nothing more; what is in flight is waited for."""
        if self.stopped is None:
            self.stopped = error
        self._notify()

    async def _run_worker(self, pace: Pace) -> None:
        try:
            while True:
                task = await self._get_next(pace)
                if task is None:
                    return
                await self._try_once(pace, task)
        except Exception as error:  # Whatever it is, what is in flight was paid for and is waited for.
            self.stop(error)

    async def _get_next(self, pace: Pace) -> PendingRequest[T] | None:
        while self.stopped is None and pace.alive:
            if self._is_over:
                self._notify()
                return None
            if pace.wait() > 0:
                # One looks at the clock for all: at a high rate they would do nothing but wake each other.
                async with pace.gate:
                    if self.stopped is None and pace.alive and not self._is_over:
                        await self._wait(pace.wait())
                continue
            task = self._take(pace)
            if task is not None:
                return task
            if not self._exhausted:
                await asyncio.sleep(0)
            elif self._active:
                await self._wait(self._get_seconds_to_retry())
        return None

    def _get_seconds_to_retry(self) -> float | None:
        if not self._later:
            return None
        # One may have come due since `_take` looked for it.
        return max(self._later[0][0] - time.monotonic(), 0.0)

    @property
    def _is_over(self) -> bool:
        return self._exhausted and not self._active

    def _take(self, pace: Pace) -> PendingRequest[T] | None:
        """A task that is ready; none, too, where journaled replies have taken long enough to let others have a turn."""
        while self._later and self._later[0][0] <= time.monotonic():
            _, _, due_task = heapq.heappop(self._later)
            self._move_on(due_task)
        for task in self._now:
            if pace.index not in task.refused_by:
                self._now.remove(task)
                return task
        for _ in range(_AT_ONCE):
            item = next(self._source, None)
            if item is None:
                self._exhausted = True
                return None
            new_task = self._begin(*item)
            if new_task is not None:
                return new_task
        return None

    def _begin_all(self, requests: Iterable[tuple[int, Request]]) -> list[PendingRequest[T]]:
        """The tasks of requests that need one."""
        tasks = [self._begin(position, request) for position, request in requests]
        return [task for task in tasks if task is not None]

    def _begin(self, position: int, request: Request) -> PendingRequest[T] | None:
        """A task for a request, unless journaled replies settle it, or one like it is on its way."""
        keys = self._make_keys(request)
        active_task = self._active.get(keys)
        if active_task is not None:
            active_task.followers.append((position, request))
            return None
        task: PendingRequest[T] = PendingRequest(position, request, [request], keys, keys)
        if self._read_journal(task):
            return None
        self._active[keys] = task
        return task

    def _make_keys(self, request: Request) -> tuple[str, ...]:
        return tuple(request_key(pace.model, request) for pace in self.paces)

    def _repair(self, task: PendingRequest[T]) -> bool:
        """Go over to asking for the last reply again, mended; whether that is something new to ask."""
        mended = task.repair
        if mended is None:
            return False
        task.chain.append(mended)
        task.keys = self._make_keys(mended)
        return True

    def _read_journal(self, task: PendingRequest[T]) -> bool:
        is_repaired = False
        while True:
            replies = list(self.journal.read_replies(task.keys))
            for index, raw in replies:
                task.paid += 1
                answer = self._judge(task, index, raw)
                if answer is not None:
                    self.from_journal += 1
                    self._settle(task, answer)
                    return True
            if not replies:
                break
            is_repaired = self._repair(task)
            if not is_repaired:
                break
        task.tries = task.paid
        again = self.options.retry_failed
        task.allowed = self.options.max_attempts + (task.paid if again else 0)
        if task.tries < task.allowed and (again or is_repaired or task.may_change):
            return False
        self.from_journal += 1
        self._settle(task, task.make_failure())
        return True

    async def _try_once(self, pace: Pace, task: PendingRequest[T]) -> None:
        model, request = pace.model, task.chain[-1]
        if isinstance(model, ServedModel):
            await model.start(self.journal.path.parent, lambda: self.stopped is not None)
        worst = compute_worst_cost(model, request)
        while not self._has_budget(worst):
            if self.in_flight == 0:
                self.stop(self._make_budget_error())
            if self.stopped is not None:
                return
            await self._wait(None)
        key = task.keys[pace.index]
        number = self.journal.count(key) + 1
        try:
            self.journal.record_sent(key, number, model.name, worst)
        except JournalFullError as error:
            self.stop(error)
            return
        self.in_flight += 1
        self.calls += 1
        sent = pace.record_sent()
        task.started_at = task.started_at or sent
        try:
            raw = await model.call(request, task.paid + 1)
            self._keep(model, key, number, request, raw)
        except CallError as error:
            self._handle_loss(key, number, error)
            self._retry_or_finish(pace, task, error, sent)
        except JournalFullError as error:
            self.stop(error)
        else:
            self._handle_reply(pace, task, raw)
        finally:
            # A call that was cut off in the middle has no end in the journal, and counts as the most it can cost.
            self.in_flight -= 1
            if self.options.budget is not None or not self.in_flight:
                self._notify()

    def _has_budget(self, worst: float) -> bool:
        limit = self.options.budget
        return limit is None or self.journal.cost + worst <= limit + _DUST

    def _make_budget_error(self) -> StopAskingError:
        budget = f"budget of {self.options.budget or 0:g} US dollars ({self.journal.cost:.2g} spent)"
        return StopAskingError(f"another call might go beyond the {budget}", "a larger --budget")

    def _keep(
        self, model: Model, key: str, number: int, request: Request | None, raw: Json, share: float = 1.0
    ) -> None:
        """Put a reply into the journal, at this share of the usual price; without a request at the most it can cost."""
        cost = self.journal.get_worst_open(key)
        facts: dict[str, str] = {"model": model.name}
        if request is not None:
            facts |= {"tag": request.tag, "prompt_hash": request.prompt_hash}
            with suppress(UnacceptableError):
                cost = share * model.price.cost(model.read(raw).usage)
        self.journal.reply(key, number, raw, cost, facts)

    def _handle_reply(self, pace: Pace, task: PendingRequest[T], raw: Json) -> None:
        task.paid += 1
        task.tries += 1
        pace.record_reply()
        answer = self._judge(task, pace.index, raw)
        if answer is not None:
            self._finish(task, answer)
        elif task.tries >= task.allowed or not task.may_change:
            self._finish(task, task.make_failure())
        else:
            self._repair(task)
            self._now.append(task)
            self._notify()

    def _judge(self, task: PendingRequest[T], index: int, raw: Json) -> Answer[T] | None:
        """Make an answer of a raw reply, counted as paid already; where it is none, the task knows why."""
        reply: Reply | None = None
        try:
            reply = self.models[index].read(raw)
            if reply.finish == "stop" or reply.finish in self.also:
                value = self.accept(task.request, reply)
                return Answer(task.request, value, reply, task.paid, tuple(task.refused), task.keys[index])
            kind: FailureKind = reply.finish
            reason = _ENDED[reply.finish]
        except UnacceptableError as error:
            kind, reason, task.feedback = error.kind, error.reason, error.feedback
            is_worse = task.best is not None and len(task.best.defects) < len(error.defects)
            if error.usable is not None and reply is not None and not is_worse:
                key = task.keys[index]
                task.best = Answer(task.request, error.usable, reply, key=key, defects=error.defects)
        task.last = kind, reason, reply
        task.refused.append(reason)
        return None

    def _handle_loss(self, key: str, number: int, error: CallError) -> None:
        cost = self.journal.get_worst_open(key) if error.billed else 0.0
        try:
            self.journal.record_lost(key, number, f"{error.kind}: {error.reason}", cost)
        except JournalFullError as full:
            self.stop(full)

    def _wait_of(self, task: PendingRequest[T], error: CallError) -> tuple[float, bool]:
        """Note a failure; how long to wait for the next try, and whether there is one."""
        task.last = error.kind, error.reason, None
        longest = self.options.max_wait
        if error.kind == "rate_limited":
            # The server's pace, not the request's fault; but one that is too large for the limit never gets through.
            task.limited += 1
            wait = compute_delay(error, task.limited, task.keys[0], longest)
            task.waited += wait
            return wait, task.waited < _PATIENCE * longest
        task.tries += 1
        wait = compute_delay(error, task.tries, task.keys[0], longest)
        return wait, error.retry and task.tries < task.allowed

    def _retry_or_finish(self, pace: Pace, task: PendingRequest[T], error: CallError, sent: float) -> None:
        wait, again = self._wait_of(task, error)
        # With nothing left to ask, those that failed on the way are all that is left: no sign that nobody answers.
        silent = not again and not self._exhausted and task.started_at > pace.answered_at
        pace.record_failure(error, wait, sent, silent=silent)
        if again:
            heapq.heappush(self._later, (time.monotonic() + wait, task.position, task))
            self._notify()
        elif is_of_the_endpoint(error):
            # This does not count against what is allowed with the others.
            task.tries -= 1
            task.refused_by.add(pace.index)
            self._move_on(task)
        else:
            self._finish(task, task.make_failure())
        if not any(pace.alive for pace in self.paces):
            self.stop(StopAskingError("no endpoint answers"))
        elif not pace.alive:
            stranded = [task for task in self._now if task.refused_by]
            for task in stranded:
                self._now.remove(task)
                self._move_on(task)

    def _move_on(self, task: PendingRequest[T]) -> None:
        """Leave a task to the endpoints that have not refused it; without any, it is given up."""
        remaining = [pace for pace in self.paces if pace.alive and pace.index not in task.refused_by]
        if not remaining:
            self._finish(task, task.make_failure())
        else:
            self._now.append(task)
            self._notify()

    def _finish(self, task: PendingRequest[T], outcome: Outcome[T]) -> None:
        self._active.pop(task.first_keys, None)
        self._settle(task, outcome)
        if self._is_over:
            self._notify()

    def _settle(self, task: PendingRequest[T], outcome: Outcome[T]) -> None:
        self.settled += 1 + len(task.followers)
        if isinstance(outcome, Failure):
            self.failed += 1 + len(task.followers)
        self._done(task.position, outcome)
        for position, request in task.followers:
            self._done(position, self._copy_outcome(request, outcome))

    def _copy_outcome(self, request: Request, outcome: Outcome[T]) -> Outcome[T]:
        """The outcome of one request as that of another that asks the same."""
        if isinstance(outcome, Failure):
            return replace(outcome, request=request)
        return replace(outcome, request=request, value=self.accept(request, outcome.reply))

    async def _wait(self, seconds: float | None) -> None:
        """Wait until something changes, for at most this many seconds."""
        changed = self._changed
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await changed.wait()

    def _notify(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def _sync(self) -> None:
        """Put the journal on the disk every second: a power cut may cost a second of replies, a killed process none."""
        try:
            while True:
                await asyncio.sleep(1.0)
                await asyncio.to_thread(self.journal.sync)
        except Exception as error:  # A disk that takes nothing any more, as network file systems find out only now.
            self.stop(error)
