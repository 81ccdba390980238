"""The answers on which two systems differ most, in both directions."""

from __future__ import annotations

from typing import NamedTuple

from rolellm.core.records import Row
from rolellm.reporting.browse import BrowsePart

#: Rows shown for each of the two systems (our choice).
_EACH = 2
#: A smaller difference of Rouge-L is no example (our choice).
_LEAST = 0.1


class ScoredReply(NamedTuple):
    """A system's answer, and its Rouge-L from 0 to 1."""

    system: str
    text: str
    score: float


class Contrast(NamedTuple):
    """A row, and the answers of two systems to it."""

    row: Row
    replies: tuple[ScoredReply, ScoredReply]


def pick_contrasts(part: BrowsePart) -> list[Contrast]:
    """Pick the rows on which the first two systems' Rouge-L differs most: two in favor of the first, then two against.

    Where there is one model only, the baseline is the second; canaries are left out.
    """
    names = sorted(
        (name for name in part.rouge if part.kinds.get(name) != "canary"),
        key=lambda name: part.kinds.get(name) == "baseline",
    )
    if len(names) < 2:
        return []
    first, second = (part.rouge[name] for name in names[:2])
    rows = {row.id: row for row in part.rows if row.id in first and row.id in second}
    by_gain = sorted(rows, key=lambda row_id: first[row_id] - second[row_id], reverse=True)
    gains = [row_id for row_id in by_gain[:_EACH] if first[row_id] - second[row_id] >= _LEAST]
    losses = [row_id for row_id in by_gain[: -_EACH - 1 : -1] if second[row_id] - first[row_id] >= _LEAST]
    return [_make_contrast(rows[row_id], part, names) for row_id in (*gains, *losses)]


def _make_contrast(row: Row, part: BrowsePart, names: list[str]) -> Contrast:
    first, second = (ScoredReply(name, part.answers[name][row.id], part.rouge[name][row.id]) for name in names[:2])
    return Contrast(row, (first, second))
