"""Names of speakers: when two spellings are one name, and what can be one at all."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from typing import Final

from rolellm.construct.scripts.lexicon import NOBODY, OPENERS, ORDINALS, PARTICLES
from rolellm.text import HAN, SPACE_BETWEEN_HAN, fold

_WORD: Final = re.compile(r"[^\W_]+")
_APOSTROPHE: Final = re.compile("['’‘ʼ＇`´]")

# Who says what in running Chinese text: "悟空道：" is a part of a sentence. The second kind ends names, too.
_SAYS: Final = re.compile("[说說道曰问問答叫喊喝骂罵笑想是]$")
_MAY_SAY: Final = re.compile("[写寫言呼念唱告报報奏讲講谓謂为為有在的了着過时時后後前上下中里裡]$")
_CHINESE_MARKS: Final = re.compile('[，。！？；、…“”‘’「」『』《》〈〉—～,.!?;"]')
_LONGEST_HAN: Final = 10
_LONGEST_WORDS: Final = 6
_EXTENSION: Final = re.compile(r"\s*(?:[(（\[【][^()（）\[\]【】]{0,60}[)）\]】]|\^)\s*$")
_CONTINUED: Final = re.compile(
    r"\s*[-–—,]*\s*\(?\b(?:cont[’'.]?d?|continued|continuing|V\.?\s?O\.?|O\.\s?[SC]\.?)\)?\s*$", re.IGNORECASE
)


@lru_cache(maxsize=1 << 16)
def key(name: str) -> str:
    """What two spellings of one name share: its words, without case, width, punctuation and apostrophes.

    Names are one when their keys are equal; a name inside another is another name.

    >>> key("Dr. FRANK-N-FURTER") == key("dr frank n furter")
    True
    >>> key("Young MARCIUS") == key("Marcius")
    False
    """
    folded = _APOSTROPHE.sub("", unicodedata.normalize("NFKC", name)).casefold()
    return SPACE_BETWEEN_HAN.sub("", " ".join(_WORD.findall(folded))) or fold(name)


def bare(name: str) -> str:
    """A name without what scripts hang on to it: ``(V.O.)``, ``(CONT'D)``, ``^``, emphasis, a full stop.

    >>> bare("_JOHN_ (V.O.) (CONT'D) ^")
    'JOHN'
    """
    rest = name.strip()
    for _ in range(6):
        cut = _CONTINUED.sub("", _EXTENSION.sub("", rest)).strip(" \t\u3000*_@:：")
        if cut == rest or not cut:
            break
        rest = cut
    # The stop of "Jr." or "J." is left: keys do not see it.
    return " ".join(rest.split())


def is_name(text: str, *, once: bool = False, loose: bool = False) -> bool:
    """Whether a text before a colon can be somebody's name.

    Args:
        text: Such as ``First Citizen``, ``MRS. HALE`` or ``郭翁``.
        once: It stands there only once, so it has to look more like a name.
        loose: Its place says so already, so words after the first may be small, as in ``Voice within``.
    """
    name = " ".join(text.split())
    if not name or len(name) > 60 or fold(name) in NOBODY:
        return False
    if HAN.search(name):
        return _is_chinese_name(name, once=once)
    words = _WORD.findall(_APOSTROPHE.sub("", name))
    if not words or len(words) > _LONGEST_WORDS or words[0].casefold() in NOBODY:
        return False
    if re.search(r"[.!?;,][\"”’']?$", name) and not re.search(r"\b(?:\w|[JjSs]r|JR|SR|[Ee]tc|&c)\.$", name):
        return False
    shaped = (loose and len(words) <= 4) or all(
        word[0].isupper() or word[0].isdigit() or word.casefold() in PARTICLES for word in words
    )
    if not shaped or not (words[0][0].isupper() or re.match(r"\d+(?:st|nd|rd|th)\b", words[0], re.IGNORECASE)):
        return False
    if "," in name and not name.isupper() and not re.search(r"(?i)&\s?c|\betc\b", name):
        return False
    opener = words[0].casefold() in OPENERS
    if opener and words[0].casefold() in ORDINALS:
        return len(words) > 1 or words[0].casefold() in ("all", "both")
    return not (opener and (once or not name.isupper()))


def _is_chinese_name(name: str, *, once: bool) -> bool:
    if len(name) > _LONGEST_HAN + 6 * bool(re.search(r"[A-Za-z·・]", name)) or _CHINESE_MARKS.search(name):
        return False
    return not (_SAYS.search(name) or (_MAY_SAY.search(name) and (once or len(name) > 3)))
