"""Subtitles (.srt, .vtt): who speaks by the tags that some lines have; speech without a tag has no known speaker.

Tags: ``JOHN:``, ``- JOHN:``, ``[John]`` and ``(JOHN)`` before words, ``<v John>`` of WebVTT. A tag goes for its
caption only, up to the next dash; captions for the hard of hearing tag a line when the speaker is not seen, so nothing
follows for the lines after it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from rolellm.characters.scripts.names import is_name, normalize_name, select_names, strip_extensions
from rolellm.characters.scripts.reading import (
    Collector,
    ReaderHints,
    ScriptLine,
    ScriptSource,
    ScriptTurn,
    iterate_lines,
    load_script_patterns,
)
from rolellm.core.text import HAN

_PATTERNS: Final = load_script_patterns("subtitles")
TIMES: Final = _PATTERNS["times"]
_DASH: Final = re.compile(r"\s*(?:[-–—‐]|>>)+\s*")
# Names in brackets that are looked for in the whole text.
_MOST_NAMES: Final = 1000


class _Captions(Collector):
    def say(self, speaker: str | None, start: int, end: int, asides: object = ()) -> None:
        """Add a speech, unless it is only a name, or music."""
        if any(map(str.isalnum, self.text[start:end])):
            super().say(speaker, start, end, self.find_asides(start, end))


def read_subtitles(source: ScriptSource, hints: ReaderHints) -> list[ScriptTurn]:
    """The turns of subtitles, all in one scene: captions say nothing of scenes."""
    text = source.text
    labels: list[str] = []
    for line in iterate_lines(text):
        _, tag = _read_tag(line)
        if tag and tag["label"]:
            labels.append(strip_extensions(tag["label"]))
    names = select_names(labels, hints.names)
    out, is_caption = _Captions(text), False
    is_mentioned: dict[str, bool] = {}

    def is_called(name: str) -> bool:
        """Tell whether the text has a name outside of brackets; nobody calls a sound by its name."""
        if name not in is_mentioned and len(is_mentioned) < _MOST_NAMES:
            spelling = re.escape(name)
            if not HAN.search(name):
                spelling = rf"\b{re.escape(name.title())}\b"
            is_mentioned[name] = re.search(rf"(?<![\[(（【]){spelling}(?![\])）】])", text) is not None
        return is_mentioned.get(name, False)

    for line in iterate_lines(text):
        at, tag = _read_tag(line)
        # The next caption's number, unless no times follow.
        is_number = line.text.strip().isdigit() and TIMES.match(text, line.end + 1)
        if TIMES.match(line.text) or line.blank or is_number:
            out.close()
            is_caption = TIMES.match(line.text) is not None
        elif is_caption:
            speaker = _read_speaker(tag, names, is_called) if tag else None
            if tag and speaker:
                aside = tag.span("aside") if tag["aside"] else (0, 0)
                out.open(speaker, line, tag.end(), aside)
            elif at or not out.is_open:
                out.open(None, line, at)
            else:
                out.continue_speech(line)
    out.close()
    return out.found


def _read_tag(line: ScriptLine) -> tuple[int, re.Match[str] | None]:
    """Read where a line's words begin behind a dash, and the tag that they begin with."""
    dash = _DASH.match(line.text)
    at = dash.end() if dash else 0
    return at, _PATTERNS["tag"].match(line.text, at)


def _read_speaker(tag: re.Match[str], names: set[str], is_called: Callable[[str], bool]) -> str | None:
    """Return whom a tag names; nobody in "Remember: nobody", ``[sighs]`` and ``(DOOR CREAKING)``."""
    name = strip_extensions(tag["voice"] or tag["label"] or tag["bracket"])
    if tag["voice"] or normalize_name(name) in names:
        return name
    if tag["label"] or not is_name(name, once=True):
        return None
    # What is heard may be in brackets, too.
    return name if is_called(name) else None
