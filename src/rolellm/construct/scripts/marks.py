"""Quotation marks: of what kind each is, and whether it opens or closes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rolellm.construct.scripts.chapters import Paragraph
from rolellm.records import Language

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
