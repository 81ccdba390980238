"""Other names of a role: proposed from what the script itself says outright, for a person to confirm; never applied.

A name is proposed where it is the full or the short form of one that is known, where the text calls the one the other,
and where its speaker claims to be the role. That two names are often next to each other says nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from textwrap import shorten
from typing import Final

from rolellm.construct.scripts.reading import OTHERS, TITLES_ZH, key
from rolellm.core.text import HAN

# Names are introduced early.
_LOOKED_THROUGH: Final = 1_000_000
_CANDIDATES: Final = 60
# More than what is between two names of one person, and the other name.
_NEAR: Final = 120
# What is between two names of one person: "Smith, hereafter called the Fox", 宋江，人称及时雨.
_CALLED: Final = (
    r"[”\"’']?(?:(?:,\s+(?:\w+\s+)?called|,?\s+\(?(?:also\s+)?(?:known\s+as|alias|a\.?k\.?a\.?|nicknamed))\s+(?:the\s+)?"
    r"|\s?[，,]?(?:人[称稱]|[绰綽][号號]|又名|别名|別名|本名|法名|[号號][称稱]))[“\"‘']?"
)
_I_AM: Final = (
    r"\b(?i:I am|I['’]m|my name is|(?:they )?call me)\s+(?:[A-Z][\w’'-]*\s+){{0,2}}(?i:{name})(?![\w’'])"
    r"(?:\s+[A-Z][\w-]*)?",
    "(?:我|吾|俺)(?:(?!不|非|没|[。！？；，]).){{0,6}}，?(?:是|乃|叫[做作]|名[叫唤]|唤[做作]|法名|姓名)"
    "[^。！？；，的之不非没为被给与和替]{{0,12}}{name}(?!\\w)",
)


@dataclass(frozen=True, slots=True)
class Proposal:
    """A name that may be the role's, too.

    Attributes:
        name: As the script writes it.
        turns: How many speeches are under it.
        reason: Why it may be the role's.
    """

    name: str
    turns: int
    reason: str


def propose(
    names: Sequence[str], others: Mapping[str, int], text: str, said: Mapping[str, Sequence[str]]
) -> tuple[Proposal, ...]:
    """Names of other speakers for which the script gives a reason to think that they are the role's.

    Args:
        names: The role and the aliases that are known.
        others: The other speakers, with how many speeches each has.
        text: The script.
        said: Those speeches.

    Returns:
        By speeches, most first.
    """
    text = text[:_LOOKED_THROUGH]
    called = re.finditer(_CALLED, text, re.IGNORECASE)
    told = "\0".join(text[max(0, match.start() - _NEAR) : match.end() + _NEAR] for match in called)
    lower, found = text.lower(), []
    for other, turns in sorted(others.items(), key=lambda item: -item[1])[:_CANDIDATES]:
        reasons = (
            _likeness(name, other, (*names, *others))
            or _stated(name, other, text, lower, told)
            or _says_to_be(name, said.get(other, ()))
            for name in names
        )
        if reason := next(filter(None, reasons), None):
            found.append(Proposal(other, turns, reason))
    return tuple(found)


def _stated(name: str, other: str, text: str, lower: str, told: str) -> str | None:
    """A place that calls one the other, or has both as one name; `told` is what is around words for calling."""
    edge, end = ("", "") if HAN.search(name + other) else (r"(?<!\w)", r"(?![\w:’'])")
    if {*_tokens(name), *_tokens(other)} & {*OTHERS, "i"}:
        return None
    parts = [item.lower().removeprefix("the ") for item in (name, other)]
    for one, two in (parts, parts[::-1]):
        first, second = re.escape(one), re.escape(two)
        if match := re.search(f"{edge}{first}{_CALLED}{second}{end}", told, re.IGNORECASE):
            return f"the text says ‘{_short(match[0])}’"
        # "CAIUS MARCIUS CORIOLANUS". Few names are next to each other, and the pattern is slow.
        are_near = edge and f"{one} {two}" in lower
        for match in re.finditer(f"{edge}{first} {second}{end}", text, re.IGNORECASE) if are_near else ():
            if not match[0].islower():
                return f"‘{match[0]}’ is one name in the text"
    return None


def _says_to_be(name: str, said: Sequence[str]) -> str | None:
    """A speech in which somebody says to be the name; "I am NAME's pupil" and "I am not NAME" do not count."""
    if HAN.search(name) and len(name) < 2:
        return None
    pattern = re.compile(_I_AM[HAN.search(name) is not None].format(name=re.escape(name)))
    match = next(filter(None, map(pattern.search, said)), None)
    return f"says ‘{_short(match[0])}’" if match else None


def _short(text: str) -> str:
    return shorten(text, 60, placeholder="…")


def _tokens(text: str) -> list[str]:
    """The words of a name; of a Chinese one, its characters."""
    return list(key(text)) if HAN.search(text) else key(text).split()


def _likeness(name: str, other: str, everybody: Sequence[str]) -> str | None:
    """One name within the other, word for word, or the same but for a title; nothing of a part that two names share."""
    ours, theirs = _tokens(name), _tokens(other)
    shorter, longer = sorted((ours, theirs), key=len)
    if ours == theirs or bool(HAN.search(name)) != bool(HAN.search(other)):
        return None
    if HAN.search(name):
        # 悟空 ends 孙悟空; 悟空道人 begins with it, and is somebody else.
        is_end = longer[-len(shorter) :] == shorter and len(longer) - len(shorter) <= 2
        is_titled = longer[: len(shorter)] == shorter and "".join(longer[len(shorter) :]) in TITLES_ZH
        is_like = len(shorter) > 1 and (is_end or is_titled)
    else:
        sharing = sum(_within(shorter, _tokens(one)) for one in {key(one): one for one in everybody}.values())
        distinct = {*ours} - OTHERS and {*theirs} - OTHERS and not ({*ours} ^ {*theirs}) & OTHERS
        is_like = bool(distinct) and sharing <= 2 and _within(shorter, longer)
    return (f"a part of ‘{name}’" if shorter == theirs else f"holds ‘{name}’") if is_like else None


def _within(words: Sequence[str], others: Sequence[str]) -> bool:
    """Whether words are at either end of others: first or last names."""
    return bool(words) and words in (others[: len(words)], others[-len(words) :])


def nearest(name: str, speakers: Iterable[str], limit: int = 5) -> list[str]:
    """The speakers whose names are most like a name that nobody has."""
    from rapidfuzz import fuzz, process

    known = list(speakers)
    found = process.extract(key(name), [*map(key, known)], scorer=fuzz.WRatio, limit=limit, score_cutoff=70)
    return [known[place] for _, _, place in found]
