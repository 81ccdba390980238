"""Asks judges for every verdict of a comparison, into a run folder: journaled, so that nothing is paid for twice.

A jury is several models that each judge everything; the majority counts. They are asked one after the other, into one
journal under one budget.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rolellm.core.errors import SettingsError
from rolellm.core.jsonl import write_jsonl
from rolellm.judging.folder import UNSCORED
from rolellm.judging.orders import LETTERS, Ask, Design
from rolellm.judging.parsing import Verdict, accept_verdicts
from rolellm.judging.prompts import LIMIT, Material, judge_request, material
from rolellm.judging.types import Comparison, Judgement
from rolellm.llm.client import Client, Spent
from rolellm.llm.model import Answer, Failure, Model, Outcome, Request, RunOptions


@dataclass(frozen=True, slots=True)
class JudgingOptions:
    """How a comparison is judged.

    Attributes:
        design: In which orders answers are shown.
        shown: Characters of any one text that a judge is shown; what is longer is cut, and counted.
    """

    design: Design = field(default_factory=Design)
    shown: int = LIMIT

    def __post_init__(self) -> None:
        if self.shown < 1:
            raise SettingsError(f"shown must be at least 1 character, not {self.shown}")


@dataclass(frozen=True, slots=True)
class JudgeModel:
    """One who judges.

    Attributes:
        name: Unique in the run.
        models: Who is asked; several share the work, as servers of one model do.
    """

    name: str
    models: Sequence[Model]


@dataclass(slots=True)
class Judged:
    """What a run of judging found.

    Attributes:
        judgements: JudgeModel after judge model, each in the order planned.
        spent: Calls, replies from the journal, tokens and US dollars, of all judge models.
    """

    judgements: list[Judgement] = field(default_factory=list)
    spent: Spent = field(default_factory=Spent)


def requests(comparison: Comparison, asks: Iterable[Ask], options: JudgingOptions) -> Iterator[Request]:
    """The requests for some verdicts, in order, made one by one."""
    return _Questions(comparison, asks, options).made()


def ask_jury(
    folder: str | Path,
    comparison: Comparison,
    asks: Sequence[Ask],
    jury: Sequence[JudgeModel],
    options: JudgingOptions,
    run: RunOptions | None = None,
) -> Judged:
    """Ask every judge model for every verdict.

    Args:
        folder: The run's folder; what it holds of earlier runs is not asked again.
        comparison: Rows and answers.
        asks: Every verdict to ask for, of `rolellm.judging.orders.planned`.
        jury: Who judges.
        options: How much of each answer is shown.
        run: Attempts, budget, progress.

    Returns:
        Every judgement; a request without a verdict is one too, unscored, and stands with its transcript in
        ``unscored.jsonl``.

    Raises:
        StoppedShortError: At the budget, on Ctrl-C or with a full disk.
        EndpointError: When no endpoint answers.
    """
    judges = list({ask.judge.schema.name: ask.judge for ask in asks}.values())
    found = Judged()
    transcripts: list[dict[str, Any]] = []
    for judge_model in jury:
        questions = _Questions(comparison, asks, options)
        label = "Judging" if len(jury) == 1 else f"Judging, {judge_model.name}"
        with Client(folder, judge_model.models, run) as client:
            client.ask_each(
                enumerate(questions.made()), accept_verdicts(judges), questions.answered, label=label, total=len(asks)
            )
            _add(found.spent, client.spent)
        found.judgements += [
            questions.judgement(ask, judge_model.name, outcome)
            for ask, outcome in zip(asks, questions.outcomes, strict=True)
        ]
        transcripts += questions.transcripts(judge_model.name)
    write_jsonl(Path(folder) / UNSCORED, transcripts)
    return found


def _add(found: Spent, more: Spent) -> None:
    found.calls += more.calls
    found.from_journal += more.from_journal
    found.failed += more.failed
    found.usage += more.usage
    found.recounted += more.recounted
    for name, count in more.answered_by.items():
        found.answered_by[name] = found.answered_by.get(name, 0) + count
    # The folder's in all, the judge models before among them.
    found.cost = more.cost


@dataclass(frozen=True, slots=True)
class _Settled:
    """What is kept of an outcome; the request's whole text is kept only of those without a verdict."""

    verdict: Verdict | None
    key: str
    attempts: int
    failure: Failure | None


class _Questions:
    """The questions to one judge model, and what came of them."""

    def __init__(self, comparison: Comparison, asks: Iterable[Ask], options: JudgingOptions) -> None:
        self._comparison, self._asks, self._options = comparison, list(asks), options
        self._touched: dict[int, Material] = {}
        self.outcomes: list[_Settled | None] = [None] * len(self._asks)

    def made(self) -> Iterator[Request]:
        row, found = -1, None
        for ask in self._asks:
            if found is None or ask.row != row:
                row, found = ask.row, material(self._comparison, self._comparison.rows[ask.row], self._options.shown)
                if any(shown.touched for shown in found.answers.values()):
                    self._touched[row] = found
            yield judge_request(found, ask)

    def answered(self, place: int, outcome: Outcome[Verdict]) -> None:
        if isinstance(outcome, Answer):
            verdict, failure = outcome.value, None
            if verdict.copied:
                reason = f"repeats a verdict from {verdict.copied} word for word"
                failure = Failure(
                    outcome.request, "malformed", reason, outcome.attempts, outcome.reply, outcome.refused
                )
            self.outcomes[place] = _Settled(verdict, outcome.key, outcome.attempts, failure)
        else:
            self.outcomes[place] = _Settled(None, "", outcome.attempts, outcome)

    def judgement(self, ask: Ask, judge_model: str, settled: _Settled | None) -> Judgement:
        assert settled is not None, "every request is settled when asking ends"
        found = self._touched.get(ask.row)
        verdict, failure = settled.verdict or Verdict(None, ()), settled.failure
        letter = (verdict.copied or "").removeprefix("answer ")
        return Judgement(
            row=self._comparison.rows[ask.row].id,
            judge=judge_model,
            design=ask.judge.design,
            order=ask.order,
            ranks=verdict.ranks,
            reasons=verdict.reasons,
            named=ask.named,
            unscored=None if failure is None else f"{failure.kind}: {failure.reason}",
            touched={} if found is None else found.touched(ask.order),
            key=settled.key,
            attempts=settled.attempts,
            copied=dict(zip(LETTERS, ask.order, strict=False)).get(letter),
        )

    def transcripts(self, judge_model: str) -> Iterator[dict[str, Any]]:
        for ask, settled in zip(self._asks, self.outcomes, strict=True):
            if settled is not None and settled.failure is not None:
                yield _transcript(self._comparison, ask, judge_model, settled.failure)


def _transcript(comparison: Comparison, ask: Ask, judge_model: str, failure: Failure) -> dict[str, Any]:
    return {
        "row": comparison.rows[ask.row].id,
        "judge": judge_model,
        "design": ask.judge.design,
        "order": list(ask.order),
        "named": ask.named,
        "kind": failure.kind,
        "reason": failure.reason,
        "attempts": failure.attempts,
        "refused": list(failure.refused),
        "messages": [{"role": message.role, "content": message.content} for message in failure.request.messages],
        "reply": None if failure.reply is None else failure.reply.text,
    }


# --- From models to those who judge: one judge of all of them, or each a judge model of its own


def make_jury(models: Sequence[Model], *, each: bool) -> list[JudgeModel]:
    """Who judges.

    Args:
        models: Who is asked.
        each: Whether each judges everything, and the majority counts. Otherwise they are one judge and share the work,
            as servers of one model do.
    """
    if each:
        names = [model.name for model in models]
        return [JudgeModel(name, [model]) for name, model in zip(_distinct(names), models, strict=True)]
    known = dict.fromkeys(str(model.identity.get("model", model.name)) for model in models)
    return [JudgeModel(" + ".join(known), models)]


def _distinct(names: Sequence[str]) -> list[str]:
    """Names, numbered where several are the same."""
    return [name if names.count(name) == 1 else f"{name} ({at + 1})" for at, name in enumerate(names)]
