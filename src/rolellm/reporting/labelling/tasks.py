"""What one person has to label, what of it is done, and what the page may know: never a name, never a verdict."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import Field, StrictBool, StrictFloat, StrictInt, StrictStr

from rolellm.core.errors import DataError, SettingsError
from rolellm.core.jsonl import JsonlAppender
from rolellm.core.records import Row
from rolellm.core.sanitize import make_visible, truncate
from rolellm.core.typed_json import read_as
from rolellm.judging.people.labels import (
    REFERENCE,
    AuditLabel,
    Label,
    RankingLabel,
    append_label,
    draw_blind_order,
    hash_content,
    label_path,
    list_labelled_systems,
    read_labels,
    sample_answers,
    sample_rows,
    select_answers,
)
from rolellm.judging.records import JudgeRun, compute_mid_ranks
from rolellm.judging.requests import select_references as references_shown

Status = Literal["open", "done", "skipped"]

#: What answers are called on the page; S is the key that skips.
LETTERS: Final = "ABCDEFGHIJKLMNOPQRTUVWXYZ"
#: Characters of one text that are shown; the rest is counted. Our choice: no person reads ten pages to rank one answer.
MAX_TEXT: Final = 20_000
_LONGEST: Final = 86_400.0


@dataclass(frozen=True)
class _Post:
    """The fields that the page sends with every label."""

    item: StrictInt
    seconds: Annotated[StrictFloat | StrictInt, Field(ge=0)]
    skipped: StrictBool = False


@dataclass(frozen=True)
class _Ranked:
    groups: tuple[tuple[StrictStr, ...], ...]


@dataclass(frozen=True)
class _Audited:
    instruction: StrictBool
    style: StrictBool
    correct: StrictBool | None


@dataclass(frozen=True, slots=True)
class _Item:
    """One thing to label.

    Attributes:
        row: What was asked.
        answers: Systems' answers by name, in the order in which they are shown.
        key: Of its label.
    """

    row: Row
    answers: Mapping[str, str]
    key: tuple[str, ...]


class LabelTask(ABC):
    """A person's labels of a sample; opening it reads what is there and mends what a crash left.

    Attributes:
        kind: Which page it needs.
        annotator: Who labels.
        path: Where the labels go.
    """

    kind: ClassVar[Literal["ranking", "audit"]]

    def __init__(self, run: JudgeRun, annotator: str, label: type[Any], items: Sequence[_Item]) -> None:
        self.annotator = annotator
        self.path = label_path(run.folder, annotator, label)
        self._items = items
        self._lock = threading.Lock()
        if self.path.is_file():
            # Half a line that a crash left is taken off before anything is read.
            JsonlAppender(self.path).close()
        self._labels: dict[tuple[str, ...], Any] = read_labels(run, annotator, label)

    def __len__(self) -> int:
        return len(self._items)

    def statuses(self) -> list[Status]:
        """Return what is done of each item, in order."""
        return [self._status(item) for item in self._items]

    def item(self, number: int) -> dict[str, Any]:
        """Return what the page shows of an item, counted from 0, as one JSON object.

        Raises:
            IndexError: When there is no such item.
        """
        item = self._at(number)
        row = item.row
        # What judges see. The data set's own reference is not shown next to itself.
        references = () if REFERENCE in item.answers else references_shown(row)
        return {
            "role": _show_text(row.role),
            "language": row.language,
            "description": None if row.role_description is None else _show_text(row.role_description),
            "question": _show_text(row.question),
            "references": [_show_text(text) for text in references],
            "answers": [
                {"letter": letter, "text": _show_text(text)}
                for letter, text in zip(LETTERS, item.answers.values(), strict=False)
            ],
            "label": self._said(item),
        }

    def save(self, value: Mapping[str, Any]) -> None:
        """Put a label on the disk.

        Args:
            value: What the page says: ``item`` (its number, from 0), ``seconds``, and ``skipped`` or the label.

        Raises:
            IndexError: When there is no such item.
            DataError: When the value is not a label of it.
            OSError: When it cannot be written.
        """
        post = read_as(_Post, value, "the label")
        item = self._at(post.item)
        label = self._label(item, None if post.skipped else value, round(float(min(post.seconds, _LONGEST)), 1))
        with self._lock:
            append_label(self.path, label)
            self._labels[item.key] = label

    def close(self) -> None:
        """Wait until no label is being written, and take no more."""
        self._lock.acquire()

    def _at(self, number: int) -> _Item:
        if not 0 <= number < len(self._items):
            raise IndexError(number)
        return self._items[number]

    def _status(self, item: _Item) -> Status:
        label = self._labels.get(item.key)
        # One more system since: what was said of the others still holds, and the row is to be ranked again.
        if label is None or set(label.names) != set(item.answers):
            return "open"
        return "skipped" if label.skipped else "done"

    def _said(self, item: _Item) -> Any:
        if self._status(item) == "open":
            return None
        label = self._labels[item.key]
        return {"skipped": True} if label.skipped else self._to_page(item, label)

    @abstractmethod
    def _label(self, item: _Item, value: Mapping[str, Any] | None, seconds: float) -> Label:
        """Return the label that the page's value says; a skipped one for ``None``."""

    @abstractmethod
    def _to_page(self, item: _Item, label: Any) -> Any:
        """Return what the page shows of a label."""


class RankingTask(LabelTask):
    """Ranking: all answers to a row at once.

    Args:
        run: The judging run.
        annotator: Who ranks; a file name.
        size: Rows of the sample.
        seed: Random seed for the sample.

    Raises:
        SettingsError: When the name is not a valid file name, or the run has nothing to rank.
        DataError: When earlier labels are not about this run's answers.
    """

    kind = "ranking"

    def __init__(self, run: JudgeRun, annotator: str, *, size: int = 50, seed: int = 0) -> None:
        names = list_labelled_systems(run.comparison)
        if len(names) > len(LETTERS):
            raise SettingsError(f"{len(names)} systems are too many to rank; at most {len(LETTERS)} are possible")
        items = []
        for row in sample_rows(run.comparison, size, seed):
            answers = select_answers(run.comparison, row, names)
            order = draw_blind_order(annotator, row, answers)
            items.append(_Item(row, {name: answers[name] for name in order}, (row.id,)))
        super().__init__(run, annotator, RankingLabel, items)

    def _label(self, item: _Item, value: Mapping[str, Any] | None, seconds: float) -> RankingLabel:
        order = tuple(item.answers)
        ranks = (
            None
            if value is None
            else _compute_ranks(read_as(_Ranked, value, "the label").groups, LETTERS[: len(order)])
        )
        about = hash_content(item.row, item.answers)
        return RankingLabel(item.row.id, self.annotator, order, ranks, seconds, about)

    def _to_page(self, item: _Item, label: Any) -> Any:
        ranks = dict(zip(label.order, label.ranks or (), strict=True))
        letters = dict(zip(item.answers, LETTERS, strict=False))
        distinct_ranks = sorted(set(ranks.values()))
        return {"groups": [[letters[name] for name in letters if ranks[name] == rank] for rank in distinct_ranks]}


class AuditTask(LabelTask):
    """The paper's audit: three questions about one answer at a time.

    Args:
        run: The judging run.
        annotator: Who audits; a file name.
        size: Answers of the sample.
        seed: Random seed for the sample.
        system: Whose answers; everybody's (canaries aside) by default, ``reference`` for the data set's own.

    Raises:
        SettingsError: When the name is not a valid file name, or there is no such system.
        DataError: When earlier labels are not about this run's answers.
    """

    kind = "audit"

    def __init__(
        self, run: JudgeRun, annotator: str, *, size: int = 50, seed: int = 0, system: str | None = None
    ) -> None:
        items = []
        for row, name in sample_answers(run.comparison, size, seed, system=system):
            items.append(_Item(row, select_answers(run.comparison, row, [name]), (row.id, name)))
        super().__init__(run, annotator, AuditLabel, items)

    def _label(self, item: _Item, value: Mapping[str, Any] | None, seconds: float) -> AuditLabel:
        audit = None if value is None else read_as(_Audited, value, "the label")
        instruction, style, correct = (audit.instruction, audit.style, audit.correct) if audit else (None, None, None)
        (name,) = item.answers
        about = hash_content(item.row, item.answers)
        return AuditLabel(item.row.id, name, self.annotator, instruction, style, correct, seconds, about)

    def _to_page(self, item: _Item, label: Any) -> Any:
        return {"instruction": label.instruction, "style": label.style, "correct": label.correct}


def _compute_ranks(groups: Sequence[Sequence[str]], letters: str) -> tuple[float, ...]:
    """Compute mid-ranks in the order shown, from groups of letters, best first: ``[["B"], ["A", "C"]]``."""
    rank_by_letter = {letter: rank for rank, group in enumerate(groups) for letter in group}
    if sorted(letter for group in groups for letter in group) != list(letters):
        raise DataError(f"rank each of {letters[0]} to {letters[-1]} once")
    return compute_mid_ranks([rank_by_letter[letter] for letter in letters])


def _show_text(text: str) -> str:
    return make_visible(truncate(text, MAX_TEXT))
