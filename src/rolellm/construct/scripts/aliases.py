"""Other names of a role: proposed from what the script itself says, for a person to confirm; never applied here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rolellm.construct.scripts.lexicon import HONORIFICS, MENS_TITLES, OTHERS, TITLES_ZH, WOMENS_TITLES
from rolellm.construct.scripts.names import HAN, key

_CALLED_EN: Final = (
    r"(?:hereafter|hereinafter|henceforth|afterwards?|later|also)?\s*(?:called|known as|named|surnamed|styled|alias|"
    r"a\.?k\.?a\.?|nicknamed|goes by)\s+(?:simply\s+)?[“\"'‘]?(?:the\s+)?"
)
_CALLED_ZH: Final = (
    "(?:唤做|唤作|名唤|名叫|叫做|叫作|取名|起名|号称|绰号|人称|又名|又叫|改名|法名|道号|自称|称为|尊为|称作|称王|封为|官封|乃是|就是|便是|正是|即是|"
    "喚做|喚作|名喚|號稱|綽號|人稱|法名|道號|自稱|稱為|封為)"
)
# "I am the pupil of NAME" and "I am not NAME" are somebody else's words.
_SELF_EN: Final = (
    r"\b(?:I am|I['’]m|my name is|my name['’]s|call me|they call me)\s+(?:(?!not\b|no\b)[A-Z]\w+\s+){{0,2}}"
    r"{name}\b(?!['’]s)"
)
_SELF_ZH: Final = (
    "(?:我|(?<!支)吾|俺)(?:(?!不|非|没|[。！？；，]).){{0,6}}，?(?:本是|乃是|是|乃|便是|就是|叫做|叫作|名叫|名唤|唤做|唤作|法名|姓名)"
    "(?:(?![的之不非没为被给与和替。！？；，]).){{0,12}}{name}(?=[^\\w]|也|是也|$)"
)
_LOOKED_THROUGH: Final = 500_000
_CANDIDATES: Final = 40


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

    Args:
        names: The role and the aliases that are known.
        others: The other speakers, with how many speeches each has.
        text: The script; its first half million characters are looked through.
        said: Those speeches.

    Returns:
        By speeches, most first. A name may be proposed for its likeness to one that is proposed.
    """
    left = dict(sorted(others.items(), key=lambda item: -item[1])[:_CANDIDATES])
    sample = text[:_LOOKED_THROUGH]
    reasons: dict[str, str] = {}
    for other in left:
        found = (_reason(name, other, sample, said.get(other, ())) for name in names if key(name) != key(other))
        reason = next(filter(None, found), None)
        if reason:
            reasons[other] = reason
    proposed = tuple(reasons)
    for other in left:
        like = (_likeness(name, other) for name in proposed if other not in proposed)
        reason = next(filter(None, like), None)
        if reason:
            reasons[other] = f"{reason}, which is proposed"
    return tuple(Proposal(other, turns, reasons[other]) for other, turns in left.items() if other in reasons)


def _likeness(name: str, other: str) -> str | None:
    chinese = bool(HAN.search(name)), bool(HAN.search(other))
    if all(chinese):
        return _chinese_part(name, other)
    return None if any(chinese) else _part(name, other)


def _reason(name: str, other: str, text: str, said: Sequence[str]) -> str | None:
    if bool(HAN.search(name)) != bool(HAN.search(other)):
        return None
    in_text = _chinese_words if HAN.search(name) else _words
    return _likeness(name, other) or _says(name, said) or in_text(name, other, text)


def _says(name: str, said: Sequence[str]) -> str | None:
    """That somebody says of themselves that they are the role."""
    chinese = HAN.search(name) is not None
    if chinese and len(key(name)) < 2:
        return None
    spelled = re.escape(name) if chinese else r"\s+".join(map(re.escape, name.split()))
    pattern = re.compile((_SELF_ZH if chinese else _SELF_EN).format(name=spelled), re.IGNORECASE)
    for speech in said:
        match = pattern.search(speech)
        if match:
            return f"says ‘{_short(match[0])}’"
    return None


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


def _words(name: str, other: str, text: str) -> str | None:
    """What the text says of both: one full name, or that one is called the other."""
    if set(key(other).split()) & OTHERS or set(key(name).split()) & OTHERS:
        return None
    one, two = (r"\s+".join(map(re.escape, item.split())) for item in (name, other))
    both = rf"\b(?:{one}[ \t]+{two}|{two}[ \t]+{one})\b(?![ \t]*:)"
    full = [match for match in re.finditer(both, text, re.IGNORECASE) if not match[0].islower()]
    if full:
        return f"‘{' '.join(full[0][0].split())}’ is one name in the text ({_times(len(full))})"
    called = rf"\b(?:{one}\W[^.!?:\n]{{0,60}}?\b{_CALLED_EN}{two}|{two}\W[^.!?:\n]{{0,60}}?\b{_CALLED_EN}{one})\b"
    said = re.search(called, text, re.IGNORECASE)
    return f"the text says ‘{_short(said[0])}’" if said else None


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


def _chinese_words(name: str, other: str, text: str) -> str | None:
    one, two = re.escape(name), re.escape(other)
    if one in two or two in one:
        return None
    together = re.findall(f"{one}{two}|{two}{one}", text)
    if len(together) > 1:
        return f"‘{together[0]}’ stands as one name in the text ({_times(len(together))})"
    near, close = "[^。！？：；\n]{0,12}", "[^。！？：；，\n]{0,4}"
    called = (f"{first}{near}{_CALLED_ZH}{close}{second}" for first, second in ((one, two), (two, one)))
    said = re.search("|".join(called), text)
    return f"the text says ‘{_short(said[0])}’" if said else None


def _short(text: str) -> str:
    folded = " ".join(text.split())
    return folded if len(folded) <= 60 else folded[:59] + "…"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def nearest(name: str, speakers: Iterable[str], limit: int = 5) -> list[str]:
    """The speakers whose names are most like a name that nobody has."""
    from rapidfuzz import fuzz, process

    known = list(speakers)
    keys = [key(speaker) for speaker in known]
    found = process.extract(key(name), keys, scorer=fuzz.WRatio, limit=limit, score_cutoff=70)
    return [known[place] for _, _, place in found]
