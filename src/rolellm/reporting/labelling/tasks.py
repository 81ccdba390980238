"""What one person has to label, what of it is done, and what the page may know: never a name, never a verdict."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from pydantic import Field, StrictBool, StrictFloat, StrictInt, StrictStr

from rolellm.core.errors import DataError, SettingsError
from rolellm.core.jsonl import JsonlAppender
from rolellm.core.records import Row
from rolellm.core.sanitize import make_visible, truncate
from rolellm.core.typed_json import read_as
from rolellm.judging.people.labels import (
    AUDIT_QUESTIONS,
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
from rolellm.judging.requests import select_references
from rolellm.judging.settings import LabelSettings

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


class LabelTask:
    """A person's labels of a sample; opening it reads what is there and mends what a crash left.

    Args:
        run: The judging run.
        annotator: Who labels; a file name.
        settings: The size of the sample, and whether whole rows are ranked or single answers audited.

    Attributes:
        kind: Which page it needs: ``ranking`` or ``audit``.
        path: Where the labels go.

    Raises:
        SettingsError: When the name is not a valid file name, the run has nothing to rank, or there is no such system.
        DataError: When earlier labels are not about this run's answers.
    """

    def __init__(self, run: JudgeRun, annotator: str, settings: LabelSettings) -> None:
        comparison, label_type = run.comparison, AuditLabel if settings.audit else RankingLabel
        self.annotator, self.kind = annotator, "audit" if settings.audit else "ranking"
        self.path = label_path(run.folder, annotator, label_type)
        if settings.audit:
            sample = sample_answers(comparison, settings.sample, settings.seed, system=settings.system)
            self._items = [(row, select_answers(comparison, row, [name])) for row, name in sample]
        else:
            names = list_labelled_systems(comparison)
            if len(names) > len(LETTERS):
                raise SettingsError(f"{len(names)} systems are too many to rank; at most {len(LETTERS)} are possible")
            rows = sample_rows(comparison, settings.sample, settings.seed)
            orders = (draw_blind_order(annotator, row, select_answers(comparison, row, names)) for row in rows)
            self._items = [
                (row, select_answers(comparison, row, order)) for row, order in zip(rows, orders, strict=True)
            ]
        self._lock = threading.Lock()
        if self.path.is_file():
            # Half a line that a crash left is taken off before anything is read.
            JsonlAppender(self.path).close()
        self._labels: dict[tuple[str, ...], Any] = read_labels(run, annotator, label_type)

    def __len__(self) -> int:
        return len(self._items)

    def statuses(self) -> list[Status]:
        """Return what is done of each item, in order."""
        return [self._get_status(*item) for item in self._items]

    def item(self, number: int) -> dict[str, Any]:
        """Return what the page shows of an item, counted from 0, as one JSON object.

        Raises:
            IndexError: When there is no such item.
        """
        row, answers = self._get_item(number)
        # What judges see. The data set's own reference is not shown next to itself.
        references = () if REFERENCE in answers else select_references(row)
        return {
            "role": _show_text(row.role),
            "language": row.language,
            "description": None if row.role_description is None else _show_text(row.role_description),
            "question": _show_text(row.question),
            "references": [_show_text(text) for text in references],
            "answers": [
                {"letter": letter, "text": _show_text(text)}
                for letter, text in zip(LETTERS, answers.values(), strict=False)
            ],
            "label": self._show_label(row, answers),
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
        row, answers = self._get_item(post.item)
        seconds = round(float(min(post.seconds, _LONGEST)), 1)
        label = self._read_label(row, answers, None if post.skipped else value, seconds)
        with self._lock:
            append_label(self.path, label)
            self._labels[label.key] = label

    def close(self) -> None:
        """Wait until no label is being written, and take no more."""
        self._lock.acquire()

    def _get_item(self, number: int) -> tuple[Row, dict[str, str]]:
        if not 0 <= number < len(self._items):
            raise IndexError(number)
        return self._items[number]

    def _find_label(self, row: Row, answers: Mapping[str, str]) -> Label | None:
        """Find a label of these answers; one more system since, and the row is to be ranked again."""
        label: Label | None = self._labels.get((row.id, *answers) if self.kind == "audit" else (row.id,))
        return label if label is not None and set(label.names) == set(answers) else None

    def _get_status(self, row: Row, answers: Mapping[str, str]) -> Status:
        label = self._find_label(row, answers)
        return "open" if label is None else "skipped" if label.skipped else "done"

    def _read_label(
        self, row: Row, answers: Mapping[str, str], value: Mapping[str, Any] | None, seconds: float
    ) -> Label:
        """Make the label that the page's value says; a skipped one for ``None``."""
        about = hash_content(row, answers)
        if self.kind == "ranking":
            ranks = None if value is None else _compute_ranks(value.get("groups"), LETTERS[: len(answers)])
            return RankingLabel(row.id, self.annotator, tuple(answers), ranks, seconds, about)
        (name,) = answers
        said = {key: value[key] for key in AUDIT_QUESTIONS if key in value} if value else dict.fromkeys(AUDIT_QUESTIONS)
        given = {"row": row.id, "system": name, "annotator": self.annotator, "seconds": seconds, "answers": about}
        return read_as(AuditLabel, given | said, "the label")

    def _show_label(self, row: Row, answers: Mapping[str, str]) -> Any:
        label = self._find_label(row, answers)
        if label is None or label.skipped:
            return label and {"skipped": True}
        if isinstance(label, AuditLabel):
            return {key: getattr(label, key) for key in AUDIT_QUESTIONS}
        ranks = dict(zip(label.order, label.ranks or (), strict=True))
        groups: dict[float, list[str]] = {rank: [] for rank in sorted(ranks.values())}
        for letter, name in zip(LETTERS, answers, strict=False):
            groups[ranks[name]].append(letter)
        return {"groups": [*groups.values()]}


def _compute_ranks(value: Any, letters: str) -> tuple[float, ...]:
    """Compute mid-ranks in the order shown, from groups of letters, best first: ``[["B"], ["A", "C"]]``."""
    groups: Sequence[Sequence[str]] = read_as(tuple[tuple[StrictStr, ...], ...], value, "the label")
    rank_by_letter = {letter: rank for rank, group in enumerate(groups) for letter in group}
    if sorted(letter for group in groups for letter in group) != list(letters):
        raise DataError(f"rank each of {letters[0]} to {letters[-1]} once")
    return compute_mid_ranks([rank_by_letter[letter] for letter in letters])


def _show_text(text: str) -> str:
    return make_visible(truncate(text, MAX_TEXT))
