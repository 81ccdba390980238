"""One set of rows to browse, and how it is laid out in a page: a small index to filter by, and blocks of texts."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeVar

from rolellm.core.records import Row
from rolellm.core.sanitize import visible
from rolellm.judging.types import category
from rolellm.report.browse.blocks import BLOCK_ROWS, Bounds, Packed, TextTable, cut, ends, pack
from rolellm.report.canvas import MARKERS, SERIES

_DIGITS = 4
_SAMPLED = 8
_Block = TypeVar("_Block")


class Outcome(Protocol):
    """What judges made of one answer, see `rolellm.judging.aggregate`."""

    @property
    def win(self) -> float | None:
        """1 for an answer better than the baseline's, .5 for a tie, 0 for a worse one, or a mean of these."""

    @property
    def rank(self) -> float | None:
        """The mean rank among all answers, from 1 (best)."""

    @property
    def reasons(self) -> Sequence[str]:
        """What the judges said of it."""


@dataclass(frozen=True, slots=True)
class BrowsePart:
    """Rows with their answers, that are browsed together: a judging run, or a set of predictions.

    Attributes:
        name: What the reader chooses it by, where there are several.
        rows: What was asked, in the data set's order.
        answers: Contestant name to row id to answer; a row that one did not answer is absent. Shown in this order.
        outcomes: Row id to contestant name to what judges made of its answer.
        rouge: Contestant name to row id to Rouge-L, from 0 to 1.
        kinds: Contestant name to ``baseline`` or ``canary``; others are models.
        series: Contestant name to the number that gives it its colour and mark, as in the page's plots; where there is
            none, its place in ``answers``.
        disputed: Ids of the rows on which judges, or the orders that one judge saw, do not agree.
    """

    name: str
    rows: Sequence[Row]
    answers: Mapping[str, Mapping[str, str]]
    outcomes: Mapping[str, Mapping[str, Outcome]] = field(default_factory=dict)
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
        self._starts = cut(map(self._size, part.rows), BLOCK_ROWS)

    def estimate(self) -> int:
        """The characters that all elements take up, about: of many blocks, only some are packed to find out."""
        blocks = ends(self._starts, len(self.part.rows))
        rows = [(end - first, len(pack(self._block(first, end)))) for first, end in _some(blocks)]
        texts = [(len(block), len(pack(block))) for block in _some(list(self._table.blocks()))]
        return _scaled(rows, len(self.part.rows)) + _scaled(texts, len(self._table.numbers))

    def index_element(self) -> str:
        """What filters and sorting need of every row, as an element."""
        return self._element("index", self.index())

    def elements(self) -> Iterator[str]:
        """The texts as elements, rows in order; before a block of rows, what it names of the table."""
        table = enumerate(zip(self._table.starts, self._table.blocks(), strict=True))
        written = next(table, None)
        for at, (first, end) in enumerate(ends(self._starts, len(self.part.rows))):
            block = self._block(first, end)
            while written is not None and written[1][0] <= _last_number(block):
                yield self._element(f"table-{written[0]}", written[1][1])
                written = next(table, None)
            yield self._element(f"rows-{at}", block)

    def index(self) -> dict[str, Any]:
        """Columns, an entry a row each: what `browse.js` filters and sorts by."""
        rows, names = self.part.rows, list(self.part.answers)
        roles = list(dict.fromkeys(row.role for row in rows))
        categories = list(dict.fromkeys(category(row) for row in rows))
        disputed = set(self.part.disputed)
        return {
            "name": visible(self.part.name),
            "starts": self._starts,
            "table": self._table.starts,
            "roles": [visible(role) for role in roles],
            "categories": categories,
            "contestants": [self._contestant(name) for name in names],
            "id": [visible(row.id) for row in rows],
            "role": _places(roles, [row.role for row in rows]),
            "category": _places(categories, [category(row) for row in rows]),
            "disputed": [at for at, row in enumerate(rows) if row.id in disputed],
            "length": [[_length(self.part.answers[name].get(row.id)) for row in rows] for name in names],
            "left_out": [
                [self._left_out(row, name) for row in rows] if self._bounds.reasons else None for name in names
            ],
            "win": [_column(self._measure(row, name, "win") for row in rows) for name in names],
            "rank": [_column(self._measure(row, name, "rank") for row in rows) for name in names],
            "rouge": [_column(self.part.rouge.get(name, {}).get(row.id) for row in rows) for name in names],
        }

    def _contestant(self, name: str) -> dict[str, Any]:
        at = self.part.series.get(name, list(self.part.answers).index(name))
        markers = list(MARKERS.values())
        return {
            "name": visible(name),
            "kind": self.part.kinds.get(name, "model"),
            "series": at % len(SERIES) + 1,
            "mark": markers[at % len(markers)],
        }

    def _measure(self, row: Row, name: str, measure: Literal["win", "rank"]) -> float | None:
        outcome = self.part.outcomes.get(row.id, {}).get(name)
        if outcome is None:
            return None
        return outcome.win if measure == "win" else outcome.rank

    def _reasons(self, row: Row, name: str) -> Sequence[str]:
        outcome = self.part.outcomes.get(row.id, {}).get(name)
        return () if outcome is None else outcome.reasons[: self._bounds.reasons]

    def _left_out(self, row: Row, name: str) -> int:
        outcome = self.part.outcomes.get(row.id, {}).get(name)
        return 0 if outcome is None else len(outcome.reasons) - len(self._reasons(row, name))

    def _size(self, row: Row) -> int:
        return sum(min(len(text), self._bounds.text) for text in self._texts(row) if text is not None)

    def _texts(self, row: Row) -> Iterator[str | None]:
        yield from (row.question, *row.references, row.raw_reference, row.role_description)
        for name, given in self.part.answers.items():
            yield given.get(row.id)
            yield from self._reasons(row, name)

    def _block(self, first: int, end: int) -> list[list[Any]]:
        return [self._packed(row) for row in self.part.rows[first:end]]

    def _packed(self, row: Row) -> list[Any]:
        pack_text = self._table.pack
        return [
            row.language,
            pack_text(row.question),
            [pack_text(text) for text in row.references],
            pack_text(row.raw_reference),
            pack_text(row.role_description),
            [pack_text(given.get(row.id)) for given in self.part.answers.values()],
            [[pack_text(reason) for reason in self._reasons(row, name)] for name in self.part.answers],
        ]

    def _element(self, name: str, value: Any) -> str:
        # A type that no browser runs.
        return f'<script type="application/octet-stream" id="browse-{self.number}-{name}">{pack(value)}</script>\n'


def _some(blocks: Sequence[_Block]) -> Sequence[_Block]:
    """A few of the blocks, at even distances."""
    return blocks[:: max(len(blocks) // _SAMPLED, 1)]


def _scaled(sampled: Sequence[tuple[int, int]], items: int) -> int:
    """The size of so many items, from the items and sizes of some blocks."""
    return round(sum(size for _, size in sampled) * items / max(sum(count for count, _ in sampled), 1))


def _last_number(packed: Sequence[Any] | Packed) -> int:
    """The highest number of the table that rows name; -1 for none."""
    if isinstance(packed, list):
        return max(map(_last_number, packed), default=-1)
    return packed if isinstance(packed, int) else -1


def _places(values: Sequence[str], column: Sequence[str]) -> list[int]:
    places = {value: at for at, value in enumerate(values)}
    return [places[value] for value in column]


def _length(text: str | None) -> int | None:
    return None if text is None else len(text)


def _column(values: Iterable[float | None]) -> list[float | None] | None:
    """A measure of every row; nothing, where no row has one."""
    column = [None if value is None else round(value, _DIGITS) for value in values]
    return None if all(value is None for value in column) else column
