"""Where readers put the turns they find: content trimmed, directions taken out of speeches, scenes counted."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from rolellm.construct.scripts.reading import Found
from rolellm.records import TurnKind

#: What closes each kind of bracket.
CLOSING: Final = {"(": ")", "[": "]", "（": "）", "【": "】", "［": "］"}
_BRACKETS: Final = re.compile(r"[\[\](){}（）【】［］]")
_EMPHASIS: Final = "_*"
_SPOKEN: Final = re.compile(r"[^\W_]")


@dataclass(frozen=True, slots=True)
class Aside:
    """A piece of a speech that is not spoken.

    Attributes:
        start: Where it begins, with its brackets.
        end: Where it ends, exclusive.
        inner_start: Where the direction in it begins; equal to `inner_end` where there is none to keep.
        inner_end: Where that ends.
    """

    start: int
    end: int
    inner_start: int
    inner_end: int


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the text: its place, and itself without the newline."""

    start: int
    end: int
    text: str

    @property
    def blank(self) -> bool:
        """Whether there is nothing on it."""
        return not self.text or self.text.isspace()


def lines_of(text: str) -> Iterator[Line]:
    """The lines of a text, one after the other."""
    start = 0
    while start <= len(text):
        end = text.find("\n", start)
        if end < 0:
            end = len(text)
        yield Line(start, end, text[start:end])
        start = end + 1


def trim(text: str, start: int, end: int) -> tuple[int, int]:
    """A span without the white space at its ends."""
    while start < end and text[start].isspace():
        start += 1
    while end > start and text[end - 1].isspace():
        end -= 1
    return start, end


def bracketed(text: str, start: int, end: int, opening: str = "([（【［") -> list[Aside]:
    """The outermost bracketed pieces of a span; a bracket that is not closed, or closes nothing, is text.

    Args:
        text: The whole text.
        start: Where to begin.
        end: Where to stop.
        opening: The kinds that count.
    """
    asides: list[Aside] = []
    stack: list[tuple[str, int]] = []
    for match in _BRACKETS.finditer(text, start, end):
        mark = match[0]
        if mark in opening:
            stack.append((CLOSING[mark], match.start()))
        elif stack and mark == stack[-1][0]:
            begun = stack.pop()[1]
            while asides and asides[-1].start > begun:
                asides.pop()
            asides.append(Aside(begun, match.end(), begun + 1, match.start()))
    return asides


class Collector:
    """Collects turns in the order of the source.

    Args:
        text: `Source.text`.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.found: list[Found] = []
        self._scene = 0
        # A scene goes on through headings that follow each other (ACT I, SCENE I), and takes in what stands before
        # the first one (a title, the persons of the play).
        self._told = self._headed = self._spoken = False

    def heading(self, start: int, end: int) -> None:
        """Begin a scene with what its heading says; nothing is told of an empty span, which only parts scenes."""
        if self._told and (self._headed or self._spoken):
            self._scene += 1
        self.tell("narration", start, end, "scene")
        self._headed, self._told, self._spoken = True, False, False

    def tell(self, kind: TurnKind, start: int, end: int, speaker: str | None = None) -> None:
        """Add narration or a direction, unless there is nothing in it."""
        start, end = trim(self.text, start, end)
        if kind == "direction":
            while start < end and self.text[start] in _EMPHASIS:
                start += 1
            while end > start and self.text[end - 1] in _EMPHASIS:
                end -= 1
            start, end = trim(self.text, start, end)
        if start < end and _SPOKEN.search(self.text, start, end):
            self._add(speaker or ("narrator" if kind == "narration" else "stage direction"), kind, start, end)

    def paragraph(self, start: int, end: int, kind: TurnKind = "narration") -> None:
        """Add what stands outside of speeches: bracketed pieces as directions, the rest as `kind`."""
        at = start
        for aside in bracketed(self.text, start, end):
            self.tell(kind, at, aside.start)
            self.tell("direction", aside.inner_start, aside.inner_end)
            at = aside.end
        self.tell(kind, at, end)

    def say(self, speaker: str | None, start: int, end: int, asides: Sequence[Aside] = ()) -> None:
        """Add a speech: what is spoken, and the directions in it, each as a turn of its own and in their order.

        Args:
            speaker: As the script writes the name.
            start: Where the speech begins.
            end: Where it ends.
            asides: Rising, apart from each other, inside the span.
        """
        spans: list[tuple[bool, int, int]] = []
        at = start
        for aside in asides:
            spans.append((True, *trim(self.text, at, aside.start)))
            spans.append((False, *trim(self.text, aside.inner_start, aside.inner_end)))
            at = aside.end
        spans.append((True, *trim(self.text, at, end)))
        full = [span for span in spans if span[1] < span[2]]
        # The full stop behind a direction is nothing said, but "…" alone is an answer.
        worded = any(spoken and _SPOKEN.search(self.text, low, high) for spoken, low, high in full)
        for spoken, low, high in full:
            if not spoken:
                self.tell("direction", low, high)
            elif not worded or _SPOKEN.search(self.text, low, high):
                self._add(speaker, "speech", low, high)
        if not full and not asides:
            # The script has the name and nothing under it.
            self._add(speaker, "speech", spans[0][1], spans[0][1])

    def _add(self, speaker: str | None, kind: TurnKind, start: int, end: int) -> None:
        content = " ".join(self.text[start:end].split())
        self.found.append(Found(speaker, content, kind, self._scene, start, end))
        self._told = True
        self._spoken = self._spoken or kind == "speech"
