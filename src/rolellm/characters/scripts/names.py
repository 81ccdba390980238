"""Names of people in scripts: what can be one, and which are spellings of one."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from functools import lru_cache
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
_ENDED: Final = re.compile(r"[.!?;,][\"”’']?$")
_SHORTENED: Final = re.compile(r"\b(?:\w|[js]r|etc|&c)\.$", re.IGNORECASE)
_AND_OTHERS: Final = re.compile(r"&\s?c|\betc\b", re.IGNORECASE)
_NUMBER: Final = re.compile(r"\d{1,2}(?:st|nd|rd|th)?$")
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
    plain = unicodedata.normalize("NFKC", name)
    words = _WORD.findall(_APOSTROPHE.sub("", plain).casefold())
    return SPACE_BETWEEN_HAN.sub("", " ".join(words)) or fold(name)


@lru_cache(maxsize=1 << 12)
def strip_extensions(name: str) -> str:
    """A name without the additions of scripts: ``(V.O.)``, ``(CONT'D)``, ``^``, emphasis, a full stop.

    >>> strip_extensions("_JOHN_ (V.O.) (CONT'D) ^")
    'JOHN'
    """
    result = name.strip()
    for _ in range(6):
        cut = result
        if result[-1:] in ")）]】^":
            cut = _EXTENSION.sub("", result)
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
    if not words or len(text) > _LONGEST_LABEL or len(name) > 60:
        return False
    if first in NOBODY or fold(name) in NOBODY:
        return False
    if HAN.search(name):
        return _is_chinese_name(name, once=once)
    # A sentence, but for "Jr." and "J.".
    if _ENDED.search(name) and not _SHORTENED.search(name):
        return False
    # A list, but for "Senators, &c".
    if "," in name and not name.isupper() and not _AND_OTHERS.search(name):
        return False
    if len(words) > _LONGEST_WORDS:
        return False
    small = [word for word in words if word[0].islower()]
    small = [word for word in small if word.casefold() not in PARTICLES]
    if small and not (loose and len(words) <= 4):
        return False
    # "1 Witch" and "2nd Guard" are names, "10" and "e4" are none.
    is_numbered = words[-1][0].isalpha() and _NUMBER.match(first)
    initial = words[0][0]
    if not is_numbered and (initial.islower() or not initial.isalpha()):
        return False
    if first in ("a", "an", "the"):
        return len(words) > 1
    if first not in OPENERS:
        return True
    # What comes again with all its words capital is a name: Done Elvire, Will Pell; and so is You in a chat.
    if once:
        return False
    is_titled = all(word[0].isupper() for word in words)
    return name.isupper() or name in ("You", "Me") or (is_titled and len(words) > 1)


def _is_chinese_name(name: str, *, once: bool) -> bool:
    longest = _LONGEST_HAN
    if re.search(r"[A-Za-z·・]", name):
        longest += 6
    if len(name) > longest or _CHINESE_MARKS.search(name):
        return False
    if once and _MAY_SAY.search(name):
        return False
    return not _SAYS.search(name) and not _CAMERA.search(name)


def select_names(names: Iterable[str], requested: Iterable[str]) -> set[str]:
    """The keys of names asked for, and of what looks like a name; the more so if it comes only once."""
    spellings: dict[str, list[str]] = {}
    for name in names:
        spellings.setdefault(normalize_name(name), []).append(name)
    selected = set(map(normalize_name, requested))
    for key, same in spellings.items():
        if is_name(same[0], once=len(same) == 1):
            selected.add(key)
    return selected


def find_similar(name: str, speakers: Iterable[str], limit: int = 5) -> list[str]:
    """The speakers whose names are most like a name that nobody has."""
    from rapidfuzz import fuzz, process

    names = list(speakers)
    keys = list(map(normalize_name, names))
    matches = process.extract(normalize_name(name), keys, scorer=fuzz.WRatio, limit=limit, score_cutoff=70)
    return [names[index] for _, _, index in matches]
