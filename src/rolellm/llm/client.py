"""Asks models on behalf of a stage, in a run folder that keeps every reply.

A second run of the same stage in the same folder takes from the journal what was paid for already, whatever stopped the
first: it asks only what has no answer yet.
"""

from __future__ import annotations

import asyncio
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, overload

from rolellm.core.errors import EndpointError, SettingsError, StoppedShortError
from rolellm.core.fingerprint import hash_json
from rolellm.core.jsonl import write_jsonl
from rolellm.core.text import number_of
from rolellm.llm.batch import STATE, BatchRun, BatchState
from rolellm.llm.journal import Journal, JournalFullError
from rolellm.llm.model import (
    Accept,
    Answer,
    EndpointWarning,
    Finish,
    Model,
    Outcome,
    Reply,
    Request,
    RunOptions,
    T,
    Usage,
    text_of,
)
from rolellm.llm.openai_format import disputed, same_model
from rolellm.llm.run import Run, StopAskingError
from rolellm.llm.scale import RayRun
from rolellm.runtime.interrupts import run_to_end
from rolellm.runtime.locks import locked
from rolellm.runtime.progress import Progress

FAILED = "failed.jsonl"
# Bytes of disk kept free for the reply of each call in flight: several times the longest usual one (our choice).
_RESERVE_A_CALL = 1 << 16


def prefix_order(requests: Sequence[Request]) -> list[int]:
    """The places of requests in the order to ask them; requests of one beginning keep their own order.

    A beginning is the first message, by its text. The beginnings that save the most go first: their length times the
    number of requests that need not pay for it again.
    """
    beginnings = [request.messages[0].content if request.messages else "" for request in requests]
    count = Counter(beginnings).items()
    rank = {text: (-len(text) * (times - 1), place) for place, (text, times) in enumerate(count)}
    return sorted(range(len(requests)), key=lambda place: rank[beginnings[place]])


class JournalWarning(UserWarning):
    """Pieces of a run's journal were damaged or are gone."""


@dataclass(slots=True)
class Spent:
    """What a client did so far.

    Attributes:
        calls: Calls that went out, faults included.
        from_journal: Requests that journaled replies settled.
        failed: Requests without an answer.
        usage: Tokens of the replies that were taken, journaled ones included.
        cost: US dollars that this folder cost in all, calls of unknown end counted in full.
        recounted: Requests whose reply came with a token count that cannot be true; ours is used.
        answered_by: How many requests each model answered, by the name that it gives itself.
    """

    calls: int = 0
    from_journal: int = 0
    failed: int = 0
    usage: Usage = field(default_factory=Usage)
    cost: float = 0.0
    recounted: int = 0
    answered_by: dict[str, int] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """As one JSON object."""
        return asdict(self)


class Client(ExitStack):
    """A run folder, its journal, and the models to ask; a context manager.

    Args:
        folder: The run's folder, made where it is not there; held by a lock while the client is open.
        models: Who is asked. With several, each request goes to the next one that is free.
        options: How often to ask, for how much, and what to show.

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
        self._failed: dict[str, dict[str, Any]] = {}
        unpriced = [model.name for model in self.models if not (model.price or getattr(model, "free", False))]
        if unpriced and self.options.budget is not None:
            raise SettingsError(
                f"a budget needs prices, and there is none for {', '.join(unpriced)}; give its `price` in the settings "
                "file (docs/endpoints.md), or leave the budget out"
            )
        super().__init__()
        with ExitStack() as opened:
            opened.enter_context(locked(self.folder))
            room = _RESERVE_A_CALL * sum(max(model.concurrency, 1) for model in models)
            try:
                self._journal = Journal(self.folder, reserve=room)
                opened.callback(self._journal.close)
                self._journal.merge()
            except JournalFullError as error:
                reason = f"no room left on the disk of {error.path}, which keeps what it has"
                raise StoppedShortError(f"{reason}; it needs room there to go on", resume="the same command") from error
            self.callback(opened.pop_all().close)
        self.spent.cost = self._journal.cost
        if self._journal.harm:
            warnings.warn(self._journal.harm, JournalWarning, stacklevel=2)

    @overload
    def ask(
        self, requests: Iterable[Request], *, label: str = "", also: Collection[Finish] = ()
    ) -> list[Outcome[str]]: ...

    @overload
    def ask(
        self, requests: Iterable[Request], accept: Accept[T], *, label: str = "", also: Collection[Finish] = ()
    ) -> list[Outcome[T]]: ...

    def ask(
        self,
        requests: Iterable[Request],
        accept: Accept[Any] = text_of,
        *,
        label: str = "",
        also: Collection[Finish] = (),
    ) -> list[Outcome[Any]]:
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
        given = list(requests)
        found: dict[int, Outcome[Any]] = {}
        ordered = ((place, given[place]) for place in prefix_order(given))
        self.ask_each(ordered, accept, found.__setitem__, label=label, total=len(given), also=also)
        return [found[place] for place in sorted(found)]

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
        """Ask requests as they come, and hand each outcome on as it comes; nothing is held in memory.

        Args:
            requests: A number of the caller's and a request each; taken from as there is room to ask.
            accept: As for `ask`.
            done: Called with the number and the outcome; from the thread that asks.
            label: Of the progress bar.
            total: How many requests there are, for the bar.
            also: As for `ask`.

        Raises:
            StoppedShortError: As `ask`.
            EndpointError: As `ask`.
        """
        if self._journal.closed:
            # The journal's file descriptor may be another file's by now.
            raise SettingsError(f"this client is closed; ask within its `with` block, or open another on {self.folder}")
        if not self.options.batch and (underway := BatchState.of(self.folder).underway()):
            raise SettingsError(
                f"{len(underway)} requests of {self.folder} are on their way in batches, and paid for; go on with "
                f"--batch, or move {self.folder / STATE} away to ask for them again"
            )
        kind: type[Run[T]] = BatchRun if self.options.batch else RayRun if self.options.ray else Run
        run = kind(self.models, self._journal, self.options, accept, also)

        def note(place: int, outcome: Outcome[T]) -> None:
            self._note(outcome)
            done(place, outcome)

        def look(progress: Progress) -> None:
            counts, spent = run.counts, self._journal.spent
            state = f"{counts.in_flight} in flight, {counts.failed} failed"
            if any(model.price for model in self.models):
                state += f", ${spent:.4f}"
            progress.update(done=counts.done, state=state)

        def stop() -> None:
            # Batches are not waited for.
            if run.stopped is None and run.counts.in_flight and not self.options.batch:
                calls = number_of(run.counts.in_flight, "call")
                sys.stderr.write(f"stopping; waiting for {calls} in flight (Ctrl-C again to drop them)\n")
            run.stop(StopAskingError("asked to stop"))

        async def work() -> None:
            try:
                await run.go(requests, note)
            finally:
                await asyncio.gather(*(model.close() for model in self.models), return_exceptions=True)

        try:
            with Progress(label or "asking", total, look=look, show=self.options.show_progress):
                run_to_end(work, stop)
        finally:
            self._count(run)
        if run.stopped is not None:
            raise self._stopped(run, run.stopped)
        for pace in run.paces:
            if not pace.alive and pace.last is not None:
                warnings.warn(
                    f"{pace.model.name} was given up ({pace.last[1]}); other endpoints answered in its place",
                    EndpointWarning,
                    stacklevel=3,
                )

    def _note(self, outcome: Outcome[Any]) -> None:
        request = outcome.request
        if outcome.reply is not None:
            self._hear(outcome.reply)
        if isinstance(outcome, Answer):
            self.spent.usage += outcome.reply.usage
            if self._failed:
                self._failed.pop(hash_json(request.payload()), None)
            return
        self._failed[hash_json(request.payload())] = {
            "tag": request.tag,
            "kind": outcome.kind,
            "reason": outcome.reason,
            "attempts": outcome.attempts,
            "refused": list(outcome.refused),
            "request": request.payload(),
        }

    def _hear(self, reply: Reply) -> None:
        """Count who answered; warn when that is not who was asked, or when its count of tokens cannot be true."""
        known, said = self.spent.answered_by, disputed(reply.raw)
        # A server may make up a name for each reply.
        name = reply.model[:200] if reply.model in known or len(known) < 20 else "others"
        problems = []
        if name not in known and not same_model(reply.endpoint, name):
            problems.append(f"was asked, but {name!r} answered; see answered_by in the results")
        if said and not self.spent.recounted:
            problems.append(f"reports counts of tokens that cannot be true ({said!r:.100}); ours are used")
        for problem in problems:
            warnings.warn(f"{reply.endpoint} {problem}", EndpointWarning, stacklevel=2)
        known[name] = known.get(name, 0) + 1
        self.spent.recounted += bool(said)

    def _count(self, run: Run[Any]) -> None:
        self.spent.calls += run.counts.calls
        self.spent.from_journal += run.counts.from_journal
        self.spent.failed = len(self._failed)
        self.spent.cost = self._journal.cost
        path = self.folder / FAILED
        if not self._failed:
            path.unlink(missing_ok=True)
            return
        # On a full disk the failures are found again from the journal.
        with suppress(OSError):
            write_jsonl(path, self._failed.values())

    def _stopped(self, run: Run[Any], stop: Exception) -> Exception:
        if isinstance(stop, JournalFullError):
            return self._short(f"no room left on the disk of {stop.path}", "room there")
        if not isinstance(stop, StopAskingError):
            return stop
        if not any(pace.alive for pace in run.paces):
            last = "; ".join(f"{pace.model.name}: {pace.last[1]}" for pace in run.paces if pace.last is not None)
            if any(pace.ever_answered for pace in run.paces):
                need = "an endpoint that answers: check the key, the account's credit, the model's name and the address"
                return self._short(f"no endpoint answers any more ({last})", need)
            return EndpointError(
                f"every endpoint refused the requests ({last}); {self._kept()}. Check the model's name, the key's "
                "environment variable and the address, then rerun the same command"
            )
        return self._short(str(stop), stop.need)

    def _short(self, reason: str, need: str) -> StoppedShortError:
        more = f"; to go on, it needs {need}" if need else ""
        return StoppedShortError(f"{reason}; {self._kept()}{more}", resume="the same command")

    def _kept(self) -> str:
        return f"{len(self._journal)} replies are kept in {self.folder}"
