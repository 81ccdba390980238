"""Subtitles (.srt, .vtt): who speaks by the tags that some lines have; what has no tag is speech of nobody known.

Tags: ``JOHN:``, ``- JOHN:``, ``[John]`` and ``(JOHN)`` in front of words, ``<v John>`` of WebVTT. A tag goes for its
caption only, up to the next dash; captions for the hard of hearing tag a line when the speaker is not seen, so nothing
follows for the lines after it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, Literal

from rolellm.construct.scripts.reading import (
    SOUNDS,
    Collector,
    Found,
    Hints,
    Line,
    Source,
    bare,
    bracketed,
    is_name,
    key,
    lines_of,
)
from rolellm.core.text import HAN

TIMES: Final = re.compile(
    r"[ \t]{0,9}(?:\d{1,3}:)?\d{1,2}:\d{2}[.,]\d{1,3}[ \t]{0,9}-->[ \t]{0,9}(?:\d{1,3}:)?\d{1,2}:\d{2}[.,]\d{1,3}"
)
_DASH: Final = re.compile(r"\s*(?:[-–—‐]|>>)+\s*")
_VOICE: Final = re.compile(r"\s*<v(?:\.[^\s>]{1,60})?\s+([^<>\n]{1,80})>")
_LABEL: Final = re.compile(
    r"\s*(?P<name>[^\W_][^:：()（）\[\]【】<>\"“”\n]{0,48}?)\s*(?P<aside>\([^()\n]{1,80}\)|\[[^\[\]\n]{1,80}\]|（[^（）\n]{1,80}）)?\s*"
    r"[:：](?=\s|$|[^\d/\s])"
)
_BRACKET: Final = re.compile(r"\s*[\[(（【](?P<name>[^\[\]()（）【】\n]{1,60})[\])）】]\s*:?")


@dataclass(frozen=True, slots=True)
class _Piece:
    """What one speaker says in one caption; the tag, a `label` or `bracket` that may be no name or a sure `voice`."""

    name: str | None
    start: int
    end: int
    tag: Literal["label", "bracket", "voice"] | None = None
    tag_start: int = -1
    aside: tuple[int, int] = (0, 0)


def read_subtitles(source: Source, hints: Hints) -> list[Found]:
    """The turns of subtitles, all in one scene: captions say nothing of scenes."""
    text = source.text
    pieces = [piece for caption in captions(text) for piece in _pieces(caption)]
    asked = {key(name) for name in hints.names}
    spelled = {key(piece.name): piece.name for piece in pieces if piece.name and piece.tag == "label"}
    labels = Counter(key(piece.name) for piece in pieces if piece.name and piece.tag == "label")
    known = asked | {name for name, count in labels.items() if is_name(spelled[name], once=count == 1)}
    out = Collector(text)
    for piece in pieces:
        _say(out, piece, known)
    return out.found


def _say(out: Collector, piece: _Piece, known: set[str]) -> None:
    name, start = piece.name, piece.start
    if name is not None and piece.tag != "voice":
        # Else words with a colon in them, such as "Remember: nobody", or a sound.
        named = key(name) in known if piece.tag == "label" else _is_speaker(name, known)
        if not named:
            name, start = None, piece.tag_start
    if name is not None:
        out.tell("direction", *piece.aside)
    if any(map(str.isalnum, out.text[start : piece.end])):
        out.say(name, start, piece.end, bracketed(out.text, start, piece.end))


def _is_speaker(name: str, known: set[str]) -> bool:
    """Whether what stands in brackets speaks: a name, and no sound such as ``[sighs]`` or ``(DOOR CREAKING)``."""
    if key(name) in known:
        return True
    words = key(name).split()
    if any(word in SOUNDS or (len(word) > 5 and word.endswith("ing")) for word in words):
        return False
    if HAN.search(name):
        return len(name) <= 4 and is_name(name, once=True) and not name.endswith(("声", "聲"))
    return len(words) <= 3 and is_name(name, once=True)


def captions(text: str) -> Iterator[list[Line]]:
    """The lines of each caption: what stands under its times, up to a blank line or the next number and times."""
    caption: list[Line] | None = None
    held: Line | None = None
    for line in lines_of(text):
        if TIMES.match(line.text):
            if caption:
                yield caption
            caption, held = [], None
            continue
        if caption is None:
            continue
        if held is not None:
            caption.append(held)
            held = None
        if line.blank:
            if caption:
                yield caption
            caption = None
        elif line.text.strip().isdigit():
            # The next caption's number, unless no times follow.
            held = line
        else:
            caption.append(line)
    if caption is not None and held is not None:
        caption.append(held)
    if caption:
        yield caption


def _pieces(caption: list[Line]) -> Iterator[_Piece]:
    begun: _Piece | None = None
    for line in caption:
        dash = _DASH.match(line.text)
        at = dash.end() if dash else 0
        opened = _opened(line, at)
        if begun is not None and (opened is not None or dash):
            yield begun
            begun = None
        if opened is not None:
            begun = opened
        elif begun is None:
            begun = _Piece(None, line.start + at, line.end)
        else:
            begun = replace(begun, end=line.end)
    if begun is not None:
        yield begun


def _opened(line: Line, at: int) -> _Piece | None:
    """The speaker that a line opens with."""
    voice = _VOICE.match(line.text, at)
    if voice:
        return _Piece(bare(voice[1]), line.start + voice.end(), line.end, "voice")
    label = _LABEL.match(line.text, at)
    if label and "," not in label["name"]:
        low, high = label.span("aside")
        aside = (line.start + low + 1, line.start + high - 1) if low >= 0 else (0, 0)
        name = bare(label["name"])
        return _Piece(name, line.start + label.end(), line.end, "label", line.start + at, aside)
    bracket = _BRACKET.match(line.text, at)
    if bracket:
        name = bare(re.split("[,，]", bracket["name"])[0])
        return _Piece(name, line.start + bracket.end(), line.end, "bracket", line.start + at)
    return None
