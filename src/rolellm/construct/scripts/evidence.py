"""What a script says of two names being one person's: read once, asked for many pairs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property
from typing import Final

from rolellm.construct.scripts.names import key
from rolellm.text import HAN

# Names are introduced early, and asking is by pairs.
_LOOKED_THROUGH: Final = 1_000_000
_CALLED: Final = re.compile(
    r"\b(?:called|known as|named|surnamed|styled|alias|a\.?k\.?a\.?|nicknamed|goes by)\s+(?:simply\s+)?"
    r"[“\"'‘]?",
    re.IGNORECASE,
)
_CALLED_ZH: Final = re.compile(
    "唤做|唤作|名唤|名叫|叫做|叫作|取名|起名|号称|绰号|人称|又名|又叫|改名|法名|道号|自称|称为|尊为|称作|封为|官封|"
    "就是|便是|正是|即是|喚做|喚作|名喚|號稱|綽號|人稱|法名|道號|自稱|稱為|封為"
)
_SENTENCE: Final = re.compile("[.!?:;。！？：；\n]")
_I_AM: Final = re.compile(
    r"\b(?:I am|I['’]m|my name is|my name['’]s|call me|they call me)\s+(?P<who>[^.!?,;:\n]{1,60})", re.IGNORECASE
)
_I_AM_ZH: Final = re.compile(
    "(?:我|(?<!支)吾|俺)(?:(?!不|非|没|[。！？；，]).){0,6}，?(?:本是|乃是|是|乃|便是|就是|叫做|叫作|名叫|名唤|唤做|唤作|法名|姓名)"
    "(?P<who>[^。！？；，]{1,40})"
)
# "I am sent by NAME", "I am not NAME".
_OTHERS: Final = re.compile("[的之不非没为被给与和替]")
_FARTHEST: Final = 12


class Evidence:
    """Sentences of a script that tie names to each other.

    Args:
        text: The script; its first million characters count.
    """

    def __init__(self, text: str) -> None:
        self._text = text[:_LOOKED_THROUGH]

    @cached_property
    def _folded(self) -> str:
        lowered = self._text.lower()
        # A few letters change in number when lowered; places must not.
        return lowered if len(lowered) == len(self._text) else self._text

    @cached_property
    def _callings(self) -> list[tuple[str, str, str]]:
        """What stands before and after words such as "called", in one sentence, with the whole."""
        found = []
        for match in [*_CALLED.finditer(self._text), *_CALLED_ZH.finditer(self._text)]:
            chinese = HAN.match(match[0]) is not None
            low, high = match.start() - (_FARTHEST + 8 if chinese else 70), match.end() + 50
            before = _SENTENCE.split(self._text[max(0, low) : match.start()])[-1]
            after = _SENTENCE.split(self._text[match.end() : high])[0]
            found.append((before, after, before + match[0] + after))
        return found

    def one_name(self, name: str, other: str) -> str | None:
        """That the text has both as one, such as "Titus Lartius" of TITUS and LARTIUS."""
        chinese = HAN.search(name) is not None
        if chinese and (name in other or other in name):
            return None
        found: list[str] = []
        for first, second in ((name, other), (other, name)):
            full = f"{first}{'' if chinese else ' '}{second}".lower()
            at = self._folded.find(full)
            while at >= 0:
                end = at + len(full)
                spelled = self._text[at:end]
                if chinese or (self._is_whole(at, end) and not spelled.islower()):
                    found.append(spelled)
                at = self._folded.find(full, end)
        # Chinese parts no words, so that two names may stand together by chance.
        if len(found) <= chinese:
            return None
        return f"‘{found[0]}’ is one name in the text ({'once' if len(found) == 1 else f'{len(found)} times'})"

    def _is_whole(self, start: int, end: int) -> bool:
        before, after = self._text[start - 1 : start] if start else "", self._text[end : end + 2]
        return not before.isalnum() and not after[:1].isalnum() and not after.lstrip().startswith(":")

    def called(self, name: str, other: str) -> str | None:
        """That the text calls one of them the other."""
        for before, after, sentence in self._callings:
            for first, second in ((name, other), (other, name)):
                if HAN.search(name):
                    tied = first in before[-_FARTHEST - len(first) :] and 0 <= after.find(second) <= 4
                    tied = tied and first not in second and second not in first
                else:
                    words = f"{key(after)} "
                    named = words.startswith((f"{key(second)} ", f"the {key(second)} "))
                    tied = named and f" {key(first)} " in f" {key(before)} "
                if tied:
                    return f"the text says ‘{_short(sentence)}’"
        return None

    def self_naming(self, name: str, said: Sequence[str]) -> str | None:
        """That one who speaks says to be the other; "I am NAME's pupil" and "I am not NAME" say no such thing."""
        chinese = HAN.search(name) is not None
        if chinese and len(key(name)) < 2:
            return None
        pattern, names = (_I_AM_ZH, _names_zh) if chinese else (_I_AM, _names)
        for speech in said:
            for match in pattern.finditer(speech):
                if names(match["who"], name):
                    return f"says ‘{_short(match[0])}’"
        return None


def _names(who: str, name: str) -> bool:
    words, wanted = who.split(), key(name).split()
    for before in range(3):
        if [key(word) for word in words[before : before + len(wanted)]] == wanted:
            return all(word[0].isupper() for word in words[:before])
    return False


def _names_zh(who: str, name: str) -> bool:
    before, found, after = who.partition(name)
    if not found or len(before) > _FARTHEST or _OTHERS.search(before):
        return False
    return not after or after[0] == "也" or not after[0].isalnum()


def _short(text: str) -> str:
    folded = " ".join(text.split())
    return folded if len(folded) <= 60 else folded[:59] + "…"
