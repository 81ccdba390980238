"""One person's labels of a sample; a shown answer never has a name or a verdict."""

from __future__ import annotations

import csv
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from rolellm.core.errors import DataError, SettingsError
from rolellm.core.fingerprint import hash_json
from rolellm.core.jsonl import JsonlAppender
from rolellm.core.records import Row
from rolellm.core.sanitize import make_visible, truncate
from rolellm.core.table import escape_csv
from rolellm.judging.people.labels import (
    ANSWERS,
    REFERENCE,
    Label,
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
from rolellm.judging.records import JudgeRun
from rolellm.judging.requests import select_references
from rolellm.judging.settings import LabelSettings

Status = Literal["open", "done", "skipped"]

#: What answers are called.
LETTERS: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
#: In a sheet, in the place of a label: the person said nothing of this one.
SKIP: Final = "skip"
#: Characters of one text that are shown; the rest is counted.
_MAX_TEXT: Final = 20_000


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
    def token(self) -> str:
        """The item in a sheet: of other answers, or of the same in another order, it is another."""
        return hash_json([self.about, *self.answers])[:16]

    @property
    def texts(self) -> dict[str, str]:
        """The texts that judges see, by kind. The reference is not shown next to itself."""
        row = self.row
        references = () if REFERENCE in self.answers else select_references(row)
        texts = {"role": row.role, "description": row.role_description or "", "question": row.question}
        texts["references"] = "\n\n".join(references)
        texts |= zip(LETTERS, self.answers.values(), strict=False)
        for name, text in texts.items():
            texts[name] = make_visible(truncate(text, _MAX_TEXT))
        return texts


class LabelTask:
    """A person's labels of a sample; opening it reads what is there and mends what a crash left.

    Args:
        run: The judging run.
        annotator: Who labels; a file name.
        settings: The size of the sample, and whether whole rows are ranked or single answers audited.

    Attributes:
        kind: ``ranking`` or ``audit``.
        items: What is labelled, in order.
        fields: What may be said of each, by place or question: the last columns of the sheet.
        path: Where the labels go.

    Raises:
        SettingsError: When the name is not a valid file name, the run has nothing to rank, or there is no such system.
        DataError: When earlier labels are not about this run's answers.
    """

    kind: Literal["ranking", "audit"]

    def __init__(self, run: JudgeRun, annotator: str, settings: LabelSettings) -> None:
        comparison = run.comparison
        self.path = label_path(run.folder, annotator, audit=settings.audit)
        self.items: list[Item] = []
        if settings.audit:
            self.kind = "audit"
            for row, name in sample_answers(comparison, settings.limit, settings.system):
                answers = select_answers(comparison, row, [name])
                self.items.append(Item(row, answers))
            # Only whether a reply is correct may be beyond a person.
            yes_no = ANSWERS[:2]
            self.fields = {"instruction": yes_no, "style": yes_no, "correct": ANSWERS}
        else:
            self.kind = "ranking"
            names = list_labelled_systems(comparison)
            if len(names) > len(LETTERS):
                raise SettingsError(f"{len(names)} systems are too many to rank; at most {len(LETTERS)} are possible")
            for row in sample_rows(comparison, settings.limit):
                answers = select_answers(comparison, row, names)
                order = draw_blind_order(annotator, row, answers)
                ordered = {name: answers[name] for name in order}
                self.items.append(Item(row, ordered))
            choices = tuple(map(str, range(1, len(names) + 1)))
            self.fields = {f"place of {letter}": choices for letter in LETTERS[: len(names)]}
        self._lock = threading.Lock()
        if self.path.is_file():
            # Half a line that a crash left is taken off before anything is read.
            JsonlAppender(self.path).close()
        self._labels = read_labels(run, annotator, audit=settings.audit)

    def _find_label(self, item: Item) -> Label | None:
        """Find a label of these answers; one more system since, and the row is to be ranked again."""
        systems = item.answers if self.kind == "audit" else ()
        label = self._labels.get((item.row.id, *systems))
        # In the order that is shown: places are those of letters.
        if label is None or label.systems != tuple(item.answers):
            return None
        return label

    def statuses(self) -> list[Status]:
        """Return what is done of each item, in order."""
        statuses: list[Status] = []
        for item in self.items:
            label = self._find_label(item)
            if label is None:
                statuses.append("open")
            else:
                statuses.append("skipped" if label.said is None else "done")
        return statuses

    def values(self, index: int) -> list[str | None]:
        """Return what was said of an item, by field; ``None`` where nothing was."""
        label = self._find_label(self.items[index])
        if label is None or label.said is None:
            return [None] * len(self.fields)
        return list(label.said.values())

    def save(self, index: int, values: Sequence[str | None] | None) -> None:
        """Put a label on the disk.

        Args:
            index: The item's.
            values: What was said, by field; ``None`` to skip the item.

        Raises:
            DataError: When a value is not one of its field's choices.
            OSError: When it cannot be written.
        """
        item = self.items[index]
        said: dict[str, str] | None = None
        if values is not None:
            said = {}
            for (name, choices), value in zip(self.fields.items(), values, strict=True):
                if value not in choices:
                    raise DataError(f"{name}: choose one of {', '.join(choices)}")
                said[name] = str(value)
        label = Label(item.row.id, tuple(item.answers), said, item.about)
        with self._lock:
            append_label(self.path, label)
            self._labels[label.key] = label

    def write_sheet(self, path: Path) -> None:
        """Write a blind sheet to fill in: a line for each item, a column for each field.

        Raises:
            OSError: When it cannot be written, or is there already.
        """
        with path.open("x", encoding="utf-8-sig", newline="") as stream:
            writer = csv.writer(stream)
            writer.writerow(["item", *self.items[0].texts, *self.fields])
            for index, item in enumerate(self.items):
                texts = map(escape_csv, item.texts.values())
                values = [value or "" for value in self.values(index)]
                writer.writerow([item.token, *texts, *values])

    def read_sheet(self, path: Path) -> int:
        """Keep what was filled in, and return how many items that was; a line without a word is left open.

        Raises:
            DataError: For a sheet of other answers, or a word that is not a choice; names the line.
        """
        saved = 0
        indexes = {item.token: index for index, item in enumerate(self.items)}
        with path.open(encoding="utf-8-sig", newline="") as stream:
            for line, cells in enumerate(csv.DictReader(stream), start=2):
                texts = [cells.get(name) or "" for name in self.fields]
                words = [text.strip().casefold() for text in texts]
                if not any(words):
                    continue
                index = indexes.get(cells.get("item") or "")
                if index is None:
                    problem = "not an item of this sample; give the run, --annotator and --limit of the sheet"
                    raise DataError(problem, path=path, line=line)
                values = None if SKIP in words else words
                if values == self.values(index):
                    continue
                try:
                    self.save(index, values)
                except DataError as error:
                    raise DataError(str(error), path=path, line=line) from error
                saved += 1
        return saved
