"""The filters that candidates go through, in order; the first that turns one down says why, and nothing is thrown away.

The paper keeps confident candidates and drops duplicates (arXiv 2310.00746). The other filters, the order and all
thresholds are our choice. Duplicates come last, so that no pair is dropped for the sake of one that is itself dropped.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, Final, Literal

from rolellm.construct.character import Character
from rolellm.construct.context_instruct.candidates import LEVELS, Candidate, Level
from rolellm.construct.context_instruct.grounding import LEAST_FOUND, Grounding, grounding_check
from rolellm.construct.context_instruct.prompts import prompts_hash
from rolellm.construct.context_instruct.standalone import leans_on_segment
from rolellm.construct.context_instruct.voice import out_of_character
from rolellm.construct.duplicates import SIMILARITY, Method, repeats
from rolellm.errors import RecipeError
from rolellm.records import Language
from rolellm.text import HAN, fold

FilterName = Literal["form", "confidence", "standalone", "character", "grounding", "duplicate"]
FILTERS: Final[tuple[FilterName, ...]] = ("form", "confidence", "standalone", "character", "grounding", "duplicate")
#: The longest question and answer: words in English, characters in Chinese. The release's longest have 42 and 146
#: words, 75 and 170 characters (our count).
LONGEST: Final[dict[Language, tuple[int, int]]] = {"en": (60, 200), "zh": (120, 300)}


@dataclass(frozen=True, slots=True)
class FilterSettings:
    """Which filters there are, and how strict.

    Attributes:
        min_confidence: The lowest level that both ratings may have; ``None`` for no such filter.
        standalone: Drop pairs that speak of their source, or whose answer is that there is none.
        character: Drop answers out of character.
        grounding: The least share of content words found, of script-based pairs; ``None`` for no such filter.
        duplicates: How near-duplicates are told; ``None`` for no such filter.
        similarity: From which on; by default that of the method.

    Raises:
        RecipeError: For a value out of range.
    """

    min_confidence: Level | None = "medium"
    standalone: bool = True
    character: bool = True
    grounding: float | None = LEAST_FOUND
    duplicates: Method | None = "bm25"
    similarity: float | None = None

    def __post_init__(self) -> None:
        if self.min_confidence not in (None, *LEVELS):
            raise RecipeError(f"min_confidence is {self.min_confidence!r}; it has to be one of {', '.join(LEVELS)}")
        if self.duplicates not in (None, *SIMILARITY):
            raise RecipeError(f"duplicates is {self.duplicates!r}; it has to be one of {', '.join(SIMILARITY)}")
        for name in ("grounding", "similarity"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= 1:
                raise RecipeError(f"{name} is {value}; it has to be from 0 to 1")

    def to_dict(self) -> dict[str, Any]:
        """As one JSON object, with the similarity in use."""
        used = SIMILARITY[self.duplicates] if self.duplicates and self.similarity is None else self.similarity
        return {**asdict(self), "similarity": used}


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the filters made of a candidate.

    Attributes:
        candidate: The candidate.
        by: The filter that turned it down; ``None`` of one that is kept.
        reason: Why, in words.
        grounding: Of script-based pairs that got so far, what was found of them.
    """

    candidate: Candidate
    by: FilterName | None = None
    reason: str | None = None
    grounding: Grounding | None = None

    @property
    def kept(self) -> bool:
        """Whether it passed all filters."""
        return self.by is None

    def to_dict(self, language: Language) -> dict[str, Any]:
        """As a line of ``kept.jsonl`` or ``dropped.jsonl``."""
        pair = self.candidate
        receipt = {**pair.origin.to_dict(), "templates": prompts_hash(language)}
        receipt["filter"] = {"verdict": "kept" if self.kept else "dropped", "by": self.by, "reason": self.reason}
        if self.grounding is not None:
            receipt["grounding"] = self.grounding.to_dict()
        return {
            "id": pair.id,
            "question": pair.question,
            "answer": pair.answer,
            "type": pair.type,
            "completeness": pair.completeness.to_dict(),
            "factualness": pair.factualness.to_dict(),
            "confidence": pair.confidence(language),
            "receipt": receipt,
        }


def judge(candidates: Sequence[Candidate], character: Character, settings: FilterSettings) -> list[Verdict]:
    """Put candidates through the filters.

    Args:
        candidates: In the order in which they were made.
        character: Whose they are.
        settings: Which filters.

    Returns:
        A verdict each, in the same order. Of near-duplicates the surest is kept, of equally sure ones the first.

    Raises:
        MissingExtraError: For BM25 without ``bm25s``.
    """
    alone = _alone(character, settings)
    verdicts = [alone(candidate) for candidate in candidates]
    if settings.duplicates is None:
        return verdicts
    rest = [place for place, verdict in enumerate(verdicts) if verdict.kept]
    rest.sort(key=lambda place: -_sureness(candidates[place]))
    questions = [candidates[place].question for place in rest]
    found = repeats(questions, character.language, settings.duplicates, settings.similarity)
    for repeat, (first, value) in found.items():
        place, other = rest[repeat], candidates[rest[first]]
        verdict = verdicts[place]
        reason = f'asks what {other.id} asks ("{other.question}"): similarity {value:.2f}'
        verdicts[place] = Verdict(verdict.candidate, "duplicate", reason, verdict.grounding)
    return verdicts


def _alone(character: Character, settings: FilterSettings) -> Callable[[Candidate], Verdict]:
    """What a candidate is by itself, without the others."""
    language = character.language
    voice = out_of_character(character)
    check = lru_cache(maxsize=64)(grounding_check(character))

    def verdict(pair: Candidate) -> Verdict:
        if reason := pair.problem or ill_formed(pair.question, pair.answer, language):
            return Verdict(pair, "form", reason)
        if reason := _unsure(pair, settings.min_confidence):
            return Verdict(pair, "confidence", reason)
        if settings.standalone and (reason := leans_on_segment(pair.question, pair.answer, language)):
            return Verdict(pair, "standalone", reason)
        if settings.character and (reason := voice(pair.answer)):
            return Verdict(pair, "character", reason)
        if settings.grounding is None or pair.type != "script_based":
            return Verdict(pair)
        grounding = check(pair.origin.segment.text)(pair.question, pair.answer)
        reason = grounding.reason(settings.grounding)
        return Verdict(pair, "grounding" if reason else None, reason, grounding)

    return verdict


def ill_formed(question: str, answer: str, language: Language) -> str | None:
    """Why two texts make no pair; ``None`` where they do.

    >>> ill_formed("Owl, who are you?", "Owl, who are you?", "en")
    'the answer repeats the question'
    """
    for what, text, longest in zip(("question", "answer"), (question, answer), LONGEST[language], strict=True):
        length, unit = (len(text), "characters") if language == "zh" else (len(text.split()), "words")
        if length > longest:
            return f"the {what} has {length} {unit}, more than {longest}"
        if any(unicodedata.category(sign) in ("Cc", "Cf", "Co", "Cs") and sign not in _JOINERS for sign in text):
            return f"the {what} has control characters in it"
        letters = [sign for sign in text if sign.isalpha()]
        if not letters:
            return f"the {what} has no words"
        han = len(HAN.findall("".join(letters))) / len(letters)
        if (han < 0.5) if language == "zh" else (han > 0.2):
            return f"the {what} is not in {'Chinese' if language == 'zh' else 'English'}"
    return "the answer repeats the question" if fold(question) == fold(answer) else None


#: Zero-width joiners, of which emoji are made, and the soft hyphen.
_JOINERS: Final = "\u200c\u200d\u00ad"


def _unsure(pair: Candidate, least: Level | None) -> str | None:
    if least is None:
        return None
    for what, rating in (("completeness", pair.completeness), ("factualness", pair.factualness)):
        if rating.level is None:
            return f"no level of {what} could be read" + (f' ("{rating.said[:40]}")' if rating.said else "")
        if LEVELS.index(rating.level) < LEVELS.index(least):
            return f"{what} is {rating.level}, below {least}" + (f": {rating.reason}" if rating.reason else "")
    return None


def _sureness(pair: Candidate) -> int:
    levels = (pair.completeness.level, pair.factualness.level)
    return sum(LEVELS.index(level) + 1 for level in levels if level is not None)
