"""Quotations in running text: where they begin and end, whatever the marks, and whatever is missing of them.

Marks that look the same at both ends are told apart by what stands beside them. A quotation that is not closed goes on
where the next paragraph opens with a mark (as English printers do it) or where a closing mark comes first; otherwise
it ends with its paragraph, or before the words that bring in the next one.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from rolellm.construct.scripts.chapters import Paragraph
from rolellm.construct.scripts.marks import Mark, marks_of
from rolellm.records import Language

_ENDING = ".!?…。！？．～~"
_LAST_ENDING = re.compile(r".*[.!?…。！？．～]['’」』)）]*", re.DOTALL)
_QUOTED_IN_QUOTED = re.compile(r"\"[^\"'\n]{1,40}\"[^\"'\n]{0,12}'")
# How far a closing mark may be from its paragraph before it is taken for a stray one: our choice.
_FARTHEST_PARAGRAPHS, _FARTHEST = 80, 8000
_FARTHEST_LOOK = 2000


@dataclass(frozen=True, slots=True)
class Quotation:
    """A quotation, or what one paragraph has of it.

    Attributes:
        start: Its first character inside the marks.
        end: Where it ends, exclusive, without the closing mark.
        left: Where it begins with its mark.
        right: Where it ends with its mark, where there is one.
        paragraph: Index of the paragraph in which it begins.
        is_resumed: Whether it goes on from the quotation before, which its own paragraph did not close.
    """

    start: int
    end: int
    left: int
    right: int
    paragraph: int
    is_resumed: bool = False


def find_quotations(text: str, paragraphs: Sequence[Paragraph], language: Language) -> list[Quotation]:
    """The outermost quotations of a text, in order.

    Args:
        text: The text.
        paragraphs: Its paragraphs; marks in headings are not looked at.
        language: Whether straight marks stand between words and spaces (``en``) or between characters (``zh``).
    """
    return _Finder(text, paragraphs, marks_of(text, paragraphs, language), language).quotations()


class _Finder:
    """Pairs marks. A position among the marks only ever grows, so the work is linear but for short looks ahead."""

    def __init__(self, text: str, paragraphs: Sequence[Paragraph], marks: list[Mark], language: Language) -> None:
        self.text = text
        self.paragraphs = paragraphs
        self.marks = marks
        self.places = [mark.place for mark in marks]
        self.language = language
        self.following = _following(marks)

    def quotations(self) -> list[Quotation]:
        found: list[Quotation] = []
        index = 0
        resumes = False
        while index < len(self.marks):
            mark = self.marks[index]
            if mark.side == "close" or (mark.family == "'" and mark.is_weak and not self._opens(index)):
                resumes, index = False, index + 1
                continue
            end, right, goes_on = self._close(index)
            if end > mark.place + 1 and self.text[mark.place + 1 : end].strip():
                found.append(Quotation(mark.place + 1, end, mark.place, right, mark.paragraph, resumes))
            resumes = goes_on
            index = max(index + 1, bisect_right(self.places, right - 1))
        return found

    def _opens(self, index: int) -> bool:
        """Whether a single mark before what may be a clipped word (``'tis``) opens a quotation after all."""
        mark = self.marks[index]
        before = self.text[max(0, mark.place - 2) : mark.place].strip()
        if not mark.is_first and before[-1:] not in ",:.!?—–-":
            return False
        following = self.following[index]
        while following is not None:
            other = self.marks[following]
            if not _is_near(mark, other) or (other.side == "open" and not other.is_weak):
                return False
            if other.side == "close" and not other.is_weak:
                return True
            following = self.following[following]
        return False

    def _close(self, index: int) -> tuple[int, int, bool]:
        """Where the quotation that mark `index` opens ends: without its mark, with it, and whether it is resumed."""
        mark, depth = self.marks[index], 0
        following = self.following[index]
        while following is not None:
            other = self.marks[following]
            distance = other.paragraph - mark.paragraph
            if self._is_parted(mark, other):
                break
            if other.side == "open":
                if distance == 1 and other.is_first:
                    end = self.paragraphs[mark.paragraph].end
                    return end, end, True
                if self._is_apostrophe(other):
                    following = self.following[following]
                    continue
                if self._is_nested(following):
                    depth += 1
                else:
                    return self._cut(mark, other)
            elif self._is_passed_over(index, following):
                following = self.following[following]
                if self.marks[index].family == '"' and following is not None:
                    following = self.following[following]
                continue
            elif depth:
                depth -= 1
            else:
                return other.place, other.place + 1, False
            following = self.following[following]
        end = self.paragraphs[mark.paragraph].end
        return end, end, False

    def _is_parted(self, mark: Mark, other: Mark) -> bool:
        return (
            other.paragraph - mark.paragraph > _FARTHEST_PARAGRAPHS
            or other.place - mark.place > _FARTHEST
            or self.paragraphs[other.paragraph].scene != self.paragraphs[mark.paragraph].scene
            or (mark.family == "'" and other.paragraph > mark.paragraph + 1)
        )

    def _is_apostrophe(self, other: Mark) -> bool:
        if other.family != "'" or other.is_first:
            return False
        before = self.text[max(0, other.place - 2) : other.place].strip()
        return other.is_weak or before[-1:] not in tuple(_ENDING + ",:;")

    def _is_nested(self, index: int) -> bool:
        """Whether an opening mark inside a quotation of its own kind is closed twice before the next one opens."""
        mark, closings = self.marks[index], 0
        if mark.family in "\"＂'":
            return False
        following = self.following[index]
        while following is not None and _is_near(mark, self.marks[following]):
            if self.marks[following].side == "open":
                break
            closings += 1
            following = self.following[following]
        return closings >= 2

    def _is_passed_over(self, opening: int, index: int) -> bool:
        """Whether a closing mark closes something else: a clipped word, or a quotation in a quoted quotation."""
        mark = self.marks[index]
        if mark.family == '"' and self.language == "zh":
            is_inside = self.text.count("'", self.marks[opening].place, mark.place) % 2 == 1
            return is_inside and bool(_QUOTED_IN_QUOTED.match(self.text, mark.place))
        if not mark.is_weak:
            return False
        following = self.following[index]
        while following is not None and _is_near(mark, self.marks[following]):
            other = self.marks[following]
            if other.side == "close" and not other.is_weak:
                return True
            if other.side == "open" and not self._is_apostrophe(other):
                return False
            following = self.following[following]
        return False

    def _cut(self, mark: Mark, other: Mark) -> tuple[int, int, bool]:
        """The closing mark is missing: the quotation ends with its paragraph, or before what brings in the next."""
        if other.paragraph != mark.paragraph:
            end = self.paragraphs[mark.paragraph].end
            return end, end, False
        ended = _LAST_ENDING.match(self.text, mark.place + 1, other.place)
        end = ended.end() if ended else mark.place + 1
        return end, end, False


def _is_near(mark: Mark, other: Mark) -> bool:
    """Whether one look ahead may go from a mark to another."""
    return other.paragraph == mark.paragraph and other.place - mark.place <= _FARTHEST_LOOK


def _following(marks: Sequence[Mark]) -> list[int | None]:
    """For each mark, the index of the next one of its kind."""
    result: list[int | None] = [None] * len(marks)
    last: dict[str, int] = {}
    for index in range(len(marks) - 1, -1, -1):
        result[index] = last.get(marks[index].family)
        last[marks[index].family] = index
    return result
