"""Asks models on behalf of a stage, in a run folder that keeps every reply.

A second run of the same stage in the same folder takes from the journal what was paid for already, whatever stopped the
first: it asks only what has no answer yet.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rolellm.core.errors import EndpointError, RoleLLMError, RoleLLMWarning, SettingsError, StoppedShortError
from rolellm.core.fingerprint import hash_json
from rolellm.core.interrupts import run_to_end
from rolellm.core.jsonl import write_jsonl
from rolellm.core.locks import lock_folder
from rolellm.core.progress import open_bar
from rolellm.core.text import format_count
from rolellm.llm.batch import STATE, BatchDispatcher, BatchState
from rolellm.llm.dispatcher import STOP_REQUEST, Dispatcher, StopAskingError
from rolellm.llm.journal import Journal, JournalFullError
from rolellm.llm.model import (
    Accept,
    Answer,
    Failure,
    Finish,
    Model,
    Outcome,
    Reply,
    Request,
    RunOptions,
    ServedModel,
    T,
    Usage,
    accept_text,
)
from rolellm.llm.openai_format import is_same_model
from rolellm.llm.scale import RayDispatcher

FAILED = "failed.jsonl"
# Seconds between two updates of the progress.
_SECONDS_SHOWN = 0.25
# A server may make up a name for each reply.
_MOST_NAMES = 20


def order_by_prefix(requests: Sequence[Request]) -> list[int]:
    """The places of requests in the order to ask them; requests of one beginning keep their own order.

    A beginning is the first message, by its text. The beginnings that save the most go first: their length times the
    number of requests that need not pay for it again.
    """
    beginnings = [request.messages[0].content for request in requests]
    rank = {}
    for index, (text, times) in enumerate(Counter(beginnings).items()):
        rank[text] = (-len(text) * (times - 1), index)
    return sorted(range(len(requests)), key=lambda index: rank[beginnings[index]])


@dataclass(slots=True)
class Spent:
    """Calls, tokens and cost of a client so far.

    Attributes:
        calls: Calls that went out, faults included.
        from_journal: Requests that journaled replies settled.
        failed: Requests without an answer.
        usage: Tokens of the replies that were taken, journaled ones included.
        cost: US dollars that this folder cost in all, calls of unknown end counted in full.
        answered_by: How many requests each model answered, by the name that it gives itself.
    """

    calls: int = 0
    from_journal: int = 0
    failed: int = 0
    usage: Usage = field(default_factory=Usage)
    cost: float = 0.0
    answered_by: dict[str, int] = field(default_factory=dict)


class Client(ExitStack):
    """A run folder, its journal, and the models to ask; a context manager.

    Args:
        folder: The run's folder, made where it is not there; held by a lock while the client is open.
        models: Who is asked. With several, each request goes to the next one that is free.
        options: How often to ask, for how much, and what to show.

    Attributes:
        spent: Calls, tokens and cost so far.
        asked: Number of requests so far.
        unanswered: Number of those without an answer.

    Raises:
        RunInUseError: When another process holds the folder; names that one.
        SettingsError: For no models, or a budget without prices.
        StoppedShortError: When the disk is full.
    """

    def __init__(self, folder: str | Path, models: Sequence[Model], options: RunOptions | None = None) -> None:
        if not models:
            raise SettingsError("there is no model to ask; name an endpoint")
        self.folder = Path(folder)
        self.models = list(models)
        self.options = options or RunOptions()
        self.spent = Spent()
        self.asked = self.unanswered = 0
        self._failed: dict[str, dict[str, Any]] = {}
        unpriced = [model.name for model in self.models if not (model.price or getattr(model, "free", False))]
        if unpriced and self.options.budget is not None:
            raise SettingsError(
                f"a budget needs prices, but there is none for {', '.join(unpriced)}; give its `price` in the settings "
                "file (docs/models.md), or leave out the budget"
            )
        super().__init__()
        with ExitStack() as opened:
            opened.enter_context(lock_folder(self.folder))
            try:
                self._journal = Journal(self.folder)
                opened.callback(self._journal.close)
                self._journal.merge()
            except JournalFullError as error:
                text = f"{error}; everything so far is saved; free some space there to continue"
                raise StoppedShortError(text, resume="the same command") from error
            self.callback(opened.pop_all().close)
        self.callback(self.stop_servers)
        self.spent.cost = self._journal.cost
        if self._journal.harm:
            warnings.warn(self._journal.harm, RoleLLMWarning, stacklevel=2)

    def stop_servers(self) -> None:
        """End the servers that were started for its models; the next request starts them again."""
        for model in self.models:
            if isinstance(model, ServedModel):
                model.stop()

    def ask(
        self,
        requests: Iterable[Request],
        accept: Accept[T] = accept_text,  # type: ignore[assignment]  # no default can be tied to the variable
        *,
        label: str = "",
        also: Collection[Finish] = (),
    ) -> list[Outcome[T]]:
        """Ask all of them, those with a long shared beginning first.

        Args:
            requests: What to ask.
            accept: Makes a value of a reply, or raises `rolellm.llm.model.UnacceptableError` to have it asked again; by
                default any text is accepted. It sees journaled replies again, so it must not depend on anything else.
            label: Of the progress bar.
            also: Ways for a reply to end, next to ``stop``, that are for `accept` to judge, such as ``length``.

        Returns:
            Outcomes in the order of the requests.

        Raises:
            StoppedShortError: At the budget, on Ctrl-C or with a full disk; says what is kept.
            EndpointError: When no endpoint answers.
            SettingsError: For a batch with a model that takes none, and without one while batches are on their way.
        """
        listed = list(requests)
        outcomes: dict[int, Outcome[T]] = {}
        ordered = ((index, listed[index]) for index in order_by_prefix(listed))
        self.ask_each(ordered, accept, outcomes.__setitem__, label=label, total=len(listed), also=also)
        return [outcomes[index] for index in sorted(outcomes)]

    def ask_each(
        self,
        requests: Iterable[tuple[int, Request]],
        accept: Accept[T],
        done: Callable[[int, Outcome[T]], None],
        *,
        label: str = "",
        total: int | None = None,
        also: Collection[Finish] = (),
    ) -> None:
        """Ask requests as they come, and hand each outcome on as it comes; nothing is held in memory. See `ask`.

        Args:
            requests: A number of the caller's and a request each; taken from as there is room to ask.
            accept: As for `ask`.
            done: Called with the number and the outcome; from the thread that asks.
            label: Of the progress bar.
            total: How many requests there are, for the bar.
            also: As for `ask`.
        """
        self._check_open()
        run = self._make_dispatcher(accept, also)

        def record_outcome(index: int, outcome: Outcome[T]) -> None:
            self._record_outcome(outcome)
            done(index, outcome)

        def stop() -> None:
            # Batches are not waited for.
            if run.stopped is None and run.in_flight and not self.options.batch:
                calls = format_count(run.in_flight, "call")
                sys.stderr.write(f"stopping; waiting for {calls} in flight (Ctrl-C again to drop them)\n")
            run.stop(StopAskingError(STOP_REQUEST))

        async def ask_all() -> None:
            showing = asyncio.create_task(self._show_progress(run, bar))
            try:
                await run.go(requests, record_outcome)
            finally:
                showing.cancel()
                bar.update(run.settled - bar.n)
                await asyncio.gather(*(model.close() for model in self.models), return_exceptions=True)

        try:
            with open_bar(label or "asking", total, unit="requests", show=self.options.show_progress) as bar:
                run_to_end(ask_all, stop)
        finally:
            self._count(run)
        if run.stopped is not None:
            raise self._make_error(run, run.stopped)
        for pace in run.paces:
            if not pace.alive and pace.last is not None:
                text = f"{pace.model.name} was dropped ({pace.last[1]}); other endpoints answered instead"
                warnings.warn(text, RoleLLMWarning, stacklevel=3)

    async def _show_progress(self, run: Dispatcher[Any], bar: Any) -> None:
        has_price = any(model.price for model in self.models)
        while True:
            state = f"{run.in_flight} in flight, {run.failed} failed"
            if has_price:
                state += f", ${self._journal.spent:.4f}"
            bar.set_postfix_str(state, refresh=False)
            bar.update(run.settled - bar.n)
            await asyncio.sleep(_SECONDS_SHOWN)

    def _make_dispatcher(self, accept: Accept[T], also: Collection[Finish]) -> Dispatcher[T]:
        if self.options.batch:
            return BatchDispatcher(self.models, self._journal, self.options, accept, also)
        if self.options.ray:
            return RayDispatcher(self.models, self._journal, self.options, accept, also, ask_shard=_ask_shard)
        return Dispatcher(self.models, self._journal, self.options, accept, also)

    def _check_open(self) -> None:
        """Refuse to ask with a closed client, and one by one what batches are on their way for."""
        if self._journal.closed:
            # The journal's file descriptor may be another file's by now.
            raise SettingsError(f"this client is closed; ask within its `with` block, or open another on {self.folder}")
        if self.options.batch:
            return
        underway = BatchState.of(self.folder).list_underway()
        if underway:
            raise SettingsError(
                f"{len(underway)} requests of {self.folder} are submitted in batches and paid for; continue with "
                f"batch: true in the settings file, or move {self.folder / STATE} away to submit them again"
            )

    def _record_outcome(self, outcome: Outcome[Any]) -> None:
        request = outcome.request
        self.asked += 1
        self.unanswered += isinstance(outcome, Failure)
        if outcome.reply is not None:
            self._check_reply(outcome.reply)
        if isinstance(outcome, Answer):
            self.spent.usage += outcome.reply.usage
            if self._failed:
                self._failed.pop(hash_json(request.payload()), None)
            return
        payload = request.payload()
        self._failed[hash_json(payload)] = {
            "tag": request.tag,
            "kind": outcome.kind,
            "reason": outcome.reason,
            "attempts": outcome.attempts,
            "refused": list(outcome.refused),
            "request": payload,
        }

    def _check_reply(self, reply: Reply) -> None:
        """Count who answered; warn when that is not who was asked."""
        answered_by = self.spent.answered_by
        name = reply.model[:200]
        if name not in answered_by:
            if len(answered_by) >= _MOST_NAMES:
                name = "others"
            elif not is_same_model(reply.endpoint, name):
                text = f"{reply.endpoint} was asked, but {name!r} answered; see answered_by in the results"
                warnings.warn(text, RoleLLMWarning, stacklevel=2)
        answered_by[name] = answered_by.get(name, 0) + 1

    def _count(self, run: Dispatcher[Any]) -> None:
        self.spent.calls += run.calls
        self.spent.from_journal += run.from_journal
        self.spent.failed = len(self._failed)
        self.spent.cost = self._journal.cost
        path = self.folder / FAILED
        if not self._failed:
            path.unlink(missing_ok=True)
            return
        # On a full disk the failures are found again from the journal.
        with suppress(OSError):
            write_jsonl(path, self._failed.values())

    def _make_error(self, run: Dispatcher[Any], stop: Exception) -> Exception:
        if isinstance(stop, JournalFullError):
            return self._make_stopped_short(str(stop), "free space there")
        if not isinstance(stop, StopAskingError):
            return stop
        if any(pace.alive for pace in run.paces):
            return self._make_stopped_short(str(stop), stop.need)
        reasons = [f"{pace.model.name}: {pace.last[1]}" for pace in run.paces if pace.last is not None]
        last = "; ".join(reasons)
        if any(pace.ever_answered for pace in run.paces):
            need = "an endpoint that answers: check the key, the account's credit, the model's name and the address"
            return self._make_stopped_short(f"no endpoint answers anymore ({last})", need)
        return EndpointError(
            f"every endpoint refused the requests ({last}); {self._describe_kept()}. Check the model's name, the "
            "key's environment variable and the address, then rerun the same command"
        )

    def _make_stopped_short(self, reason: str, need: str) -> StoppedShortError:
        more = f"; to continue, it needs {need}" if need else ""
        return StoppedShortError(f"{reason}; {self._describe_kept()}{more}", resume="the same command")

    def _describe_kept(self) -> str:
        return f"{format_count(len(self._journal), 'reply is', 'replies are')} kept in {self.folder}"


def _ask_shard(shard: str, items: Sequence[tuple[int, Request]], setup: tuple[Any, ...]) -> str:
    """Ask a Ray worker's part in a folder of its own; return the reason if it stopped early.

    Raises:
        SettingsError: When it cannot ask at all.
    """
    models, accept, also, options = setup
    where = f"a Ray worker on {socket.gethostname()}"
    if not Path(shard).parent.is_dir():
        raise SettingsError(
            f"{where} does not see {Path(shard).parent}; put the run's folder on a file system that all machines share"
        )
    try:
        with Client(shard, models, options) as client:
            client.ask_each(items, accept, lambda *_: None, also=also)
    except (StoppedShortError, EndpointError) as error:
        return f"{where} stopped early: {error}"
    except RoleLLMError as error:
        raise SettingsError(f"{where}: {error}") from None
    return ""
