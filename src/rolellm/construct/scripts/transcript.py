"""Transcripts: ``Name: line``, stage directions in brackets; English and Chinese."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from rolellm.construct.scripts.reading import (
    CLOSING,
    Aside,
    Collector,
    Found,
    Hints,
    Line,
    Source,
    bare,
    bracketed,
    heading_of,
    is_name,
    key,
    lines_of,
)
from rolellm.core.text import HAN

_LABEL: Final = re.compile(
    r"[ \t\u3000]{0,60}"
    r"(?:[\[(（【]?\d{1,2}[:：]\d{2}(?:[:：]\d{2})?(?:[.,]\d{1,3})?[\])）】]?[ \t]{0,4}[-–—]?[ \t]{0,4})?"
    r"(?P<mark>[*_]{0,3})"
    r"(?P<name>[^\W_](?:[^:：()（）\[\]【】<>*_\"“”「」『』\n]{0,58}[^\s:：()（）\[\]【】<>*_\"“”「」『』])?)"
    r"[*_]{0,3}[ \t\u3000]{0,4}"
    r"(?P<aside>\([^()\n]{0,120}\)|（[^（）\n]{0,120}）|\[[^\[\]\n]{0,120}\]|【[^【】\n]{0,120}】)?[ \t\u3000]{0,4}"
    r"[*_]{0,3}(?P<colon>[:：])[*_]{0,3}"
)
_LONGEST_BRACKET: Final = 30
_LONGEST_CHARACTERS: Final = 4000


@dataclass(frozen=True, slots=True)
class Label:
    """A name in front of what is said.

    Attributes:
        name: As written.
        end: Where the speech begins, in the line.
        aside: A direction behind the name, in the line; an empty span where there is none.
    """

    name: str
    end: int
    aside: tuple[int, int]


def label_of(line: str) -> Label | None:
    """The label of a line such as ``JOHN (sighs): Well.``; whether the name is one is left open."""
    match = _LABEL.match(line)
    if match is None:
        return None
    name, after = match["name"], line[match.end() : match.end() + 1]
    # "10:30" and "http://" are no labels; Chinese leaves no space behind a colon of either width.
    if match["colon"] == ":" and after.strip() and not HAN.search(name) and not HAN.match(after):
        opens = match["mark"] or after.isupper() or after in "\"“'‘([…."
        if after in "/\\" or after.isdigit() or not opens:
            return None
    span = match.span("aside")
    return Label(name, match.end(), (0, 0) if span[0] < 0 else (span[0] + 1, span[1] - 1))


def known_names(labels: Iterable[str], hints: Sequence[str]) -> set[str]:
    """The keys of those labels that are names: by their look, by how often they come, or by being asked for."""
    counts: Counter[str] = Counter()
    spelled: dict[str, str] = {}
    for name in labels:
        counts[key(bare(name))] += 1
        spelled.setdefault(key(bare(name)), bare(name))
    asked = {key(name) for name in hints}
    return {name for name, count in counts.items() if name in asked or is_name(spelled[name], once=count == 1)}


def read_transcript(source: Source, hints: Hints) -> list[Found]:
    """The turns of a transcript; lines without a name go on with the speech above them, up to a blank line."""
    lines = list(lines_of(source.text))
    labels = [label_of(line.text) for line in lines]
    known = known_names((label.name for label in labels if label), hints.names)
    reading = _Reading(source.text)
    place = 0
    while place < len(lines):
        label = labels[place]
        if label is not None and key(bare(label.name)) not in known:
            label = None
        place += reading.line(lines, place, label)
    reading.close()
    return reading.out.found


class _Reading:
    def __init__(self, text: str) -> None:
        self.text = text
        self.out = Collector(text)
        self.speaker: str | None = None
        self.start = self.end = -1
        self.waiting = False

    def close(self, *, done: bool = True) -> None:
        """End the speech that is open; its speaker may go on behind a direction."""
        if self.speaker is not None and (self.start >= 0 or (self.waiting and done)):
            start = self.start if self.start >= 0 else self.end
            self.out.say(self.speaker, start, self.end, bracketed(self.text, start, self.end))
            self.waiting = False
        self.start = -1
        if done:
            self.speaker = None

    def line(self, lines: list[Line], place: int, label: Label | None) -> int:
        """Take in one line, or the lines of one bracket; returns how many."""
        line = lines[place]
        if line.blank:
            if not self.waiting:
                self.close()
            return 1
        aside = _whole_bracket(self.text, lines, place)
        if aside is not None:
            return self._aside(aside)
        heading = heading_of(line.text)
        if heading is not None:
            self.close()
            self.out.heading(line.start + heading[0], line.start + heading[1])
        elif label is not None:
            self._begin(line, label)
        elif self.speaker is not None:
            if self.start < 0:
                self.start = line.start
            self.end, self.waiting = line.end, False
        else:
            self.out.paragraph(line.start, line.end)
        return 1

    def _begin(self, line: Line, label: Label) -> None:
        self.close()
        low, high = label.aside
        self.speaker = bare(label.name)
        if low < high:
            self.out.tell("direction", line.start + low, line.start + high)
        self.end = line.end
        if line.text[label.end :].strip():
            self.start = line.start + label.end
        else:
            self.waiting, self.end = True, line.start + label.end

    def _aside(self, aside: tuple[Aside, int]) -> int:
        found, taken = aside
        inner = self.text[found.inner_start : found.inner_end]
        heading = heading_of(inner) if "\n" not in inner.strip() else None
        if heading is None and re.match(r"\s*scenes?\s*[:：]", inner, re.IGNORECASE):
            heading = (inner.index(":" if ":" in inner else "：") + 1, len(inner))
        if heading is not None:
            self.close()
            self.out.heading(found.inner_start + heading[0], found.inner_start + heading[1])
        else:
            waited = self.waiting
            self.close(done=False)
            self.out.tell("direction", found.inner_start, found.inner_end)
            self.waiting = waited
        return taken


def _whole_bracket(text: str, lines: list[Line], place: int) -> tuple[Aside, int] | None:
    """A bracket that fills its line, or several lines; with their number."""
    line = lines[place]
    begun = line.text.lstrip("*_ \t\u3000")
    if begun[:1] not in CLOSING:
        return None
    low = line.end - len(begun)
    stop = place
    while stop < min(place + _LONGEST_BRACKET, len(lines)) and not lines[stop].blank:
        stop += 1
    limit = min(lines[stop - 1].end, low + _LONGEST_CHARACTERS)
    if text.find(CLOSING[begun[0]], low, limit) < 0:
        return None
    found = bracketed(text, low, limit)
    if not found or found[0].start != low:
        return None
    last = next(number for number in range(place, stop) if lines[number].end >= found[0].end)
    rest = text[found[0].end : lines[last].end]
    return None if rest.strip(" \t\u3000.。*_") else (found[0], last - place + 1)
