"""Every question of a report to browse: all of them in the page, compressed, unpacked only when somebody looks.

How a page takes in what `browse` returns::

    <meta http-equiv="Content-Security-Policy" content="… script-src '{{ browse.script_sha256 }}'">
    <style>{{ browse.css }}</style>
    … {{ browse.html }} …
    <script>{{ browse.script }}</script>
    {% for element in browse.data %}{{ element }}{% endfor %}
    </body>

The script comes before the data, so that the first question is shown while the rest of the file is still read. All of
these are HTML of our own making, to be marked as safe; what models and data sets wrote is in the compressed data, with
what a reader could not see spelled out, and is put into the page as text only.

The data are blocks: each a JSON value, deflated (zlib), in base64, no character of which means anything to HTML. Texts
that occur in several places (an instruction put to many roles, a role's description, a constant answer) are kept once,
in blocks of their own, and named by their number.
"""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from markupsafe import Markup

from rolellm.core.records import Row
from rolellm.core.sanitize import make_visible, truncate
from rolellm.judging.records import get_category
from rolellm.judging.verdicts import RowOutcome
from rolellm.reporting.plots import sign
from rolellm.reporting.templates import environment, read_template

_DIGITS = 4
_SAMPLED = 2_000
_Item = TypeVar("_Item")
_UNJUDGED = RowOutcome()

#: Characters of any one text that a reader can open, at most; the rest is counted (our choice).
MAX_TEXT = 20_000
#: Rows a block at most (our choice: a search looks through a block between two frames).
BLOCK_ROWS = 256
#: Characters a block, about; a block of one row may be longer.
BLOCK_CHARACTERS = 500_000

# A shorter text costs hardly more than its number would.
_SHORT = 32
_BLOCK_TEXTS = 1024
# Levels 7 to 9 take up to half as long again for files smaller by 0.4 %.
_LEVEL = 6


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits on how much of a part is kept.

    Attributes:
        text: Characters of any one text; what is cut off is counted.
        reasons: Reasons for any one answer; ``None`` keeps all.
    """

    text: int = MAX_TEXT
    reasons: int | None = None


#: A text; the number of one in the table; or nothing.
Packed = str | int | None


def pack(value: Any) -> str:
    """Return a JSON value as base64 of its deflated bytes.

    >>> json.loads(zlib.decompress(base64.b64decode(pack({"a": [1, "b"]}))))
    {'a': [1, 'b']}
    """
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return base64.b64encode(zlib.compress(text.encode("utf-8"), _LEVEL)).decode("ascii")


def show_text(text: str, limit: int = MAX_TEXT) -> str:
    """Return a text as the page shows it: truncated, the cut counted, and invisible characters spelled out."""
    return make_visible(truncate(text, limit))


@dataclass
class TextTable:
    """The texts that occur more than once, numbered in the order in which they first occur.

    Attributes:
        numbers: Each text's number.
        limit: Characters of a text that are kept.
    """

    numbers: dict[str, int] = field(default_factory=dict)
    limit: int = MAX_TEXT

    @classmethod
    def of(cls, texts: Iterable[str | None], limit: int = MAX_TEXT) -> TextTable:
        """Count texts, and number those that are long and occur again."""
        again: dict[str, bool] = {}
        for text in texts:
            if text is not None and len(text) > _SHORT:
                again[text] = text in again
        repeated = (text for text, twice in again.items() if twice)
        return cls({text: number for number, text in enumerate(repeated)}, limit)

    def pack(self, text: str | None) -> Packed:
        """Return a text's number, where it has one, else the text as shown."""
        if text is None:
            return None
        number = self.numbers.get(text)
        return show_text(text, self.limit) if number is None else number

    @property
    def starts(self) -> list[int]:
        """Number of the first text of each of the table's blocks."""
        return find_block_starts((min(len(text), self.limit) for text in self.numbers), _BLOCK_TEXTS)

    def blocks(self) -> Iterator[list[str]]:
        """Yield the texts as shown, in blocks."""
        texts = list(self.numbers)
        for first, end in ends(self.starts, len(texts)):
            yield [show_text(text, self.limit) for text in texts[first:end]]


def find_block_starts(sizes: Iterable[int], items: int) -> list[int]:
    """Return where blocks begin, for the characters of each item, and at most N items a block.

    >>> cut([400_000, 90_000, 90_000, 900_000, 1], 100)
    [0, 2, 3, 4]
    """
    starts: list[int] = []
    filled = 0
    for at, size in enumerate(sizes):
        if not starts or at - starts[-1] == items or filled + size > BLOCK_CHARACTERS:
            starts.append(at)
            filled = 0
        filled += size
    return starts


def ends(starts: Sequence[int], count: int) -> list[tuple[int, int]]:
    """Return where each block begins and ends.

    >>> ends([0, 2, 3], 4)
    [(0, 2), (2, 3), (3, 4)]
    """
    return list(zip(starts, [*starts[1:], count], strict=True)) if starts else []


@dataclass(frozen=True, slots=True)
class BrowsePart:
    """Rows with their answers, that are browsed together: a judging run, or a set of predictions.

    Attributes:
        name: What the reader chooses it by, where there are several.
        rows: What was asked, in the data set's order.
        answers: System name to row id to answer; a row that one did not answer is absent. Shown in this order.
        outcomes: Row id to system name to what judges made of its answer.
        rouge: System name to row id to Rouge-L, from 0 to 1.
        kinds: System name to ``baseline`` or ``canary``; others are models.
        series: System name to the number that gives it its color and mark, as in the page's plots; where there is
            none, its place in ``answers``.
        disputed: Ids of the rows on which judges, or the orders that one judge saw, do not agree.
    """

    name: str
    rows: Sequence[Row]
    answers: Mapping[str, Mapping[str, str]]
    outcomes: Mapping[str, Mapping[str, RowOutcome]] = field(default_factory=dict)
    rouge: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    kinds: Mapping[str, str] = field(default_factory=dict)
    series: Mapping[str, int] = field(default_factory=dict)
    disputed: Collection[str] = ()


class PackedPart:
    """A part, cut into blocks.

    Args:
        number: Its place among the parts.
        part: What to lay out.
        bounds: How much of it to keep.
    """

    def __init__(self, number: int, part: BrowsePart, bounds: Bounds = Bounds()) -> None:
        self.number = number
        self.part = part
        self._bounds = bounds
        self._table = TextTable.of((text for row in part.rows for text in self._texts(row)), bounds.text)
        self._starts = find_block_starts(map(self._size, part.rows), BLOCK_ROWS)

    def estimate(self) -> int:
        """Estimate the characters of all elements: of many rows and texts, only some are packed to find out."""
        texts = [show_text(text, self._bounds.text) for text in _sample_items(list(self._table.numbers))]
        rows = [self._packed(row) for row in _sample_items(self.part.rows)]
        every = ((rows, len(self.part.rows)), (texts, len(self._table.numbers)))
        return sum(round(len(pack(sample)) * count / max(len(sample), 1)) for sample, count in every)

    def elements(self) -> Iterator[str]:
        """Yield the texts as elements, rows in order; before a block of rows, what it names of the table."""
        table = enumerate(zip(self._table.starts, self._table.blocks(), strict=True))
        written = next(table, None)
        for at, (first, end) in enumerate(ends(self._starts, len(self.part.rows))):
            block = [self._packed(row) for row in self.part.rows[first:end]]
            while written is not None and written[1][0] <= _get_last_number(block):
                yield self.element(f"table-{written[0]}", written[1][1])
                written = next(table, None)
            yield self.element(f"rows-{at}", block)

    def index(self) -> dict[str, Any]:
        """Return columns, an entry a row each: what `browse.js` filters and sorts by."""
        rows, names = self.part.rows, list(self.part.answers)
        roles, categories = _number_values(row.role for row in rows), _number_values(map(get_category, rows))
        disputed, answers = set(self.part.disputed), list(self.part.answers.values())
        return {
            "name": make_visible(self.part.name),
            "starts": self._starts,
            "table": self._table.starts,
            "roles": [make_visible(role) for role in roles],
            "categories": list(categories),
            "systems": [self._system(name) for name in names],
            "id": [make_visible(row.id) for row in rows],
            "role": [roles[row.role] for row in rows],
            "category": [categories[get_category(row)] for row in rows],
            "disputed": [at for at, row in enumerate(rows) if row.id in disputed],
            "length": [[len(replies[row.id]) if row.id in replies else None for row in rows] for replies in answers],
            "left_out": [
                [self._left_out(row, name) for row in rows] if self._bounds.reasons else None for name in names
            ],
            "win": [_round_column(self._outcome(row, name).win for row in rows) for name in names],
            "rank": [_round_column(self._outcome(row, name).rank for row in rows) for name in names],
            "rouge": [_round_column(self.part.rouge.get(name, {}).get(row.id) for row in rows) for name in names],
        }

    def _system(self, name: str) -> dict[str, Any]:
        at = self.part.series.get(name, list(self.part.answers).index(name))
        return sign(make_visible(name), at) | {"kind": self.part.kinds.get(name, "model")}

    def _outcome(self, row: Row, name: str) -> RowOutcome:
        return self.part.outcomes.get(row.id, {}).get(name, _UNJUDGED)

    def _reasons(self, row: Row, name: str) -> Sequence[str]:
        return self._outcome(row, name).reasons[: self._bounds.reasons]

    def _left_out(self, row: Row, name: str) -> int:
        return len(self._outcome(row, name).reasons) - len(self._reasons(row, name))

    def _size(self, row: Row) -> int:
        return sum(min(len(text), self._bounds.text) for text in self._texts(row) if text is not None)

    def _texts(self, row: Row) -> Iterator[str | None]:
        yield from (row.question, *row.references, row.raw_reference, row.role_description)
        for name, replies in self.part.answers.items():
            yield replies.get(row.id)
            yield from self._reasons(row, name)

    def _packed(self, row: Row) -> list[Any]:
        pack_text = self._table.pack
        return [
            row.language,
            pack_text(row.question),
            [pack_text(text) for text in row.references],
            pack_text(row.raw_reference),
            pack_text(row.role_description),
            [pack_text(replies.get(row.id)) for replies in self.part.answers.values()],
            [[pack_text(reason) for reason in self._reasons(row, name)] for name in self.part.answers],
        ]

    def element(self, name: str, value: Any) -> str:
        """Return a value as an element that shows nothing."""
        # A type that no browser runs.
        return f'<script type="application/octet-stream" id="browse-{self.number}-{name}">{pack(value)}</script>\n'


def _sample_items(items: Sequence[_Item]) -> Sequence[_Item]:
    """Return a few thousand items, at even distances."""
    return items[:: max(len(items) // _SAMPLED, 1)]


def _get_last_number(packed: Sequence[Any] | Packed) -> int:
    """Return the highest number of the table that rows name; -1 for none."""
    if isinstance(packed, list):
        return max(map(_get_last_number, packed), default=-1)
    return packed if isinstance(packed, int) else -1


def _number_values(values: Iterable[str]) -> dict[str, int]:
    return {value: at for at, value in enumerate(dict.fromkeys(values))}


def _round_column(values: Iterable[float | None]) -> list[float | None] | None:
    """Return a measure of every row; nothing, where no row has one."""
    column = [None if value is None else round(value, _DIGITS) for value in values]
    return None if all(value is None for value in column) else column


#: Characters of compressed texts in a page, about: our choice, so that with its plots it stays under 60 MB.
MAX_DATA = 52_000_000
#: How much is kept, the first that fits: answers before reasons, and many texts before long ones (our choice).
BOUNDS = (
    Bounds(),
    *(Bounds(reasons=count) for count in (8, 4, 2, 1)),
    *(Bounds(text, reasons=1) for text in (5_000, 2_000, 1_000, 500, 250, 100)),
)


@dataclass(frozen=True, slots=True)
class Browse:
    """The pieces that go into a page, each at its place.

    Attributes:
        html: The section, with the small indexes that filters work on.
        script: The text of one inline script, which goes after ``html`` and before ``data``.
        script_sha256: Its source expression for a Content-Security-Policy: ``sha256-…``, without quotes.
        css: Rules on top of ``page.css``, whose variables they use.
        parts: What is browsed.
    """

    html: Markup
    script: Markup
    script_sha256: str
    css: Markup
    parts: Sequence[PackedPart] = field(repr=False)

    @property
    def data(self) -> Iterator[Markup]:
        """The compressed texts as elements that show nothing, which go last in the body, made one at a time."""
        return (Markup(element) for part in self.parts for element in part.elements())


def browse(parts: Sequence[BrowsePart]) -> Browse:
    """Make every question of some runs browsable.

    Args:
        parts: One a judging run or set of predictions; those without rows are left out.

    Returns:
        What goes into the page; the same for the same parts. With no rows at all, the section says so. Where the texts
        would take up more than `MAX_DATA`, reasons are left out first, and then texts cut; the section says that too.
    """
    parts = [part for part in parts if part.rows]
    for bounds in BOUNDS:
        packed = [PackedPart(at, part, bounds) for at, part in enumerate(parts)]
        if sum(part.estimate() for part in packed) <= MAX_DATA:
            break
    script = _read_script()
    return Browse(
        html=_render_section(packed, bounds),
        script=Markup(script),
        script_sha256=source_hash(script),
        css=Markup(read_template("browse.css")),
        parts=packed,
    )


def source_hash(script: str) -> str:
    """Return what a Content-Security-Policy calls an inline script: ``sha256-`` and its digest in base64."""
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")


def _read_script() -> str:
    files = (
        read_template(name).strip() for name in ("browse_data.js", "browse_card.js", "browse_filters.js", "browse.js")
    )
    return '(() => {\n"use strict";\n' + "\n\n".join(files) + "\n})();"


def _render_section(parts: Sequence[PackedPart], bounds: Bounds) -> Markup:
    indexes = [Markup(part.element("index", part.index())) for part in parts]
    count = sum(len(part.part.rows) for part in parts)
    template = environment().get_template("browse.html.jinja")
    return Markup(template.render(indexes=indexes, count=count, bounds=bounds, max_text=MAX_TEXT))
