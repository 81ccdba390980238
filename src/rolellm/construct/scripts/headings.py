"""Headings of scenes, in plays and transcripts, English and Chinese."""

from __future__ import annotations

import re
from typing import Final

_NUMBER: Final = (
    r"(?:[ivxlc]{1,7}|\d{1,3}[a-z]?|one|two|three|four|five|six|seven|eight|nine|ten|"
    r"(?:the\s+)?(?:first|second|third|fourth|fifth|last|final))"
)
_ENGLISH: Final = re.compile(
    rf"(?:(?:(?:act|scene|sc)\b\.?\s*{_NUMBER}\b|(?:the\s+)?(?:first|second|third|fourth|fifth|last)\s+(?:act|scene)\b"
    r"|scene(?=\s*[:：-]))"
    rf"(?:\s*[,;:.]?\s*(?:act|scene|sc)\b\.?\s*{_NUMBER}\b)?"
    r"|(?:the\s+)?(?:scene|prologue|epilogue|induction|cold open|teaser|interlude|intermission|opening credits|"
    r"closing credits|end credits|commercial break)(?=\W*$))"
    r"[ \t]*(?:$|[.:：,;—–-]+[ \t]*(?P<rest>.*)$)",
    re.IGNORECASE,
)
_CHINESE: Final = re.compile(
    r"(?:第\s*[一二三四五六七八九十百零〇两\d]{1,5}\s*[场場幕集折出回章节景]|[场場]景\s*[一二三四五六七八九十\d]{0,3}(?=\s*[：:]|$)|序幕|尾声|楔子|终场)"
    r"(?:\s*第\s*[一二三四五六七八九十百零〇两\d]{1,5}\s*[场場幕折出景])?"
    r"\s*(?:$|[：:，,。.、\s—-]+(?P<rest>.*)$)"
)
_SLUG: Final = re.compile(
    r"(?:[A-Z]?\d{1,4}[A-Z]?[.)]?\s+)?(?:(?i:INT|EXT)\.?\s?/\s?(?i:INT|EXT)\b\.?|(?i:I\s?/\s?E)\b\.?|(?i:INT|EXT)\.|(?:INT|EXT|EST)\b\.?)"
    r"\s*\S|(?:\d{1,4}\s*[.、)]?\s*)?(?:内景|外景|内/外景|內景)[\s.。，：:、]"
)
_RULE: Final = re.compile(r"(?:[*#~=_—–-]\s*){3,}$")


def heading_of(line: str) -> tuple[int, int] | None:
    """What a heading says, as a span of the line: what follows its label, else all of it; nothing of any other line.

    Brackets must be off already. A line of asterisks parts scenes and says nothing: an empty span.

    >>> heading_of("Scene 1: The galley.")
    (9, 20)
    """
    start = len(line) - len(line.lstrip())
    text = line.strip().lstrip("#*_ ").rstrip("#*_ ")
    if not text or _RULE.match(line.strip()):
        return (0, 0) if line.strip() else None
    start = line.index(text)
    if len(text) > 500:
        return None
    for pattern in (_ENGLISH, _CHINESE):
        match = pattern.match(text)
        if match:
            rest = match["rest"]
            low = match.start("rest") if rest and rest.strip() else 0
            return start + low, start + len(text)
    return (start, start + len(text)) if slug(text) else None


def slug(line: str) -> bool:
    """Whether a line is a screenplay's heading, such as ``INT. KITCHEN - DAY``."""
    return len(line) < 300 and _SLUG.match(line.strip()) is not None
