"""Asks judges for every verdict of a comparison, into a run folder: journaled, so that nothing is paid for twice.

A jury is several models that each judge everything; the majority counts. They are asked one after the other, into one
journal under one budget.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rolellm.core.jsonl import write_jsonl
from rolellm.judging.folder import UNSCORED
from rolellm.judging.orders import LETTERS, Ask
from rolellm.judging.parsing import JudgeReply, accept_verdicts
from rolellm.judging.prompts import judge_request, material
from rolellm.judging.types import Comparison, Judgement
from rolellm.llm.client import Client, Spent
from rolellm.llm.model import Answer, Failure, Finish, Model, Outcome, Request, RunOptions

# A letter is all that is asked for by odds; a longer verdict that is cut is refused by its parser.
_CUT: Sequence[Finish] = ("length",)


@dataclass(frozen=True, slots=True)
class JudgeModel:
    """A model that judges, under a name that is unique in the run; several models share its work, as servers do."""

    name: str
    models: Sequence[Model]


def requests(
    comparison: Comparison, asks: Iterable[Ask], shown: int
) -> Iterator[tuple[Request, dict[str, tuple[str, ...]]]]:
    """The requests for some verdicts, in order, each with which of its answers were changed for showing, and how.

    Args:
        comparison: Rows and answers.
        asks: Those verdicts.
        shown: Maximum characters of any one text; what is longer is cut.
    """
    row, found = -1, None
    for ask in asks:
        if found is None or ask.row != row:
            row, found = ask.row, material(comparison, comparison.rows[ask.row], shown)
        yield judge_request(found, ask), found.touched(ask.order)


def ask_jury(
    folder: Path,
    comparison: Comparison,
    asks: Sequence[Ask],
    jury: Sequence[JudgeModel],
    shown: int,
    options: RunOptions,
) -> tuple[list[Judgement], Spent]:
    """Ask every judge model for every verdict.

    Args:
        folder: The run's folder; what it holds of earlier runs is not asked again.
        comparison: Rows and answers.
        asks: Every verdict to ask for, from `rolellm.judging.orders.planned`.
        jury: Who judges.
        shown: Maximum characters of an answer to show.
        options: Attempts, budget, progress.

    Returns:
        Every judgement, and what all of them cost. A request without a verdict is a judgement, too: it is unscored,
        and its transcript is in ``unscored.jsonl``.

    Raises:
        StoppedShortError: At the budget, on Ctrl-C or with a full disk.
        EndpointError: When no endpoint answers.
    """
    accept = accept_verdicts({ask.judge.settings.parser: ask.judge for ask in asks})
    judgements: list[Judgement] = []
    transcripts: list[dict[str, Any]] = []
    spent = Spent()
    for judge_model in jury:
        asking = _Asking(comparison, asks, judge_model.name)
        label = "Judging" if len(jury) == 1 else f"Judging, {judge_model.name}"
        with Client(folder, judge_model.models, options) as client:
            failed, client.spent = spent.failed, replace(spent, cost=client.spent.cost)
            made = enumerate(asking.made(shown))
            client.ask_each(made, accept, asking.answered, label=label, total=len(asks), also=_CUT)
            spent = replace(client.spent, failed=failed + client.spent.failed)
        judgements += (asking.judgements[place] for place in range(len(asks)))
        transcripts += (asking.transcripts[place] for place in sorted(asking.transcripts))
    write_jsonl(folder / UNSCORED, transcripts)
    return judgements, spent


class _Asking:
    """The questions to one judge model, and what came of them, by their places."""

    def __init__(self, comparison: Comparison, asks: Sequence[Ask], judge_model: str) -> None:
        self._comparison, self._asks, self._judge_model = comparison, asks, judge_model
        self._touched: dict[int, dict[str, tuple[str, ...]]] = {}
        self.judgements: dict[int, Judgement] = {}
        # A request's whole text is kept only where there is no verdict.
        self.transcripts: dict[int, dict[str, Any]] = {}

    def made(self, shown: int) -> Iterator[Request]:
        for place, (request, touched) in enumerate(requests(self._comparison, self._asks, shown)):
            if touched:
                self._touched[place] = touched
            yield request

    def answered(self, place: int, outcome: Outcome[JudgeReply]) -> None:
        ask, reply, key, failure = self._asks[place], JudgeReply(None, ()), "", None
        if isinstance(outcome, Answer):
            reply, key = outcome.value, outcome.key
            if reply.copied:
                reason = f"repeats a verdict from {reply.copied} word for word"
                failure = Failure(
                    outcome.request, "malformed", reason, outcome.attempts, outcome.reply, outcome.refused
                )
        else:
            failure = outcome
        asked: dict[str, Any] = {
            "row": self._comparison.rows[ask.row].id,
            "judge": self._judge_model,
            "design": ask.judge.design,
            "order": ask.order,
            "named": ask.named,
        }
        if failure is not None:
            self.transcripts[place] = asked | _transcript(failure)
        letters = dict(zip(LETTERS, ask.order, strict=False))
        self.judgements[place] = Judgement(
            **asked,
            ranks=reply.ranks,
            reasons=reply.reasons,
            lead=reply.lead,
            unscored=None if failure is None else f"{failure.kind}: {failure.reason}",
            touched=self._touched.get(place, {}),
            key=key,
            attempts=outcome.attempts,
            copied=letters.get((reply.copied or "").removeprefix("answer ")),
        )


def _transcript(failure: Failure) -> dict[str, Any]:
    return {
        "kind": failure.kind,
        "reason": failure.reason,
        "attempts": failure.attempts,
        "refused": failure.refused,
        "messages": [{"role": message.role, "content": message.content} for message in failure.request.messages],
        "reply": None if failure.reply is None else failure.reply.text,
    }


def make_jury(models: Sequence[Model], *, each: bool) -> list[JudgeModel]:
    """Who judges.

    Args:
        models: Who is asked.
        each: Whether each judges everything, and the majority counts. Otherwise they are one judge and share the work,
            as servers of one model do.
    """
    if each:
        names = [model.name for model in models]
        numbered = (name if names.count(name) == 1 else f"{name} ({at + 1})" for at, name in enumerate(names))
        return [JudgeModel(name, [model]) for name, model in zip(numbered, models, strict=True)]
    known = dict.fromkeys(str(model.identity.get("model", model.name)) for model in models)
    return [JudgeModel(" + ".join(known), models)]
