"""The join of predictions to rows, and everything about the join that a reader of the score must know.

A row takes the first prediction with its ``id``, else the first with its exact (role, question), else the first with
the same (role, question) once white space at the ends is trimmed. So one prediction may answer several rows that ask
the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from rolellm.core.errors import PredictionError
from rolellm.core.records import Prediction, Row
from rolellm.core.text import join_names
from rolellm.scoring.predictions import Predictions

Method = Literal["id", "exact", "trimmed"]
_Key = tuple[Method, str, str]
_EXAMPLES = 3
_QUESTION_WIDTH = 40


@dataclass(frozen=True, slots=True)
class MatchFinding:
    """Something about the join that a reader of the score must know.

    Attributes:
        kind: A short name, such as ``duplicates_differing``.
        count: How many predictions or rows it touches.
        text: What it is and what was done about it, in words.
        examples: The first few, each with its place.
        refused: Whether ``strict`` makes it an error.
    """

    kind: str
    count: int
    text: str
    examples: tuple[str, ...]
    refused: bool = True

    def __str__(self) -> str:
        if not self.examples:
            return self.text
        examples = "; ".join(self.examples)
        more = "; …" if self.count > len(self.examples) else ""
        return f"{self.text}; such as {examples}{more}"


@dataclass(frozen=True, slots=True)
class Matching:
    """The join of predictions to rows.

    Attributes:
        answers: For each row, the index of its prediction, or ``None``.
        matched_by: How many rows were matched by ``id``, ``exact`` and ``trimmed``.
        unmatched_rows: Indices of rows without a prediction.
        unmatched_predictions: Indices of predictions that answer no row.
        findings: What a reader must know, in order of weight.
    """

    answers: tuple[int | None, ...]
    matched_by: dict[Method, int]
    unmatched_rows: tuple[int, ...]
    unmatched_predictions: tuple[int, ...]
    findings: tuple[MatchFinding, ...]


def match_predictions(rows: Sequence[Row], predictions: Predictions, *, where: str = "these rows") -> Matching:
    """Join predictions to rows.

    Args:
        rows: The rows of one split.
        predictions: In order; where several fit a row, the first wins and the others are reported.
        where: What the rows are, for messages: config and split.

    Raises:
        PredictionError: When no prediction answers any row; says what they look like instead.
    """
    items = predictions.items
    index = _Index(rows, items)
    answers: list[int | None] = []
    methods = Counter[Method]()
    for row in rows:
        match = index.find_answer(row)
        answers.append(match and match[0])
        if match is not None:
            methods[match[1]] += 1
    if not methods:
        raise PredictionError(_explain_no_match(rows, predictions, where))
    used = Counter(answer for answer in answers if answer is not None)
    unmatched_rows = [number for number, answer in enumerate(answers) if answer is None]
    unmatched, differing, same = _sort_unused(items, answers, used, index)
    conflicts = sorted(index.conflicts & used.keys())
    empty = [number for number in sorted(used) if not items[number].prediction.strip()]
    shared = sum(count > 1 for count in used.values())
    findings = [_report_unanswered(rows, unmatched_rows, where)]
    for kind, numbers, text, is_refused in (
        ("unmatched_predictions", unmatched, _describe_unmatched(rows, items, unmatched, where), True),
        ("duplicates_differing", differing, _DIFFERING, True),
        ("id_conflicts", conflicts, _CONFLICTS, True),
        ("duplicates_same", same, "predictions that repeat an earlier one word for word (they count once)", False),
        ("empty", empty, "predictions that are empty and score 0", False),
    ):
        examples = []
        for number in numbers[:_EXAMPLES]:
            examples.append(f"{predictions.locate(number)}: {describe_item(items[number])}")
        count = len(numbers)
        findings.append(MatchFinding(kind, count, f"{text}: {count:,}", tuple(examples), is_refused))
    findings.append(MatchFinding("shared", shared, f"predictions that answer several rows each: {shared:,}", (), False))
    present = tuple(finding for finding in findings if finding.count)
    return Matching(tuple(answers), dict(methods), tuple(unmatched_rows), tuple(unmatched), present)


_DIFFERING = "predictions that differ from an earlier one for the same row (the first counts)"
_CONFLICTS = "predictions that name a row by id but with another role or question (the id counts)"


class _Index:
    """Looks up predictions and rows by id and by text; the first of several wins."""

    def __init__(self, rows: Sequence[Row], items: Sequence[Prediction]) -> None:
        self.rows: dict[_Key, int] = {}
        for number, row in enumerate(rows):
            for key in _list_keys(row.id, row.role, row.question):
                self.rows.setdefault(key, number)
        self.items: dict[_Key, int] = {}
        self.conflicts: set[int] = set()
        for number, item in enumerate(items):
            keys = _list_keys(item.id, item.role, item.question)
            if item.id is not None:
                named = self.rows.get(keys[0])
                if named is not None and _is_contradicting(item, rows[named]):
                    # What it says of itself does not fit together; its text must not answer yet another row.
                    self.conflicts.add(number)
                    keys = keys[:1]
            for key in keys:
                self.items.setdefault(key, number)

    def find_answer(self, row: Row) -> tuple[int, Method] | None:
        """The prediction that answers a row, and how it was found."""
        for key in _list_keys(row.id, row.role, row.question):
            if key in self.items:
                return self.items[key], key[0]
        return None

    def find_row(self, item: Prediction) -> int | None:
        """The row that a prediction would answer if no other did."""
        for key in _list_keys(item.id, item.role, item.question):
            if key in self.rows:
                return self.rows[key]
        return None


def _list_keys(name: str | None, role: str | None, question: str | None) -> list[_Key]:
    keys: list[_Key] = []
    if name is not None:
        keys.append(("id", name, ""))
    if role is not None and question:
        keys += [("exact", role, question), ("trimmed", role.strip(), question.strip())]
    return keys


def _is_contradicting(item: Prediction, row: Row) -> bool:
    for text, own in ((item.role, row.role), (item.question, row.question)):
        if text is not None and text.strip() != own.strip():
            return True
    return False


def _sort_unused(
    items: Sequence[Prediction], answers: Sequence[int | None], used: Mapping[int, int], index: _Index
) -> tuple[list[int], list[int], list[int]]:
    """Predictions that won no row: those that match none, and those that came second with another or the same text."""
    unmatched: list[int] = []
    differing: list[int] = []
    same: list[int] = []
    for number, item in enumerate(items):
        if number in used:
            continue
        row = index.find_row(item)
        winner = None if row is None else answers[row]
        if winner is None:
            unmatched.append(number)
        elif items[winner].prediction == item.prediction:
            same.append(number)
        else:
            differing.append(number)
    return unmatched, differing, same


def _describe_unmatched(rows: Sequence[Row], items: Sequence[Prediction], numbers: Sequence[int], where: str) -> str:
    row_roles = {row.role for row in rows}
    strange_roles = []
    for number in numbers:
        role = items[number].role
        if role is not None and role not in row_roles:
            strange_roles.append(role)
    hint = ""
    if strange_roles:
        names = _list_names(strange_roles)
        hint = f" ({len(strange_roles):,} by roles that are not there, as if from another config: {names})"
    return f"predictions that match no row of {where}{hint} and are not scored"


def _report_unanswered(rows: Sequence[Row], numbers: Sequence[int], where: str) -> MatchFinding:
    parts = Counter(rows[number].subset for number in numbers)
    split = ", ".join(f"{count:,} {subset}" for subset, count in sorted(parts.items()))
    text = f"rows of {where} without a prediction: {len(numbers):,} of {len(rows):,} ({split})"
    examples = [describe_item(rows[number]) for number in numbers[:_EXAMPLES]]
    return MatchFinding("unmatched_rows", len(numbers), text, tuple(examples))


def describe_item(item: Prediction | Row) -> str:
    """A row or a prediction in a few words: role and the start of its question, else its id."""
    if item.role is None or item.question is None:
        return f"id {item.id!a}"
    question = " ".join(item.question.split())
    if len(question) > _QUESTION_WIDTH:
        question = f"{question[:_QUESTION_WIDTH]}…"
    text = f"{item.role}, “{question}”"
    # A terminal must not obey what a model wrote, and half a surrogate pair cannot be printed.
    return "".join(character if character.isprintable() else "\ufffd" for character in text)


def _explain_no_match(rows: Sequence[Row], predictions: Predictions, where: str) -> str:
    """Why nothing matches, as far as sidecars, roles and ids tell."""
    if not rows:
        return f"{where} has no rows to score"
    items = predictions.items
    lines = [f"none of the predictions ({len(items):,}) matches any of the {len(rows):,} rows of {where}."]
    for file in predictions.files:
        meta = file.meta or {}
        made_for = "/".join(str(meta[key]) for key in ("config", "split") if key in meta)
        if made_for not in ("", where):
            lines.append(f"{file.path} was generated for {made_for}.")
    row_roles = {row.role for row in rows}
    prediction_roles = {item.role for item in items if item.role is not None}
    if prediction_roles and not prediction_roles & row_roles:
        lines.append(f"Their roles are {_list_names(prediction_roles)}, those of the rows {_list_names(row_roles)}.")
    first = items[0]
    name = "" if first.id is None else f", id {first.id!a}"
    lines.append(
        f"Is it another split or config? The first is {predictions.locate(0)}: {describe_item(first)}{name}; "
        f"ids of the rows look like {rows[0].id!r}."
    )
    return " ".join(lines)


def _list_names(names: Iterable[str]) -> str:
    return join_names(sorted(set(names)))
