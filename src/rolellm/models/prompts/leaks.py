"""Words of our own prompts in what a model wrote: small models repeat their instructions, and examples most of all."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterator
from importlib import resources
from types import MappingProxyType
from typing import Any, Final

from rolellm.core.records import Language
from rolellm.core.text import HAN
from rolellm.models.prompts.render import SLOT

#: So many words in a row, in Chinese characters, may be shared with a prompt by chance (our choice): none of the
#: release's 39,949 questions and answers in English and 45,543 in Chinese shares more.
LONGEST_SHARED: Final = MappingProxyType[Language, int]({"en": 5, "zh": 7})
#: The share of a text that may be a material's own words, eight or more in a row (our choice).
MOST_COPIED: Final = 0.4
_COPIED: Final = 8
_SENTENCE: Final = re.compile(r"[^.!?:;。！？：；\n]+")
_WORD: Final = re.compile(rf"{HAN.pattern}|[^\W_{HAN.pattern[1:-1]}]+(?:['’-][^\W_{HAN.pattern[1:-1]}]+)*")


def make_leak_check(
    language: Language, material: str, extra_texts: tuple[str, ...] = ()
) -> Callable[[str], str | None]:
    """A function that finds our own words in a text.

    Args:
        language: The language of the prompts.
        material: What the model was given to work from; what is in there may be repeated.
        extra_texts: More texts of ours, besides all prompts of the language.

    Returns:
        A function of a text; ``None``, or the first words in a row that it shares with a prompt of ours: six in
        English, eight characters in Chinese, punctuation aside; or a whole sentence of an example, from four words
        and six characters up.

    >>> check = make_leak_check("en", "Rose: Count the steps!")
    >>> check("You are a keeper. Leave nothing out, add nothing, give no opinion, dear.")
    'Leave nothing out, add nothing, give'
    """
    size = LONGEST_SHARED[language] + 1
    prompts, more = _collect_prompt_grams(language), _collect_grams(extra_texts, size)
    copies = _collect_example_sentences(language)
    material_grams: set[tuple[str, ...]] = set()

    def find_leak(text: str) -> str | None:
        words = list(_WORD.finditer(text))
        folded = [word.group().casefold() for word in words]
        for start in range(len(words) - size + 1):
            gram = tuple(folded[start : start + size])
            if gram not in prompts and gram not in more:
                continue
            if not material_grams:
                material_grams.update(list_word_runs(material, size))
            if gram not in material_grams:
                last = words[start + size - 1]
                return text[words[start].start() : last.end()]
        for sentence in _SENTENCE.findall(text):
            key = _fold_words(sentence)
            if key in copies and key not in list_word_runs(material, len(key)):
                return str(sentence).strip()
        return None

    return find_leak


@functools.cache
def _collect_example_sentences(language: Language) -> frozenset[tuple[str, ...]]:
    least = 4 if language == "en" else 6
    sentences: set[tuple[str, ...]] = set()
    for text in _read_prompt_texts(language, ".json"):
        sentences.update(map(_fold_words, _SENTENCE.findall(text)))
    return frozenset(words for words in sentences if len(words) >= least)


def _fold_words(text: str) -> tuple[str, ...]:
    return tuple(word.casefold() for word in _WORD.findall(text))


def make_share_check(material: str) -> Callable[[str], float]:
    """A function that gives the share of a text that is the material's: its eight words, or characters, in a row."""
    material_grams = set(list_word_runs(material, _COPIED))

    def measure_share(text: str) -> float:
        grams = list(list_word_runs(text, _COPIED))
        if not grams:
            return 0.0
        return sum(gram in material_grams for gram in grams) / len(grams)

    return measure_share


@functools.cache
def _collect_prompt_grams(language: Language) -> frozenset[tuple[str, ...]]:
    """The words in a row of all templates and examples of a language; none across a slot."""
    return _collect_grams(tuple(_read_prompt_texts(language)), LONGEST_SHARED[language] + 1)


@functools.cache
def _collect_grams(texts: tuple[str, ...], size: int) -> frozenset[tuple[str, ...]]:
    grams: set[tuple[str, ...]] = set()
    for text in texts:
        for part in SLOT.split(text):
            grams.update(list_word_runs(part, size))
    return frozenset(grams)


def _read_prompt_texts(language: Language, ending: str = "") -> Iterator[str]:
    for file in resources.files("rolellm.models.prompts").joinpath(language).iterdir():
        if not file.name.endswith(ending):
            continue
        text = file.read_text(encoding="utf-8")
        if not file.name.endswith(".json"):
            yield text
            continue
        # Every object goes in by itself, the inner ones first.
        objects: list[dict[str, Any]] = []
        json.loads(text, object_hook=objects.append)
        for item in objects:
            yield from (value for value in item.values() if isinstance(value, str))


def list_word_runs(text: str, size: int) -> Iterator[tuple[str, ...]]:
    """Every run of `size` words of a text, in Chinese of characters, without case and punctuation."""
    words = _fold_words(text)
    return (words[start : start + size] for start in range(len(words) - size + 1))
