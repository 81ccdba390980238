"""A run by the Batch API: the same journal, the same judgement, at half the price and in the server's time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path

from rolellm.errors import RecipeError
from rolellm.llm.batch import Handlers, run_batch
from rolellm.llm.batch_lines import BatchItem
from rolellm.llm.batch_state import BatchState
from rolellm.llm.endpoint import Endpoint
from rolellm.llm.estimate import BATCH_SHARE
from rolellm.llm.model import CallError, Json, Model, Outcome, Request, T
from rolellm.llm.run import Run, StopAskingError
from rolellm.llm.task import Task, judge


def batch_endpoint(models: list[Model]) -> Endpoint:
    """The endpoint that batches go to.

    Raises:
        RecipeError: When the model is none, or there are several.
    """
    if len(models) != 1 or not isinstance(models[0], Endpoint):
        raise RecipeError("--batch takes one endpoint that has the OpenAI Batch API; leave it out for other models")
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
                worst = BATCH_SHARE * self._budget.worst(endpoint, task.request)
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
        if task.tries < task.allowed:
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
    return BatchItem(task.keys[0], task.paid + 1, task.request)
