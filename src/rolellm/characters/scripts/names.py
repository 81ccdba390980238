"""Names of people in scripts: what can be one, and which are spellings of one."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterable
from functools import lru_cache
from itertools import combinations
from typing import Final

from rolellm.core.settings import load_words
from rolellm.core.text import HAN, SPACE_BETWEEN_HAN, fold

NOBODY, OPENERS, PARTICLES = map(load_words, ("nobody", "openers", "particles"))

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


def find_similar(name: str, speakers: Iterable[str], limit: int = 5) -> list[str]:
    """The speakers whose names are most like a name that nobody has."""
    from rapidfuzz import fuzz, process

    names = list(speakers)
    matches = process.extract(
        normalize_name(name), [*map(normalize_name, names)], scorer=fuzz.WRatio, limit=limit, score_cutoff=70
    )
    return [names[index] for _, _, index in matches]
