"""Names in a text, found without a model: precise rather than complete, for a name that is missed does no harm.

English: capitalised words within a sentence. Chinese: what stands in title marks; words that jieba's dictionary calls a
person's name, and words that it does not know, where they begin with a surname. Places are not looked for in Chinese:
that dictionary calls 美丽 and 山水 places.
"""

from __future__ import annotations

import functools
import re
import warnings
from typing import Final

from rolellm.construct.context_instruct.words import LONG_SURNAMES, NO_NAMES, NO_SURNAMES, SURNAMES
from rolellm.records import Language
from rolellm.text import chinese_words

WORD: Final = re.compile(r"[^\W\d_]+(?:['’-][^\W\d_]+)*")
_BEFORE_SENTENCE: Final = frozenset(".!?:;…\"“”'‘’([–—-")
_SHORT_FORM: Final = re.compile(r"'(?:s|m|d|ll|ve|re|t)$", re.IGNORECASE)
_MARKED: Final = re.compile(r"[《“「『]([^《》“”「」『』]{2,8})[》”」』]")


def names_in(text: str, language: Language) -> list[str]:
    """The names in a text, in order, some more than once.

    >>> names_in("Never! I gave Gardener Nine's brush to the Duchess, sir.", "en")
    ['Gardener', 'Nine', 'Duchess']
    """
    return _chinese(text) if language == "zh" else _english(text)


def _english(text: str) -> list[str]:
    found = []
    for match in WORD.finditer(text.replace("’", "'")):
        word = match.group()
        # Who shouts a whole word in capitals names nobody by it.
        if not word[0].isupper() or (len(word) > 1 and word.isupper()):
            continue
        before = text[: match.start()].rstrip()
        if not before or before[-1] in _BEFORE_SENTENCE or _SHORT_FORM.sub("", word).casefold() in NO_NAMES:
            continue
        found.append(word.removesuffix("'s"))
    return found


def _chinese(text: str) -> list[str]:
    found = list(_MARKED.findall(text))
    names, words = _dictionary()
    for word in chinese_words()(text):
        long = word.startswith(LONG_SURNAMES)
        if (long or word[0] in SURNAMES) and 2 <= len(word) <= 4 and word not in NO_SURNAMES:
            # 老孙来, "here comes old Sun", is cut into 老 and 孙来.
            unknown = word not in words and len(word) <= (4 if long else 3) and word[0] != "孙"
            if word in names or unknown:
                found.append(word)
    return found


@functools.cache
def _dictionary() -> tuple[frozenset[str], frozenset[str]]:
    """Of the words in jieba's dictionary that begin with a surname: those tagged as persons' names, and all."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import jieba
    names: set[str] = set()
    words: set[str] = set()
    with jieba.Tokenizer().get_dict_file() as lines:
        for line in lines:
            word, _, tag = line.decode("utf-8").rstrip().split(" ")
            if word[0] in SURNAMES or word.startswith(LONG_SURNAMES):
                words.add(word)
                if tag.startswith("nr"):
                    names.add(word)
    return frozenset(names), frozenset(words)
