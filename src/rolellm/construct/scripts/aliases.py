"""Other names of a role: proposed from what the script itself says, for a person to confirm; never applied here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rolellm.construct.scripts.evidence import Evidence
from rolellm.construct.scripts.lexicon import HONORIFICS, MENS_TITLES, OTHERS, TITLES_ZH, WOMENS_TITLES
from rolellm.construct.scripts.names import key
from rolellm.text import HAN

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
