"""What the readers of script formats share: the text they get, and the turns they find in it."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from rolellm.records import Language, TurnKind

Format = Literal["play", "screenplay", "transcript", "novel", "subtitles"]


@dataclass(frozen=True, slots=True)
class Source:
    """A script as the readers get it: decoded, newlines as LF, HTML crumbs and control characters taken out.

    Attributes:
        text: What the readers read.
        offsets: For each character of `text`, where it stood in the decoded source; one more entry for the end.
        length: Length of the decoded source, in characters.
        encoding: How the file was decoded.
        path: The file, where there is one.
        wide: The places in `text`, rising, of characters that the source spells with several, such as ``&ldquo;``.
        wide_ends: Where each of those spellings ends in the source, exclusive.
    """

    text: str
    offsets: array[int]
    length: int
    encoding: str = "utf-8"
    path: Path | None = None
    wide: array[int] = field(default_factory=lambda: array("I"))
    wide_ends: array[int] = field(default_factory=lambda: array("I"))

    def place(self, start: int, end: int) -> tuple[int, int]:
        """A span of `text` (end exclusive) as a span of the decoded source."""
        if start >= end:
            return self.offsets[start], self.offsets[start]
        last = end - 1
        nearest = bisect_left(self.wide, last)
        if nearest < len(self.wide) and self.wide[nearest] == last:
            return self.offsets[start], self.wide_ends[nearest]
        return self.offsets[start], self.offsets[last] + 1


@dataclass(frozen=True, slots=True)
class Found:
    """A turn as a reader finds it.

    Attributes:
        speaker: As the script writes the name, without cues such as ``(V.O.)``; ``None`` of speech that nobody could be
            found to say; of narration and directions ``narrator`` or ``scene``, and the like.
        content: White space folded and trimmed; empty only of a cue under which the script has nothing.
        kind: ``speech``, ``narration`` or ``direction``.
        scene: Counted from 0.
        start: Where it begins in `Source.text`; quotation marks are not part of it.
        end: Where it ends there, exclusive.
    """

    speaker: str | None
    content: str
    kind: TurnKind
    scene: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Hints:
    """What a reader is told beforehand.

    Attributes:
        language: Of the script.
        names: The role asked for and its aliases, as given; readers of running text look for these, too.
    """

    language: Language
    names: Sequence[str] = field(default_factory=tuple)


class Reader(Protocol):
    """Reads one format; a function of a module of its own name."""

    def __call__(self, source: Source, hints: Hints) -> list[Found]:
        """The turns in the order of the source. Never raises on text of another format; it then finds little."""
