"""Quotations in running text: where they begin and end, whatever the marks, and whatever is missing of them.

Marks that look the same at both ends are told apart by what stands beside them. A quotation that is not closed goes on
where the next paragraph opens with a mark (as English printers do it) or where a closing mark comes first; otherwise
it ends with its paragraph, or before the words that bring in the next one.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from rolellm.core.records import Language

# --- What attribution says of a quotation: whether it is spoken, and by whom; and how its word lists are written


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a quotation is.

    Attributes:
        is_speech: False of a quoted word, a title, an inscription, a verse that the narrator cites.
        speaker: As the text names who speaks; ``None`` where nobody could be found.
    """

    is_speech: bool
    speaker: str | None = None


#: The verdict on what nobody says.
NOT_SPEECH = Verdict(is_speech=False)


def verdicts(spoken: Iterable[bool], speakers: Iterable[str | None]) -> list[Verdict]:
    """A verdict on each quotation: whether it is spoken, and, of those that are, the next speaker."""
    of_speech = iter(speakers)
    return [Verdict(True, next(of_speech)) if is_spoken else NOT_SPEECH for is_spoken in spoken]


def word_list(text: str) -> list[str]:
    """The words of a text, parted by spaces."""
    return text.split()


# --- The paragraphs of a novel, and the headings and breaks that part its scenes


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


# --- Quotation marks: of what kind each is, and whether it opens or closes


Side = Literal["open", "close", "either"]

_DOUBLE = re.compile('["＂“”„「」『』﹁﹂«»‹›]')
_DOUBLE_OPENING = re.compile(r"(?:(?<=[\s(\[—–-])|^)[\"“„«»](?=\w)", re.MULTILINE)
_SINGLE_OPENING = re.compile(r"(?:(?<=[\s(\[—–-])|^)['‘](?=[A-Z“\"])", re.MULTILINE)
_ELISION = re.compile(
    r"(?:t(?:is|was|were|will|would|wixt|ween|il|ill|other)|em|im|er|e|ee|ere|is|isself|as|ad|ave|aven|eard|ear|ow|owever|ome|"
    r"ouse|orse|alf|ope|ead|eart|ell|elp|and|ands|appen|ard|and|cause|bout|board|round|gainst|neath|pon|un|uns|s|d|ll|n|"
    r"fraid|nuff|nother|specially|way|long|low|pears|cept|scuse|spose|ospital|igh|ot|ill|ullo|ullo|undred|\d\ds?)"
    r"(?![\w’'-])",
    re.IGNORECASE,
)


@dataclass(slots=True)
class Mark:
    """A quotation mark.

    Attributes:
        place: Where it stands in the text.
        family: Marks of one family close each other.
        side: Whether it opens or closes; ``either`` where that depends on what is open.
        paragraph: Index of its paragraph.
        is_first: Whether its paragraph begins with it.
        is_weak: Whether it may as well be an apostrophe.
    """

    place: int
    family: str
    side: Side
    paragraph: int
    is_first: bool
    is_weak: bool = False


def marks_of(text: str, paragraphs: Sequence[Paragraph], language: Language) -> list[Mark]:
    """The quotation marks of a text in order; single ones only where they stand for speech."""
    pattern, families = _DOUBLE, _families(text)
    if _is_single(text, language):
        pattern = re.compile(pattern.pattern[:-1] + "'‘’]")
    found = []
    for index, paragraph in enumerate(paragraphs):
        if paragraph.is_heading:
            continue
        for match in pattern.finditer(text, paragraph.start, paragraph.end):
            mark = Mark(match.start(), "", "either", index, match.start() == paragraph.start)
            if match.group() in "'‘’":
                if not _judge_single(text, mark):
                    continue
            else:
                mark.family, mark.side = families[match.group()]
                if mark.side == "either":
                    mark.side = _side(text, mark, paragraph, language)
            found.append(mark)
    return found


def _families(text: str) -> dict[str, tuple[str, Side]]:
    families: dict[str, tuple[str, Side]] = {
        "「": ("「", "open"),
        "」": ("「", "close"),
        "『": ("『", "open"),
        "』": ("『", "close"),
        "﹁": ("﹁", "open"),
        "﹂": ("﹁", "close"),
        "‹": ("‹", "open"),
        "›": ("‹", "close"),
        '"': ('"', "either"),
        "＂": ("＂", "either"),
        "„": ("“", "open"),
    }
    left, right, low = text.count("“"), text.count("”"), text.count("„")
    if low and left >= low / 2 and right < low / 2:
        families["“"], families["”"] = ("“", "close"), ("“", "close")
    elif min(left, right) * 4 < max(left, right) and not low:
        families["“"], families["”"] = ("“", "either"), ("“", "either")
    else:
        families["“"], families["”"] = ("“", "open"), ("“", "close")
    is_turned = len(re.findall(r"(?:^|\s)»\w", text)) > len(re.findall(r"(?:^|\s)«", text))
    families["«"], families["»"] = ("«", "close" if is_turned else "open"), ("«", "open" if is_turned else "close")
    return families


def _is_single(text: str, language: Language) -> bool:
    if language == "zh":
        return not _DOUBLE.search(text) and text.count("‘") > 0
    return _weight(_SINGLE_OPENING, text) > _weight(_DOUBLE_OPENING, text)


def _weight(opening: re.Pattern[str], text: str) -> int:
    """How much speaks for a kind of mark; with which a paragraph begins, is surely speech."""
    return sum(3 if not match.start() or text[match.start() - 1] == "\n" else 1 for match in opening.finditer(text))


def _side(text: str, mark: Mark, paragraph: Paragraph, language: Language) -> Side:
    place = mark.place
    before = text[place - 1] if place > paragraph.start else " "
    after = text[place + 1] if place + 1 < paragraph.end else " "
    if language == "zh":
        if before in "：:" or mark.is_first:
            return "open"
        return "close" if place + 1 == paragraph.end else "either"
    opens = (before.isspace() or before in "([{—–-―/‘'") and not after.isspace()
    closes = not before.isspace() and (after.isspace() or after in ".,;:!?)]}—–-―'’…")
    if opens == closes:
        return "either"
    return "open" if opens else "close"


def _judge_single(text: str, mark: Mark) -> bool:
    """Fill in what a single mark is; false of an apostrophe."""
    place, sign = mark.place, text[mark.place]
    before = text[place - 1] if place else " "
    after = text[place + 1] if place + 1 < len(text) else " "
    mark.family = "'"
    if before.isalnum() and after.isalnum():
        return False
    if (
        sign != "’"
        and (sign == "‘" or before.isspace() or mark.is_first or before in '([—–-“"')
        and not after.isspace()
    ):
        mark.side = "open"
        mark.is_weak = bool(_ELISION.match(text, place + 1)) or (after.islower() and before.isspace())
        return True
    if before.isspace() or (after.isalnum() and before not in "—–-"):
        return False
    mark.side = "close"
    mark.is_weak = before.isalnum() and after not in ",.;:!?)—–"
    return True


# --- Quotations in running text: where they begin and end, whatever the marks, and whatever is missing of them


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


# --- Where the quotations of a novel stand: what is told before and after each


#: How far back narration is looked at for who speaks, in characters (our choice).
REACH = 1500


class Surroundings:
    """The spoken quotations of a text, and the narration around them.

    Args:
        text: The text.
        paragraphs: Its paragraphs.
        quotations: Those of its quotations that somebody speaks, in order.
    """

    def __init__(self, text: str, paragraphs: Sequence[Paragraph], quotations: Sequence[Quotation]) -> None:
        self.text = text
        self.paragraphs = paragraphs
        self.quotations = quotations

    def scene(self, index: int) -> int:
        """The scene of a quotation."""
        return self.paragraphs[self.quotations[index].paragraph].scene

    def said(self, index: int) -> str:
        """What a quotation says, without its marks."""
        return self.text[self.quotations[index].start : self.quotations[index].end]

    def begin(self, index: int) -> int:
        """Where the narration before a quotation begins: after the one before, in the same scene."""
        quotation, scene = self.quotations[index], self.scene(index)
        start = max(0, quotation.left - REACH)
        if index and self.scene(index - 1) == scene:
            return max(start, self.quotations[index - 1].right)
        first = quotation.paragraph
        while first and self.paragraphs[first - 1].scene == scene and self.paragraphs[first].start > start:
            first -= 1
        first += self.paragraphs[first].is_heading
        return max(start, self.paragraphs[first].start)

    def gap(self, index: int) -> str:
        """The narration between the quotation before and this one, in the same scene."""
        return self.text[self.begin(index) : self.quotations[index].left]

    def tail(self, index: int) -> str:
        """What stands after a quotation in its paragraph, before the next."""
        quotation = self.quotations[index]
        paragraph = quotation.paragraph
        while self.paragraphs[paragraph].end < quotation.right:
            paragraph += 1
        end = self.paragraphs[paragraph].end
        if index + 1 < len(self.quotations):
            end = min(end, self.quotations[index + 1].left)
        return self.text[quotation.right : max(end, quotation.right)]
