"""Content words of a text, and whether a text has them: matter in common, not meaning."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from typing import Final

from rolellm.core.records import Language
from rolellm.core.settings import load_words
from rolellm.core.text import HAN, load_chinese_tokenizer

#: Words that carry no matter of their own.
STOP_WORDS: Final[Mapping[Language, frozenset[str]]] = {"en": load_words("stop_en"), "zh": load_words("stop_zh")}
WORD: Final = re.compile(r"[^\W\d_]+(?:['’-][^\W\d_]+)*")
_ENDINGS: Final = (("ies", "y"), ("ing", ""), ("ed", ""), ("es", ""), ("s", ""), ("ly", ""), ("er", ""))


def measure_overlap(text: str, evidence: str, language: Language) -> tuple[int, int]:
    """Count the content words of a text, and those of them that the evidence has.

    >>> measure_overlap("I ate three cherries!", "Mouse: the cherry is in the barn", "en")
    (1, 3)
    """
    words = extract_content_words(text, language)
    is_known = make_word_finder(evidence, language)
    return sum(map(is_known, words)), len(words)


def make_word_finder(evidence: str, language: Language) -> Callable[[str], bool]:
    """Return a function that finds a word in a text; an English one in any of its commonest forms.

    >>> make_word_finder("Three cherries in the barn", "en")("cherry")
    True
    """
    if language == "zh":
        # Words are cut differently in different surroundings; characters in a row are the same everywhere.
        text = "".join(evidence.casefold().split())
        return lambda word: word.casefold() in text
    stems = {_reduce_to_stem(word) for word in _split_words(evidence)}
    return lambda word: all(_reduce_to_stem(part) in stems for part in _split_words(word))


def _split_words(text: str) -> list[str]:
    return WORD.findall(text.casefold().replace("’", "'").replace("-", " "))


@functools.lru_cache(maxsize=1 << 16)
def _reduce_to_stem(word: str) -> str:
    """Strip a word's commonest endings: crude, but the same for both sides of the comparison."""
    word = word.removesuffix("'s").removesuffix("'")
    for ending, replacement in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            word = word.removesuffix(ending) + replacement
            break
    if len(word) > 3 and word[-1] == word[-2]:
        word = word[:-1]
    if len(word) > 3:
        word = word.removesuffix("e")
    if len(word) > 3 and word.endswith("y"):
        word = f"{word[:-1]}i"
    return word


def extract_content_words(text: str, language: Language) -> list[str]:
    """Extract the words that carry a text's meaning, each once."""
    if language == "zh":
        tokens = load_chinese_tokenizer()(text)
        words = [word for word in tokens if len(HAN.findall(word)) >= 2]
    else:
        words = [word for word in _split_words(text) if len(word) >= 3]
    return [word for word in dict.fromkeys(words) if word not in STOP_WORDS[language]]
