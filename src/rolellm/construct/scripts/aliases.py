"""Other names of a role: proposed from what the script itself says, for a person to confirm; never applied here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from rolellm.construct.scripts.reading import HONORIFICS, MENS_TITLES, OTHERS, TITLES_ZH, WOMENS_TITLES, key
from rolellm.core.text import HAN

# --- What a script says of two names being one person's: read once, asked for many pairs


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


# --- Other names of a role: proposed from what the script itself says, for a person to confirm; never applied here


_CANDIDATES: Final = 60


@dataclass(frozen=True, slots=True)
class Proposal:
    """A name that may be the role's, too.

    Attributes:
        name: As the script writes it.
        turns: How many speeches stand under it.
        reason: What speaks for it.
    """

    name: str
    turns: int
    reason: str


def propose(
    names: Sequence[str], others: Mapping[str, int], text: str, said: Mapping[str, Sequence[str]]
) -> tuple[Proposal, ...]:
    """Names of other speakers for which the script gives a reason to think that they are the role's.

    A reason is a likeness (``Holmes``, ``Sherlock Holmes``, ``Mr. Holmes``; 悟空, 孙悟空), a place where the text has
    both as one name or calls one the other, or a speech in which the other says to be the role.

    Args:
        names: The role and the aliases that are known.
        others: The other speakers, with how many speeches each has.
        text: The script.
        said: Those speeches.

    Returns:
        By speeches, most first. A name may be proposed for its likeness to one that is proposed.
    """
    left = dict(sorted(others.items(), key=lambda item: -item[1])[:_CANDIDATES])
    evidence = Evidence(text)
    reasons: dict[str, str] = {}
    for other in left:
        reason = next(filter(None, _reasons(names, other, evidence, said.get(other, ()))), None)
        if reason:
            reasons[other] = reason
    proposed = tuple(reasons)
    for other in left:
        like = (_likeness(name, other) for name in proposed if other not in proposed)
        reason = next(filter(None, like), None)
        if reason:
            reasons[other] = f"{reason}, which is proposed"
    return tuple(Proposal(other, turns, reasons[other]) for other, turns in left.items() if other in reasons)


def _reasons(names: Sequence[str], other: str, evidence: Evidence, said: Sequence[str]) -> Iterator[str | None]:
    for name in names:
        if key(name) != key(other) and bool(HAN.search(name)) == bool(HAN.search(other)):
            yield _likeness(name, other)
            yield evidence.self_naming(name, said)
            if not _generic(name) and not _generic(other):
                yield evidence.one_name(name, other)
                yield evidence.called(name, other)


def _generic(name: str) -> bool:
    return bool(OTHERS & set(key(name).split()))


def _likeness(name: str, other: str) -> str | None:
    chinese = bool(HAN.search(name)), bool(HAN.search(other))
    if all(chinese):
        return _chinese_part(name, other)
    return None if any(chinese) else _part(name, other)


def _part(name: str, other: str) -> str | None:
    """One name within the other, word for word; or the same name but for a title."""
    ours, theirs = key(name).split(), key(other).split()
    if OTHERS.issuperset(ours) or OTHERS.issuperset(theirs):
        return None
    titles = set(ours), set(theirs)
    if (titles[0] ^ titles[1]) & OTHERS:
        return None
    if any(one & WOMENS_TITLES and two & MENS_TITLES for one, two in (titles, titles[::-1])):
        return None
    ours_bare = [word for word in ours if word not in HONORIFICS | OTHERS]
    theirs_bare = [word for word in theirs if word not in HONORIFICS | OTHERS]
    if ours_bare and ours_bare == theirs_bare:
        return f"‘{name}’ with another title"
    if _within(theirs, ours):
        return f"a part of ‘{name}’"
    if _within(ours, theirs):
        return f"holds ‘{name}’"
    if ours_bare and theirs_bare and (_within(ours_bare, theirs_bare) or _within(theirs_bare, ours_bare)):
        return f"shares ‘{' '.join(ours_bare if len(ours_bare) < len(theirs_bare) else theirs_bare)}’ with ‘{name}’"
    return None


def _within(words: Sequence[str], others: Sequence[str]) -> bool:
    """Whether words stand at either end of others: first or last names."""
    return 0 < len(words) < len(others) and (
        list(others[: len(words)]) == list(words) or list(others[-len(words) :]) == list(words)
    )


def _chinese_part(name: str, other: str) -> str | None:
    shorter, longer = sorted((key(name), key(other)), key=len)
    if len(shorter) < 2 or len(shorter) == len(longer):
        return None
    # 悟空 ends 孙悟空; 悟空道人 begins with it, and is somebody else.
    if longer.endswith(shorter) and len(longer) - len(shorter) <= 2:
        return f"ends in the same ‘{shorter}’ as ‘{name}’" if shorter != key(name) else f"holds ‘{name}’ at its end"
    if longer.startswith(shorter) and longer[len(shorter) :] in TITLES_ZH:
        return f"‘{shorter}’ with the title ‘{longer[len(shorter) :]}’"
    return None


def nearest(name: str, speakers: Iterable[str], limit: int = 5) -> list[str]:
    """The speakers whose names are most like a name that nobody has."""
    from rapidfuzz import fuzz, process

    known = list(speakers)
    keys = [key(speaker) for speaker in known]
    found = process.extract(key(name), keys, scorer=fuzz.WRatio, limit=limit, score_cutoff=70)
    return [known[place] for _, _, place in found]
