"""One person's labels of a sample; a shown answer never has a name or a verdict."""

from __future__ import annotations

import csv
import io
import re
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
    Label,
    append_label,
    draw_blind_order,
    hash_content,
    label_path,
    list_labelled_systems,
    read_labels,
    sample_rows,
    select_answers,
)
from rolellm.judging.records import JudgeRun
from rolellm.judging.requests import LETTERS, select_references

Status = Literal["open", "done", "skipped"]

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
        """The texts that judges see, by kind."""
        row = self.row
        texts = {"role": row.role, "description": row.role_description or "", "question": row.question}
        texts["references"] = "\n\n".join(select_references(row))
        texts |= zip(LETTERS, self.answers.values(), strict=False)
        for name, text in texts.items():
            texts[name] = make_visible(truncate(text, _MAX_TEXT))
        return texts


class LabelTask:
    """A person's labels of a sample; opening it reads what is there and mends what a crash left.

    Args:
        run: The judging run.
        annotator: Who labels; a file name.
        limit: The size of the sample.

    Attributes:
        items: What is labelled, in order.
        places: The last columns of the sheet: the place of each answer.
        choices: What may be said of each: the places from 1.
        path: Where the labels go.

    Raises:
        SettingsError: When the name is not a valid file name, or the run has nothing to rank.
        DataError: When earlier labels are not about this run's answers.
    """

    def __init__(self, run: JudgeRun, annotator: str, limit: int) -> None:
        comparison = run.comparison
        self.path = label_path(run.folder, annotator)
        names = list_labelled_systems(comparison)
        if len(names) > len(LETTERS):
            raise SettingsError(f"{len(names)} systems are too many to rank; at most {len(LETTERS)} are possible")
        self.items: list[Item] = []
        for row in sample_rows(comparison, limit):
            answers = select_answers(comparison, row, names)
            order = draw_blind_order(annotator, row, answers)
            ordered = {name: answers[name] for name in order}
            self.items.append(Item(row, ordered))
        self.places = [f"place of {letter}" for letter in LETTERS[: len(names)]]
        self.choices = [str(place) for place in range(1, len(names) + 1)]
        self._lock = threading.Lock()
        if self.path.is_file():
            # Half a line that a crash left is taken off before anything is read.
            JsonlAppender(self.path).close()
        self._labels = read_labels(run, annotator)

    def _find_label(self, item: Item) -> Label | None:
        """Find a label of these answers; one more system since, and the row is to be ranked again."""
        label = self._labels.get(item.row.id)
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
        """Return the places that were said of an item; ``None`` where nothing was."""
        label = self._find_label(self.items[index])
        if label is None or label.said is None:
            return [None] * len(self.places)
        return list(label.said.values())

    def save(self, index: int, values: Sequence[str | None] | None) -> None:
        """Put a label on the disk.

        Args:
            index: The item's.
            values: The place of each answer; ``None`` to skip the item.

        Raises:
            DataError: When a value is not a place.
            OSError: When it cannot be written.
        """
        item = self.items[index]
        said: dict[str, str] | None = None
        if values is not None:
            said = {}
            for name, value in zip(self.places, values, strict=True):
                if value not in self.choices:
                    raise DataError(f"{name}: choose one of {', '.join(self.choices)}")
                said[name] = str(value)
        label = Label(item.row.id, tuple(item.answers), said, item.about)
        with self._lock:
            append_label(self.path, label)
            self._labels[label.row] = label

    def write_sheet(self, path: Path) -> None:
        """Write a blind sheet to fill in: a line for each item, a column for each place.

        Raises:
            OSError: When it cannot be written, or is there already.
        """
        with path.open("x", encoding="utf-8-sig", newline="") as stream:
            writer = csv.writer(stream)
            writer.writerow(["item", *self.items[0].texts, *self.places])
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
        for line, cells in enumerate(self._open_sheet(path), start=2):
            texts = [cells.get(name) or "" for name in self.places]
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

    def _open_sheet(self, path: Path) -> csv.DictReader[str]:
        try:
            text = path.read_text(encoding="utf-8-sig")
        except UnicodeDecodeError as error:
            raise DataError("not in UTF-8; save the sheet as CSV in UTF-8", path=path) from error
        # Where a comma is a decimal point, spreadsheets write semicolons.
        begin = re.match('"?item"?([;\t])', text)
        delimiter = begin[1] if begin else ","
        reader = csv.DictReader(io.StringIO(text), delimiter=delimiter)
        missing = [name for name in ("item", *self.places) if name not in (reader.fieldnames or ())]
        if missing:
            raise DataError(f"lacks the columns {', '.join(missing)}; keep the first line", path=path, line=1)
        return reader
