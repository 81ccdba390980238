"""Plays: ``NAME:`` or ``NAME.`` on a line of its own or in front of the speech; acts, scenes and stage directions.

A play keeps to one way of naming its speakers. The way that finds most names that come again is taken to be it; another
way counts only for names that it has found, so that a verse that ends in a colon does not make a speaker.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from rolellm.construct.scripts.reading import (
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
from rolellm.core.records import TurnKind

Way = Literal["colon alone", "colon", "stop alone", "stop", "bracket"]

_TITLE: Final = r"(?:(?:MRS|MR|MS|DR|ST|MME|MLLE|PROF|REV|Mrs|Mr|Ms|Dr|St|Mme|Mlle|Prof|Rev|M)\. ?|(?:[A-Z]\. ?){1,3})?"
_NAME: Final = rf"(?P<name>{_TITLE}[^\W_][^\n:：.\[\](){{}}（）【】_*\"“”!?;]{{0,48}})"
_ASIDE: Final = r"(?P<aside>[ \t]*(?:\([^()\n]{1,200}\)|\[[^\[\]\n]{1,200}\]|（[^（）\n]{1,200}）))"
_CUE: Final = re.compile(rf"[ \t]{{0,40}}(?P<mark>[_*]{{0,2}}){_NAME}(?P=mark)?{_ASIDE}?(?P<stop>[:：.]?)(?P=mark)?")
_ENTER: Final = re.compile(
    r"\W*(?:(?:Re-?)?[Ee]nter|(?:Re-?)?ENTER|Exit|Exeunt|EXIT|EXEUNT|Alarums?|Flourish|Sennet|Tucket|Hautboys|Cornets|"
    r"Curtain|CURTAIN|ACT[ -]DROP|Tableau|TABLEAU|Manet|Manent|FINIS|Finis|THE END|The End|THE CURTAIN)\b"
)
_LEAVES: Final = re.compile(r"\s*(?:(?:Re-?enter|Enter|Exit|Exeunt)\b[^.!?]{0,120}[.]?)\s*$")
_ROMAN: Final = re.compile(r"[IVXLC]+$")
_UNCLOSED: Final = re.compile(r"\[[^\[\]\n]{1,200}$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class _Cue:
    name: str
    way: Way
    end: int
    aside: tuple[int, int]


def _cue_of(line: str) -> _Cue | None:
    """What a line would be, were it one that names a speaker."""
    match = _CUE.match(line)
    if match is None or not (match["stop"] or match["aside"]):
        return None
    alone = not line[match.end() :].strip()
    stop = match["stop"]
    name = " ".join(match["name"].split())
    if not stop:
        # Shaw's way: HIGGINS [loudly] Well?
        way: Way = "bracket"
        if alone or not name.isupper():
            return None
    elif stop == ".":
        way = "stop alone" if alone else "stop"
        # "Ham." as in old editions is in italics; without, a short sentence would be a name.
        if not alone and not (name.isupper() or match["mark"]):
            return None
    else:
        way = "colon alone" if alone else "colon"
        after = line[match.end() : match.end() + 1]
        if not alone and stop == ":" and not (after.isspace() or name.isupper()):
            return None
    low, high = match.span("aside")
    return _Cue(bare(name), way, match.end(), (low, high) if low >= 0 else (0, 0))


@dataclass(frozen=True, slots=True)
class Cast:
    """How a play names its speakers.

    Attributes:
        way: The way it keeps to.
        names: The keys of the names so found.
        cues: How often one of them is named in that way.
        parted: Whether a blank line stands before a speech.
    """

    way: Way
    names: frozenset[str]
    cues: int
    parted: bool


def cast_of(text: str, hints: Hints) -> Cast | None:
    """Find out how a play names its speakers; nothing where nobody is named more than once or asked for."""
    found: dict[Way, Counter[str]] = {}
    parted: Counter[tuple[Way, bool]] = Counter()
    asked = {key(name) for name in hints.names}
    spelled: dict[str, str] = {}
    for line, first, last in _with_neighbours(text):
        cue = _cue_of(line.text)
        if cue is None or heading_of(line.text) is not None or _ENTER.match(line.text):
            continue
        # "Yes." is a line of many speeches; as a name it opens a paragraph, and has one under it.
        if cue.way == "stop alone" and (last or not first):
            continue
        name = key(cue.name)
        if name not in asked and not is_name(cue.name):
            continue
        found.setdefault(cue.way, Counter())[name] += 1
        parted[cue.way, first] += 1
        spelled.setdefault(name, cue.name)
    best: Cast | None = None
    for way, counts in found.items():
        kept = {
            name
            for name, count in counts.items()
            if name in asked or count > 1 or (_is_plain(spelled[name], way) and is_name(spelled[name], once=True))
        }
        if not any(name in asked or counts[name] > 1 for name in kept):
            continue
        cues = sum(counts[name] for name in kept)
        if best is None or cues > best.cues:
            best = Cast(way, frozenset(kept), cues, parted[way, True] >= parted[way, False])
    return best


def _is_plain(name: str, way: Way) -> bool:
    """Whether one time is enough: "I. Rome" and "A. The" are no speakers."""
    return way != "stop" or (name.isupper() and len(name) > 2 and not _ROMAN.match(name))


def _with_neighbours(text: str) -> Iterator[tuple[Line, bool, bool]]:
    """The lines that are not blank, and whether they are the first and the last of their paragraph."""
    before = True
    held: Line | None = None
    first = True
    for line in lines_of(text):
        if held is not None:
            yield held, first, line.blank
        held, first = (None, True) if line.blank else (line, before)
        before = line.blank
    if held is not None:
        yield held, first, True


def read_play(source: Source, hints: Hints) -> list[Found]:
    """The turns of a play. A speech goes on over blank lines, up to the next name, heading or stage direction."""
    cast = cast_of(source.text, hints)
    reading = _Reading(source.text, cast)
    asked = {key(name) for name in hints.names}
    for line, first, _ in _with_neighbours(source.text):
        cue = _cue_of(line.text)
        if cue is not None and not (cast is not None and _accepted(cue, cast, asked, first=first)):
            cue = None
        reading.line(line, cue, first=first)
    reading.close()
    return reading.out.found


def _accepted(cue: _Cue, cast: Cast, asked: set[str], *, first: bool) -> bool:
    name = key(cue.name)
    if not first and (cue.way == "stop alone" or (cast.parted and cue.way in ("colon alone", "stop"))):
        return False
    if cue.way == cast.way:
        # A crowd that speaks once is named as everyone else is.
        return name in cast.names or (cue.way == "colon alone" and first and is_name(cue.name, once=True, loose=True))
    return (first or not cast.parted) if name in cast.names else (first and name in asked)


class _Reading:
    def __init__(self, text: str, cast: Cast | None) -> None:
        self.text, self.cast = text, cast
        self.out = Collector(text)
        self.speaker: str | None = None
        self.start = self.end = -1
        self.waiting = False
        self.held = -1

    def close(self, *, done: bool = True) -> None:
        """End the speech or paragraph that is open; a speaker may go on behind a direction."""
        self._end_paragraph()
        if self.speaker is not None and (self.start >= 0 or (self.waiting and done)):
            start = self.start if self.start >= 0 else self.end
            self.out.say(self.speaker, start, self.end, self._asides(start, self.end))
            self.waiting = False
        self.start = -1
        if done:
            self.speaker = None

    def line(self, line: Line, cue: _Cue | None, *, first: bool) -> None:
        """Take in a line; `first` of its paragraph."""
        if first:
            self._end_paragraph()
        text, known = line.text.strip(), cue is not None and self._known(cue)
        heading = heading_of(line.text) if (first or text.isupper()) and not known else None
        if heading is None and first and not known and text[:1] == "[":
            heading = self._bracketed_heading(line)
        if heading is not None:
            self.close()
            self.out.heading(line.start + heading[0], line.start + heading[1])
        elif cue is not None and not _ENTER.match(text):
            self._begin(line, cue)
        elif self.speaker is None:
            self._hold(line)
        elif self._direction(line, first=first):
            self.close(done=False)
            self.out.paragraph(line.start, line.end, "direction")
        else:
            if self.start < 0:
                self.start = line.start
            self.end, self.waiting = line.end, False

    def _bracketed_heading(self, line: Line) -> tuple[int, int] | None:
        inner = line.text.strip().strip("[]_")
        shift = line.text.index(inner) if inner else 0
        found = heading_of(inner)
        return None if found is None else (found[0] + shift, found[1] + shift)

    def _hold(self, line: Line) -> None:
        if self.held < 0:
            self.held = line.start
        self.end = line.end

    def _end_paragraph(self) -> None:
        if self.held >= 0:
            kind: TurnKind = "direction" if _ENTER.match(self.text, self.held, self.end) else "narration"
            self.out.paragraph(self.held, self.end, kind)
        self.held = -1

    def _known(self, cue: _Cue) -> bool:
        return self.cast is not None and key(cue.name) in self.cast.names

    def _begin(self, line: Line, cue: _Cue) -> None:
        self.close()
        self.speaker = cue.name
        low, high = cue.aside
        for aside in bracketed(self.text, line.start + low, line.start + high):
            self.out.tell("direction", aside.inner_start, aside.inner_end)
        self.waiting, self.start, self.end = True, -1, line.start + cue.end
        if line.text[cue.end :].strip():
            self.waiting, self.start, self.end = False, line.start + cue.end, line.end

    def _direction(self, line: Line, *, first: bool) -> bool:
        """Whether a line in a speech is none of it. Brackets inside a line are left to `_asides`."""
        text = line.text.strip()
        if first and _ENTER.match(text):
            return True
        if text[:1] == "_" and text[-1:] == "_" and text.count("_") == 2:
            return True
        if not _LEAVES.match(text):
            return False
        words = text.split()
        names = self.cast.names if self.cast else frozenset()
        return len(words) == 1 or any(key(word) in names for word in words[1:]) or text.startswith("Exeunt")

    def _asides(self, start: int, end: int) -> list[Aside]:
        """Square brackets are directions; round ones only where they open the speech, fill a line or are in italics."""
        asides = [aside for aside in bracketed(self.text, start, end) if self._is_aside(aside, start, end)]
        closed = {aside.start for aside in asides}
        for match in _UNCLOSED.finditer(self.text, start, end):
            # Old editions leave the bracket open: "Farewell.  [Exit".
            if match.start() not in closed and not any(
                one.start < match.end() and match.start() < one.end for one in asides
            ):
                asides.append(Aside(match.start(), match.end(), match.start() + 1, match.end()))
        return sorted(asides, key=lambda aside: aside.start)

    def _is_aside(self, aside: Aside, start: int, end: int) -> bool:
        if self.text[aside.start] in "[【［":
            return True
        if "_" in self.text[aside.start : aside.end] or not self.text[start : aside.start].strip():
            return True
        before = self.text[max(start, self.text.rfind("\n", start, aside.start)) : aside.start]
        newline = self.text.find("\n", aside.end, end)
        after = self.text[aside.end : end if newline < 0 else newline]
        return not before.strip() and not after.strip(" \t.")
