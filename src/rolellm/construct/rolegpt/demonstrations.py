"""What a prompt shows of a role's script and world: exchanges by BM25, and lore by its keys and BM25.

In the paper (arXiv 2310.00746) demonstrations are the top 5 dialogue pairs by BM25, with the instruction as the query.
What counts as a pair is told in `rolellm.prompts.retrieval`; lore, and the order among it, is our choice.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rolellm.construct.character import Character, Lore
from rolellm.prompts.retrieval import Exchange, exchanges
from rolellm.records import Language
from rolellm.retrieval import TextIndex


@dataclass(frozen=True, slots=True)
class Demonstration:
    """An exchange picked for a question.

    Attributes:
        exchange: What came before, and what the role said to it.
        place: Among the role's exchanges, in the order of the script, from 0.
        score: BM25; 0 where no word is shared.
        shared: The words that it shares with the question, in the question's order.
    """

    exchange: Exchange
    place: int
    score: float
    shared: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Note:
    """A piece of lore picked for a question.

    Attributes:
        lore: The entry.
        place: Among the character's lore, from 0.
        by: ``key`` where one of its keys stands in the question, else ``words``.
        score: BM25.
        shared: The keys found, or the words shared.
    """

    lore: Lore
    place: int
    by: Literal["key", "words"]
    score: float
    shared: tuple[str, ...]


class Shelf:
    """A character's exchanges and lore, indexed.

    Args:
        character: Whose script and lore.

    Raises:
        MissingExtraError: Without ``bm25s``, which the extra ``llm`` brings.
    """

    def __init__(self, character: Character) -> None:
        self.exchanges: Sequence[Exchange] = exchanges(character.profile())
        self.lore = character.lore
        self._language: Language = character.language
        self._spoken = TextIndex([item.text for item in self.exchanges], character.language, extra="llm")
        told = [f"{item.name}\n{' '.join(item.keys)}\n{item.content}" for item in self.lore]
        self._told = TextIndex(told, character.language, extra="llm")

    def demonstrations(self, question: str, count: int) -> list[Demonstration]:
        """The best exchanges for a question, best first; those that share no word with it come last, as in the script.

        Args:
            question: The query.
            count: How many; fewer only where the role has fewer.
        """
        scores = self._spoken.scores(question)
        return [
            Demonstration(
                self.exchanges[place],
                place,
                float(scores[place]),
                _shared(self._spoken, question, self.exchanges[place].text),
            )
            for place in self._spoken.top(question, count)
        ]

    def notes(self, question: str, count: int) -> list[Note]:
        """The lore that a question calls up, best first: by a key in it, then by words; none that has neither.

        Args:
            question: The query.
            count: The most.
        """
        if not self.lore or count <= 0:
            return []
        scores = self._told.scores(question)
        found: list[Note] = []
        for place, lore in enumerate(self.lore):
            keys = tuple(key for key in lore.keys if stands_in(key, question, self._language))
            score = float(scores[place])
            if keys:
                found.append(Note(lore, place, "key", score, keys))
            elif score > 0:
                found.append(Note(lore, place, "words", score, _shared(self._told, question, lore.content)))
        found.sort(key=lambda note: (note.by != "key", -note.score, note.place))
        return found[:count]


def stands_in(key: str, text: str, language: Language) -> bool:
    """Whether a key stands in a text, case folded; in English as a whole word, for "art" is not in "start".

    >>> stands_in("art", "Where do we start?", "en"), stands_in("Crow", "O crow!", "en")
    (False, True)
    """
    wanted = " ".join(key.split()).casefold()
    if not wanted:
        return False
    folded = " ".join(text.split()).casefold()
    if language == "zh":
        return wanted in folded
    return re.search(rf"(?<!\w){re.escape(wanted)}(?!\w)", folded) is not None


def _shared(index: TextIndex, question: str, text: str) -> tuple[str, ...]:
    there = set(index.words(text))
    return tuple(dict.fromkeys(word for word in index.words(question) if word in there))
