"""Transcripts: ``Name: line``, stage directions in brackets; English and Chinese."""

from __future__ import annotations

import re
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
    key,
    known_names,
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
    """A name before what is said.

    Attributes:
        name: Without the additions of scripts.
        end: Where the speech begins, in the line.
        aside: A bracket behind the name, in the line; an empty span where there is none.
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
    return Label(bare(name), match.end(), match.span("aside") if match["aside"] else (0, 0))


def read_transcript(source: Source, hints: Hints) -> list[Found]:
    """The turns of a transcript; lines without a name continue the speech above them, up to a blank line."""
    lines = list(lines_of(source.text))
    labels = [label_of(line.text) for line in lines]
    known = known_names((label.name for label in labels if label), hints.names)
    out = Collector(source.text)
    behind = 0
    for place, (line, label) in enumerate(zip(lines, labels, strict=True)):
        if place < behind:
            continue
        if line.blank:
            if not out.is_waiting:
                out.close()
        elif whole := _whole_bracket(source.text, lines, place):
            behind = place + whole[1]
            _tell(out, whole[0])
        elif heading := heading_of(line.text):
            out.close()
            out.heading(line.start + heading[0], line.start + heading[1])
        elif label is not None and key(label.name) in known:
            out.open(label.name, line, label.end, label.aside)
        elif out.is_open:
            out.extend(line)
        else:
            out.paragraph(line.start, line.end)
    out.close()
    return out.found


def _tell(out: Collector, aside: Aside) -> None:
    """A bracket on lines of its own: a heading or a direction."""
    inner = out.text[aside.inner_start : aside.inner_end]
    heading = heading_of(inner) if "\n" not in inner.strip() else None
    if heading is None and (scene := re.match(r"\s*scenes?\s*[:：]", inner, re.IGNORECASE)):
        heading = scene.end(), len(inner)
    waited = out.is_waiting
    out.close(done=heading is not None)
    if heading is not None:
        out.heading(aside.inner_start + heading[0], aside.inner_start + heading[1])
    else:
        out.tell("direction", aside.inner_start, aside.inner_end)
        out.is_waiting = waited


def _whole_bracket(text: str, lines: list[Line], place: int) -> tuple[Aside, int] | None:
    """A bracket that fills its line, or several lines; with their number."""
    line = lines[place]
    begun = line.text.lstrip("*_ \t\u3000")
    if begun[:1] not in CLOSING:
        return None
    low, stop = line.end - len(begun), place
    while stop < min(place + _LONGEST_BRACKET, len(lines)) and not lines[stop].blank:
        stop += 1
    limit = min(lines[stop - 1].end, low + _LONGEST_CHARACTERS)
    found = bracketed(text, low, limit) if text.find(CLOSING[begun[0]], low, limit) >= 0 else []
    if not found or found[0].start != low:
        return None
    last = next(number for number in range(place, stop) if lines[number].end >= found[0].end)
    rest = text[found[0].end : lines[last].end]
    return None if rest.strip(" \t\u3000.。*_") else (found[0], last - place + 1)
