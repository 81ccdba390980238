"""Draws shared_prefix.svg beside this file: rows, their tree, the sequence that it becomes, and who sees whom in it.

Usage:
    python docs/img/shared_prefix.py

The sequence, the positions and the mask are what `rolellm.models.prefix_sharing.fold_rows` makes of the rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rolellm.models.prefix_sharing import PrefixTree, fold_rows

CELL = 30
INK, PALE, LINE = "#1f2933", "#52606d", "#cbd2d9"
GREY = "#e4e7eb"


@dataclass(frozen=True, slots=True)
class Part:
    """A run of tokens with one meaning: how it is called, its colour, and its tokens."""

    name: str
    colour: str
    ids: tuple[int, ...]


SYSTEM = Part("system instruction", "#9fb3c8", (1, 2, 3, 4))
QUESTIONS = (Part("question 1", "#62c4b5", (11, 12)), Part("question 2", "#f7b267", (21, 22)))
REPLIES = (
    (Part("reply a", "#a8e6dc", (31, 32)), Part("reply b", "#a8e6dc", (33, 34))),
    (Part("reply c", "#fbd9ae", (41, 42)), Part("reply d", "#fbd9ae", (43, 44))),
)
PARTS = (SYSTEM, *QUESTIONS, *(reply for replies in REPLIES for reply in replies))
PART_OF = {token: part for part in PARTS for token in part.ids}


ROWS = [
    SYSTEM.ids + question.ids + reply.ids
    for question, replies in zip(QUESTIONS, REPLIES, strict=True)
    for reply in replies
]


def fold() -> PrefixTree:
    """The tree of the rows, which are of one length."""
    rows = np.asarray(ROWS)
    return fold_rows(rows, np.ones(rows.shape, np.bool_))


def text(x: float, y: float, words: str, *, size: int = 14, colour: str = INK, anchor: str = "middle") -> str:
    """Words at a place."""
    return f'<text x="{x:g}" y="{y:g}" font-size="{size}" fill="{colour}" text-anchor="{anchor}">{words}</text>'


def box(x: float, y: float, width: float, colour: str, height: float = CELL) -> str:
    """A filled rectangle."""
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="3" fill="{colour}" stroke="white" '
        'stroke-width="2"/>'
    )


def batch(left: float, top: float) -> Iterator[str]:
    """The rows, one below the other."""
    for number, row in enumerate(ROWS):
        for column, token in enumerate(row):
            yield box(left + column * CELL, top + number * (CELL + 4), CELL, PART_OF[token].colour)


def tree(left: float, top: float) -> Iterator[str]:
    """The tree, a level a line; each box is as wide as it has tokens."""
    level = 62

    def part(part: Part, centre: float, depth: int, above: float | None) -> Iterator[str]:
        width, y = len(part.ids) * CELL, top + depth * level
        if above is not None:
            yield (
                f'<path d="M{above:g} {y - level + CELL:g} L{centre:g} {y:g}" stroke="{PALE}" stroke-width="1.5" '
                'fill="none"/>'
            )
        yield box(centre - width / 2, y, width, part.colour)
        yield text(centre, y + 19, part.name, size=11)

    middle = left + 8 * CELL
    yield from part(SYSTEM, middle, 0, None)
    for side, question, replies in zip((-1, 1), QUESTIONS, REPLIES, strict=True):
        centre = middle + side * 4 * CELL
        yield from part(question, centre, 1, middle)
        for place, reply in zip((-1, 1), replies, strict=True):
            yield from part(reply, centre + place * 2 * CELL, 2, centre)


def sequence(folded: PrefixTree, left: float, top: float) -> Iterator[str]:
    """The tokens in order with their positions; arrows go from where a reply's first token is predicted to it."""
    for place, (token, position) in enumerate(zip(folded.ids.tolist(), folded.positions.tolist(), strict=True)):
        x = left + place * CELL
        yield box(x, top, CELL, PART_OF[token].colour)
        yield text(x + CELL / 2, top + 20, str(position))
    places = {token: place for place, token in enumerate(folded.ids.tolist())}
    for part in PARTS:
        middle = left + (places[part.ids[0]] + len(part.ids) / 2) * CELL
        yield text(middle, top + CELL + 14, part.name, size=11, colour=PALE)
    first = len(ROWS[0]) - len(REPLIES[0][0].ids)
    for place, target in folded.index[:, first - 1 : first + 1].tolist():
        start, end = left + (place + 0.5) * CELL, left + (target + 0.5) * CELL
        lift = 12 + 5 * (target - place)
        yield (
            f'<path d="M{start:g} {top - 2:g} C{start:g} {top - lift:g} {end:g} {top - lift:g} {end:g} '
            f'{top - 3:g}" stroke="{INK}" stroke-width="1.5" fill="none" marker-end="url(#tip)"/>'
        )


def mask(folded: PrefixTree, left: float, top: float, cell: float) -> Iterator[str]:
    """The mask: a line for each token that looks, filled where it sees the column's token."""
    length = len(folded.ids)
    yield f'<rect x="{left:g}" y="{top:g}" width="{length * cell:g}" height="{length * cell:g}" fill="{GREY}"/>'
    for looking in range(length):
        for seen in range(looking + 1):
            if looking < folded.ends[seen]:
                colour = PART_OF[int(folded.ids[seen])].colour
                yield (
                    f'<rect x="{left + seen * cell:g}" y="{top + looking * cell:g}" width="{cell - 1:g}" '
                    f'height="{cell - 1:g}" fill="{colour}"/>'
                )
    for place, token in enumerate(folded.ids.tolist()):
        colour = PART_OF[token].colour
        yield f'<rect x="{left - 12:g}" y="{top + place * cell:g}" width="8" height="{cell - 1:g}" fill="{colour}"/>'
        yield f'<rect x="{left + place * cell:g}" y="{top - 12:g}" width="{cell - 1:g}" height="8" fill="{colour}"/>'


def drawing() -> str:
    """The whole picture as SVG."""
    folded = fold()
    left, right, cell = 30.0, 590.0, 22.0
    width, height = 980, 600
    title = (
        "The rows of a batch, the tree that they are, the one sequence that it becomes, and the mask by which each "
        "token sees its own row alone"
    )

    def heading(x: float, y: float, words: str) -> str:
        return text(x, y, words, size=16, anchor="start")

    def note(x: float, y: float, words: str) -> str:
        return text(x, y, words, size=12, colour=PALE, anchor="start")

    below = 62 + len(folded.ids) * cell
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="Helvetica, Arial, sans-serif" role="img" aria-labelledby="title">',
        f'<title id="title">{title}</title>',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="6" refY="4" markerWidth="6" markerHeight="6" orient="auto">'
        f'<path d="M0 0 L8 4 L0 8 z" fill="{INK}"/></marker></defs>',
        f'<rect width="{width}" height="{height}" rx="8" fill="white" stroke="{LINE}"/>',
        heading(left, 32, f"The rows of a batch: {len(ROWS) * len(ROWS[0])} tokens"),
        *batch(left, 48),
        heading(left, 206, "Their tree"),
        *tree(left, 222),
        heading(left, 408, f"One sequence: {len(folded.ids)} tokens"),
        *sequence(folded, left, 482),
        note(left, 556, "in each token: its position in its row"),
        note(left, 576, "arrows: a reply's first token is predicted from its prompt's last"),
        heading(right, 32, "The mask"),
        *mask(folded, right, 62, cell),
        note(right, below + 22, "a line: one token, and the tokens that it sees"),
        note(right, below + 42, "what comes out is handed back row by row"),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    Path(__file__).with_suffix(".svg").write_text(drawing(), encoding="utf-8")
