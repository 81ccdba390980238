"""Subtitles (.srt, .vtt): who speaks by the tags that some lines have; speech without a tag has no known speaker.

Tags: ``JOHN:``, ``- JOHN:``, ``[John]`` and ``(JOHN)`` before words, ``<v John>`` of WebVTT. A tag goes for its
caption only, up to the next dash; captions for the hard of hearing tag a line when the speaker is not seen, so nothing
follows for the lines after it.
"""

from __future__ import annotations

import re
from typing import Final

from rolellm.construct.scripts.reading import (
    Collector,
    Found,
    Hints,
    Line,
    Source,
    bare,
    is_name,
    key,
    known_names,
    lines_of,
)
from rolellm.core.text import HAN

TIMES: Final = re.compile(
    r"[ \t]{0,9}(?:\d{1,3}:)?\d{1,2}:\d{1,2}[.,]\d{1,3}[ \t]{0,9}-->[ \t]{0,9}(?:\d{1,3}:)?\d{1,2}:\d{1,2}[.,]\d{1,3}"
)
_DASH: Final = re.compile(r"\s*(?:[-–—‐]|>>)+\s*")
_TAG: Final = re.compile(
    r"\s*<v(?:\.[^\s>]{1,60})?\s+(?P<voice>[^<>\n]{1,80})>"
    r"|\s*(?P<label>[^\W_][^:：()（）\[\]【】<>\"“”\n,]{0,48}?)\s*"
    r"(?P<aside>\([^()\n]{1,80}\)|\[[^\[\]\n]{1,80}\]|（[^（）\n]{1,80}）)?\s*[:：](?=\s|$|[^\d/\s])"
    r"|\s*[\[(（【](?P<bracket>[^\[\]()（）【】\n,，]{1,60})(?:[,，][^\[\]()（）【】\n]{0,60})?[\])）】]\s*:?"
)


class _Captions(Collector):
    def say(self, speaker: str | None, start: int, end: int, asides: object = ()) -> None:
        """Add a speech, unless it is only a name, or music."""
        if any(map(str.isalnum, self.text[start:end])):
            super().say(speaker, start, end, self.asides(start, end))


def read_subtitles(source: Source, hints: Hints) -> list[Found]:
    """The turns of subtitles, all in one scene: captions say nothing of scenes."""
    text = source.text
    labels = (bare(tag["label"]) for line in lines_of(text) if (tag := _tag(line)[1]) and tag["label"])
    known = known_names(labels, hints.names)
    out, is_caption = _Captions(text), False
    for line in lines_of(text):
        at, tag = _tag(line)
        # The next caption's number, unless no times follow.
        is_number = line.text.strip().isdigit() and TIMES.match(text, line.end + 1)
        if TIMES.match(line.text) or line.blank or is_number:
            out.close()
            is_caption = TIMES.match(line.text) is not None
        elif is_caption:
            speaker = _speaker(tag, known, text) if tag else None
            if tag and speaker:
                out.open(speaker, line, tag.end(), tag.span("aside") if tag["aside"] else (0, 0))
            elif at or not out.is_open:
                out.open(None, line, at)
            else:
                out.extend(line)
    out.close()
    return out.found


def _tag(line: Line) -> tuple[int, re.Match[str] | None]:
    """Where a line's words begin behind a dash, and the tag that they begin with."""
    dash = _DASH.match(line.text)
    at = dash.end() if dash else 0
    return at, _TAG.match(line.text, at)


def _speaker(tag: re.Match[str], known: set[str], text: str) -> str | None:
    """Whom a tag names; nobody in "Remember: nobody", ``[sighs]`` and ``(DOOR CREAKING)``."""
    name = bare(tag["voice"] or tag["label"] or tag["bracket"])
    if tag["voice"] or key(name) in known:
        return name
    if tag["label"] or not is_name(name, once=True):
        return None
    # What is heard may be in brackets, too; but nobody calls a sound by its name.
    spelled = re.escape(name) if HAN.search(name) else rf"\b{re.escape(name.title())}\b"
    return name if re.search(rf"(?<![\[(（【]){spelled}(?![\])）】])", text) else None
