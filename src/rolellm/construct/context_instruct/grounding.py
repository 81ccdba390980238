"""An offline check of script-based pairs: do their names, numbers and words stand in what they were made from?

It is a sieve, not a judge: it sees words, not meaning. A pair is turned down when its answer or question has a *name*
or a *number* that is in neither the segment nor the profile, or when too few of its content words are. What counts as
which is ours, and so is the threshold; docs/context_instruct.md has how many good pairs it turns down and how many
wrong ones it lets through.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from rolellm.construct.character import Character
from rolellm.construct.context_instruct.names import WORD, names_in
from rolellm.construct.context_instruct.numerals import numbers_in
from rolellm.construct.context_instruct.words import STOP_WORDS
from rolellm.records import Language
from rolellm.text import HAN, chinese_words

#: The least share of content words that have to be found (our choice).
LEAST_FOUND: Final = 0.25


@dataclass(frozen=True, slots=True)
class Grounding:
    """What of a pair was found in its evidence.

    Attributes:
        words: How many content words it has.
        found: How many of them are in the evidence.
        names: Names that are not.
        numbers: Numbers that are not.
    """

    words: int
    found: int
    names: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()

    @property
    def score(self) -> float | None:
        """The share of content words that were found; ``None`` of a pair that has none."""
        return self.found / self.words if self.words else None

    def reason(self, least: float) -> str | None:
        """Why it is turned down; ``None`` where it is not."""
        for what, missing in (("names", self.names), ("numbers", self.numbers)):
            if missing:
                return f"{what} in neither segment nor profile: {', '.join(missing)}"
        if self.score is not None and self.score < least:
            return f"{self.found} of {self.words} content words are in segment or profile, fewer than {least:.0%}"
        return None

    def to_dict(self) -> dict[str, Any]:
        """As one JSON object."""
        score = None if self.score is None else round(self.score, 3)
        return {"score": score, "names": list(self.names), "numbers": list(self.numbers)}


def grounding_check(character: Character) -> Callable[[str], Callable[[str, str], Grounding]]:
    """A function that makes of a segment's text a function of question and answer.

    Args:
        character: Its description, background, catchphrases and names are evidence, too.

    >>> check = grounding_check(Character("Owl", "en"))("Mouse: I ate three cherries in the barn.")
    >>> check("Owl, what did Mouse eat?", "Three cherries!").reason(0.25)
    >>> check("Owl, what did Mouse eat?", "Five cherries, said Weasel!").names
    ('Weasel',)
    """
    profile = "\n".join(
        filter(
            None,
            (character.description, character.background, *character.catchphrases, *character.names),
        )
    )
    language = character.language

    def of_segment(segment: str) -> Callable[[str, str], Grounding]:
        evidence = f"{segment}\n{profile}"
        known = _known_chinese(evidence) if language == "zh" else _known_english(evidence)
        # 刘洪道 may be 刘洪 and what he did.
        known_name = (lambda name: known(name) or known(name[:2])) if language == "zh" else known
        values = set(numbers_in(evidence, language, loose=True).values())

        def check(question: str, answer: str) -> Grounding:
            words = _content(f"{question}\n{answer}", language)
            names = [name for text in (question, answer) for name in names_in(text, language) if not known_name(name)]
            numbers = [
                said
                for text in (question, answer)
                for said, value in numbers_in(text, language).items()
                if value not in values
            ]
            found = sum(known(word) for word in words)
            return Grounding(len(words), found, tuple(dict.fromkeys(names)), tuple(dict.fromkeys(numbers)))

        return check

    return of_segment


def _known_english(evidence: str) -> Callable[[str], bool]:
    stems = {_stem(word) for word in _words(evidence)}

    def known(word: str) -> bool:
        return all(_stem(part) in stems for part in _words(word))

    return known


def _known_chinese(evidence: str) -> Callable[[str], bool]:
    # Words are cut differently in different surroundings; characters in a row are the same everywhere.
    text = "".join(evidence.casefold().split())
    return lambda word: word.casefold() in text


def _words(text: str) -> list[str]:
    return [part for word in WORD.findall(text) for part in re.split("-", word.casefold().replace("’", "'")) if part]


def _stem(word: str) -> str:
    """A word without its commonest endings: crude, the same for both sides of the comparison."""
    word = word.removesuffix("'s").removesuffix("'")
    for ending, kept in (("ies", "y"), ("ing", ""), ("ed", ""), ("es", ""), ("s", ""), ("ly", ""), ("er", "")):
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            word = word.removesuffix(ending) + kept
            break
    if len(word) > 3 and word[-1] == word[-2]:
        word = word[:-1]
    word = word.removesuffix("e") if len(word) > 3 else word
    return f"{word[:-1]}i" if len(word) > 3 and word.endswith("y") else word


def _content(text: str, language: Language) -> list[str]:
    """The words that carry a text's matter, each once."""
    if language == "zh":
        words: Iterable[str] = (word for word in chinese_words()(text) if len(HAN.findall(word)) >= 2)
    else:
        words = (word for word in _words(text) if len(word) >= 3)
    return [word for word in dict.fromkeys(words) if word not in STOP_WORDS[language]]
