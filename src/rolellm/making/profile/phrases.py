"""Phrases that a role may be known by: said often, and more often by it than by everybody else in its script.

Phrases are whole sentences and their clauses, counted once a line. What ranks them is the log-odds ratio with an
informative Dirichlet prior of Monroe, Colaresi and Quinn, "Fightin' Words" (Political Analysis 16(4), 2008,
equations 15, 18, 20 and 22), divided by its standard deviation. With y and o the lines of the role and of others that
have the phrase, n and m how many phrases their lines have, and as prior the script as a whole (a = y + o, A = n + m)::

    delta = log((y + a) / (n + A - y - a)) - log((o + a) / (m + A - o - a))
    score = delta / sqrt(1 / (y + a) + 1 / (o + a))
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from rolellm.core.records import Language, Profile
from rolellm.core.settings import load_words

_ASIDE: Final = re.compile(r"\([^()]{0,200}\)|\[[^\[\]]{0,200}\]|（[^（）]{0,200}）|【[^【】]{0,200}】")
# A full stop after a title or an initial ends nothing.
_ABBREVIATED: Final = "".join(
    rf"(?<!\b{word})" for word in ("Mr", "Mrs", "Ms", "Dr", "St", "Jr", "Sr", "Capt", "[A-Z]")
)
_SENTENCE: Final = re.compile(
    rf"(?:[^!?。！？…;；:：\n\"“”‘「」『』()（）\[\]【】{{}}<>《》—–*_.]|-(?!-)|\.(?![\s'’.]|$)|(?!{_ABBREVIATED})\.)+[!?！？]?"
)
_CLAUSE: Final = re.compile(r"[,，、]")
_WORD: Final = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*")
#: How many phrases a model is shown to choose from.
OFFERED: Final = 40
_LONGEST: Final = {"en": 8, "zh": 16}
_SHORTEST: Final = {"en": 2, "zh": 3}
_REPEATED: Final = 2
_FUNCTION_WORDS: Final = load_words("function_en")

Words = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Phrase:
    """A phrase of a role's.

    Attributes:
        text: As the script mostly has it.
        lines: How many of the role's lines have it.
        others: How many lines of others have it.
        score: See the module.
    """

    text: str
    lines: int
    others: int
    score: float


def find_repeated_phrases(character: Profile) -> list[Phrase]:
    """Find the phrases that two or more of the role's lines have, the best first; none twice within a longer one.

    Nor are speakers' names phrases.
    """
    language = character.language
    own_counts: Counter[Words] = Counter()
    other_counts: Counter[Words] = Counter()
    spellings: dict[Words, Counter[str]] = {}
    names: set[str] = set()
    for turn in character.turns:
        names.update(_list_words(turn.speaker, language))
        if turn.kind != "speech":
            continue
        texts = {_list_words(text, language): text for text in split_phrases(turn.content)}
        counts = other_counts
        if character.owns(turn):
            counts = own_counts
            for words, text in texts.items():
                spellings.setdefault(words, Counter())[text] += 1
        counts.update(texts.keys())
    phrases: list[Phrase] = []
    repeated = [words for words, count in own_counts.items() if count >= _REPEATED]
    candidates: list[Words] = []
    for words in repeated:
        ((text, _),) = spellings[words].most_common(1)
        if _is_phrase(words, text, language) and not names.issuperset(words):
            candidates.append(words)
    for words in _drop_parts(candidates, own_counts):
        own_count = own_counts[words]
        other_count = other_counts[words]
        score = _log_odds(own_count, other_count, own_counts.total(), other_counts.total())
        # Where others say nothing there is nothing to compare with, and the score is 0.
        if score > 0 or not other_count:
            ((text, _),) = spellings[words].most_common(1)
            phrases.append(Phrase(text, own_count, other_count, score))
    phrases.sort(key=lambda phrase: (-phrase.score, -phrase.lines, phrase.text))
    return phrases[:OFFERED]


def split_phrases(line: str) -> Iterator[str]:
    """Split a line into its sentences, their clauses, and the ends of these; directions in brackets are left out."""
    for match in _SENTENCE.finditer(_ASIDE.sub("\n", line)):
        sentence = " ".join(match[0].split()).strip(" ,，、'’")
        for text in (sentence, *_CLAUSE.split(sentence)):
            words = text.split()
            # A longer end is no phrase.
            first = max(len(words) - _LONGEST["en"], 0)
            for start in range(first, max(len(words) - 1, 1)):
                yield " ".join(words[start:])


def _list_words(text: str, language: Language) -> Words:
    """List the words of a text, in lower case; in Chinese, its characters."""
    folded = unicodedata.normalize("NFKC", text).replace("’", "'").lower()
    words = _WORD.findall(folded)
    if language == "zh":
        return tuple("".join(words))
    return tuple(words)


def _is_phrase(words: Words, text: str, language: Language) -> bool:
    if len(words) > _LONGEST[language] or all(map(str.isdigit, words)):
        return False
    if language == "en" and _FUNCTION_WORDS.issuperset(words):
        return False
    # One word is a phrase where it is cried: "Bazinga!"
    is_cried = len(words) > 0 and text[-1] in "!！"
    return is_cried or len(words) >= _SHORTEST[language]


def _drop_parts(candidates: Iterable[Words], counts: Counter[Words]) -> list[Words]:
    """Drop the phrases that are mostly said within a longer one."""
    kept: list[Words] = []
    for words in sorted(candidates, key=len, reverse=True):
        longer = [phrase for phrase in kept if _has_part(phrase, words)]
        if all(2 * counts[phrase] <= counts[words] for phrase in longer):
            kept.append(words)
    return kept


def _has_part(phrase: Words, words: Words) -> bool:
    size = len(words)
    starts = range(len(phrase) - size + 1)
    return any(phrase[start : start + size] == words for start in starts)


def _log_odds(own_count: int, other_count: int, all_own: int, all_others: int) -> float:
    prior = own_count + other_count
    total = all_own + all_others
    own_weight = own_count + prior
    other_weight = other_count + prior
    own_odds = own_weight / max(all_own + total - own_weight, 1)
    other_odds = other_weight / max(all_others + total - other_weight, 1)
    deviation = math.sqrt(1 / own_weight + 1 / other_weight)
    return (math.log(own_odds) - math.log(other_odds)) / deviation
