"""The questions of a report: some to read in its page, and all of them as JSON Lines next to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from rolellm.core.records import Row
from rolellm.core.settings import dump
from rolellm.judging.verdicts import RowOutcome
from rolellm.scoring.rows import draw_rows

#: Questions in a page, of all its sections together; the file next to it has all.
MAX_QUESTIONS: Final = 200
_UNJUDGED: Final = RowOutcome()


@dataclass(frozen=True, slots=True)
class QuestionSet:
    """Rows with their answers: those of a judging run, or of a set of predictions.

    Attributes:
        name: The section that they belong to.
        rows: In the data set's order.
        answers: System name to row id to answer; a row that one did not answer is absent. Shown in this order.
        outcomes: Row id to system name to what judges made of its answer.
        rouge: System name to row id to Rouge-L, from 0 to 1.
        kinds: System name to ``baseline`` or ``canary``; others are models.
    """

    name: str
    rows: Sequence[Row]
    answers: Mapping[str, Mapping[str, str]]
    outcomes: Mapping[str, Mapping[str, RowOutcome]] = field(default_factory=dict)
    rouge: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    kinds: Mapping[str, str] = field(default_factory=dict)

    def records(self) -> Iterator[dict[str, Any]]:
        """Yield every row as a JSON object: its columns, and each system's answer with its scores."""
        for row in self.rows:
            yield {"section": self.name, **dump(row), "answers": self._describe_answers(row)}

    def draw(self, limit: int) -> list[dict[str, Any]]:
        """Draw rows evenly from subsets and roles; each ``row`` with its ``answers``."""
        drawn = [self.rows[index] for index in draw_rows(self.rows, limit)]
        return [{"row": row, "answers": self._describe_answers(row)} for row in drawn]

    def _describe_answers(self, row: Row) -> dict[str, dict[str, Any]]:
        answers = {}
        for system, replies in self.answers.items():
            if row.id not in replies:
                continue
            answer: dict[str, Any] = {"text": replies[row.id], "kind": self.kinds.get(system, "model")}
            answer["rouge_l"] = self.rouge.get(system, {}).get(row.id)
            outcome = self.outcomes.get(row.id, {}).get(system, _UNJUDGED)
            answer |= {"win": outcome.win, "rank": outcome.rank, "reasons": list(outcome.reasons)}
            answers[system] = answer
        return answers
