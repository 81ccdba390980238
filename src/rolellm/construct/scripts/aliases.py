"""Other names of a role: proposed from what the script itself says, for a person to confirm; never applied here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rolellm.construct.scripts.reading import HONORIFICS, MENS_TITLES, OTHERS, TITLES_ZH, WOMENS_TITLES, key
from rolellm.core.text import HAN

# Names are introduced early.
_LOOKED_THROUGH: Final = 1_000_000
_CANDIDATES: Final = 60
_CALLED: Final = re.compile(
    r"\b(?:called|known as|named|surnamed|styled|alias|a\.?k\.?a\.?|nicknamed|goes by)\s"
    "|[唤喚叫][做作]|名[唤喚叫]|又[名叫]|[绰綽号號][号號称稱]|人[称稱]|法名|道[号號]|自[称稱]|尊[为為]|封[为為]|[就便即]是",
    re.IGNORECASE,
)
_SENTENCE: Final = re.compile("[.!?:;。！？：；\n]")
_I_AM: Final = re.compile(
    r"\b(?:I am|I['’]m|my name is|my name['’]s|(?:they )?call me)\s+(?P<en>[^.!?,;:\n]{1,60})"
    "|(?:我|(?<!支)吾|俺)(?:(?!不|非|没|[。！？；，]).){0,6}，?(?:是|乃|叫[做作]|名[叫唤]|唤[做作]|法名|姓名)(?P<zh>[^。！？；，]{1,40})",
    re.IGNORECASE,
)
# "I am sent by NAME", "I am not NAME".
_OF_OTHERS: Final = re.compile("[的之不非没为被给与和替]")


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

    A reason is a likeness (``Holmes``, ``Sherlock Holmes``, ``Mr. Holmes``; 悟空, 孙悟空), a place where the text has
    both as one name or calls one the other, or a speech in which the other speaker claims to be the role.

    Args:
        names: The role and the aliases that are known.
        others: The other speakers, with how many speeches each has.
        text: The script.
        said: Those speeches.

    Returns:
        By speeches, most first. A name may be proposed for its likeness to one that is proposed.
    """
    left = dict(sorted(others.items(), key=lambda item: -item[1])[:_CANDIDATES])
    stated = dict(_stated(names, left, text[:_LOOKED_THROUGH]))
    reasons: dict[str, str] = {}
    for other in left:
        found = [_likeness(name, other) for name in names]
        found += [stated.get(other), *(_says_to_be(name, said.get(other, ())) for name in names)]
        if reason := next(filter(None, found), None):
            reasons[other] = reason
    for other in [other for other in left if other not in reasons]:
        like = (_likeness(name, other) for name in left if name in reasons)
        if reason := next(filter(None, like), None):
            reasons[other] = f"{reason}, which is proposed"
    return tuple(Proposal(other, turns, reasons[other]) for other, turns in left.items() if other in reasons)


def _tokens(text: str) -> list[str]:
    """The words of a text; of a Chinese one, its characters."""
    return list(key(text)) if HAN.search(text) else key(text).split()


def _stated(names: Sequence[str], others: Iterable[str], text: str) -> Iterator[tuple[str, str]]:
    """Other names that the text calls the role's in one sentence, or has as one name with it, with the place."""
    known = {name: tuple(_tokens(name)) for name in (*names, *others) if not {*_tokens(name)} & OTHERS}
    named = {tokens: name for name, tokens in reversed(known.items())}
    for match in _CALLED.finditer(text):
        before = _SENTENCE.split(text[max(0, match.start() - 60) : match.start()])[-1]
        after = _SENTENCE.split(text[match.end() : match.end() + 50])[0]
        told, called = _tokens(before), _tokens(after)
        # "Smith, hereafter called the Fox": hardly anything comes in between.
        ends = {
            tuple(told[at : len(told) - skip]) for skip in range(3) for at in range(max(0, len(told) - 8), len(told))
        }
        begins = {tuple(called[skip:end]) for skip in range(2) for end in range(1, 8)}
        first, second = ({named[tokens] for tokens in found & named.keys()} for found in (ends, begins))
        if len(first | second) > 1 and (first | second) & {*names}:
            reason = f"the text says ‘{_short(before + match[0] + after)}’"
            yield from ((other, reason) for other in (second if first & {*names} else first))
    pairs = [(name, other) for name in names for other in others if name in known and other in known]
    low = text.lower()
    for name, other in pairs:
        for full in (f"{name} {other}".lower(), f"{other} {name}".lower()):
            at = low.find(full) if not HAN.search(full) and len(low) == len(text) else -1
            while at >= 0:
                spelled, around = text[at : at + len(full)], low[max(0, at - 1) : at + len(full) + 1]
                if not spelled.islower() and re.fullmatch(rf"\W?{re.escape(full)}[^\w:]?", around):
                    yield other, f"‘{spelled}’ is one name in the text"
                at = low.find(full, at + 1)


def _says_to_be(name: str, said: Sequence[str]) -> str | None:
    """A speech in which somebody says to be the name; "I am NAME's pupil" and "I am not NAME" do not count."""
    wanted, chinese = _tokens(name), HAN.search(name) is not None
    for match in (match for speech in said for match in _I_AM.finditer(speech)):
        if chinese and match["zh"] and len(wanted) > 1:
            before, found, after = match["zh"].partition(name)
            is_one = found and len(before) <= 12 and not _OF_OTHERS.search(before) and not after[:1].isalnum()
        elif not chinese and match["en"]:
            words = match["en"].split()
            places = (place for place in range(3) if _tokens(" ".join(words[place : place + len(wanted)])) == wanted)
            is_one = any(all(word[0].isupper() for word in words[:place]) for place in places)
        else:
            continue
        if is_one:
            return f"says ‘{_short(match[0])}’"
    return None


def _short(text: str) -> str:
    folded = " ".join(text.split())
    return folded if len(folded) <= 60 else folded[:59] + "…"


def _likeness(name: str, other: str) -> str | None:
    """One name within the other, word for word; or the same name but for a title."""
    ours, theirs = _tokens(name), _tokens(other)
    if ours == theirs or bool(HAN.search(name)) != bool(HAN.search(other)):
        return None
    if HAN.search(name):
        return _chinese_likeness(key(name), key(other))
    titles = {*ours}, {*theirs}
    if (titles[0] ^ titles[1]) & OTHERS or not titles[0] - OTHERS or not titles[1] - OTHERS:
        return None
    if any(one & WOMENS_TITLES and two & MENS_TITLES for one, two in (titles, titles[::-1])):
        return None
    if _within(theirs, ours):
        return f"a part of ‘{name}’"
    if _within(ours, theirs):
        return f"holds ‘{name}’"
    bare = [[word for word in words if word not in HONORIFICS | OTHERS] for words in (ours, theirs)]
    return f"shares a name with ‘{name}’" if _within(*bare) or _within(*bare[::-1]) else None


def _within(words: Sequence[str], others: Sequence[str]) -> bool:
    """Whether words are at either end of others: first or last names."""
    return bool(words) and words in (others[: len(words)], others[-len(words) :])


def _chinese_likeness(name: str, other: str) -> str | None:
    shorter, longer = sorted((name, other), key=len)
    if len(shorter) < 2 or len(shorter) == len(longer):
        return None
    # 悟空 ends 孙悟空; 悟空道人 begins with it, and is somebody else.
    if longer.endswith(shorter) and len(longer) - len(shorter) <= 2:
        return f"a part of ‘{name}’" if shorter == other else f"holds ‘{name}’ at its end"
    return f"‘{shorter}’ with a title" if longer.removeprefix(shorter) in TITLES_ZH else None


def nearest(name: str, speakers: Iterable[str], limit: int = 5) -> list[str]:
    """The speakers whose names are most like a name that nobody has."""
    from rapidfuzz import fuzz, process

    known = list(speakers)
    found = process.extract(key(name), [*map(key, known)], scorer=fuzz.WRatio, limit=limit, score_cutoff=70)
    return [known[place] for _, _, place in found]
