"""Plays: the speaker's name on a line of its own or in front of the speech; acts, scenes and stage directions.

A play keeps to one way of naming its speakers: with a colon, a full stop, a bracket, a gap or nothing behind the name.
The way that finds most names that come again is taken to be it; another way counts only for names that it has found, so
that a verse that ends in a colon does not make a speaker.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal, NamedTuple

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
    foreign_act,
    heading_of,
    is_name,
    key,
    lines_of,
    paragraphs_of,
)
from rolellm.construct.scripts.screenplay import joined
from rolellm.core.text import HAN

Way = Literal["colon alone", "colon", "stop alone", "stop", "capital", "bracket", "gap", "run", "bare", "small"]

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
# A French play: DE GUICHE, tout près d'elle Vous m'affolez !
_RUN: Final = re.compile(
    rf"{_MARGIN}(?P<name>[^\W\d_a-zß-ÿ]{{2}}[^\Wa-zß-ÿ]*(?:[ '’.-]+[^\W\d_a-zß-ÿ]{{2}}[^\Wa-zß-ÿ]*){{0,3}})"
    r"(?P<aside>, [^\W\dA-Z_][^.!?:;\n]{0,80}?)? +(?=[^\W\d_a-zß-ÿ](?:[^\W\dA-Z_]|['’ ])|\.\.\.|…)"
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
# A direction of a Chinese play; the bracket is left open in print.
_TOLD: Final = re.compile(r"\s*(?:〔|\[[\u4e00-\u9fff][^\]\n]*$)", re.MULTILINE)
_UNCLOSED: Final = re.compile(r"\[[^\[\]\n]{1,200}$", re.MULTILINE)
# Names under such a title say nothing, up to the heading of an act or scene.
_PERSONS: Final = re.compile(
    r"^\W*(?:剧中人物|[登出]场人物|人物|[^，。\n]{0,10}人物列?表|dramatis person(?:ae|æ)"
    r"|(?:the )?persons (?:of|in) the play|characters)\W*$",
    re.IGNORECASE | re.MULTILINE,
)
_LONGEST_LIST: Final = 5000


class Cue(NamedTuple):
    """A name before what is said, without the additions of scripts.

    Attributes:
        name: Whether it is one is left open.
        end: Where the speech begins, in the line.
        aside: A bracket behind the name, in the line; an empty span where there is none.
        way: How a play names its speakers, were this one.
        opens: Whether a direction opens behind the name that goes on in the next line.
    """

    name: str
    end: int
    aside: tuple[int, int] = (0, 0)
    way: Way = "colon"
    opens: bool = False


#: Makes a cue; of equal ones, which come by the thousand, one object.
same_cue: Final = lru_cache(maxsize=1 << 12)(Cue)


class _Named(NamedTuple):
    indent: int
    first: bool
    name: str


def _cues_of(line: str) -> Sequence[Cue]:
    """What a line would be, were it one that names a speaker; the likeliest first."""
    if heading_of(line) is not None or _ENTER.match(line):
        return ()
    cues: list[Cue] = []
    # Tried only where it can match: names in front of gaps are in capitals, or in a script that has none.
    gap = _GAP.match(line) if "\t" in line or not line.lstrip()[1:2].islower() else None
    if gap and (not any(map(str.islower, gap["name"])) or "\t" in gap["gap"]):
        cues.append(same_cue(bare(gap["name"]), gap.end("gap"), gap.span("aside") if gap["aside"] else (0, 0), "gap"))
    if (run := _RUN.match(line)) and run["name"].isupper():
        cues.append(same_cue(bare(run["name"]), run.end(), run.span("aside") if run["aside"] else (0, 0), "run"))
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
        cues.append(same_cue(bare(name), match.end(), aside, way))
    if line.rfind("(") > line.rfind(")") and (opened := _OPEN.match(line)):
        # A direction that goes on in the next line; "stop" and "capital" name the same speakers here.
        way = "stop" if opened["name"].isupper() else "capital"
        cues.append(same_cue(bare(opened["name"]), opened.end(), way=way, opens=True))
    return cues


@dataclass(frozen=True, slots=True)
class Cast:
    """How a play names its speakers.

    Attributes:
        way: The way it keeps to.
        names: The keys of the names so found.
        cues: What names a speaker, by where its line begins in the text.
    """

    way: Way
    names: frozenset[str]
    cues: Mapping[int, Cue]


class _Likely(NamedTuple):
    start: int
    indent: int
    first: bool
    last: bool
    cues: Sequence[Cue]


class _Kept(NamedTuple):
    way: Way
    names: frozenset[str]
    times: int
    #: Whether speeches follow a blank line.
    parted: bool
    #: How far the lines with names are indented, if that tells them from short sentences.
    indent: int | None


def _likely(text: str, asked: frozenset[str]) -> list[_Likely]:
    """The lines that may name a speaker; whether they begin and end a paragraph."""

    def may_be_named(cue: Cue) -> bool:
        return is_name(cue.name.rstrip(","), loose=True) or key(cue.name) in asked

    return [
        _Likely(line.start, line.indent, first, last, cues)
        for line, first, last in paragraphs_of(joined(text))
        if (cues := [cue for cue in _cues_of(line.text) if may_be_named(cue)])
    ]


@lru_cache(maxsize=1)
def cast_of(text: str, asked: frozenset[str]) -> Cast | None:
    """Find out how a play names its speakers; nothing where nobody is named more than once or asked for.

    Args:
        text: `Source.text`.
        asked: The keys of the names asked for.
    """
    found: dict[Way, dict[str, list[_Named]]] = {}
    directed: set[str] = set()
    likely = _likely(text, asked)
    for _, indent, first, last, cues in likely:
        for cue in cues:
            # "Yes." is a line of many speeches; as a name it opens a paragraph, and has one under it.
            alone = cue.way == "stop alone" and (not first or (last and not cue.name.isupper()))
            if alone or (cue.opens and not first) or (cue.way in ("bare", "small") and last):
                continue
            if key(cue.name) in asked or is_name(cue.name, loose=cue.way in ("small", "gap")):
                found.setdefault(cue.way, {}).setdefault(key(cue.name), []).append(_Named(indent, first, cue.name))
                if cue.opens or cue.aside[1]:
                    directed.add(key(cue.name))
    gaps = sum(len(at) > 1 for at in found.get("gap", {}).values())
    if gaps * 10 > len(found.get("bare", ())) > 0:
        # Long speeches begin under the name, short ones next to it.
        for name, at in found.pop("bare").items():
            found["gap"].setdefault(name, []).extend(at)
    best: _Kept | None = None
    for way, names in sorted(found.items(), key=lambda item: -sum(map(len, item[1].values()))):
        if best and sum(map(len, names.values())) <= best.times:
            break
        kept = _kept(text, way, names, asked, directed)
        best = kept if kept and (best is None or kept.times > best.times) else best
    if best is None:
        return None
    accepted = {
        line.start: taken
        for line in likely
        if best.indent in (None, line.indent)
        and (taken := next((cue for cue in line.cues if _accepted(cue, best, asked, line)), None))
    }
    return Cast(best.way, best.names, accepted)


def _kept(
    text: str, way: Way, places: Mapping[str, Sequence[_Named]], asked: frozenset[str], directed: set[str]
) -> _Kept | None:
    """The names, if this is the way: who is named often, and who but once in a manner that is surely a name's."""
    # A line of verse, too, has no stop now and then, and a refrain comes again.
    least = _REFRAIN if way == "small" else 2
    often = {name for name, at in places.items() if name in asked or len(at) >= least}
    once = {name for name, at in places.items() if _is_plain(at[0].name, way)}
    indent = None
    if way == "capital":
        indents = Counter(one.indent for at in places.values() for one in at)
        indent, count = indents.most_common(1)[0]
        # Where only the lines with names are so indented, a word is a name there.
        if not indent or sum(line.indent == indent for line in lines_of(text)) >= 2 * count:
            once &= directed | {key(name) for name in {match[0] for match in _NAMED.finditer(text)}}
            # One that now and then is a whole sentence, such as "Silence.".
            small = Counter(match[0] for match in _SMALL.finditer(text))
            often = {name for name in often if name in asked or small[name] <= _AS_WORD * len(places[name])}
    names = frozenset(often | once if often else ())
    named = [one for name in names for one in places[name]]
    return _Kept(way, names, len(named), sum(one.first for one in named) * 2 >= len(named), indent) if names else None


def _is_plain(name: str, way: Way) -> bool:
    """Whether one time is enough: "I. Rome" and "A. The" are no speakers."""
    if way == "gap":
        plain = name == name.upper() and len(name) > 1
    else:
        plain = way not in ("stop", "bare", "small", "run") or (
            name.isupper() and len(name) > 2 and not _ROMAN.match(name)
        )
    return plain and is_name(name, once=True)


def read_play(source: Source, hints: Hints) -> list[Found]:
    """The turns of a play. A speech continues over blank lines, up to the next name, heading or stage direction."""
    cast = cast_of(source.text, frozenset(map(key, hints.names)))
    # In Chinese, nobody says what is in brackets.
    out = Dialogue(source.text, cast.names if cast else (), bracketed=hints.language == "zh")
    lists, over = _lists(source.text), 0
    for line, first, _ in paragraphs_of(joined(source.text)):
        if line.start in lists:
            out.close()
            over = lists[line.start]
        out.line(line, cast.cues.get(line.start) if cast and line.start >= over else None, first=first)
    out.close()
    return out.found


def _lists(text: str) -> dict[int, int]:
    """Where lists of the persons of a play begin, and where the headings under them do."""
    found: dict[int, int] = {}
    for title in _PERSONS.finditer(text):
        under = lines_of(text[title.end() : title.end() + _LONGEST_LIST])
        end = next((title.end() + line.start for line in under if not line.blank and heading_of(line.text)), None)
        if end is not None:
            found[text.rfind("\n", 0, title.end()) + 1] = end
    return found


def _accepted(cue: Cue, cast: _Kept, asked: frozenset[str], line: _Likely) -> bool:
    name, is_same = key(cue.name), cue.way == cast.way or (cue.way, cast.way) == ("bare", "gap")
    if cue.way in ("bare", "small", "capital", "gap", "run") and not is_same:
        # A line of the persons of the play, a short sentence, a table.
        return False
    if cue.way in ("bare", "small") and (line.last or name not in cast.names):
        return False
    # A known name in capitals: not a line of verse that happens to end in a colon.
    sure = cue.way in ("colon", "bracket", "gap", "run") or (
        is_same and cue.way == "colon alone" and cue.name.isupper()
    )
    if not line.first and (cue.way == "stop alone" or (cast.parted and not (sure and is_same))):
        return False
    # A crowd that speaks once is named as everyone else is.
    is_crowd = is_same and cue.way == "colon alone" and is_name(cue.name, once=True, loose=True)
    return name in cast.names or (line.first and (is_crowd or name in asked))


class Dialogue(Collector):
    """Collects the turns of lines that name their speakers, or continue a speech, direct or tell.

    Args:
        text: `Source.text`.
        names: The keys of those who speak.
        bracketed: Whether whatever is in brackets is a direction; else people say some of it.
    """

    def __init__(self, text: str, names: Iterable[str], *, bracketed: bool = False) -> None:
        super().__init__(text)
        self.names = frozenset(names)
        self.bracketed = bracketed

    def tell_held(self, held: Line) -> None:
        """Add a paragraph outside of speeches."""
        is_direction = _ENTER.match(held.text) or _TOLD.match(held.text)
        self.paragraph(held.start, held.end, "direction" if is_direction else "narration")

    def line(self, line: Line, cue: Cue | None, *, first: bool) -> None:
        """Take in a line that is not blank, `first` of its paragraph; `cue` names its speaker, if it has one."""
        text = line.text.strip()
        held = self.held
        if held and (first or self.text[held.end - 1] in "。！？" or (self.bracketed and _TOLD.match(held.text))):
            # A direction whose bracket is left open is all of its line, but printed plays break their lines.
            self.close()
        # A bracket that goes on in the next lines is told when it ends.
        inner = text if text[0] not in CLOSING else text.strip("[]()（）【】_") if CLOSING[text[0]] in text else ""
        headed = cue is None and (first or self.bracketed or text.isupper() or foreign_act(line))
        if cue is not None:
            self.open(cue.name, line, cue.end, cue.aside)
        elif headed and (heading := heading_of(inner)):
            self.close()
            at = line.start + line.text.index(inner)
            self.heading(at + heading[0], at + heading[1])
        elif not self.is_open or ("〕" not in text and _TOLD.match(text)):
            if _TOLD.match(text):
                # Printed Chinese plays leave the bracket of a direction open.
                self.close()
            self.hold(line)
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
        """Square brackets are directions; round ones only where they open the speech, are in italics or a sentence."""
        asides = bracketed(self.text, start, end)
        if self.bracketed:
            return asides
        asides = [aside for aside in asides if self._is_aside(aside, start)]
        closed = {aside.start for aside in asides}
        # Old editions leave the bracket open: "Farewell.  [Exit".
        asides += [
            Aside(match.start(), match.end(), match.start() + 1, match.end())
            for match in _UNCLOSED.finditer(self.text, start, end)
            if match.start() not in closed
        ]
        asides.sort()
        if (
            asides
            and not self.text[start : asides[0].start].strip()
            and self.text[asides[0].end : end][:1] in (".", ":")
        ):
            # The stop that belongs to the name: Nora (laughing). Yes.
            asides[0] = asides[0]._replace(end=asides[0].end + 1)
        return asides

    def _is_aside(self, aside: Aside, start: int) -> bool:
        inner = self.text[aside.inner_start : aside.inner_end].strip()
        # In italics, or a sentence of its own: (She goes to the door.)
        is_told = "_" in self.text[aside.start : aside.end] or (inner[:1].isupper() and inner[-1:] == ".")
        return is_told or self.text[aside.start] in "[【［〔" or not self.text[start : aside.start].strip()
