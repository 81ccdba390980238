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
    name = " ".join(match["name"].split())
    after = line[match.end() :]
    way: Way
    if not match["stop"]:
        # Shaw's way: HIGGINS [loudly] Well?
        way, is_cue = "bracket", name.isupper() and after.strip() != ""
    elif match["stop"] == ".":
        # "Ham." as in old editions is in italics; without, a short sentence would be a name.
        way, is_cue = ("stop", name.isupper() or match["mark"] != "") if after.strip() else ("stop alone", True)
    else:
        is_cue = not after.strip() or match["stop"] == "：" or after[0].isspace() or name.isupper()
        way = "colon" if after.strip() else "colon alone"
    return _Cue(bare(name), way, match.end(), match.span("aside") if match["aside"] else (0, 0)) if is_cue else None


@dataclass(frozen=True, slots=True)
class Cast:
    """How a play names its speakers.

    Attributes:
        way: The way it keeps to.
        names: The keys of the names so found.
        cues: How often one of them is named in that way.
        parted: Whether speeches follow a blank line.
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
    for line, first, last in _with_neighbors(text):
        cue = _cue_of(line.text)
        if cue is None or heading_of(line.text) is not None or _ENTER.match(line.text):
            continue
        # "Yes." is a line of many speeches; as a name it opens a paragraph, and has one under it.
        if cue.way == "stop alone" and (last or not first):
            continue
        name = key(cue.name)
        if name in asked or is_name(cue.name):
            found.setdefault(cue.way, Counter())[name] += 1
            parted[cue.way, first] += 1
            spelled.setdefault(name, cue.name)
    casts = []
    for way, counts in found.items():
        often = {name for name, count in counts.items() if name in asked or count > 1}
        once = {name for name in counts if _is_plain(spelled[name], way) and is_name(spelled[name], once=True)}
        if often:
            kept = frozenset(often | once)
            casts.append(Cast(way, kept, sum(counts[name] for name in kept), parted[way, True] >= parted[way, False]))
    return max(casts, key=lambda cast: cast.cues, default=None)


def _is_plain(name: str, way: Way) -> bool:
    """Whether one time is enough: "I. Rome" and "A. The" are no speakers."""
    return way != "stop" or (name.isupper() and len(name) > 2 and not _ROMAN.match(name))


def _with_neighbors(text: str) -> Iterator[tuple[Line, bool, bool]]:
    """The lines that are not blank, and whether they are the first and the last of their paragraph."""
    edge = Line(0, 0, "")
    before, line = edge, edge
    for after in (*lines_of(text), edge):
        if not line.blank:
            yield line, before.blank, after.blank
        before, line = line, after


def read_play(source: Source, hints: Hints) -> list[Found]:
    """The turns of a play. A speech continues over blank lines, up to the next name, heading or stage direction."""
    cast = cast_of(source.text, hints)
    reading = _Play(source.text, cast)
    asked = {key(name) for name in hints.names}
    for line, first, _ in _with_neighbors(source.text):
        cue = _cue_of(line.text)
        is_cue = cue is not None and cast is not None and _accepted(cue, cast, asked, first=first)
        reading.line(line, cue if is_cue else None, first=first)
    reading.close()
    return reading.found


def _accepted(cue: _Cue, cast: Cast, asked: set[str], *, first: bool) -> bool:
    name = key(cue.name)
    if not first and (cue.way == "stop alone" or (cast.parted and cue.way in ("colon alone", "stop"))):
        return False
    if cue.way == cast.way:
        # A crowd that speaks once is named as everyone else is.
        return name in cast.names or (cue.way == "colon alone" and first and is_name(cue.name, once=True, loose=True))
    return (first or not cast.parted) if name in cast.names else (first and name in asked)


class _Play(Collector):
    def __init__(self, text: str, cast: Cast | None) -> None:
        super().__init__(text)
        self.names = cast.names if cast else frozenset()
        self.held: Line | None = None

    def close(self, *, done: bool = True) -> None:
        """End the speech or paragraph that is open; a speaker may continue after a direction."""
        if self.held is not None:
            kind: TurnKind = "direction" if _ENTER.match(self.held.text) else "narration"
            self.paragraph(self.held.start, self.held.end, kind)
            self.held = None
        super().close(done=done)

    def line(self, line: Line, cue: _Cue | None, *, first: bool) -> None:
        """Take in a line; `first` of its paragraph."""
        text, known = line.text.strip(), cue is not None and key(cue.name) in self.names
        if first and self.held is not None:
            self.close()
        heading = heading_of(line.text) if (first or text.isupper()) and not known else None
        if heading is None and first and not known and text[:1] == "[" and (inner := text.strip("[]_")):
            shift = line.text.index(inner)
            heading = (found[0] + shift, found[1] + shift) if (found := heading_of(inner)) else None
        if heading is not None:
            self.close()
            self.heading(line.start + heading[0], line.start + heading[1])
        elif cue is not None and not _ENTER.match(text):
            self.open(cue.name, line, cue.end, cue.aside)
        elif not self.is_open:
            held = self.held or line
            self.held = Line(held.start, line.end, held.text)
        elif self._is_direction(text, first=first):
            self.close(done=False)
            self.paragraph(line.start, line.end, "direction")
        else:
            self.extend(line)

    def _is_direction(self, text: str, *, first: bool) -> bool:
        """Whether a line in a speech is a direction. Brackets inside a line are left to `asides`."""
        if (first and _ENTER.match(text)) or (text[:1] == text[-1:] == "_" and text.count("_") == 2):
            return True
        words = text.split()
        return _LEAVES.match(text) is not None and (
            len(words) == 1 or words[0] == "Exeunt" or any(key(word) in self.names for word in words[1:])
        )

    def asides(self, start: int, end: int) -> list[Aside]:
        """Square brackets are directions; round ones only where they open the speech, fill a line or are in italics."""
        asides = [aside for aside in bracketed(self.text, start, end) if self._is_aside(aside, start, end)]
        closed = {aside.start for aside in asides}
        # Old editions leave the bracket open: "Farewell.  [Exit".
        asides += [
            Aside(match.start(), match.end(), match.start() + 1, match.end())
            for match in _UNCLOSED.finditer(self.text, start, end)
            if match.start() not in closed
        ]
        return sorted(asides, key=lambda aside: aside.start)

    def _is_aside(self, aside: Aside, start: int, end: int) -> bool:
        opens = not self.text[start : aside.start].strip()
        if opens or self.text[aside.start] in "[【［" or "_" in self.text[aside.start : aside.end]:
            return True
        before = self.text[max(start, self.text.rfind("\n", start, aside.start)) : aside.start]
        newline = self.text.find("\n", aside.end, end)
        after = self.text[aside.end : end if newline < 0 else newline]
        return not before.strip() and not after.strip(" \t.")
