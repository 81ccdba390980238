"""A stage that asks models, and what runs it: lock, journal, resume, budget, workers, records and manifest."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from itertools import chain, groupby
from operator import attrgetter
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from rolellm.core.errors import SettingsError
from rolellm.core.files import write_json
from rolellm.core.fingerprint import hash_file
from rolellm.core.folders import use_working_folder
from rolellm.core.jsonl import write_jsonl
from rolellm.core.settings import dump
from rolellm.core.typed_json import strip_folders
from rolellm.llm.client import Client, Spent
from rolellm.llm.estimate import Case, Estimate
from rolellm.llm.llm import LLM, ModelOptions
from rolellm.llm.model import Accept, Answer, Finish, Outcome, Reply, Request, Usage, accept_text
from rolellm.runs.run import MANIFEST, R, Run, check_run_folder
from rolellm.version import __version__

T = TypeVar("T")

#: Record files by name: rows for ``.jsonl``, an object for ``.json``.
Records = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Round(Generic[T]):
    """Requests that are sent together.

    Attributes:
        requests: The requests.
        accept: Makes a value of a reply, or raises `rolellm.llm.model.UnacceptableError`; by default takes any text.
        label: Label of the progress bar.
        also: Finishes next to ``stop`` that `accept` judges, such as ``length``.
        stand_in: Makes the value of an answer in a dry run, which ends with a round that has none.
        each: Takes the index and outcome of each request as they come, for more requests than memory should hold:
            requests are then made as they are sent, and the round brings no outcomes.
        total: The number of requests, where `each` is given.
        model: The index of the one model of the run that is asked; by default all of them share the work.
        llm: Other models to ask than the run's.
        folder: Where in the run's folder those keep their journal.
    """

    requests: Iterable[Request]
    accept: Accept[T] = accept_text  # type: ignore[assignment]  # no default can be tied to the variable of a class
    label: str = ""
    also: Sequence[Finish] = ()
    stand_in: Callable[[Request], T] | None = None
    each: Callable[[int, Outcome[T]], None] | None = None
    total: int | None = None
    model: int | None = None
    llm: LLM | None = None
    folder: str = ""


#: Yields rounds, receives the outcomes of each in the order of its requests, and returns the stage's result.
Plan = Generator[Round[Any], list[Outcome[Any]], R]


class Step(ABC, Generic[R]):
    """A stage: inputs and settings as fields, and how to go from them to a result.

    Attributes:
        kind: The kind of its runs.
        settings: The settings object, the source of the command's options.
    """

    kind: ClassVar[str]
    settings: Any

    @abstractmethod
    def plan(self, llm: LLM) -> Plan[R]:
        """Yield what to ask, and make the result of the outcomes."""

    def records(self, result: R) -> Records:
        """Return the files to write, by name."""
        return {}

    def summarize(self, result: R) -> dict[str, Any]:
        """Return the counts to print and to keep in the manifest."""
        return {}

    def describe(self, result: R) -> dict[str, Any]:
        """Return what else the manifest says: hashes of inputs and prompts."""
        return {}


def run_step(step: Step[R], llm: LLM | None, out: str | Path | None = None) -> Run[R]:
    """Run a stage in a folder that keeps every reply, and write its records and manifest there.

    A second run in the same folder takes from the journal what was paid for, and asks only what has no answer yet.

    Args:
        step: The stage.
        llm: The models to ask; not needed by a plan that asks nothing.
        out: The run's folder; by default a new temporary one.

    Raises:
        SettingsError: When the folder holds something else, or a model is needed and none is named.
        StoppedShortError: At the budget, on Ctrl-C or with a full disk; what was paid for is kept.
        EndpointError: When no endpoint answers.
        RunInUseError: When another process uses the folder.
    """
    with use_working_folder(step.kind, out) as folder:
        check_run_folder(folder, step.kind)
        if llm is not None and not llm.is_named:
            llm = None
        nobody = LLM.from_options(ModelOptions(), required=False)
        with _Clients(folder, llm) as clients:
            result = clients.run_plan(step.plan(llm or nobody))
            manifest = _write(step, result, folder, clients, llm)
        return Run(folder, manifest, result=result)


def _write(step: Step[R], result: R, folder: Path, clients: _Clients, llm: LLM | None) -> dict[str, Any]:
    files = step.records(result)
    for name, content in files.items():
        if name.endswith(".jsonl"):
            write_jsonl(folder / name, content)
        else:
            write_json(folder / name, content)
    models = None if llm is None else llm.describe()
    hashes = {name: hash_file(folder / name) for name in files}
    manifest = {
        "kind": step.kind,
        "rolellm": __version__,
        "settings": strip_folders(dump(step.settings)),
        **step.describe(result),
        "models": models,
        "summary": step.summarize(result),
        "requests": clients.requests,
        "files": hashes,
        "spent": asdict(clients.spent),
    }
    write_json(folder / MANIFEST, manifest)
    return manifest


class _Clients(ExitStack):
    """The clients of one run: that of its folder, and those of folders in it for rounds with other models."""

    def __init__(self, folder: Path, llm: LLM | None) -> None:
        super().__init__()
        self._folder = folder
        self._clients: dict[str, Client] = {}
        self._llm = llm
        if llm is not None:
            self._open_client("", llm)

    def _open_client(self, name: str, llm: LLM) -> Client:
        """Return the client of a folder, with what the others left of the run's budget."""
        options = llm.options
        total = None if self._llm is None else self._llm.options.budget
        if total is not None:
            other_clients = (client for folder, client in self._clients.items() if folder != name)
            spent = sum(client.spent.cost for client in other_clients)
            budget = max(total - spent, 0.0)
            if options.budget is not None:
                budget = min(budget, options.budget)
            options = replace(options, budget=budget)
        client = self._clients.get(name)
        if client is None:
            # A GPU has no room for two.
            for earlier in self._clients.values():
                earlier.stop_servers()
            client = self.enter_context(Client(self._folder / name, llm.models, options))
            self._clients[name] = client
        client.options = options
        return client

    def run_plan(self, plan: Plan[R]) -> R:
        """Ask round after round, and return the plan's result."""
        try:
            pending = next(plan)
            while True:
                pending = plan.send(self._ask(pending))
        except StopIteration as end:
            result: R = end.value
            return result

    def _ask(self, pending: Round[T]) -> list[Outcome[T]]:
        if pending.llm is not None:
            client = self._open_client(pending.folder, pending.llm)
        elif self._llm is not None:
            client = self._open_client("", self._llm)
        else:
            raise SettingsError("a model is needed, and none is named; pass llm=…")
        label, also = pending.label, pending.also
        models = client.models
        if pending.model is not None:
            client.models = [models[pending.model]]
        try:
            if pending.each is None:
                return client.ask(pending.requests, pending.accept, label=label, also=also)
            numbered = enumerate(pending.requests)
            client.ask_each(numbered, pending.accept, pending.each, total=pending.total, label=label, also=also)
            return []
        finally:
            client.models = models

    @property
    def requests(self) -> dict[str, int]:
        """Number of requests, and of those without an answer."""
        clients = self._clients.values()
        asked = sum(client.asked for client in clients)
        failed = sum(client.unanswered for client in clients)
        return {"asked": asked, "failed": failed}

    @property
    def spent(self) -> Spent:
        """Total spending of all clients."""
        total = Spent(failed=self.requests["failed"])
        answered_by = Counter[str]()
        for client in self._clients.values():
            spent = client.spent
            answered_by.update(spent.answered_by)
            total = replace(
                total,
                calls=total.calls + spent.calls,
                from_journal=total.from_journal + spent.from_journal,
                usage=total.usage + spent.usage,
                cost=total.cost + spent.cost,
            )
        return replace(total, answered_by=dict(answered_by))


def plan_rounds(step: Step[Any], llm: LLM) -> Iterator[Round[Any]]:
    """Yield the rounds of a stage without asking: each goes on with stand-ins for the answers to the one before."""
    plan = step.plan(llm)
    try:
        planned = next(plan)
        while True:
            if planned.stand_in is None:
                yield planned
                return
            requests = list(planned.requests)
            yield replace(planned, requests=requests)
            make = planned.stand_in
            planned = plan.send([_make_stand_in(request, make) for request in requests])
    except StopIteration:
        return


def _make_stand_in(request: Request, make: Callable[[Request], T]) -> Answer[T]:
    return Answer(request, make(request), Reply("", "stop", Usage(), "stand-in", "stand-in", {}))


def estimate_step(step: Step[Any], llm: LLM) -> Estimate:
    """Estimate calls, tokens and cost of a stage; needs neither a key nor a server."""
    estimates: list[Estimate] = []
    planned_rounds = plan_rounds(step, llm)
    # Together where the same models are asked: what is rounded is then rounded once.
    for (own_llm, model), rounds in groupby(planned_rounds, key=attrgetter("llm", "model")):
        requests = chain.from_iterable(planned.requests for planned in rounds)
        endpoint = None if model is None else llm.settings.endpoints[model]
        estimates.append((own_llm or llm).estimate(requests, endpoint))
    if not estimates:
        return Estimate(0, Case(), Case(), max_attempts=llm.options.max_attempts)
    return sum(estimates[1:], estimates[0])
