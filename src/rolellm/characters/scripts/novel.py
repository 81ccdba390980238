"""Novels: quotations are speech, and nobody is named as their speaker: that is left to `rolellm.making.attribution`.

Marks that look the same at both ends are told apart by the characters next to them. A quotation that is not closed
continues where the next paragraph opens with a mark (as English printers do it) or where a closing mark comes first;
otherwise it ends with its paragraph, or before the words that introduce the next one.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Literal, NamedTuple

from rolellm.characters.scripts.reading import HEADINGS, ReaderHints, ScriptSource, ScriptTurn, trim
from rolellm.core.records import Language, TurnKind

#: What a quotation that is set off from the sentence around it follows, and what one that is not ends with.
_SET_OFF: Final = ".,:;!?—–-…。，：；！？”’」』\"'"
_SENTENCE_ENDS: Final = ".!?。！？…"
_FAR: Final = 200


def read_novel(source: ScriptSource, hints: ReaderHints) -> list[ScriptTurn]:
    """Read a novel: quotations are speech, the text between them is narration, headings of chapters are directions.

    Where each paragraph of a speech opens with a mark of its own, each is a turn. Quoted words in the middle of a
    sentence stay narration.

    Args:
        source: The text; straight and curly quotes, ``「」``, ``«»`` and English single quotes are known.
        hints: The language.
    """
    text = source.text
    paragraphs = read_paragraphs(text)
    quotations: list[Quotation] = []
    for quotation in find_quotations(text, paragraphs, hints.language):
        if quotation.is_resumed or _is_spoken(text, quotation, paragraphs[quotation.paragraph]):
            quotations.append(quotation)
    return list(_collect_turns(text, paragraphs, quotations))


def _collect_turns(text: str, paragraphs: list[Paragraph], quotations: list[Quotation]) -> Iterator[ScriptTurn]:
    offset, following = 0, 0
    for paragraph in paragraphs:
        teller: tuple[str, TurnKind] = "narrator", "narration"
        if paragraph.is_heading:
            teller = "scene", "direction"
        offset = max(offset, paragraph.start)
        while following < len(quotations) and quotations[following].opening < paragraph.end:
            quotation = quotations[following]
            yield from _make_turns(text, *teller, paragraph.scene, offset, quotation.opening)
            yield from _make_turns(text, None, "speech", paragraph.scene, quotation.start, quotation.end)
            offset, following = quotation.closing_end, following + 1
        yield from _make_turns(text, *teller, paragraph.scene, offset, paragraph.end)


def _make_turns(
    text: str, speaker: str | None, kind: TurnKind, scene: int, start: int, end: int
) -> Iterator[ScriptTurn]:
    start, end = trim(text, start, end)
    content = " ".join(text[start:end].split())
    if kind == "speech" or any(map(str.isalnum, content)):
        yield ScriptTurn(speaker, content, kind, scene, start, end)


def _is_spoken(text: str, quotation: Quotation, paragraph: Paragraph) -> bool:
    """Tell whether a quotation is set off from the sentence around it; a word or title in its midst is not."""
    # A paragraph may be the whole book.
    start = max(paragraph.start, quotation.opening - _FAR)
    before = text[start : quotation.opening].rstrip()
    if not before or before[-1] in _SET_OFF:
        return True
    # ``He thought it "a foolish word," and`` goes on; ``he turned "Never!"`` does not.
    speech = text[quotation.start : quotation.end].rstrip()
    return len(speech) > 1 and speech[-1] in _SENTENCE_ENDS


_LINE: Final = re.compile(r"^.*\S.*", re.MULTILINE)
_ENDED: Final = re.compile(r"[.!?:…。！？：；，、—–\-~～)\]）】》\"'“”‘’「」『』«»*]\s*$")
_INDENTED: Final = re.compile(r"(?:\t| {2,}|　)")
_BREAK: Final = re.compile(r"[*＊·•#~＝=_☆★◆◇○●※\-—–…\s]{1,40}")
_LONGEST_HEADING: Final = 100


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
    """Split a novel into paragraphs.

    A line is a paragraph, unless lines are broken in the middle of sentences: then blank lines and indents separate
    them. Headings (``CHAPTER I``, ``第一回``) and breaks (``* * *``) begin a new scene; breaks themselves are left out.
    """
    paragraphs: list[Paragraph] = []
    scene, is_used = 0, False
    for start, end in _split_blocks(text):
        block = text[start:end]
        is_heading = _is_heading(block)
        is_break = _is_break(block)
        if is_heading or is_break:
            scene, is_used = scene + is_used, False
        if not is_break:
            paragraphs.append(Paragraph(start, end, scene, is_heading))
            is_used = is_used or not is_heading
    return paragraphs


def _is_heading(block: str) -> bool:
    if len(block) > _LONGEST_HEADING:
        return False
    return HEADINGS["chapter"].fullmatch(" ".join(block.split())) is not None


def _is_break(block: str) -> bool:
    if len(block) > _LONGEST_HEADING or any(map(str.isalnum, block)):
        return False
    return _BREAK.fullmatch(block) is not None


def _split_blocks(text: str) -> Iterator[tuple[int, int]]:
    lines = [match.span() for match in _LINE.finditer(text)]
    is_wrapped = _is_wrapped(text, lines)
    indents = {line_start for line_start, _ in lines if _INDENTED.match(text, line_start)}
    if len(indents) * 2 >= len(lines):
        # Where most lines are indented, indents separate nothing.
        indents.clear()
    start = end = -1
    for line_start, line_end in lines:
        if start >= 0:
            is_parted = not is_wrapped or line_start > end + 1 or line_start in indents
            if is_parted or _is_heading(text[start:end]):
                yield trim(text, start, end)
                start = -1
        if start < 0:
            start = line_start
        end = line_end
    if start >= 0:
        yield trim(text, start, end)


def _is_wrapped(text: str, lines: list[tuple[int, int]]) -> bool:
    """Tell whether lines that are followed by another one mostly end in the middle of a sentence."""
    followed = broken = 0
    for (start, end), (next_start, _) in pairwise(lines):
        if next_start == end + 1 and end - start >= 20:
            followed += 1
            broken += not _ENDED.search(text, end - 8, end)
    return broken > 0.4 * followed


_MarkSide = Literal["open", "close", "either"]

# Texts mix curly and straight marks, so these close each other.
_PAIRED: Final = ("“”", "「」", "『』", "﹁﹂", "«»")
_STRAIGHT: Final[tuple[str, _MarkSide]] = ("“", "either")
_FAMILIES: Final[dict[str, tuple[str, _MarkSide]]] = {'"': _STRAIGHT, "＂": _STRAIGHT}
for _opening, _closing in _PAIRED:
    _FAMILIES[_opening] = _opening, "open"
    _FAMILIES[_closing] = _opening, "close"
_DOUBLE_OPENING: Final = re.compile(r"(?:(?<=[\s(\[—–-])|^)[\"“«](?=\w)", re.MULTILINE)
_SINGLE_OPENING: Final = re.compile(r"(?:(?<=[\s(\[—–-])|^)['‘](?=[A-Z“\"])", re.MULTILINE)
# Words that lose their beginning in print, such as 'tis.
_CLIPPED: Final = re.compile(
    r"(?:[Tt](?:is|was|were|will|would)|em|er|e|im|is|as|at|ave|ere|ow|ome|ouse|and|cause|bout|round|til|\d\ds)(?!\w)"
)
_LAST_ENDING: Final = re.compile(r".*[.!?…。！？．～]['’」』)）]*", re.DOTALL)
# A closing mark farther away than this is taken for a stray one.
_FARTHEST_PARAGRAPHS, _FARTHEST = 80, 8000


class _Mark(NamedTuple):
    """A quotation mark; marks of one family close each other."""

    offset: int
    family: str
    direction: _MarkSide
    paragraph: int
    is_first: bool


def _find_marks(text: str, paragraphs: Sequence[Paragraph], language: Language) -> list[_Mark]:
    """The quotation marks of a text in order; single ones only where they are used for speech."""
    families = dict(_FAMILIES)
    opening_count, closing_count = map(text.count, "“”")
    if min(opening_count, closing_count) * 4 < max(opening_count, closing_count) and '"' not in text:
        families["“"] = families["”"] = ("“", "either")
    singles, doubles = len(_SINGLE_OPENING.findall(text)), len(_DOUBLE_OPENING.findall(text))
    if language == "en" and 2 * singles > doubles:
        families |= dict.fromkeys("'‘’", ("'", "either"))
    pattern = re.compile(f"[{''.join(families)}]")
    marks = []
    for index, paragraph in enumerate(paragraphs):
        if paragraph.is_heading:
            continue
        for match in pattern.finditer(text, paragraph.start, paragraph.end):
            offset = match.start()
            mark_side: _MarkSide | None
            family, mark_side = families[match[0]]
            # In Chinese, marks are now and then turned the wrong way.
            is_doubtful = language == "zh" and offset > paragraph.start and text[offset - 1] in "：:"
            if mark_side == "either" or is_doubtful:
                mark_side = _detect_side(text, offset, paragraph, "single" if family == "'" else language)
            if mark_side is not None:
                marks.append(_Mark(offset, family, mark_side, index, offset == paragraph.start))
    return marks


def _detect_side(text: str, offset: int, paragraph: Paragraph, kind: Literal["en", "zh", "single"]) -> _MarkSide | None:
    """Detect the side of a quotation that a mark is on; none of an apostrophe."""
    before = text[offset - 1] if offset > paragraph.start else " "
    after = text[offset + 1] if offset + 1 < paragraph.end else " "
    is_last = offset + 1 == paragraph.end
    if kind == "zh":
        if before in "：: ":
            return "open"
        return "close" if is_last else "either"
    if kind == "en":
        opens = not after.isspace() and (before.isspace() or before in "([{—–-―/‘'")
        closes = not before.isspace() and (after.isspace() or after in ".,;:!?)]}—–-―'’…")
        if opens == closes:
            return "either"
        return "open" if opens else "close"
    last_character = text[max(paragraph.start, offset - 2) : offset].strip()[-1:]
    is_outside = before.isspace() or before in '([—–-“"'
    if is_outside and text[offset] != "’" and not after.isspace():
        if text[offset] == "'" and _CLIPPED.match(text, offset + 1):
            return None
        # Of an empty character, too.
        follows_end = last_character in ",:;.!?—–-’'"
        return "open" if follows_end or after.isupper() else None
    if not last_character or before.isspace() or after.isalnum():
        return None
    return "close" if is_last or last_character in ",.;:!?…—–-”\")]'’" else None


@dataclass(frozen=True, slots=True)
class Quotation:
    """A quotation, or what one paragraph has of it.

    Attributes:
        opening: Offset of its opening mark.
        end: Offset of its end, exclusive, without the closing mark.
        closing_end: Offset of its end with its closing mark, if there is one.
        paragraph: Index of the paragraph in which it begins.
        is_resumed: Whether it continues the quotation before, which its own paragraph did not close.
    """

    opening: int
    end: int
    closing_end: int
    paragraph: int
    is_resumed: bool = False

    @property
    def start(self) -> int:
        """Its first character inside the marks."""
        return self.opening + 1


def find_quotations(text: str, paragraphs: Sequence[Paragraph], language: Language) -> list[Quotation]:
    """The outermost quotations of a text, in order.

    Args:
        text: The text.
        paragraphs: Its paragraphs; marks in headings are ignored.
        language: Whether straight marks are told apart by spaces (``en``) or by colons (``zh``).
    """
    marks = _find_marks(text, paragraphs, language)
    offsets = [mark.offset for mark in marks]
    quotations: list[Quotation] = []
    index, resumes = 0, False
    while index < len(marks):
        mark = marks[index]
        if mark.direction == "close":
            index, resumes = index + 1, False
            continue
        end, right, goes_on = _find_end(text, paragraphs, marks, index)
        if text[mark.offset + 1 : end].strip():
            quotations.append(Quotation(mark.offset, end, right, mark.paragraph, resumes))
        index, resumes = bisect_left(offsets, right, index + 1), goes_on
    return quotations


def _find_end(
    text: str, paragraphs: Sequence[Paragraph], marks: Sequence[_Mark], opening: int
) -> tuple[int, int, bool]:
    """Find the end of the quotation that a mark opens: without its mark, with it, and whether it is resumed."""
    mark = marks[opening]
    paragraph = paragraphs[mark.paragraph]
    last_paragraph = mark.paragraph + (1 if mark.family == "'" else _FARTHEST_PARAGRAPHS)
    for index in range(opening + 1, len(marks)):
        closing = marks[index]
        if closing.paragraph > last_paragraph or closing.offset > mark.offset + _FARTHEST:
            break
        if paragraphs[closing.paragraph].scene != paragraph.scene:
            break
        if closing.family != mark.family:
            continue
        if closing.direction != "open":
            return closing.offset, closing.offset + 1, False
        if closing.paragraph == mark.paragraph:
            # The closing mark is missing: what introduces the next quotation is not quoted.
            ended = _LAST_ENDING.match(text, mark.offset + 1, closing.offset)
            end = ended.end() if ended else mark.offset + 1
            return end, end, False
        is_resumed = closing.paragraph == mark.paragraph + 1 and closing.is_first
        return paragraph.end, paragraph.end, is_resumed
    return paragraph.end, paragraph.end, False
