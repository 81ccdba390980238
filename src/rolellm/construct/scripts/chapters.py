"""The paragraphs of a novel, and the headings and breaks that part its scenes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

_LINE = re.compile(r"[^\n]*[^\s][^\n]*")
_ENDED = re.compile(r"[.!?:…。！？：；，、—–\-~～)\]）】》\"'“”‘’「」『』«»*]\s*$")
_INDENTED = re.compile(r"(?:\t| {2,}|　)")
_NUMBER = (
    r"(?:[IVXLCDM]+|\d+|(?:the\s+)?(?:one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|(?:thir|four|fif|six|"
    r"seven|eigh|nine)teen|(?:twen|thir|for|fif|six|seven|eigh|nine)ty|first|second|third|fourth|fifth|sixth|seventh|"
    r"eighth|ninth|tenth|last)(?:[- ](?:one|two|three|four|five|six|seven|eight|nine))?)"
)
_HEADING_EN = re.compile(
    rf"(?:(?:chapter|book|part|volume|stave|letter|canto|section)\s+{_NUMBER}(?:\s*[.:—–-].{{0,80}}|\s+\S.{{0,60}})?"
    rf"|(?:prologue|epilogue|prelude|interlude)\b.{{0,40}})[^a-z,;]*",
    re.IGNORECASE,
)
_NUMERAL_EN = re.compile(r"(?=[IVXLC])[CLX]*(?:IX|IV|V?I{0,3})\.?(?:\s+[A-Z][A-Z' ,.:;’-]+)?")
_HEADING_ZH = re.compile(
    r"(?:正文\s*)?(?:第\s*[〇零一二三四五六七八九十百千万萬两兩\d]{1,9}\s*[章回节節卷部集幕篇折话話]"
    r"(?:[\s：:　].{0,50}|[^。！？”」\"]{0,30})"
    r"|(?:楔子|序章|序幕|引子|尾声|尾聲|终章|番外)[^。！？]{0,20})"
)
_BREAK = re.compile(r"[*＊·•#~＝=_☆★◆◇○●※\-—–…\s]{1,40}")
_LONGEST_HEADING = 100


@dataclass(frozen=True, slots=True)
class Paragraph:
    """A paragraph, without white space around it.

    Attributes:
        start: Where it begins in the text.
        end: Where it ends there, exclusive.
        scene: Counted from 0.
        is_heading: Whether it is the heading of a chapter.
    """

    start: int
    end: int
    scene: int
    is_heading: bool


def read_paragraphs(text: str) -> list[Paragraph]:
    """Part a novel into paragraphs.

    A line is a paragraph, unless lines are broken in the middle of sentences: then blank lines and indents part them.
    Headings (``CHAPTER I``, ``第一回``) and breaks (``* * *``) begin a new scene; breaks themselves are left out.
    """
    found: list[Paragraph] = []
    scene, is_used = 0, False
    for start, end in _blocks(text):
        block = text[start:end]
        is_short = end - start <= _LONGEST_HEADING
        if is_short and not any(map(str.isalnum, block)) and _BREAK.fullmatch(block):
            scene, is_used = scene + is_used, False
            continue
        is_heading = is_short and _is_heading(block)
        if is_heading:
            scene, is_used = scene + is_used, False
        found.append(Paragraph(start, end, scene, is_heading))
        is_used = is_used or not is_heading
    return found


def _is_heading(block: str) -> bool:
    block = " ".join(block.split())
    return bool(_HEADING_ZH.fullmatch(block) or _HEADING_EN.fullmatch(block) or _NUMERAL_EN.fullmatch(block))


def _blocks(text: str) -> Iterator[tuple[int, int]]:
    lines = [match.span() for match in _LINE.finditer(text)]
    is_wrapped = _is_wrapped(text, lines)
    # Where most lines are indented, indents part nothing.
    indented = sum(bool(_INDENTED.match(text, left)) for left, _ in lines) * 2 < len(lines)
    start = end = -1
    for left, right in lines:
        is_indented = indented and bool(_INDENTED.match(text, left))
        is_new = not is_wrapped or left > end + 1 or is_indented or _is_heading(text[start:end])
        if is_new and start >= 0:
            yield _trimmed(text, start, end)
        start = left if is_new or start < 0 else start
        end = right
    if start >= 0:
        yield _trimmed(text, start, end)


def _is_wrapped(text: str, lines: list[tuple[int, int]]) -> bool:
    followed = [
        (left, right)
        for (left, right), (following, _) in pairwise(lines)
        if following == right + 1 and right - left >= 20
    ]
    broken = sum(not _ENDED.search(text, max(left, right - 8), right) for left, right in followed)
    return broken > 0.4 * len(followed)


def _trimmed(text: str, start: int, end: int) -> tuple[int, int]:
    block = text[start:end]
    return start + len(block) - len(block.lstrip()), start + len(block.rstrip())
