"""Screenplays: Fountain (https://fountain.io/syntax) and the indented layout that Final Draft and others print.

A name in capitals with lines right under it speaks them. Notes, the boneyard, title page, sections and page furniture
such as ``(MORE)`` are no turns.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from itertools import takewhile
from typing import Final

from rolellm.construct.scripts.reading import (
    Aside,
    Collector,
    Found,
    Hints,
    Line,
    Source,
    bare,
    heading_of,
    key,
    lines_of,
    slug,
)

_FURNITURE: Final = re.compile(
    r"\s*(?:\(MORE\)|\(?CONTINUED:?\)?(?:\s*\(\d+\))?|\d{1,4}\.?|={3,}|[A-Z]?\d{1,4}[A-Z]?\.?\s+\(?CONTINUED:?\)?.{0,12}|"
    r"Page \d+\.?|\d{1,2}/\d{1,2}/\d{2,4})\s*$",
    re.IGNORECASE,
)
_TRANSITION: Final = re.compile(
    r"\s*(?:[A-Z' ]{1,40}\bTO:|FADE (?:IN|OUT|UP|TO [A-Z ]{1,20})[.:]?|(?:SMASH|MATCH|JUMP|HARD) CUT[.:]?.{0,20}|"
    r"CUT TO .{1,40}[:.]|DISSOLVE[.:]?|THE END\.?|END CREDITS\.?|ROLL CREDITS\.?|INTERCUT.{0,60}|MONTAGE.{0,60}|"
    r"END (?:OF )?MONTAGE\.?|TITLE CARD.{0,60}|SUPER:.{0,80}|BLACK SCREEN\.?|CREDITS\.?|"
    r"(?:BACK|FLASHBACK|LATER|CONTINUOUS|MOMENTS LATER|SERIES OF SHOTS)[.:]?)\s*$"
)
_TITLE_PAGE: Final = re.compile(
    r"\s*(?:Title|Credit|Authors?|Source|Notes|Draft date|Date|Contact|Copyright|Revision|Written by)\s*:"
    r"[^\n]*(?:\n[^\n]*\S[^\n]*)*",
    re.IGNORECASE,
)
_EXTENSION: Final = r"(?:\s*\([^()\n]{1,40}\)){0,3}\s*\^?\s*$"
_CUE: Final = re.compile(rf"\s*(?P<name>[^\W_a-z][^\n()^]{{0,48}}?){_EXTENSION}")
_FORCED: Final = re.compile(rf"\s*@(?P<name>[^\n()^]{{1,60}}?){_EXTENSION}")
_SHORTENED: Final = re.compile(r"\b(?:JR|SR|[A-Z])\.$")
_PARENTHETICAL: Final = re.compile(r"^[ \t]*(\()([^()]{1,300})\)", re.MULTILINE)
# A heading has its scene's number in front and behind, as printed, or as ``#1A#``.
_SLUG: Final = re.compile(
    r"\s*(?:(?P<number>[A-Z]?\d{1,4}[A-Z]?)[.)]?\s+)?\.?(?P<heading>.*?)(?:\s*#[^#\n]{1,20}#|\s+(?P=number)\.?)?\s*$"
)
_INDENTED: Final = 8
# Where names have paragraphs of their own, at least one line in ten is a name.
_PARAGRAPHS: Final = 10


def read_screenplay(source: Source, hints: Hints) -> list[Found]:
    """The turns of a screenplay; a speech ends at a blank line, action is narration, parentheticals are directions."""
    reading = _Reading(source.text)
    reading.run()
    return reading.found


def cues_of(text: str) -> list[tuple[str, int]]:
    """The key of each cue's name and its place in the text, by which a screenplay is recognized."""
    lines = joined(text)
    return [(key(_name(lines[place].text)), lines[place].start) for place in _cue_places(lines)]


@lru_cache(maxsize=2)
def joined(text: str) -> Sequence[Line]:
    """The lines of a text; without the blank ones under names, where these are paragraphs of their own."""
    lines = lines_of(text)
    alone: Counter[str] = Counter()
    over: Counter[str] = Counter()
    gaps: set[int] = set()
    for place, line in enumerate(lines[:-1]):
        if line.blank or (place and not lines[place - 1].blank) or not _could_be_cue(line.text):
            continue
        name = key(_name(line.text))
        blank = list(takewhile(lambda near: lines[near].blank, range(place + 1, min(place + 4, len(lines)))))
        over[name] += not blank
        if 0 < len(blank) < 3 and blank[-1] + 1 < len(lines):
            alone[name] += 1
            gaps.update(blank)
    often, full = _repeated(alone), sum(not line.blank for line in lines)
    is_spaced = often > 2 * _repeated(over) and often * _PARAGRAPHS > full
    return [line for place, line in enumerate(lines) if place not in gaps] if is_spaced else lines


def _repeated(names: Counter[str]) -> int:
    return sum(count for count in names.values() if count > 1)


def _name(line: str) -> str:
    match = _FORCED.match(line) or _CUE.match(line)
    return bare(match["name"]) if match else ""


def _could_be_cue(line: str) -> bool:
    if _FORCED.match(line):
        return True
    match = _CUE.match(line)
    if match is None or len(line.strip()) > 60:
        return False
    name = match["name"].strip()
    if name.count('"') % 2:
        return False
    letters = [character for character in name if character.isalpha()]
    if len(letters) < 1 or any(character.islower() for character in letters) or not any(map(str.isupper, letters)):
        return False
    if len(name.split()) > 6 or (name[-1] in "!?:;,-–—" or name.endswith("..")):
        return False
    return not (
        slug(line) or _TRANSITION.match(line) or _FURNITURE.match(line) or heading_of(line) or name[0] in "!>#=~."
    )


def _cue_places(lines: Sequence[Line]) -> list[int]:
    """The lines that are cues: in capitals, under a blank line and over one that is not.

    Where speeches are indented, names are so deeper than action; a cry in capitals at the margin is none of them.
    """
    places = [
        place
        for place, line in enumerate(lines)
        if (place == 0 or lines[place - 1].blank or _FURNITURE.match(lines[place - 1].text))
        and place + 1 < len(lines)
        and not lines[place + 1].blank
        and _could_be_cue(line.text)
    ]
    # An abbreviation such as "RADAR TECH." comes again; a cry as a rule does not.
    names = {place: _name(lines[place].text) for place in places}
    counts = Counter(names.values())
    places = [place for place, name in names.items() if name[-1:] != "." or counts[name] > 1 or _SHORTENED.search(name)]
    deep = [place for place in places if _indent(lines[place].text) >= _INDENTED]
    if len(deep) * 2 <= len(places):
        return places
    usual = Counter(_indent(lines[place].text) for place in deep).most_common(1)[0][0]
    lowest = max(_INDENTED, usual // 2)
    return [place for place in places if _indent(lines[place].text) >= lowest or _FORCED.match(lines[place].text)]


def _indent(line: str) -> int:
    expanded = line.expandtabs(8)
    return len(expanded) - len(expanded.lstrip())


class _Reading(Collector):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.dropped: list[tuple[int, int]] = []
        self.masked = text
        for opening, closing in (("/*", "*/"), ("[[", "]]")):
            # What is opened and not closed is text.
            limit = self.masked.rfind(closing) + 2 if closing in self.masked else 0
            pattern = re.compile(rf"{re.escape(opening)}.*?{re.escape(closing)}", re.DOTALL)
            self.masked = pattern.sub(self._mask, self.masked[:limit]) + self.masked[limit:]
        self.dropped.sort()
        self.lines = joined(self.masked)
        self.cues = set(_cue_places(self.lines))
        self.fountain = not any(_indent(self.lines[place].text) >= _INDENTED for place in self.cues)

    def _mask(self, dropped: re.Match[str]) -> str:
        """The boneyard and notes as spaces."""
        self.dropped.append(dropped.span())
        return re.sub(r"[^\n]", " ", dropped[0])

    def run(self) -> None:
        title = _TITLE_PAGE.match(self.masked)
        place = bisect_left(self.lines, title.end(), key=lambda line: line.end) + 1 if title else 0
        while place < len(self.lines):
            line = self.lines[place]
            # Sections and synopses of Fountain are not printed.
            if line.blank or _FURNITURE.match(line.text) or re.match(r"\s*(?:#|=(?!=))", line.text):
                place += 1
            elif place in self.cues:
                place = self._speech(place)
            elif self._begins_scene(line, place):
                place += 1
            else:
                place = self._action(place)

    def _begins_scene(self, line: Line, place: int) -> bool:
        if slug(line.text) or re.match(r"\s*\.[^\W_].{0,300}$", line.text):
            match = _SLUG.match(line.text)
            found = match.span("heading") if match else None
        else:
            found = heading_of(line.text) if place == 0 or self.lines[place - 1].blank else None
        if found is None or found[0] == found[1]:
            return False
        self.heading(line.start + found[0], line.start + found[1])
        return True

    def _action(self, start: int) -> int:
        """A paragraph of action, or a line that says how the picture changes."""
        place = start + 1
        while place < len(self.lines):
            line = self.lines[place]
            if line.blank or place in self.cues or slug(line.text) or _FURNITURE.match(line.text):
                break
            place += 1
        first, last = self.lines[start], self.lines[place - 1]
        text = first.text.strip()
        low, high = first.start + first.text.index(text), last.end
        if place == start + 1 and (_TRANSITION.match(text) or text[0] == ">"):
            self.tell("direction", low + (text[0] == ">"), high - (text[-1] == "<"))
        elif place == start + 1 and text[0] == "(" and text[-1] == ")":
            self.paragraph(low, high)
        else:
            at = low + (text[0] == "!")
            for note in self._notes(at, high):
                self.tell("narration", at, note.start)
                at = note.end
            self.tell("narration", at, max(at, high))
        return place

    def _notes(self, start: int, end: int) -> list[Aside]:
        """What is dropped in a span."""
        first, last = (bisect_left(self.dropped, (place, place)) for place in (start, end))
        return [Aside(low, high, high, high) for low, high in self.dropped[first:last]]

    def _speech(self, cue: int) -> int:
        place = cue + 1
        while place < len(self.lines) and not self._ends(place):
            place += 1
        start = self.lines[cue + 1].start
        end = start + len(self.masked[start : self.lines[place - 1].end].rstrip())
        asides = self._notes(start, end)
        for match in _PARENTHETICAL.finditer(self.masked, start, end):
            is_furniture = _FURNITURE.match(match[0])
            asides.append(
                Aside(match.start(1), match.end(), match.end(2) if is_furniture else match.start(2), match.end(2))
            )
        asides += [
            Aside(line.start, line.end, line.end, line.end)
            for line in self.lines[cue + 1 : place]
            if _FURNITURE.match(line.text)
        ]
        self.say(_name(self.lines[cue].text), start, end, sorted(asides, key=lambda aside: (aside.start, -aside.end)))
        return place

    def _ends(self, place: int) -> bool:
        line = self.lines[place]
        if not line.blank:
            return slug(line.text) or (place in self.cues and self.lines[place - 1].blank)
        # Fountain: a line of two spaces keeps a speech going. Nor does a note on a line of its own end it.
        if self.text[line.start : line.end].strip():
            return False
        return not (self.fountain and line.text.startswith("  ") and place + 1 < len(self.lines))
