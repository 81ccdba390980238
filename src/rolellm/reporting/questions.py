"""The questions of a report: some to read in its page, and all of them as JSON Lines next to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from rolellm.checks.breaks import find_breaks
from rolellm.core.records import Profile, Row
from rolellm.core.sanitize import label
from rolellm.core.settings import dump
from rolellm.core.text import format_count
from rolellm.judging.verdicts import RowOutcome
from rolellm.reporting.blocks import Block, QuoteCard
from rolellm.scoring.rows import draw_rows

#: Questions in a page, of all its sections together; the file next to it has all.
MAX_QUESTIONS: Final = 200
_UNJUDGED: Final = RowOutcome()
_Outcomes = Mapping[str, Mapping[str, RowOutcome]]
_Scores = Mapping[str, Mapping[str, float]]
_Texts = Mapping[str, Mapping[str, str]]
#: Columns of a text that is quoted in a sentence.
_QUOTE: Final = 160


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
    answers: _Texts
    outcomes: _Outcomes = field(default_factory=dict)
    rouge: _Scores = field(default_factory=dict)
    kinds: Mapping[str, str] = field(default_factory=dict)

    def records(self) -> Iterator[dict[str, Any]]:
        """Yield every row as a JSON object: its columns, and each system's answer with its scores."""
        for row in self.rows:
            answers: dict[str, dict[str, Any]] = {}
            for system, replies in self.answers.items():
                if row.id not in replies:
                    continue
                outcome = self._find_outcome(row, system)
                answer: dict[str, Any] = {"text": replies[row.id]}
                answer["kind"] = self.kinds.get(system, "model")
                answer["rouge_l"] = self._find_rouge(row, system)
                answer["win"] = outcome.win
                answer["rank"] = outcome.rank
                answer["reasons"] = list(outcome.reasons)
                answers[system] = answer
            yield {"section": self.name, **dump(row), "answers": answers}

    def _find_outcome(self, row: Row, system: str) -> RowOutcome:
        outcomes = self.outcomes.get(row.id, {})
        return outcomes.get(system, _UNJUDGED)

    def _find_rouge(self, row: Row, system: str) -> float | None:
        scores = self.rouge.get(system, {})
        return scores.get(row.id)

    def lay_out(self, limit: int) -> Block:
        """Lay out rows drawn evenly from subsets and roles, each with its references and all answers."""
        blocks = []
        for index in draw_rows(self.rows, limit):
            row = self.rows[index]
            cards = [_make_card("Question", row.question, row)]
            for reference in row.references:
                cards.append(_make_card("Reference", reference, row))
            for system, replies in self.answers.items():
                if row.id in replies:
                    facts = self._list_facts(row, system)
                    card = _make_card(system, replies[row.id], row)
                    cards.append(replace(card, facts=facts))
            title = label(f"{row.role}: {row.question}", _QUOTE)
            blocks.append(Block(title, cards=cards))
        return Block(self.name, blocks=blocks, is_folded=False)

    def _list_facts(self, row: Row, system: str) -> list[tuple[str, str]]:
        outcome = self._find_outcome(row, system)
        rouge = self._find_rouge(row, system)
        facts: list[tuple[str, str]] = []
        if rouge is not None:
            facts.append(("Rouge-L", f"{rouge:.3f}"))
        if outcome.win is not None:
            facts.append(("Win", f"{outcome.win:g}"))
        if outcome.rank is not None:
            facts.append(("Rank", f"{outcome.rank:g}"))
        for reason in outcome.reasons[:2]:
            facts.append(("Reason", reason))
        return facts

    def describe_failure(self, system: str) -> str:
        """Say where a system fails its role, with a reply: a break of character, else the one that scores lowest."""
        replies = self.answers.get(system, {})
        scores = self.rouge.get(system, {})
        answered = [row for row in self.rows if row.id in replies]
        broken = [row for row in answered if _has_break(row, replies[row.id])]
        if broken:
            row = broken[0]
            total = format_count(len(answered), "reply", "replies")
            text = f"{system} breaks character in {len(broken):,} of {total}, by rules"
        elif answered:
            row = min(answered, key=lambda row: self._rank_reply(row, system))
            if self._find_outcome(row, system).win == 1:
                # It has won everywhere.
                return ""
            text = f"Lowest reply of {system}"
            if row.id in scores:
                text += f" (Rouge-L {scores[row.id]:.3f})"
        else:
            return ""
        question = label(row.question, _QUOTE)
        reply = label(replies[row.id], _QUOTE)
        return f"{text}: as {row.role}, to “{question}”, it says “{reply}”."

    def _rank_reply(self, row: Row, system: str) -> tuple[float, float]:
        win = self._find_outcome(row, system).win
        rouge = self._find_rouge(row, system)
        # General rows may have no Rouge-L.
        return (0.5 if win is None else win, 1.0 if rouge is None else rouge)


def _make_card(title: str, text: str, row: Row) -> QuoteCard:
    return QuoteCard(title, "", [("", text)], row.language)


def _has_break(row: Row, reply: str) -> bool:
    sheet = Profile(row.role, row.language, description=row.role_description)
    return bool(find_breaks(reply, sheet, row.question))
