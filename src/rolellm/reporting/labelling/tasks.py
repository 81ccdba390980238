"""What one person has to label, and what of it is done; what is shown never has a name or a verdict."""

from __future__ import annotations

import csv
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

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

#: What answers are called.
LETTERS: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
#: In a sheet, in the place of a label: the person said nothing of this one.
SKIP: Final = "skip"
_ANSWERS: Final[Mapping[str, bool | None]] = {"yes": True, "no": False, "cannot tell": None}
#: Characters of one text that are shown; the rest is counted.
_MAX_TEXT: Final = 20_000
#: A longer look at one item is a break.
_LONGEST: Final = 86_400.0
_FORMULA: Final = re.compile(r"\A[=+\-@\t\r]")


@dataclass(frozen=True, slots=True)
class Field:
    """A thing that a person says of an item.

    Attributes:
        name: Its name, a column of the sheet.
        choices: What may be said.
    """

    name: str
    choices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Item:
    """A row, and the answers that are shown with it.

    Attributes:
        row: The row.
        answers: By system, in the order in which they are shown.
    """

    row: Row
    answers: Mapping[str, str]

    @property
    def about(self) -> str:
        """The hash of what a label is about."""
        return hash_content(self.row, self.answers)

    @property
    def texts(self) -> dict[str, str]:
        """What is shown, by what it is: what judges see. The reference is not shown next to itself."""
        references = () if REFERENCE in self.answers else select_references(self.row)
        texts = {
            "role": self.row.role,
            "description": self.row.role_description or "",
            "question": self.row.question,
            "references": "\n\n".join(references),
            **dict(zip(LETTERS, self.answers.values(), strict=False)),
        }
        return {name: make_visible(truncate(text, _MAX_TEXT)) for name, text in texts.items()}


class LabelTask:
    """A person's labels of a sample; opening it reads what is there and mends what a crash left.

    Args:
        run: The judging run.
        annotator: Who labels; a file name.
        settings: The size of the sample, and whether whole rows are ranked or single answers audited.

    Attributes:
        kind: ``ranking`` or ``audit``.
        items: What is labelled, in order.
        fields: What is said of each.
        path: Where the labels go.

    Raises:
        SettingsError: When the name is not a valid file name, the run has nothing to rank, or there is no such system.
        DataError: When earlier labels are not about this run's answers.
    """

    kind: Literal["ranking", "audit"]

    def __init__(self, run: JudgeRun, annotator: str, settings: LabelSettings) -> None:
        comparison = run.comparison
        self.annotator = annotator
        label_type: type[Any] = AuditLabel if settings.audit else RankingLabel
        self.path = label_path(run.folder, annotator, label_type)
        self.items: list[Item] = []
        if settings.audit:
            self.kind = "audit"
            for row, name in sample_answers(comparison, settings.sample, settings.seed, system=settings.system):
                self.items.append(Item(row, select_answers(comparison, row, [name])))
            # Only whether a reply is correct may be beyond a person.
            choices = dict.fromkeys(AUDIT_QUESTIONS, ("yes", "no")) | {"correct": tuple(_ANSWERS)}
            self.fields = [Field(name, choices[name]) for name in AUDIT_QUESTIONS]
        else:
            self.kind = "ranking"
            names = list_labelled_systems(comparison)
            if len(names) > len(LETTERS):
                raise SettingsError(f"{len(names)} systems are too many to rank; at most {len(LETTERS)} are possible")
            for row in sample_rows(comparison, settings.sample, settings.seed):
                order = draw_blind_order(annotator, row, select_answers(comparison, row, names))
                self.items.append(Item(row, select_answers(comparison, row, order)))
            places = tuple(str(place) for place in range(1, len(names) + 1))
            self.fields = [Field(f"place of {letter}", places) for letter in LETTERS[: len(names)]]
        self._lock = threading.Lock()
        if self.path.is_file():
            # Half a line that a crash left is taken off before anything is read.
            JsonlAppender(self.path).close()
        self._labels: dict[tuple[str, ...], Any] = read_labels(run, annotator, label_type)

    def _find_label(self, item: Item) -> Label | None:
        """Find a label of these answers; one more system since, and the row is to be ranked again."""
        key = (item.row.id, *item.answers) if self.kind == "audit" else (item.row.id,)
        label: Label | None = self._labels.get(key)
        return label if label is not None and set(label.names) == set(item.answers) else None

    def statuses(self) -> list[Status]:
        """Return what is done of each item, in order."""
        statuses: list[Status] = []
        for item in self.items:
            label = self._find_label(item)
            if label is None:
                statuses.append("open")
            else:
                statuses.append("skipped" if label.skipped else "done")
        return statuses

    def values(self, index: int) -> list[str | None]:
        """Return what was said of an item, by field; ``None`` where nothing was."""
        item = self.items[index]
        label = self._find_label(item)
        if label is None or label.skipped:
            return [None] * len(self.fields)
        if isinstance(label, AuditLabel):
            words = {answer: word for word, answer in _ANSWERS.items()}
            return [words[getattr(label, field.name)] for field in self.fields]
        ranks = dict(zip(label.order, label.ranks or (), strict=True))
        places = sorted(set(ranks.values()))
        return [str(places.index(ranks[name]) + 1) for name in item.answers]

    def save(self, index: int, values: Sequence[str | None] | None, seconds: float) -> None:
        """Put a label on the disk.

        Args:
            index: The item's.
            values: What was said, by field; ``None`` to skip the item.
            seconds: How long it was looked at.

        Raises:
            DataError: When a value is not one of its field's choices.
            OSError: When it cannot be written.
        """
        item = self.items[index]
        for field, value in zip(self.fields, values or (), strict=values is not None):
            if value not in field.choices:
                raise DataError(f"{field.name}: choose one of {', '.join(field.choices)}")
        label = self._make_label(item, values, round(min(seconds, _LONGEST), 1))
        with self._lock:
            append_label(self.path, label)
            self._labels[label.key] = label

    def _make_label(self, item: Item, values: Sequence[str | None] | None, seconds: float) -> Label:
        row_id, names = item.row.id, tuple(item.answers)
        if self.kind == "ranking":
            ranks = None if values is None else compute_mid_ranks([int(value or 0) for value in values])
            return RankingLabel(row_id, self.annotator, names, ranks, seconds, item.about)
        answers: dict[str, bool | None] = dict.fromkeys(AUDIT_QUESTIONS)
        for field, value in zip(self.fields, values or (), strict=values is not None):
            answers[field.name] = _ANSWERS[value or ""]
        label = {"row": row_id, "system": names[0], "annotator": self.annotator, "seconds": seconds, **answers}
        return read_as(AuditLabel, {**label, "answers": item.about}, "the label")

    def write_sheet(self, path: Path) -> None:
        """Write a blind sheet to fill in: a line for each item, a column for each field.

        Raises:
            OSError: When it cannot be written, or is there already.
        """
        with path.open("x", encoding="utf-8-sig", newline="") as stream:
            writer = csv.writer(stream)
            names = [field.name for field in self.fields]
            writer.writerow(["item", "hash", *self.items[0].texts, *names])
            for number, item in enumerate(self.items, start=1):
                # A spreadsheet would read such a text as a formula.
                texts = [f"'{text}" if _FORMULA.match(text) else text for text in item.texts.values()]
                values = [value or "" for value in self.values(number - 1)]
                writer.writerow([number, item.about[:16], *texts, *values])

    def read_sheet(self, path: Path) -> int:
        """Keep what was filled in, and return how many items that was; a line without a word is left open.

        Raises:
            DataError: For a sheet of other answers, or a word that is not a choice; names the line.
        """
        saved = 0
        with path.open(encoding="utf-8-sig", newline="") as stream:
            for line, cells in enumerate(csv.DictReader(stream), start=2):
                words = [(cells.get(field.name) or "").strip().casefold() for field in self.fields]
                if not any(words):
                    continue
                number = cells.get("item") or ""
                index = int(number) - 1 if number.isdecimal() else -1
                if not 0 <= index < len(self.items) or self.items[index].about[:16] != cells.get("hash"):
                    problem = "not an item of this sample; give the run, --annotator and --limit of the sheet"
                    raise DataError(problem, path=path, line=line)
                values = None if SKIP in words else words
                if values == self.values(index):
                    continue
                try:
                    self.save(index, values, 0.0)
                except DataError as error:
                    raise DataError(str(error), path=path, line=line) from error
                saved += 1
        return saved
