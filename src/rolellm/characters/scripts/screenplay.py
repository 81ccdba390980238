"""Screenplays: Fountain (https://fountain.io/syntax) and the indented layout that Final Draft and others print.

A name in capitals with lines right under it speaks them. Notes, the boneyard, title page, sections and page furniture
such as ``(MORE)`` are no turns.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Set
from functools import lru_cache
from typing import Final

from rolellm.characters.scripts.names import is_name, normalize_name, strip_extensions
from rolellm.characters.scripts.reading import (
    Aside,
    Collector,
    ReaderHints,
    ScriptLine,
    ScriptSource,
    ScriptTurn,
    find_heading,
    is_slug,
    iterate_lines,
    iterate_paragraphs,
    load_script_patterns,
    trim,
)
from rolellm.core.text import HAN

_PATTERNS: Final = load_script_patterns("screenplay")
_CUE: Final = re.compile(r"\s*(?P<forced>@?)(?P<name>[^\W_][^\n()^]{0,58}?)(?:\s*\([^()\n]{1,40}\)){0,3}\s*\^?\s*$")
# Under a name: words, or blank lines, and under these perhaps a direction.
_FULL: Final = re.compile(r"\n[^\S\n]*\S")
_BLANK: Final = re.compile(
    r"\n((?:[^\S\n]*\n){1,2})(?=[^\S\n]*\S)(?:[^\S\n]*[(（][^()（）\n]{1,300}[)）][^\S\n]*$)?", re.MULTILINE
)
_SHORTENED: Final = re.compile(r"\b(?:JR|SR|[A-Z])\.$")
_PARENTHETICAL: Final = re.compile(r"^[ \t]*([(（])([^()（）]{1,300})[)）]", re.MULTILINE)
# Sections and synopses of Fountain.
_UNPRINTED: Final = re.compile(r"\s*(?:#|=(?!=))")
_FORCED_SLUG: Final = re.compile(r"\s*\.[^\W_].{0,300}$")
_INDENTED: Final = 8
# Where names have paragraphs of their own, at least one line in ten is a name.
_PARAGRAPHS: Final = 10


def read_screenplay(source: ScriptSource, hints: ReaderHints) -> list[ScriptTurn]:
    """The turns of a screenplay; a speech ends at a blank line, action is narration, parentheticals are directions."""
    masked = _mask_dropped(source.text)
    named = _find_cues(masked)
    is_fountain = all(line.indent < _INDENTED for line in named)
    cues = {line.start for line in named}
    del named
    out = _Screenplay(masked)
    first = True
    for line in iterate_screenplay_lines(masked):
        if line.blank:
            # Fountain: a line of two spaces keeps a speech going. Nor does what is dropped end it.
            is_dropped = source.text[line.start : line.end].strip() != ""
            continues = is_dropped or (is_fountain and line.text.startswith("  "))
            if not out.is_open or not continues:
                out.close()
            first = True
            continue
        heading = None if line.start in cues else _find_heading(line.text, first=first)
        first = False
        if line.start in cues:
            out.open(_name(line.text), line, len(line.text))
        elif heading:
            out.close()
            heading_start, heading_end = heading
            out.add_heading(line.start + heading_start, line.start + heading_end)
        elif out.is_open:
            out.continue_speech(line)
        elif _UNPRINTED.match(line.text):
            out.close()
        else:
            out.hold_line(line)
    out.close()
    return out.found


def list_cues(text: str) -> list[tuple[str, int]]:
    """The key of each cue's name and its place in the text, by which a screenplay is recognized."""
    cues = _find_cues(_mask_dropped(text))
    return [(normalize_name(_name(line.text)), line.start) for line in cues]


def _mask_dropped(text: str) -> str:
    """A text with spaces for what is dropped."""
    return _PATTERNS["dropped"].sub(lambda dropped: re.sub(r"[^\n]", " ", dropped[0]), text)


def iterate_screenplay_lines(text: str) -> Iterator[ScriptLine]:
    """The lines of a text; without the blank ones under names, where these are paragraphs of their own."""
    gaps = _find_gaps(text)
    return (line for line in iterate_lines(text) if line.start not in gaps)


@lru_cache(maxsize=2)
def _find_gaps(text: str) -> Set[int]:
    """Find the blank lines under names, if names are paragraphs of their own."""
    separate: Counter[str] = Counter()
    over: Counter[str] = Counter()
    gaps: set[int] = set()
    full, is_first = 0, True
    for line in iterate_lines(text):
        full += not line.blank
        if is_first and not line.blank and _is_possible_cue(line.text):
            name, end = normalize_name(_name(line.text)), line.end
            over[name] += _FULL.match(text, end) is not None
            separate[name] += _BLANK.match(text, end) is not None
            while blank := _BLANK.match(text, end):
                for offset in range(blank.start(), blank.end(1) - 1):
                    if text[offset] == "\n":
                        gaps.add(offset + 1)
                end = blank.end()
        is_first = line.blank
    often = _count_repeated(separate)
    if often > 2 * _count_repeated(over) and often * _PARAGRAPHS > full:
        return gaps
    return set()


def _count_repeated(names: Counter[str]) -> int:
    return sum(count for count in names.values() if count > 1)


def _name(line: str) -> str:
    match = _CUE.match(line)
    return strip_extensions(match["name"]) if match else ""


def _is_possible_cue(line: str) -> bool:
    match = _CUE.match(line)
    if match is None:
        return False
    if match["forced"]:
        return True
    name = match["name"].strip()
    is_loud = is_name(name, once=True) if HAN.search(name) else name.isupper()
    if not is_loud or len(line.strip()) > 60 or len(name.split()) > 6:
        return False
    if name.count('"') % 2 or name.endswith((*"!?:;,-–—", "..")):
        return False
    return not (is_slug(line) or _PATTERNS["transition"].match(line) or find_heading(line))


def _find_cues(masked: str) -> list[ScriptLine]:
    """The lines that are cues: in capitals, under a blank line and over one that is not.

    Where speeches are indented, names are so deeper than action; a cry in capitals at the margin is none of them.
    """
    possible: list[ScriptLine] = []
    counts: Counter[str] = Counter()
    for line, first, last in iterate_paragraphs(iterate_screenplay_lines(masked)):
        if first and not last and _is_possible_cue(line.text):
            possible.append(line)
            counts[_name(line.text)] += 1
    lines: list[ScriptLine] = []
    for line in possible:
        name = _name(line.text)
        # An abbreviation such as "RADAR TECH.", or a name without capitals, comes again; a cry as a rule does not.
        is_cry = name[-1:] == "." or HAN.search(name)
        if not is_cry or counts[name] > 1 or _SHORTENED.search(name) or _is_forced(line):
            lines.append(line)
    deep = [line.indent for line in lines if line.indent >= _INDENTED]
    if len(deep) * 2 <= len(lines):
        return lines
    commonest, _ = Counter(deep).most_common(1)[0]
    lowest = max(_INDENTED, commonest // 2)
    return [line for line in lines if line.indent >= lowest or _is_forced(line)]


def _is_forced(line: ScriptLine) -> bool:
    return line.text.lstrip()[0] == "@"


def _find_heading(line: str, *, first: bool) -> tuple[int, int] | None:
    span = find_heading(line) if first else None
    if is_slug(line) or _FORCED_SLUG.match(line):
        match = _PATTERNS["slug"].match(line)
        if match:
            span = match.span("heading")
    return span if span and span[0] < span[1] else None


class _Screenplay(Collector):
    def add_paragraph(self, paragraph: ScriptLine) -> None:
        """Add a paragraph of action, or a line that says how the picture changes."""
        start, end = trim(self.text, paragraph.start, paragraph.end)
        text = self.text[start:end]
        is_line = "\n" not in text
        if is_line and (text[0] == ">" or _PATTERNS["transition"].match(text)):
            # Fountain: "> FADE OUT", and "> THE END <", which is centered.
            if text[0] == ">":
                start += 1
            if text[-1] == "<":
                end -= 1
            self.add_told("direction", start, end)
        elif is_line and text[0] == "(" and text[-1] == ")":
            self.add_text(start, end)
        else:
            self.add_told("narration", start + (text[0] == "!"), end)

    def find_asides(self, start: int, end: int) -> list[Aside]:
        """The parentheticals of a speech."""
        parentheticals = _PARENTHETICAL.finditer(self.text, start, end)
        return [Aside(match.start(1), match.end(), *match.span(2)) for match in parentheticals]
