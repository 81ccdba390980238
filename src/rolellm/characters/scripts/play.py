"""Plays: the speaker's name on a line of its own or in front of the speech; acts, scenes and stage directions.

A play keeps to one way of naming its speakers: with a colon, a full stop, a bracket, a gap or nothing behind the name.
The way that finds most names that come again is taken to be it; another way counts only for names that it has found, so
that a verse that ends in a colon does not make a speaker.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Final, Literal, NamedTuple

from rolellm.characters.scripts.names import is_name, normalize_name, strip_extensions
from rolellm.characters.scripts.reading import (
    CLOSING,
    Aside,
    Collector,
    ReaderHints,
    ScriptLine,
    ScriptSource,
    ScriptTurn,
    find_brackets,
    find_heading,
    is_foreign_act,
    iterate_lines,
    iterate_paragraphs,
    load_script_patterns,
)
from rolellm.characters.scripts.screenplay import iterate_screenplay_lines
from rolellm.core.text import HAN

Way = Literal["colon alone", "colon", "stop alone", "stop", "capital", "bracket", "gap", "run", "bare", "small"]

_PATTERNS: Final = load_script_patterns("play")
_LEAVES: Final = re.compile(r"\s*(?:(?:Re-?enter|Enter|Exit|Exeunt)\b[^.!?]{0,120}[.]?)\s*$")
_ROMAN: Final = re.compile(r"[IVXLC]+$")
_AS_WORD: Final = 4
_REFRAIN: Final = 3
_SMALL: Final = re.compile(r"(?<= )[^\W\dA-Z_]+\b")
# A direction of a Chinese play; the bracket is left open in print.
_DIRECTION: Final = re.compile(r"\s*(?:〔|\[[\u4e00-\u9fff][^\]\n]*$)", re.MULTILINE)
_UNCLOSED: Final = re.compile(r"\[[^\[\]\n]{1,200}$", re.MULTILINE)
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
make_cue: Final = lru_cache(maxsize=1 << 12)(Cue)


def read_cue(match: re.Match[str], way: Way = "colon") -> Cue:
    """Read a cue in what a pattern with the groups ``name`` and ``aside`` has matched."""
    return make_cue(strip_extensions(match["name"]), match.end(), _get_aside(match), way)


def _get_aside(match: re.Match[str]) -> tuple[int, int]:
    if match["aside"]:
        return match.span("aside")
    return (0, 0)


def _read_cues(line: str) -> Sequence[Cue]:
    """Read a line as if it named a speaker; the likeliest reading first."""
    if find_heading(line) is not None or _PATTERNS["enter"].match(line):
        return ()
    cues: list[Cue] = []
    # Tried only where it can match: names in front of gaps are in capitals, or in a script that has none.
    if "\t" in line or not line.lstrip()[1:2].islower():
        gap = _PATTERNS["gap"].match(line)
        if gap:
            has_small = any(map(str.islower, gap["name"]))
            if "\t" in gap["gap"] or not has_small:
                cues.append(read_cue(gap, "gap"))
    run = _PATTERNS["run"].match(line)
    if run and run["name"].isupper():
        cues.append(read_cue(run, "run"))
    match = _PATTERNS["cue"].match(line)
    if match is None:
        return cues
    cue = _read_marked_cue(line, match)
    if cue is not None:
        cues.append(cue)
    if line.rfind("(") > line.rfind(")"):
        # A direction that goes on in the next line; "stop" and "capital" name the same speakers here.
        opened = _PATTERNS["open"].match(line)
        if opened:
            way: Way = "stop" if opened["name"].isupper() else "capital"
            cues.append(make_cue(strip_extensions(opened["name"]), opened.end(), way=way, opens=True))
    return cues


def _read_marked_cue(line: str, match: re.Match[str]) -> Cue | None:
    """Read a name with what is behind it: a stop, a colon, a bracket or nothing; ``None`` where it is no name."""
    name = " ".join(match["name"].split())
    aside = _get_aside(match)
    after = line[match.end() :]
    is_alone = not after.strip()
    way: Way
    if not match["stop"]:
        # Shaw's way: HIGGINS [loudly] Well?
        way = "bracket"
        is_cue = name.isupper() and match["aside"] is not None
        if is_alone:
            has_case = name != name.lower()
            is_loud = name == name.upper() and (has_case or HAN.match(name) is not None)
            way = "bare" if is_loud else "small"
            is_cue = is_loud or name[0].isupper()
    elif match["stop"] == ".":
        # In French, what is said to whom follows a comma: ORGON, à Dorine.
        head, comma, tail = name.partition(", ")
        if comma and head.isupper() and tail[:1].islower() and not match["aside"]:
            first_word = tail.split()[0]
            start = line.index(first_word, match.start("name") + len(head))
            name = head
            aside = (start, match.end("name"))
        way = "stop alone"
        is_cue = True
        if not is_alone:
            is_loud = name.isupper() or match["mark"] != ""
            way = "stop" if is_loud else "capital"
            goes_on_small = after.lstrip()[0].islower()
            is_cue = is_loud or (after[0].isspace() and not goes_on_small)
    else:
        way = "colon alone" if is_alone else "colon"
        is_cue = is_alone or match["stop"] == "：" or after[0].isspace() or name.isupper()
    if is_cue:
        return make_cue(strip_extensions(name), match.end(), aside, way)
    return None


@dataclass(frozen=True, slots=True)
class Cast:
    """The way a play names its speakers.

    Attributes:
        way: The way it keeps to.
        names: The keys of the names so found.
        times: How often they come.
        parted: Whether speeches follow a blank line.
        indent: How far the lines with names are indented, if that tells them from short sentences.
        cues: What names a speaker, by where its line begins in the text.
    """

    way: Way
    names: frozenset[str]
    times: int
    parted: bool
    indent: int | None
    cues: Mapping[int, Cue] = field(default_factory=dict)


class _LikelyLine(NamedTuple):
    start: int
    indent: int
    first: bool
    last: bool
    cues: Sequence[Cue]


def _find_likely(text: str, requested: frozenset[str]) -> list[_LikelyLine]:
    """The lines that may name a speaker; whether they begin and end a paragraph."""
    likely: list[_LikelyLine] = []
    for line, first, last in iterate_paragraphs(iterate_screenplay_lines(text)):
        cues: list[Cue] = []
        for cue in _read_cues(line.text):
            if is_name(cue.name.rstrip(","), loose=True) or normalize_name(cue.name) in requested:
                cues.append(cue)
        if cues:
            likely.append(_LikelyLine(line.start, line.indent, first, last, cues))
    return likely


@lru_cache(maxsize=1)
def detect_cast(text: str, requested: frozenset[str]) -> Cast | None:
    """Find out how a play names its speakers; nothing where nobody is named more than once or asked for.

    Args:
        text: `Source.text`.
        requested: The keys of the names asked for.
    """
    ways: dict[Way, dict[str, list[tuple[_LikelyLine, Cue]]]] = {}
    directed: set[str] = set()
    likely = _find_likely(text, requested)
    for line in likely:
        for cue in line.cues:
            key = normalize_name(cue.name)
            if not _is_possible(cue, line):
                continue
            if key in requested or is_name(cue.name, loose=cue.way in ("small", "gap")):
                occurrences_by_name = ways.setdefault(cue.way, {})
                occurrences_by_name.setdefault(key, []).append((line, cue))
                if cue.opens or cue.aside[1]:
                    directed.add(key)
    if len(ways.get("gap", ())) * 10 > len(ways.get("bare", ())) > 0:
        # Long speeches begin under the name, short ones next to it.
        for name, occurrences in ways.pop("bare").items():
            ways["gap"].setdefault(name, []).extend(occurrences)
    counts = {way: sum(map(len, names.values())) for way, names in ways.items()}
    best: Cast | None = None
    for way in sorted(ways, key=lambda way: -counts[way]):
        if best and counts[way] <= best.times:
            break
        candidate = _keep_names(text, way, ways[way], requested, directed)
        if candidate and (best is None or candidate.times > best.times):
            best = candidate
    if best is None:
        return None
    accepted: dict[int, Cue] = {}
    for line in likely:
        if best.indent not in (None, line.indent):
            continue
        for cue in line.cues:
            if _accept_cue(cue, best, requested, line):
                accepted[line.start] = cue
                break
    return replace(best, cues=accepted)


def _is_possible(cue: Cue, line: _LikelyLine) -> bool:
    """Tell whether a cue can be one where its line is in a paragraph."""
    if cue.opens and not line.first:
        return False
    if cue.way in ("bare", "small"):
        return not line.last
    if cue.way == "stop alone":
        # "Yes." is a line of many speeches; as a name it opens a paragraph, and has one under it.
        return line.first and (not line.last or cue.name.isupper())
    return True


def _keep_names(
    text: str,
    way: Way,
    occurrences: Mapping[str, Sequence[tuple[_LikelyLine, Cue]]],
    requested: frozenset[str],
    directed: set[str],
) -> Cast | None:
    """The names, if this is the way: who is named often, and who but once in a manner that is surely a name's."""
    # A line of verse, too, has no stop now and then, and a refrain comes again.
    least = _REFRAIN if way == "small" else 2
    often: set[str] = set()
    once: set[str] = set()
    for name, lines in occurrences.items():
        if name in requested or len(lines) >= least:
            often.add(name)
        _, cue = lines[0]
        if _is_plain(cue.name, way):
            once.add(name)
    indent = None
    if way == "capital":
        indents = Counter(line.indent for lines in occurrences.values() for line, _ in lines)
        indent, count = indents.most_common(1)[0]
        # Where only the lines with names are so indented, a word is a name there.
        indented = sum(line.indent == indent for line in iterate_lines(text))
        if not indent or indented >= 2 * count:
            named_elsewhere = set(_PATTERNS["named"].findall(text))
            once &= directed.union(map(normalize_name, named_elsewhere))
            # One that now and then is a whole sentence, such as "Silence.".
            small = Counter(_SMALL.findall(text))
            words = {name for name in often if small[name] > _AS_WORD * len(occurrences[name])}
            often -= words - requested
    if not often:
        return None
    names = frozenset(often | once)
    named = [line for name in names for line, _ in occurrences[name]]
    parted = sum(line.first for line in named) * 2 >= len(named)
    return Cast(way, names, len(named), parted, indent)


def _is_plain(name: str, way: Way) -> bool:
    """Tell whether one occurrence is enough: "I. Rome" and "A. The" are no speakers."""
    is_plain = True
    if way == "gap":
        is_plain = name == name.upper() and len(name) > 1
    elif way in ("stop", "bare", "small", "run"):
        is_plain = name.isupper() and len(name) > 2 and not _ROMAN.match(name)
    return is_plain and is_name(name, once=True)


def read_play(source: ScriptSource, hints: ReaderHints) -> list[ScriptTurn]:
    """The turns of a play. A speech continues over blank lines, up to the next name, heading or stage direction."""
    cast = detect_cast(source.text, frozenset(map(normalize_name, hints.names)))
    # In Chinese, nobody says what is in brackets.
    out = DialogueCollector(source.text, cast.names if cast else (), bracketed=hints.language == "zh")
    lists = _find_lists(source.text)
    list_end = 0
    for line, first, _ in iterate_paragraphs(iterate_screenplay_lines(source.text)):
        if line.start in lists:
            out.close()
            list_end = lists[line.start]
        cue = None
        if cast and line.start >= list_end:
            cue = cast.cues.get(line.start)
        out.line(line, cue, first=first)
    out.close()
    return out.found


def _find_lists(text: str) -> dict[int, int]:
    """Find where lists of the persons of a play begin, and where the headings under them do."""
    lists: dict[int, int] = {}
    for title in _PATTERNS["persons"].finditer(text):
        start = text.rfind("\n", 0, title.end()) + 1
        for line in iterate_lines(text[title.end() : title.end() + _LONGEST_LIST]):
            if not line.blank and find_heading(line.text):
                lists[start] = title.end() + line.start
                break
    return lists


def _accept_cue(cue: Cue, cast: Cast, requested: frozenset[str], line: _LikelyLine) -> bool:
    name = normalize_name(cue.name)
    ways = [cast.way, "bare"] if cast.way == "gap" else [cast.way]
    is_same = cue.way in ways
    if cue.way in ("bare", "small", "capital", "gap", "run") and not is_same:
        # A line of the persons of the play, a short sentence, a table.
        return False
    if cue.way in ("bare", "small") and (line.last or name not in cast.names):
        return False
    if not line.first:
        if cue.way == "stop alone":
            return False
        # A known name in capitals: not a line of verse that happens to end in a colon.
        is_sure = cue.way in ("colon", "bracket", "gap", "run") or (cue.way == "colon alone" and cue.name.isupper())
        if cast.parted and not (is_sure and is_same):
            return False
    if name in cast.names:
        return True
    # A crowd that speaks once is named as everyone else is.
    is_crowd = is_same and cue.way == "colon alone" and is_name(cue.name, once=True, loose=True)
    return line.first and (is_crowd or name in requested)


class DialogueCollector(Collector):
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

    def add_paragraph(self, paragraph: ScriptLine) -> None:
        """Add a paragraph outside of speeches."""
        is_direction = _PATTERNS["enter"].match(paragraph.text) or _DIRECTION.match(paragraph.text)
        self.add_text(paragraph.start, paragraph.end, "direction" if is_direction else "narration")

    def line(self, line: ScriptLine, cue: Cue | None, *, first: bool) -> None:
        """Take in a line that is not blank, `first` of its paragraph; `cue` names its speaker, if it has one."""
        text = line.text.strip()
        paragraph = self.held
        if paragraph:
            is_ended = first or self.text[paragraph.end - 1] in "。！？"
            # A direction whose bracket is left open is all of its line, but printed plays break their lines.
            if is_ended or (self.bracketed and _DIRECTION.match(paragraph.text)):
                self.close()
        if cue is not None:
            self.open(cue.name, line, cue.end, cue.aside)
            return
        inner = text
        if text[0] in CLOSING:
            # A bracket that goes on in the next lines is told when it ends.
            inner = ""
            if CLOSING[text[0]] in text:
                inner = text.strip("[]()（）【】_")
        heading = None
        if first or self.bracketed or text.isupper() or is_foreign_act(line):
            heading = find_heading(inner)
        if heading:
            self.close()
            start = line.start + line.text.index(inner)
            self.add_heading(start + heading[0], start + heading[1])
        elif not self.is_open or ("〕" not in text and _DIRECTION.match(text)):
            if _DIRECTION.match(text):
                # Printed Chinese plays leave the bracket of a direction open.
                self.close()
            self.hold_line(line)
        elif self._is_direction(text, first=first):
            self.close(done=False)
            self.add_text(line.start, line.end, "direction")
        else:
            self.continue_speech(line)

    def _is_direction(self, text: str, *, first: bool) -> bool:
        """Tell whether a line in a speech is a direction. Brackets inside a line are left to `find_asides`."""
        if first and _PATTERNS["enter"].match(text):
            return True
        if text.count("_") == 2 and text.startswith("_") and text.endswith("_"):
            return True
        if not _LEAVES.match(text):
            return False
        words = text.split()
        if len(words) == 1 or words[0] == "Exeunt":
            return True
        return any(normalize_name(word) in self.names for word in words[1:])

    def find_asides(self, start: int, end: int) -> list[Aside]:
        """Square brackets are directions; round ones only where they open the speech, are in italics or a sentence."""
        asides = find_brackets(self.text, start, end)
        if self.bracketed:
            return asides
        asides = [aside for aside in asides if self._is_aside(aside, start)]
        closed = {aside.start for aside in asides}
        # Old editions leave the bracket open: "Farewell.  [Exit".
        for match in _UNCLOSED.finditer(self.text, start, end):
            if match.start() not in closed:
                asides.append(Aside(match.start(), match.end(), match.start() + 1, match.end()))
        asides.sort()
        if asides and not self.text[start : asides[0].start].strip():
            opening = asides[0]
            # The stop that belongs to the name: Nora (laughing). Yes.
            if opening.end < end and self.text[opening.end] in ".:":
                asides[0] = opening._replace(end=opening.end + 1)
        return asides

    def _is_aside(self, aside: Aside, start: int) -> bool:
        bracketed = self.text[aside.start : aside.end]
        inner = self.text[aside.inner_start : aside.inner_end].strip()
        # In italics, or a sentence of its own: (She goes to the door.)
        if "_" in bracketed or bracketed[0] in "[【［〔":
            return True
        if inner[:1].isupper() and inner.endswith("."):
            return True
        return not self.text[start : aside.start].strip()
