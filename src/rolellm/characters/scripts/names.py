"""Names of people in scripts: what can be one, which are spellings of one, and other names of a role.

Other names are proposed from what the script itself says outright, for a person to confirm; never applied. A name is
proposed where it is the full or the short form of one that is known, where the text calls the one the other, and where
its speaker claims to be the role. That two names are often next to each other says nothing.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from textwrap import shorten
from typing import Final

from rolellm.core.settings import load_words
from rolellm.core.text import HAN, SPACE_BETWEEN_HAN, fold

NOBODY, OPENERS, PARTICLES, DISTINGUISHING, TITLES_ZH = map(
    load_words, ("nobody", "openers", "particles", "distinguishing", "titles_zh")
)

_WORD: Final = re.compile(r"[^\W_]+")
_APOSTROPHE: Final = re.compile("['’‘ʼ＇`´]")

# Who says what in running Chinese text: "悟空道：" is a part of a sentence. The second kind ends names, too.
_SAYS: Final = re.compile("[说說道曰问問答叫喊喝骂罵笑想是]$")
_MAY_SAY: Final = re.compile("[写寫言呼念唱告报報奏讲講谓謂为為有在的了着過时時后後前上下中里裡]$")
_CHINESE_MARKS: Final = re.compile('[，。！？；、…“”‘’「」『』《》〈〉—―─～,.!?;"]')
# What a camera shows.
_CAMERA: Final = re.compile("(?:特写|[全中近远]景|空镜|镜头|画面|视角)$")
_LONGEST_HAN: Final = 10
_LONGEST_WORDS: Final = 6
# With the blanks in it.
_LONGEST_LABEL: Final = 500
_EXTENSION: Final = re.compile(r"\s*(?:[(（\[【][^()（）\[\]【】]{0,60}[)）\]】]|\^)\s*$")
_CONTINUED: Final = re.compile(
    r"\s*[-–—,]*\s*\(?\b(?:cont[’'.]?d?|continued|continuing|V\.?\s?O\.?|O\.\s?[SC]\.?)\)?\s*$", re.IGNORECASE
)


@lru_cache(maxsize=1 << 12)
def normalize_name(name: str) -> str:
    """Reduce a name to what its spellings share: its words, without case, width, punctuation and apostrophes.

    Names are one when their keys are equal; a name inside another is another name.

    >>> normalize_name("Dr. FRANK-N-FURTER") == normalize_name("dr frank n furter")
    True
    >>> normalize_name("Young MARCIUS") == normalize_name("Marcius")
    False
    """
    folded = _APOSTROPHE.sub("", unicodedata.normalize("NFKC", name)).casefold()
    return SPACE_BETWEEN_HAN.sub("", " ".join(_WORD.findall(folded))) or fold(name)


@lru_cache(maxsize=1 << 12)
def strip_extensions(name: str) -> str:
    """A name without the additions of scripts: ``(V.O.)``, ``(CONT'D)``, ``^``, emphasis, a full stop.

    >>> strip_extensions("_JOHN_ (V.O.) (CONT'D) ^")
    'JOHN'
    """
    result = name.strip()
    for _ in range(6):
        cut = _EXTENSION.sub("", result) if result[-1:] in ")）]】^" else result
        cut = _CONTINUED.sub("", cut).strip(" \t\u3000*_@:：")
        if cut == result or not cut:
            break
        result = cut
    # The stop of "Jr." or "J." is left: keys do not see it.
    return SPACE_BETWEEN_HAN.sub("", " ".join(result.split()))


@lru_cache(maxsize=1 << 12)
def is_name(text: str, *, once: bool = False, loose: bool = False) -> bool:
    """Tell whether a text before a colon can be somebody's name.

    Args:
        text: Such as ``First Citizen``, ``MRS. HALE`` or ``郭翁``.
        once: It is found only once, so it has to look more like a name.
        loose: Its place says so already, so words after the first may be small, as in ``Voice within``.
    """
    name = " ".join(text[:_LONGEST_LABEL].split())
    words = _WORD.findall(_APOSTROPHE.sub("", name))
    first = words[0].casefold() if words else ""
    if not words or len(text) > _LONGEST_LABEL or len(name) > 60 or {fold(name), first} & NOBODY:
        return False
    if HAN.search(name):
        is_long = len(name) > _LONGEST_HAN + 6 * bool(re.search(r"[A-Za-z·・]", name))
        is_told = _SAYS.search(name) or _CAMERA.search(name) or (once and _MAY_SAY.search(name))
        return not (is_long or _CHINESE_MARKS.search(name) or is_told)
    # A sentence, but for "Jr." and "J."; and a list, but for "Senators, &c".
    is_ended = re.search(r"[.!?;,][\"”’']?$", name) and not re.search(r"(?i)\b(?:\w|[js]r|etc|&c)\.$", name)
    is_list = "," in name and not name.isupper() and not re.search(r"(?i)&\s?c|\betc\b", name)
    shaped = (loose and len(words) <= 4) or all(not word[0].islower() or word.casefold() in PARTICLES for word in words)
    # "1 Witch" and "2nd Guard" are names, "10" and "e4" are none.
    begins = re.match(r"\d{1,2}(?:st|nd|rd|th)?$", first) if words[-1][0].isalpha() else None
    begins_well = begins or (words[0][0].isalpha() and not words[0][0].islower())
    if len(words) > _LONGEST_WORDS or is_ended or is_list or not shaped or not begins_well:
        return False
    if first in ("a", "an", "the"):
        return len(words) > 1
    # What comes again with all its words capital is a name: Done Elvire, Will Pell.
    titled = len(words) > 1 and all(word[0].isupper() for word in words)
    return first not in OPENERS or (not once and (titled or name.isupper()))


def find_names(text: str, names: Collection[str]) -> set[str]:
    """Find the names that are in a short text, in a time that does not depend on how many there are."""
    spans = combinations(range(len(text) + 1), 2)
    return {text[start:end] for start, end in spans if text[start:end] in names}


def select_names(names: Iterable[str], requested: Iterable[str]) -> set[str]:
    """The keys of names asked for, and of what looks like a name; the more so if it comes only once."""
    spelled: dict[str, list[str]] = {}
    for name in names:
        spelled.setdefault(normalize_name(name), []).append(name)
    return {*map(normalize_name, requested)} | {
        name for name, same in spelled.items() if is_name(same[0], once=len(same) == 1)
    }


# Names are introduced early.
_LOOKED_THROUGH: Final = 1_000_000
_CANDIDATES: Final = 60
# More than what is between two names of one person, and the other name.
_NEAR: Final = 120
# What is between two names of one person: "Smith, hereafter called the Fox", 宋江，人称及时雨.
_CALLING: Final = (
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


def propose_aliases(
    names: Sequence[str], speakers: Mapping[str, int], text: str, speeches: Mapping[str, Sequence[str]]
) -> tuple[Proposal, ...]:
    """Names of other speakers for which the script gives a reason to think that they are the role's.

    Args:
        names: The role and the aliases that are known.
        speakers: The other speakers, with how many speeches each has.
        text: The script.
        speeches: Those speeches.

    Returns:
        By speeches, most first.
    """
    # Patterns that open with blanks would look through a run of them once for each.
    text = "\n".join(" ".join(line.split()) for line in text[:_LOOKED_THROUGH].split("\n") if line.strip())
    surroundings = "\0".join(text[slice(*span)] for span in _find_surroundings(text))
    lower, proposals = text.lower(), []
    everybody = [_split_name(name) for name in {normalize_name(name): name for name in (*names, *speakers)}.values()]
    for speaker, turns in sorted(speakers.items(), key=lambda item: -item[1])[:_CANDIDATES]:
        reasons = (
            _compare_names(name, speaker, everybody)
            or _find_statement(name, speaker, text, lower, surroundings)
            or _find_claim(name, speeches.get(speaker, ()))
            for name in names
        )
        if reason := next(filter(None, reasons), None):
            proposals.append(Proposal(speaker, turns, reason))
    return tuple(proposals)


def _find_surroundings(text: str) -> Iterator[tuple[int, int]]:
    """Find the spans around words for calling; no two overlap."""
    start = end = 0
    for match in re.finditer(_CALLING, text, re.IGNORECASE):
        if match.start() - _NEAR > end:
            yield start, end
            start = match.start() - _NEAR
        end = match.end() + _NEAR
    yield start, end


def _find_statement(name: str, alias: str, text: str, lower: str, surroundings: str) -> str | None:
    """A place that calls one the other, or has both as one name; `surroundings` is what is around words for calling."""
    edge, end = ("", "") if HAN.search(name + alias) else (r"(?<!\w)", r"(?![\w:’'])")
    if {*_split_name(name), *_split_name(alias)} & {*DISTINGUISHING, "i"}:
        return None
    parts = [item.lower().removeprefix("the ") for item in (name, alias)]
    for former, latter in (parts, parts[::-1]):
        first, second = re.escape(former), re.escape(latter)
        if match := re.search(f"{edge}{first}{_CALLING}{second}{end}", surroundings, re.IGNORECASE):
            return f"the text says ‘{_shorten(match[0])}’"
        # "CAIUS MARCIUS CORIOLANUS". Few names are next to each other, and the pattern is slow.
        are_near = edge and f"{former} {latter}" in lower
        for match in re.finditer(f"{edge}{first} {second}{end}", text, re.IGNORECASE) if are_near else ():
            if not match[0].islower():
                return f"‘{match[0]}’ is one name in the text"
    return None


def _find_claim(name: str, speeches: Sequence[str]) -> str | None:
    """A speech in which somebody says to be the name; "I am NAME's pupil" and "I am not NAME" do not count."""
    if HAN.search(name) and len(name) < 2:
        return None
    pattern = re.compile(_I_AM[HAN.search(name) is not None].format(name=re.escape(name)))
    match = next(filter(None, map(pattern.search, speeches)), None)
    return f"says ‘{_shorten(match[0])}’" if match else None


def _shorten(text: str) -> str:
    return shorten(text, 60, placeholder="…")


def _split_name(text: str) -> list[str]:
    """The words of a name; of a Chinese one, its characters."""
    return list(normalize_name(text)) if HAN.search(text) else normalize_name(text).split()


def _compare_names(name: str, alias: str, everybody: Sequence[Sequence[str]]) -> str | None:
    """One name within the other, word for word, or the same but for a title; nothing of a part that two names share."""
    name_words, alias_words = _split_name(name), _split_name(alias)
    shorter, longer = sorted((name_words, alias_words), key=len)
    if name_words == alias_words or bool(HAN.search(name)) != bool(HAN.search(alias)):
        return None
    if HAN.search(name):
        # 悟空 ends 孙悟空; 悟空道人 begins with it, and is somebody else.
        is_end = longer[-len(shorter) :] == shorter and len(longer) - len(shorter) <= 2
        is_titled = longer[: len(shorter)] == shorter and "".join(longer[len(shorter) :]) in TITLES_ZH
        is_like = len(shorter) > 1 and (is_end or is_titled)
    else:
        sharing = sum(_is_end(shorter, words) for words in everybody)
        distinct = (
            {*name_words} - DISTINGUISHING
            and {*alias_words} - DISTINGUISHING
            and not ({*name_words} ^ {*alias_words}) & DISTINGUISHING
        )
        is_like = bool(distinct) and sharing <= 2 and _is_end(shorter, longer)
    return (f"a part of ‘{name}’" if shorter == alias_words else f"holds ‘{name}’") if is_like else None


def _is_end(words: Sequence[str], name: Sequence[str]) -> bool:
    """Tell whether words are at either end of a name: first or last names."""
    return bool(words) and words in (name[: len(words)], name[-len(words) :])


def find_similar(name: str, speakers: Iterable[str], limit: int = 5) -> list[str]:
    """The speakers whose names are most like a name that nobody has."""
    from rapidfuzz import fuzz, process

    names = list(speakers)
    matches = process.extract(
        normalize_name(name), [*map(normalize_name, names)], scorer=fuzz.WRatio, limit=limit, score_cutoff=70
    )
    return [names[index] for _, _, index in matches]
