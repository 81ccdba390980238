"""The filters that candidates go through, in order; the first that turns one down says why, and nothing is thrown away.

The paper keeps confident candidates and drops duplicates (arXiv 2310.00746). The checks of form and of words in common,
the order and all thresholds are our choice. Duplicates come last, so that no pair is dropped for the sake of one that
is itself dropped.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any, Final, Literal

from rolellm.characters.reply_rules import RULES, find_breaches, is_machine, speaks_of_itself
from rolellm.characters.scripts.parse import detect_language
from rolellm.core.records import Language, Profile
from rolellm.core.text import fold
from rolellm.making.content_words import measure_overlap
from rolellm.making.duplicates import find_repeats
from rolellm.making.instruct.candidates import LEVELS, Candidate, hash_prompts
from rolellm.making.profile.portrait import collect_names, find_role_name
from rolellm.making.settings import FilterSettings, Level
from rolellm.models.prompts.leaks import make_leak_check

FilterName = Literal["form", "confidence", "overlap", "duplicate"]
FILTERS: Final[tuple[FilterName, ...]] = ("form", "confidence", "overlap", "duplicate")
#: The longest question and answer: words in English, characters in Chinese. The release's longest have 42 and 146
#: words, 75 and 170 characters (our count).
LONGEST: Final[dict[Language, tuple[int, int]]] = {"en": (60, 200), "zh": (120, 300)}
#: From this length on, nearly the same answer to another question is a duplicate: a small model gave one to seven. A
#: short one, such as "Never!", may suit two questions.
LONG_ANSWER: Final[dict[Language, int]] = {"en": 8, "zh": 15}
#: BM25 similarity of questions that makes a near-duplicate; open in the paper.
_SAME_QUESTION: Final = 0.8
#: The same of long answers: no two of the release's 8,308 long first answers are so near within a role.
_SAME_ANSWER: Final = 0.7
#: A clause of this many words, or characters, comes twice where a small model goes round in circles, and in 14 of the
#: release's 19,016 role-specific answers.
_LONG_CLAUSE: Final = 4
#: What follows a name by which somebody is called.
_CALL_ENDS: Final = ",，、?？!！.。:："
_CLAUSE_END: Final = re.compile(r"[,.;:!?，。；：！？、…\n]+")


@dataclass(frozen=True, slots=True)
class Verdict:
    """The filters' decision on a candidate.

    Attributes:
        candidate: The candidate.
        by: The filter that turned it down; ``None`` of one that is kept.
        reason: Why, in words.
        overlap: Share of the pair's content words that its segment or the profile has; ``None`` where it has none.
    """

    candidate: Candidate
    by: FilterName | None = None
    reason: str | None = None
    overlap: float | None = None

    @property
    def kept(self) -> bool:
        """True if it passed all filters."""
        return self.by is None

    def to_dict(self, language: Language) -> dict[str, Any]:
        """Return a line of ``kept.jsonl`` or ``dropped.jsonl``."""
        pair = self.candidate
        decision = {
            "verdict": "kept" if self.kept else "dropped",
            "by": self.by,
            "reason": self.reason,
            "overlap": self.overlap,
        }
        receipt = {**pair.receipt, "templates": hash_prompts(language), "filter": decision}
        return {
            "id": pair.id,
            "question": pair.question,
            "answer": pair.answer,
            "type": pair.type,
            "completeness": asdict(pair.completeness),
            "factualness": asdict(pair.factualness),
            "confidence": pair.confidence(language),
            "receipt": receipt,
        }


def filter_candidates(candidates: Sequence[Candidate], character: Profile, settings: FilterSettings) -> list[Verdict]:
    """Put candidates through the filters.

    Args:
        candidates: In the order in which they were made.
        character: Whose they are.
        settings: The thresholds.

    Returns:
        A verdict each, in the same order. Of near-duplicates the surest is kept, of equally sure ones the first.

    Raises:
        MissingExtraError: For BM25 without ``bm25s``.
    """
    judge = _CandidateJudge(character, settings)
    verdicts = [judge.decide(candidate) for candidate in candidates]
    language = character.language
    _drop_duplicates(verdicts, "question", language, _SAME_QUESTION, least=0)
    _drop_duplicates(verdicts, "answer", language, _SAME_ANSWER, least=LONG_ANSWER[language])
    return verdicts


def _drop_duplicates(verdicts: list[Verdict], part: str, language: Language, similarity: float, *, least: int) -> None:
    """Turn down pairs whose question (or answer) of some length says what that of a surer pair says."""
    texts: dict[int, str] = {}
    for index, verdict in enumerate(verdicts):
        text = getattr(verdict.candidate, part)
        if verdict.kept and _measure_length(text, language) >= least:
            texts[index] = text
    ranked = sorted(texts, key=lambda index: -_score_confidence(verdicts[index].candidate))
    repeats = find_repeats([texts[index] for index in ranked], language, similarity)
    for repeat, (first, value) in repeats.items():
        original = ranked[first]
        index = ranked[repeat]
        name = verdicts[original].candidate.id
        reason = f'the same {part} as {name} ("{texts[original]}"): similarity {value:.2f}'
        verdicts[index] = replace(verdicts[index], by="duplicate", reason=reason)


class _CandidateJudge:
    """Judges a candidate by itself, without the others."""

    def __init__(self, character: Profile, settings: FilterSettings) -> None:
        self._settings = settings
        self._language = character.language
        self._catchphrases = character.catchphrases
        self._names = collect_names(character)
        description = character.full_description or character.background or ""
        self._is_machine = is_machine(description, character.language)
        self._profile = "\n".join((description, *character.catchphrases, *character.names))
        self._find_leak = lru_cache(maxsize=64)(make_leak_check)

    def decide(self, pair: Candidate) -> Verdict:
        """Return the verdict, with the first fault."""
        language = self._language
        problem = pair.problem or find_form_problem(pair.question, pair.answer, language)
        if problem:
            return Verdict(pair, "form", problem)
        evidence = f"{self._profile}\n{pair.segment.text}"
        leak = self._find_leak(language, evidence)(f"{pair.question}\n{pair.answer}")
        if leak:
            return Verdict(pair, "form", f'repeats our instructions or examples ("{leak}")')
        part = find_breaches(pair.question, language).get("hides_role")
        if part:
            return Verdict(pair, "form", f'the question speaks of a script or of a part ("{part}")')
        breaches = find_breaches(pair.answer, language, machine=self._is_machine, own=self._catchphrases)
        for rule, words in breaches.items():
            return Verdict(pair, "form", f'the answer {RULES[rule]} ("{words}")')
        name = find_role_name(self._names, pair.answer) or _find_mention(self._names, pair.question)
        if name and not speaks_of_itself(pair.answer, language):
            return Verdict(pair, "form", f'the answer is told about the role ("{name}")')
        known, words_of_pair = measure_overlap(f"{pair.question}\n{pair.answer}", evidence, language)
        overlap = round(known / words_of_pair, 3) if words_of_pair else None
        doubt = _find_doubt(pair, self._settings.min_confidence)
        if doubt:
            return Verdict(pair, "confidence", doubt, overlap)
        # A profile has the matter of few answers.
        least = self._settings.min_overlap
        if pair.type == "script_based" and overlap is not None and overlap < least:
            reason = f"{known} of {words_of_pair} content words are in segment or profile, fewer than {least:.0%}"
            return Verdict(pair, "overlap", reason, overlap)
        return Verdict(pair, overlap=overlap)


def _find_mention(names: re.Pattern[str], question: str) -> str | None:
    """Find a name by which a question speaks of the role instead of calling it."""
    for name in names.finditer(question):
        following = question[name.end() : name.end() + 1]
        if name.start() > 0 and following not in _CALL_ENDS:
            return name[0]
    return None


def find_form_problem(question: str, answer: str, language: Language) -> str | None:
    """Explain why two texts do not make a pair; ``None`` if they do.

    >>> find_form_problem("Owl, who are you?", "Owl, who are you?", "en")
    'the answer repeats the question'
    """
    texts = {"question": question, "answer": answer}
    for (name, text), longest in zip(texts.items(), LONGEST[language], strict=True):
        length = _measure_length(text, language)
        if length > longest:
            unit = "characters" if language == "zh" else "words"
            return f"the {name} has {length} {unit}, more than {longest}"
        if not any(map(str.isalpha, text)):
            return f"the {name} has no words"
        if detect_language(text) != language:
            return f"the {name} is not in {'Chinese' if language == 'zh' else 'English'}"
    if fold(question) == fold(answer):
        return "the answer repeats the question"
    # No pair of the release does so; a small model hands a question back with "I" in the place of "you".
    known, words_of_answer = measure_overlap(answer, question, language)
    is_long = _measure_length(answer, language) >= LONG_ANSWER[language]
    if is_long and 0 < words_of_answer == known:
        return "the answer says only what the question says"
    seen: set[str] = set()
    for clause in map(str.strip, _CLAUSE_END.split(answer)):
        if clause in seen:
            return f'the answer says "{clause}" twice'
        if _measure_length(clause, language) >= _LONG_CLAUSE:
            seen.add(clause)
    return None


def _measure_length(text: str, language: Language) -> int:
    """Count words, or the characters of a Chinese text."""
    if language == "zh":
        return len(text)
    return len(text.split())


def _find_doubt(pair: Candidate, least: Level) -> str | None:
    ratings = {"completeness": pair.completeness, "factualness": pair.factualness}
    for aspect, rating in ratings.items():
        if rating.level is None:
            said = f' ("{rating.said[:40]}")' if rating.said else ""
            return f"no level of {aspect} could be read{said}"
        if LEVELS.index(rating.level) < LEVELS.index(least):
            reason = f": {rating.reason}" if rating.reason else ""
            return f"{aspect} is {rating.level}, below {least}{reason}"
    return None


def _score_confidence(pair: Candidate) -> int:
    levels = (pair.completeness.level, pair.factualness.level)
    return sum(LEVELS.index(level) + 1 for level in levels if level is not None)
