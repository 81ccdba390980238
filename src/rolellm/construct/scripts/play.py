"""Plays: the speaker's name on a line of its own or in front of the speech; acts, scenes and stage directions.

A play keeps to one way of naming its speakers: with a colon, a full stop, a bracket, a gap or nothing behind the name.
The way that finds most names that come again is taken to be it; another way counts only for names that it has found, so
that a verse that ends in a colon does not make a speaker.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
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
    foreign_act,
    heading_of,
    is_name,
    key,
    lines_of,
)
from rolellm.core.records import TurnKind
from rolellm.core.text import HAN

Way = Literal["colon alone", "colon", "stop alone", "stop", "capital", "bracket", "gap", "bare", "small"]

_TITLE: Final = (
    r"(?:(?:MRS|MR|MS|DR|ST|MME|MLLE|PROF|REV|Mrs|Mr|Ms|Dr|St|Mme|Mlle|Prof|Rev|M)\. ?|(?:[A-Z]\. ?){1,3}|\d{1,2}\. ?)?"
)
_MARGIN: Final = r"[ \t\u3000]{0,40}"
_NAME: Final = rf"(?P<name>{_TITLE}[^\W_][^\n:：.\[\](){{}}（）【】_*\"“”!?;]{{0,48}})"
_ASIDE: Final = r"(?P<aside>,?[ \t]*(?:\([^()\n]{1,200}\)|\[[^\[\]\n]{1,200}\]|（[^（）\n]{1,200}）))"
_CUE: Final = re.compile(rf"{_MARGIN}(?P<mark>[_*]{{0,2}}){_NAME}(?P=mark)?{_ASIDE}?(?P<stop>[:：.]?)(?P=mark)?")
_WORD: Final = r"[^\s:：.,，。、\[\](){}（）【】_*\"“”!?;]+(?:\.(?= ))?"
_WORDS: Final = rf"{_WORD}(?: {_WORD}){{0,5}}"
# Printed Chinese plays pad a name of two characters.
_PADDED: Final = r"[\u4e00-\u9fff][ \u3000]{1,2}[\u4e00-\u9fff]"
_GAP: Final = re.compile(
    rf"{_MARGIN}(?P<name>{_PADDED}|{_WORDS}){_ASIDE}?(?P<gap>[ \t\u3000]*(?:\t|\u3000|  )[ \t\u3000]*)(?![－—–-]+\s)\S"
)
_OPEN: Final = re.compile(rf"{_MARGIN}(?P<name>{_WORDS}) (?=\([^()\n]*$)")
_ENTER: Final = re.compile(
    r"\W*(?:(?:Re-?)?[Ee]nter|(?:Re-?)?ENTER|Exit|Exeunt|EXIT|EXEUNT|Alarums?|Flourish|Sennet|Tucket|Hautboys|Cornets|"
    r"Curtain|CURTAIN|ACT[ -]DROP|Tableau|TABLEAU|Manet|Manent|FINIS|Finis|THE END|The End|THE CURTAIN)\b"
)
_LEAVES: Final = re.compile(r"\s*(?:(?:Re-?enter|Enter|Exit|Exeunt)\b[^.!?]{0,120}[.]?)\s*$")
_ROMAN: Final = re.compile(r"[IVXLC]+$")
_AS_WORD: Final = 4
_REFRAIN: Final = 3
_NAMED: Final = re.compile(
    r"(?<=[^\W\dA-Z_] |, )[^\W\da-z_][^\W_]+\.?(?: [^\W\da-z_][^\W_]+)*|\b[^\W\da-z_]{2,}(?: [^\W\da-z_]{2,})*"
)
_SMALL: Final = re.compile(r"(?<= )[^\W\dA-Z_]+\b")
_UNCLOSED: Final = re.compile(r"\[[^\[\]\n]{1,200}$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class _Cue:
    name: str
    way: Way
    end: int
    aside: tuple[int, int]
    opens: bool = False


@lru_cache(maxsize=1 << 16)
def _cues_of(line: str) -> Sequence[_Cue]:
    """What a line would be, were it one that names a speaker; the likeliest first."""
    cues = []
    # Tried only where it can match: names in front of gaps are in capitals, or in a script that has none.
    gap = _GAP.match(line) if "\t" in line or not line.lstrip()[1:2].islower() else None
    if gap and (not any(map(str.islower, gap["name"])) or "\t" in gap["gap"]):
        cues.append(_Cue(bare(gap["name"]), "gap", gap.end("gap"), gap.span("aside") if gap["aside"] else (0, 0)))
    match = _CUE.match(line)
    if match is None:
        return cues
    name, aside = " ".join(match["name"].split()), match.span("aside") if match["aside"] else (0, 0)
    after = line[match.end() :]
    way: Way = "bare"
    if not match["stop"] and not after.strip():
        loud = name == name.upper() and (name != name.lower() or HAN.match(name) is not None)
        way, is_cue = ("bare" if loud else "small"), loud or name[0].isupper()
    elif not match["stop"]:
        # Shaw's way: HIGGINS [loudly] Well?
        way, is_cue = "bracket", name.isupper() and match["aside"] is not None
    elif match["stop"] == ".":
        # In French, what is said to whom follows a comma: ORGON, à Dorine.
        head, comma, tail = name.partition(", ")
        if comma and head.isupper() and tail[:1].islower() and not match["aside"]:
            aside = line.index(tail.split()[0], match.start("name") + len(head)), match.end("name")
            name = head
        loud = name.isupper() or match["mark"] != ""
        way = ("stop" if loud else "capital") if after.strip() else "stop alone"
        is_cue = way != "capital" or (after[0].isspace() and not after.lstrip()[0].islower())
    else:
        is_cue = not after.strip() or match["stop"] == "：" or after[0].isspace() or name.isupper()
        way = "colon" if after.strip() else "colon alone"
    if is_cue:
        cues.append(_Cue(bare(name), way, match.end(), aside))
    if line.rfind("(") > line.rfind(")") and (opened := _OPEN.match(line)):
        # A direction that goes on in the next line; "stop" and "capital" name the same speakers here.
        way = "stop" if opened["name"].isupper() else "capital"
        cues.append(_Cue(bare(opened["name"]), way, opened.end(), (0, 0), opens=True))
    return cues


@dataclass(frozen=True, slots=True)
class Cast:
    """How a play names its speakers.

    Attributes:
        way: The way it keeps to.
        names: The keys of the names so found.
        cues: Each time that one of them is named in that way: the name's key, and the place in the text.
        parted: Whether speeches follow a blank line.
        indent: How far the lines with names are indented, if that tells them from short sentences.
    """

    way: Way
    names: frozenset[str]
    cues: Sequence[tuple[str, int]]
    parted: bool
    indent: int | None


def cast_of(text: str, hints: Hints) -> Cast | None:
    """Find out how a play names its speakers; nothing where nobody is named more than once or asked for."""
    found: dict[Way, dict[str, list[int]]] = {}
    indents: Counter[int] = Counter()
    directed: set[str] = set()
    parted: Counter[tuple[Way, bool]] = Counter()
    asked = {key(name) for name in hints.names}
    spelled: dict[str, str] = {}
    for line, first, last in _with_neighbors(text):
        cues = _cues_of(line.text)
        if not cues or heading_of(line.text) is not None or _ENTER.match(line.text):
            continue
        for cue in cues:
            # "Yes." is a line of many speeches; as a name it opens a paragraph, and has one under it.
            alone = cue.way == "stop alone" and (not first or (last and not cue.name.isupper()))
            if alone or (cue.opens and not first) or (cue.way in ("bare", "small") and last):
                continue
            name = key(cue.name)
            if cue.opens or cue.aside[1]:
                directed.add(name)
            if name in asked or is_name(cue.name, loose=cue.way == "small"):
                found.setdefault(cue.way, {}).setdefault(name, []).append(line.start)
                indents[line.indent] += cue.way == "capital"
                parted[cue.way, first] += 1
                spelled.setdefault(name, cue.name)
    if len(found.get("gap", ())) * 10 > len(found.get("bare", ())) > 0:
        # Long speeches begin under the name, short ones next to it.
        for name, at in found.pop("bare").items():
            found["gap"].setdefault(name, []).extend(at)
        parted.update({("gap", first): parted["bare", first] for first in (True, False)})
    casts = []
    sentences = _Sentences(text)
    margin = indents.most_common(1)[0][0] if indents else 0
    # Where only the lines with names are so indented, a word is a name there.
    placed = margin > 0 and sum(line.indent == margin for line in lines_of(text)) < 2 * indents[margin]
    for way, places in found.items():
        # A line of verse, too, has no stop now and then, and a refrain comes again.
        least = _REFRAIN if way == "small" else 2
        often = {name for name, at in places.items() if name in asked or len(at) >= least}
        once = {name for name in places if _is_plain(spelled[name], way) and is_name(spelled[name], once=True)}
        if way == "capital" and not placed:
            once = {name for name in once if name in directed or name in sentences.names}
            often = {name for name in often if name in asked or sentences.words[name] <= _AS_WORD * len(places[name])}
        if often:
            kept = frozenset(often | once)
            cues_of = sorted(((name, place) for name in kept for place in places[name]), key=lambda cue: cue[1])
            indent = margin if way == "capital" else None
            casts.append(Cast(way, kept, cues_of, parted[way, True] >= parted[way, False], indent))
    return max(casts, key=lambda cast: len(cast.cues), default=None)


def _is_plain(name: str, way: Way) -> bool:
    """Whether one time is enough: "I. Rome" and "A. The" are no speakers."""
    if way == "gap":
        return name == name.upper() and len(name) > 1
    return way not in ("stop", "bare", "small") or (name.isupper() and len(name) > 2 and not _ROMAN.match(name))


class _Sentences:
    """What a text has inside its sentences, gone through once and only if asked."""

    def __init__(self, text: str) -> None:
        self._text = text

    @cached_property
    def names(self) -> frozenset[str]:
        """The keys of what is in capitals, or has a capital inside a sentence."""
        return frozenset(key(match[0]) for match in _NAMED.finditer(self._text))

    @cached_property
    def words(self) -> Counter[str]:
        """How often each word is written small: one that now and then is a whole sentence, such as "Silence."."""
        return Counter(_SMALL.findall(self._text))


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
    for line, first, last in _with_neighbors(source.text):
        cues = _cues_of(line.text) if cast is not None else ()
        if cast is not None and cast.indent not in (None, line.indent):
            cues = ()
        cue = next((cue for cue in cues if cast and _accepted(cue, cast, asked, first=first, last=last)), None)
        reading.line(line, cue, first=first)
    reading.close()
    return reading.found


def _accepted(cue: _Cue, cast: Cast, asked: set[str], *, first: bool, last: bool) -> bool:
    name = key(cue.name)
    # In capitals and known, it is no verse that ends in a colon.
    sure = cue.way in ("colon", "bracket", "gap") or (cue.way == cast.way == "colon alone" and cue.name.isupper())
    if not first and (cue.way == "stop alone" or (cast.parted and not sure)):
        return False
    if (
        cue.way in ("bare", "small", "capital", "gap")
        and cast.way != cue.way
        and (cue.way, cast.way) != ("bare", "gap")
    ):
        # A line of the persons of the play, a short sentence, a table.
        return False
    if cue.way in ("bare", "small"):
        return name in cast.names and not last
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
            is_direction = _ENTER.match(self.held.text) or self.held.text.lstrip()[0] == "〔"
            kind: TurnKind = "direction" if is_direction else "narration"
            self.paragraph(self.held.start, self.held.end, kind)
            self.held = None
        super().close(done=done)

    def line(self, line: Line, cue: _Cue | None, *, first: bool) -> None:
        """Take in a line; `first` of its paragraph."""
        text, known = line.text.strip(), cue is not None and key(cue.name) in self.names
        if first and self.held is not None:
            self.close()
        heading = heading_of(line.text) if (first or text.isupper() or foreign_act(line)) and not known else None
        if heading is None and first and not known and text[:1] == "[" and (inner := text.strip("[]_")):
            shift = line.text.index(inner)
            heading = (found[0] + shift, found[1] + shift) if (found := heading_of(inner)) else None
        if heading is not None:
            self.close()
            self.heading(line.start + heading[0], line.start + heading[1])
        elif cue is not None and not _ENTER.match(text):
            self.open(cue.name, line, cue.end, cue.aside)
        elif not self.is_open or (text[0] == "〔" and "〕" not in text):
            if text[0] == "〔":
                # Printed Chinese plays leave the bracket of a direction open.
                self.close()
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
        asides.sort(key=lambda aside: aside.start)
        if (
            asides
            and not self.text[start : asides[0].start].strip()
            and self.text[asides[0].end : end][:1] in (".", ":")
        ):
            # The stop that belongs to the name: Nora (laughing). Yes.
            asides[0] = replace(asides[0], end=asides[0].end + 1)
        return asides

    def _is_aside(self, aside: Aside, start: int, end: int) -> bool:
        opens = not self.text[start : aside.start].strip()
        if opens or self.text[aside.start] in "[【［〔" or "_" in self.text[aside.start : aside.end]:
            return True
        inner = self.text[aside.inner_start : aside.inner_end].strip()
        if inner[:1].isupper() and inner[-1:] == ".":
            # A sentence of its own: (She goes to the door.)
            return True
        before = self.text[max(start, self.text.rfind("\n", start, aside.start)) : aside.start]
        newline = self.text.find("\n", aside.end, end)
        after = self.text[aside.end : end if newline < 0 else newline]
        return not before.strip() and not after.strip(" \t.")
