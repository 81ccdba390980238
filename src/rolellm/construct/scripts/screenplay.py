"""Screenplays: Fountain (https://fountain.io/syntax) and the indented layout that Final Draft and others print.

A name in capitals with lines right under it speaks them. Notes, the boneyard, title page, sections and page furniture
such as ``(MORE)`` are no turns.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
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

_DROPPED: Final = re.compile(r"/\*|\[\[")
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
_TITLE_KEY: Final = re.compile(
    r"(?:Title|Credit|Authors?|Source|Notes|Draft date|Date|Contact|Copyright|Revision|Written by)\s*:", re.IGNORECASE
)
_EXTENSION: Final = r"(?:\s*\([^()\n]{1,40}\)){0,3}\s*\^?\s*$"
_CUE: Final = re.compile(rf"\s*(?P<name>[^\W_a-z][^\n()^]{{0,48}}?){_EXTENSION}")
_FORCED: Final = re.compile(rf"\s*@(?P<name>[^\n()^]{{1,60}}?){_EXTENSION}")
_INDENTED: Final = 8


def read_screenplay(source: Source, hints: Hints) -> list[Found]:
    """The turns of a screenplay; a speech ends at a blank line, action is narration, parentheticals are directions."""
    reading = _Reading(source.text)
    reading.run()
    return reading.out.found


def cues_of(text: str) -> Counter[str]:
    """How often each name stands as a cue: what a screenplay is known by."""
    lines = list(lines_of(text))
    return Counter(key(_name(lines[place].text)) for place in _cue_places(lines))


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
    letters = [character for character in name if character.isalpha()]
    if len(letters) < 1 or any(character.islower() for character in letters) or not any(map(str.isupper, letters)):
        return False
    if len(name.split()) > 6 or (name[-1] in '.!?:;,-–—"”' and not re.search(r"\b(?:JR|SR|[A-Z])\.$", name)):
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
    deep = [place for place in places if _indent(lines[place].text) >= _INDENTED]
    if len(deep) * 2 <= len(places):
        return places
    usual = Counter(_indent(lines[place].text) for place in deep).most_common(1)[0][0]
    lowest = max(_INDENTED, usual // 2)
    return [place for place in places if _indent(lines[place].text) >= lowest or _FORCED.match(lines[place].text)]


def _indent(line: str) -> int:
    expanded = line.expandtabs(8)
    return len(expanded) - len(expanded.lstrip())


class _Reading:
    def __init__(self, text: str) -> None:
        self.text = text
        self.out = Collector(text)
        self.lines = list(lines_of(text))
        self.dropped = _dropped_spans(text)
        self.masked = _masked(text, self.dropped)
        self.cues = set(_cue_places(self.masked))
        self.fountain = not any(_indent(self.lines[place].text) >= _INDENTED for place in self.cues)

    def run(self) -> None:
        place = self._skip_title_page()
        while place < len(self.lines):
            line = self.masked[place]
            if line.blank or _FURNITURE.match(line.text) or self._unprinted(line.text):
                place += 1
            elif place in self.cues:
                place = self._speech(place)
            elif self._heading(line, place):
                place += 1
            else:
                place = self._action(place)

    def _skip_title_page(self) -> int:
        place = 0
        while place < len(self.masked) and self.masked[place].blank:
            place += 1
        if place == len(self.masked) or not _TITLE_KEY.match(self.masked[place].text):
            return place
        while place < len(self.masked) and not self.masked[place].blank:
            place += 1
        return place

    def _unprinted(self, text: str) -> bool:
        """Sections and synopses of Fountain."""
        stripped = text.lstrip()
        return stripped[:1] == "#" or (stripped[:1] == "=" and stripped[:2] != "==")

    def _heading(self, line: Line, place: int) -> bool:
        text = line.text.strip()
        start = line.start + line.text.index(text)
        forced = re.match(r"\.[^\W_]", text) is not None
        if not forced and not slug(text):
            found = heading_of(line.text) if self.masked[place - 1].blank or place == 0 else None
            if found is None or found[0] == found[1]:
                return False
            self.out.heading(line.start + found[0], line.start + found[1])
            return True
        low, high = _without_numbers(text)
        self.out.heading(start + max(low, int(forced)), start + high)
        return True

    def _action(self, place: int) -> int:
        """A paragraph of action, or a line that says how the picture changes."""
        start = place
        while place < len(self.masked):
            line = self.masked[place]
            stops = place > start and (place in self.cues or slug(line.text))
            if line.blank or stops or (place > start and _FURNITURE.match(line.text)):
                break
            place += 1
        first, last = self.lines[start], self.lines[place - 1]
        text = first.text.strip()
        low, high = first.start, last.end
        if place == start + 1 and (_TRANSITION.match(first.text) or text[:1] == ">"):
            low += first.text.index(text) + (text[:1] == ">")
            self.out.tell("direction", low, high - (text[-1:] == "<"))
        elif place == start + 1 and text[:1] == "(" and text[-1:] == ")":
            self.out.paragraph(low, high)
        else:
            low += first.text.index(text) + (text[:1] == "!") if text else 0
            self._tell(low, high)
        return place

    def _tell(self, start: int, end: int) -> None:
        at = start
        for note in self._notes(start, end):
            self.out.tell("narration", at, note.start)
            at = note.end
        self.out.tell("narration", at, max(at, end))

    def _notes(self, start: int, end: int) -> list[Aside]:
        """What is dropped in a span."""
        first = bisect_left(self.dropped, (start, start))
        last = bisect_left(self.dropped, (end, end))
        return [Aside(low, high, high, high) for low, high in self.dropped[first:last]]

    def _speech(self, place: int) -> int:
        speaker = _name(self.masked[place].text)
        place += 1
        start = place
        while place < len(self.masked) and not self._ends(place):
            place += 1
        last = place - 1
        while last > start and self.masked[last].blank:
            last -= 1
        asides = self._asides(start, last + 1)
        self.out.say(speaker, self.lines[start].start, self.lines[last].end, asides)
        return place

    def _ends(self, place: int) -> bool:
        line = self.masked[place]
        if not line.blank:
            return slug(line.text) or (place in self.cues and self.masked[place - 1].blank)
        # Fountain: a line of two spaces keeps a speech going. A note on a line of its own is no end either.
        if self.lines[place].text.strip():
            return False
        return not (self.fountain and line.text.startswith("  ") and place + 1 < len(self.masked))

    def _asides(self, first: int, stop: int) -> list[Aside]:
        asides: list[Aside] = []
        place = first
        while place < stop:
            line = self.lines[place]
            text = self.masked[place].text.strip()
            if text[:1] == "(":
                closing = place
                while closing < stop - 1 and ")" not in self.masked[closing].text and closing < place + 6:
                    closing += 1
                end = self.lines[closing].start + self.masked[closing].text.find(")")
                if ")" in self.masked[closing].text:
                    low = line.start + line.text.index("(")
                    furniture = _FURNITURE.match(text) is not None
                    asides.append(Aside(low, end + 1, end if furniture else low + 1, end))
                    place = closing + 1
                    continue
            if _FURNITURE.match(text):
                asides.append(Aside(line.start, line.end, line.end, line.end))
            place += 1
        # A bracket with a note in it is cut short by the note.
        found: list[Aside] = []
        notes = self._notes(self.lines[first].start, self.lines[stop - 1].end)
        for aside in sorted(asides + notes, key=lambda aside: (aside.start, -aside.end)):
            if not found or aside.start >= found[-1].end:
                found.append(aside)
        return found


def _without_numbers(heading: str) -> tuple[int, int]:
    """A heading without its scene number: in front and behind, as printed, or as ``#1A#``."""
    printed = re.match(r"([A-Z]?\d{1,4}[A-Z]?)[.)]?\s+", heading)
    behind = re.search(r"\s*#[^#\n]{1,20}#\s*$", heading)
    if printed and not behind:
        behind = re.search(rf"\s+{printed[1]}\.?$", heading)
    return printed.end() if printed else 0, behind.start() if behind else len(heading)


def _dropped_spans(text: str) -> list[tuple[int, int]]:
    """The boneyard and the notes, rising; what is opened and not closed is text."""
    spans: list[tuple[int, int]] = []
    at = 0
    missing: set[str] = set()
    for match in _DROPPED.finditer(text):
        closing = "*/" if match[0] == "/*" else "]]"
        if match.start() < at or closing in missing:
            continue
        end = text.find(closing, match.end())
        if end < 0:
            missing.add(closing)
            continue
        at = end + len(closing)
        spans.append((match.start(), at))
    return spans


def _masked(text: str, dropped: Sequence[tuple[int, int]]) -> list[Line]:
    """The lines with spaces where something is dropped."""
    pieces: list[str] = []
    at = 0
    for start, end in dropped:
        pieces += [text[at:start], re.sub(r"[^\n]", " ", text[start:end])]
        at = end
    return list(lines_of("".join([*pieces, text[at:]])))
