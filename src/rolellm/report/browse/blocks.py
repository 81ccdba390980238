"""Texts in compressed blocks: what `browse.js` unpacks, a block at a time.

A block is a JSON value, deflated (zlib), in base64: no character of it means anything to HTML. Texts that stand in
several places (an instruction put to many roles, a role's description, a constant answer) are kept once, in blocks of
their own, and named by their number.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from rolellm.core.sanitize import shorten, visible

MAX_TEXT = 20_000
"""Characters of any one text that a reader can open, at most; the rest is counted (our choice)."""

BLOCK_ROWS = 256
"""Rows a block at most (our choice: a search looks through a block between two frames)."""

BLOCK_CHARACTERS = 500_000
"""Characters a block, about; a block of one row may be longer."""

# A shorter text costs hardly more than its number would.
_SHORT = 32
_BLOCK_TEXTS = 1024
# Levels 7 to 9 take up to half as long again for files smaller by 0.4 %.
_LEVEL = 6


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much of a part is kept.

    Attributes:
        text: Characters of any one text; what is cut off is counted.
        reasons: Reasons for any one answer; ``None`` keeps all.
    """

    text: int = MAX_TEXT
    reasons: int | None = None


#: A text; the number of one in the table; or nothing.
Packed = str | int | None


def pack(value: Any) -> str:
    """A JSON value as base64 of its deflated bytes.

    >>> unpack(pack({"a": [1, "b"]}))
    {'a': [1, 'b']}
    """
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return base64.b64encode(zlib.compress(text.encode("utf-8"), _LEVEL)).decode("ascii")


def unpack(packed: str) -> Any:
    """What `pack` packed.

    Raises:
        ValueError: When it is no base64.
        zlib.error: When it is damaged.
    """
    return json.loads(zlib.decompress(base64.b64decode(packed, validate=True)))


def shown(text: str, limit: int = MAX_TEXT) -> str:
    """A text as the page shows it: cut, what was cut counted, and what a reader could not see spelt out."""
    return visible(shorten(text, limit))


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
        """A text's number, where it has one, else the text as shown."""
        if text is None:
            return None
        number = self.numbers.get(text)
        return shown(text, self.limit) if number is None else number

    @property
    def starts(self) -> list[int]:
        """The number of the first text of each of the table's blocks."""
        return cut((min(len(text), self.limit) for text in self.numbers), _BLOCK_TEXTS)

    def blocks(self) -> Iterator[list[str]]:
        """The texts as shown, in blocks."""
        texts = list(self.numbers)
        for first, end in ends(self.starts, len(texts)):
            yield [shown(text, self.limit) for text in texts[first:end]]


def cut(sizes: Iterable[int], items: int) -> list[int]:
    """Where blocks begin, for items of so many characters, and so many items a block at most.

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
    """Where each block begins and ends.

    >>> ends([0, 2, 3], 4)
    [(0, 2), (2, 3), (3, 4)]
    """
    return list(zip(starts, [*starts[1:], count], strict=True)) if starts else []
