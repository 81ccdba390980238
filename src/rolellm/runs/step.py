"""A stage that asks models, and what runs it: lock, journal, resume, budget, workers, records and manifest."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from itertools import groupby
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
from rolellm.llm.settings import describe_model
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
        llm = llm if llm is not None and llm.is_named else None
        with _Clients(folder, llm) as clients:
            result = clients.run_plan(step.plan(llm or LLM.from_options(ModelOptions(), required=False)))
            manifest = _write(step, result, folder, clients, llm)
        return Run(folder, manifest, result=result)


def _write(step: Step[R], result: R, folder: Path, clients: _Clients, llm: LLM | None) -> dict[str, Any]:
    files = step.records(result)
    for name, content in files.items():
        if name.endswith(".jsonl"):
            write_jsonl(folder / name, content)
        else:
            write_json(folder / name, content)
    manifest = {
        "kind": step.kind,
        "rolellm": __version__,
        "settings": strip_folders(dump(step.settings)),
        **step.describe(result),
        "models": llm and {**llm.describe(), "endpoints": [describe_model(model) for model in llm.models]},
        "summary": step.summarize(result),
        "requests": clients.requests,
        "files": {name: hash_file(folder / name) for name in files},
        "spent": asdict(clients.spent),
    }
    write_json(folder / MANIFEST, manifest)
    return manifest


class _Clients(ExitStack):
    """The clients of one run: that of its folder, and those of folders in it for rounds with other models."""

    def __init__(self, folder: Path, llm: LLM | None) -> None:
        super().__init__()
        self._folder, self._clients = folder, dict[str, Client]()
        self._llm, self._budget = llm, None if llm is None else llm.options.budget
        if llm is not None:
            self._client("", llm)

    def _client(self, name: str, llm: LLM) -> Client:
        """Return the client of a folder, with what the others left of the run's budget."""
        options = llm.options
        if self._budget is not None:
            spent = sum(client.spent.cost for folder, client in self._clients.items() if folder != name)
            left = max(self._budget - spent, 0.0)
            options = replace(options, budget=left if options.budget is None else min(left, options.budget))
        if name not in self._clients:
            self._clients[name] = self.enter_context(Client(self._folder / name, llm.models, options))
        self._clients[name].options = options
        return self._clients[name]

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
            client = self._client(pending.folder, pending.llm)
        elif self._llm is not None:
            client = self._client("", self._llm)
        else:
            raise SettingsError("a model is needed, and none is named; pass llm=…")
        models, how = client.models, dict[str, Any](label=pending.label, also=pending.also)
        client.models = models if pending.model is None else [models[pending.model]]
        try:
            if pending.each is None:
                return client.ask(pending.requests, pending.accept, **how)
            client.ask_each(enumerate(pending.requests), pending.accept, pending.each, total=pending.total, **how)
            return []
        finally:
            client.models = models

    @property
    def requests(self) -> dict[str, int]:
        """Number of requests, and of those without an answer."""
        clients = self._clients.values()
        return {
            "asked": sum(client.asked for client in clients),
            "failed": sum(client.unanswered for client in clients),
        }

    @property
    def spent(self) -> Spent:
        """Total spending of all clients."""
        each = [client.spent for client in self._clients.values()]
        return Spent(
            calls=sum(spent.calls for spent in each),
            from_journal=sum(spent.from_journal for spent in each),
            failed=self.requests["failed"],
            usage=sum((spent.usage for spent in each), Usage()),
            cost=sum(spent.cost for spent in each),
            answered_by=dict(sum((Counter(spent.answered_by) for spent in each), Counter[str]())),
        )


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
            planned = plan.send([_make_stand_in(request, planned.stand_in) for request in requests])
    except StopIteration:
        return


def _make_stand_in(request: Request, make: Callable[[Request], T]) -> Answer[T]:
    return Answer(request, make(request), Reply("", "stop", Usage(), "stand-in", "stand-in", {}))


def plan_requests(step: Step[Any], llm: LLM) -> list[Request]:
    """List what a stage would ask of models; nothing is sent."""
    return [request for planned in plan_rounds(step, llm) for request in planned.requests]


def estimate_step(step: Step[Any], llm: LLM) -> Estimate:
    """Estimate calls, tokens and cost of a stage; needs neither a key nor a server."""
    estimates: list[Estimate] = []
    # Together where the same models are asked: what is rounded is then rounded once.
    for (other, model), rounds in groupby(plan_rounds(step, llm), key=lambda planned: (planned.llm, planned.model)):
        requests = (request for planned in rounds for request in planned.requests)
        only = None if model is None else llm.settings.endpoints[model]
        estimates.append((other or llm).estimate(requests, only))
    if not estimates:
        return Estimate(0, Case(), Case(), Case(), max_attempts=llm.options.max_attempts)
    return sum(estimates[1:], estimates[0])
