"""The filters that candidates go through, in order; the first that turns one down says why, and nothing is thrown away.

The paper keeps confident candidates and drops duplicates (arXiv 2310.00746). The other filters, the order and all
thresholds are our choice. Duplicates come last, so that no pair is dropped for the sake of one that is itself dropped.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cache, lru_cache, partial
from typing import Any, Final, Literal

from rolellm.characters.reply_rules import RULES, find_breaches, is_machine, speaks_of_itself
from rolellm.characters.scripts.parse import detect_language
from rolellm.core.records import Language, Profile
from rolellm.core.settings import read_packaged_patterns
from rolellm.core.text import fold
from rolellm.making.duplicates import find_repeats
from rolellm.making.instruct.candidates import LEVELS, Candidate
from rolellm.making.instruct.grounding import Grounding, make_grounding_check
from rolellm.making.instruct.prompts import hash_prompts
from rolellm.making.instruct.segments import Segment
from rolellm.making.profile.portrait import collect_names, list_titles
from rolellm.making.settings import FilterSettings, Level
from rolellm.models.prompts.leaks import MOST_COPIED, make_leak_check, make_share_check


def find_source_reference(question: str, answer: str, language: Language) -> str | None:
    """Explain why a pair does not stand by itself; ``None`` for one that does.

    >>> find_source_reference("Owl, what does the passage say of mice?", "They are small.", "en")
    'the question refers to its source ("the passage")'
    """
    for part, text in (("question", question), ("answer", answer)):
        if match := _load_pattern(language, "source").search(text):
            return f'the {part} refers to its source ("{match.group().strip()}")'
    if match := _load_pattern(language, "unknown").search(answer):
        return f'the answer is that there is none ("{match.group().strip()}")'
    if _load_pattern(language, "nothing").fullmatch(answer.strip()):
        return "the answer says nothing"
    return None


@cache
def _load_pattern(language: Language, name: str) -> re.Pattern[str]:
    return re.compile(read_packaged_patterns("rolellm.making.instruct", "filters.yaml", language)[name])


def make_character_check(character: Profile) -> Callable[[str], str | None]:
    """Return a function that explains why an answer is not the role's own; ``None`` for one that is.

    An answer is told *about* the role when it has the role's name, or "the" and a title in it, before a word such as
    "is" or "said" or as the subject of a sentence, or opens with "you", as who gives the asker the role's deeds ("You
    learned to read"), and no word by which speakers mean themselves. None of the release's 11,530 role-specific
    answers opens so without one. A role that speaks of itself by name passes once it says "I" as well.

    Args:
        character: Its names, aliases and catchphrases count, and whether it is a machine.
    """
    language = character.language
    machine = is_machine(character.full_description or character.background, language)
    titled = "".join(rf"|\b[Tt]he {re.escape(title)}" for title in list_titles(character))
    role = f"(?:{character.name_pattern}{titled})"
    told, subject = (_load_pattern(language, name).pattern for name in ("told", "subject"))
    asker = _load_pattern(language, "asker").pattern
    narration = re.compile(f"{role}{told}|{subject.format(role=role)}|{asker}")
    script = re.compile(rf"\s*[*\[（(]*{character.name_pattern}[*\]）)]*\s*[:：]")

    def check_answer(answer: str) -> str | None:
        for rule, words in find_breaches(answer, language, machine=machine, own=character.catchphrases).items():
            return f'{RULES[rule]} ("{words}")'
        if script.match(answer):
            return "opens with the role's name and a colon, as a script does"
        match = narration.search(answer)
        if match and not speaks_of_itself(answer, language):
            return f'tells about the role ("{match.group()}")'
        return None

    return check_answer


def make_address_check(character: Profile) -> Callable[[str], str | None]:
    """Return a function that explains why a question does not address the role ("Owl, what does he eat?"), or ``None``.

    That is one that says no "you", and has the role's name where nobody is called by it ("Why did Owl leave?"), or
    calls the role and speaks of it again by name or as "he" or "she". None of the release's 4,750 English and 1,535
    Chinese role-specific questions has the name so.
    """
    language = character.language
    name = collect_names(character).pattern
    others = _load_pattern(language, "others").pattern
    again = re.compile(f"(?:{name}).*?({character.name_pattern}|{others})", re.IGNORECASE | re.DOTALL)
    address = re.compile(rf"(?:^|[,，]\s*)(?:\w+\.?\s+)?(?:{name})(?:\s+\w+)?\s*(?:[,，:：?？!！.。]|$)", re.IGNORECASE)
    anywhere = re.compile(f"({name})", re.IGNORECASE)

    def check_question(question: str) -> str | None:
        question = question.strip()
        if _load_pattern(language, "addressed").search(question):
            return None
        match = again.match(question) or (None if address.search(question) else anywhere.search(question))
        return f'asks about the role as about somebody else ("{match.group(1)}")' if match else None

    return check_question


FilterName = Literal["form", "leak", "confidence", "standalone", "character", "grounding", "duplicate"]
FILTERS: Final[tuple[FilterName, ...]] = (
    *("form", "leak", "confidence", "standalone", "character", "grounding", "duplicate"),
)
#: The longest question and answer: words in English, characters in Chinese. The release's longest have 42 and 146
#: words, 75 and 170 characters (our count).
LONGEST: Final[dict[Language, tuple[int, int]]] = {"en": (60, 200), "zh": (120, 300)}
#: From this length on, nearly the same answer to another question is a duplicate: a small model gave one to seven. A
#: short one, such as "Never!", may suit two questions.
LONG_ANSWER: Final[dict[Language, int]] = {"en": 8, "zh": 15}
#: Similarity from which on it is: no two of the release's 8,308 long first answers are so near within a role.
_SAME_ANSWER: Final = 0.7
#: A clause of this many words, or characters, comes twice where a small model goes round in circles, and in 14 of the
#: release's 19,016 role-specific answers.
_LONG_CLAUSE: Final = 4
_CLAUSE_END: Final = re.compile(r"[,.;:!?，。；：！？、…\n]+")


@dataclass(frozen=True, slots=True)
class Verdict:
    """The filters' decision on a candidate.

    Attributes:
        candidate: The candidate.
        by: The filter that turned it down; ``None`` of one that is kept.
        reason: Why, in words.
        grounding: What of a pair was found in the script and the profile; ``None`` where that is not checked.
    """

    candidate: Candidate
    by: FilterName | None = None
    reason: str | None = None
    grounding: Grounding | None = None

    @property
    def kept(self) -> bool:
        """True if it passed all filters."""
        return self.by is None

    def to_dict(self, language: Language) -> dict[str, Any]:
        """Return a line of ``kept.jsonl`` or ``dropped.jsonl``."""
        pair = self.candidate
        receipt = {**pair.receipt, "templates": hash_prompts(language)}
        receipt["filter"] = {
            "verdict": "kept" if self.kept else "dropped",
            "by": self.by,
            "reason": self.reason,
        }
        if self.grounding is not None:
            receipt["grounding"] = self.grounding.to_dict()
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
        settings: Which filters.

    Returns:
        A verdict each, in the same order. Of near-duplicates the surest is kept, of equally sure ones the first.

    Raises:
        MissingExtraError: For BM25 without ``bm25s``.
    """
    judge_candidate = _make_candidate_judge(character, settings)
    verdicts = [judge_candidate(candidate) for candidate in candidates]
    if settings.no_duplicates:
        return verdicts
    language = character.language
    looks = (
        ("question", "asks", 0, settings.similarity),
        ("answer", "says", LONG_ANSWER[language], _SAME_ANSWER),
    )
    for part, says, least, similarity in looks:
        texts = {
            index: text
            for index, verdict in enumerate(verdicts)
            if verdict.kept and _measure_length(text := getattr(candidates[index], part), language) >= least
        }
        ranked = sorted(texts, key=lambda index: -_score_confidence(candidates[index]))
        alike = find_repeats([texts[index] for index in ranked], language, similarity)
        for repeat, (first, value) in alike.items():
            index, original = ranked[repeat], ranked[first]
            reason = f'{says} what {candidates[original].id} {says} ("{texts[original]}"): similarity {value:.2f}'
            verdicts[index] = Verdict(candidates[index], "duplicate", reason, verdicts[index].grounding)
    return verdicts


def _make_candidate_judge(character: Profile, settings: FilterSettings) -> Callable[[Candidate], Verdict]:
    """Return a function that judges a candidate by itself, without the others."""
    language = character.language
    check_question, check_answer = make_address_check(character), make_character_check(character)
    grounding_in = make_grounding_check(character)
    profile_text = f"{character.full_description}\n{character.background}"
    leak, copied_share = lru_cache(maxsize=64)(partial(make_leak_check, language)), make_share_check(profile_text)
    script = "\n".join(f"{turn.speaker}: {turn.content}" for turn in character.turns)

    @lru_cache(maxsize=64)
    def get_grounding_check(segment: Segment) -> Callable[[str, str], Grounding]:
        return grounding_in(segment.text if segment.type == "script_based" else f"{segment.text}\n{script}")

    def find_fault(pair: Candidate, grounding: Grounding | None) -> tuple[FilterName, str] | None:
        evidence = f"{profile_text}\n{pair.segment.text}"
        if copied := leak(evidence)(f"{pair.question}\n{pair.answer}"):
            return "leak", f'repeats our instructions or examples ("{copied}")'
        if not settings.no_confidence and (reason := _find_doubt(pair, settings.min_confidence)):
            return "confidence", reason
        if not settings.no_standalone and (reason := find_source_reference(pair.question, pair.answer, language)):
            return "standalone", reason
        if not settings.no_character:
            if reason := check_question(pair.question) or check_answer(pair.answer):
                return "character", reason
            if copied_share(pair.answer) > MOST_COPIED and not speaks_of_itself(pair.answer, language):
                return "character", "repeats the description instead of speaking as the role"
        # A profile has the matter of few answers, but no other names and numbers than they may have.
        least = settings.min_grounding if pair.type == "script_based" else 0.0
        ungrounded = grounding.reason(least) if grounding else None
        return ("grounding", ungrounded) if ungrounded else None

    def judge_candidate(pair: Candidate) -> Verdict:
        if reason := pair.problem or find_form_problem(pair.question, pair.answer, language):
            return Verdict(pair, "form", reason)
        grounding = None if settings.no_grounding else get_grounding_check(pair.segment)(pair.question, pair.answer)
        by, why = find_fault(pair, grounding) or (None, None)
        return Verdict(pair, by, why, grounding)

    return judge_candidate


def find_form_problem(question: str, answer: str, language: Language) -> str | None:
    """Explain why two texts do not make a pair; ``None`` if they do.

    >>> find_form_problem("Owl, who are you?", "Owl, who are you?", "en")
    'the answer repeats the question'
    """
    for name, text, longest in zip(("question", "answer"), (question, answer), LONGEST[language], strict=True):
        if (length := _measure_length(text, language)) > longest:
            unit = "characters" if language == "zh" else "words"
            return f"the {name} has {length} {unit}, more than {longest}"
        if any(unicodedata.category(sign) in ("Cc", "Cf", "Co", "Cs") and sign not in _JOINERS for sign in text):
            return f"the {name} has control characters in it"
        if not any(map(str.isalpha, text)):
            return f"the {name} has no words"
        if detect_language(text) != language:
            return f"the {name} is not in {'Chinese' if language == 'zh' else 'English'}"
    if fold(question) == fold(answer):
        return "the answer repeats the question"
    parts = map(str.strip, _CLAUSE_END.split(answer))
    clauses = [part for part in parts if _measure_length(part, language) >= _LONG_CLAUSE]
    twice = next((clause for index, clause in enumerate(clauses) if clause in clauses[:index]), None)
    return f'the answer says "{twice}" twice' if twice else None


def _measure_length(text: str, language: Language) -> int:
    """Count words, or the characters of a Chinese text."""
    return len(text) if language == "zh" else len(text.split())


#: Zero-width joiners, of which emoji are made, and the soft hyphen.
_JOINERS: Final = "\u200c\u200d\u00ad"


def _find_doubt(pair: Candidate, least: Level) -> str | None:
    for aspect, rating in (("completeness", pair.completeness), ("factualness", pair.factualness)):
        if rating.level is None:
            return f"no level of {aspect} could be read" + (f' ("{rating.said[:40]}")' if rating.said else "")
        if LEVELS.index(rating.level) < LEVELS.index(least):
            return f"{aspect} is {rating.level}, below {least}" + (f": {rating.reason}" if rating.reason else "")
    return None


def _score_confidence(pair: Candidate) -> int:
    levels = (pair.completeness.level, pair.factualness.level)
    return sum(LEVELS.index(level) + 1 for level in levels if level is not None)
