"""Candidates: a question, its answer and the model's confidence, read out of a reply, with where each comes from.

The paper's triplet is question, confidence with rationale, answer (arXiv 2310.00746). Its confidence is textual; the
release's ``metrics`` opens with a completeness rating. Factualness as the second rating, three levels, and rating after
the answer is written are our choice.
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from rolellm.core.records import Language
from rolellm.core.text import fold, replace_surrogates
from rolellm.llm.json_reply import make_object_schema, parse_items, parse_json
from rolellm.llm.model import Reply, Request, Schema, UnacceptableError
from rolellm.making.instruct.segments import QuestionType, Segment
from rolellm.making.settings import Level

LEVELS: Final[tuple[Level, ...]] = ("low", "medium", "high")
#: The levels as prompts name them.
WORDS: Final[Mapping[Language, Mapping[Level, str]]] = {
    "en": {"high": "high", "medium": "medium", "low": "low"},
    "zh": {"high": "高", "medium": "中", "low": "低"},
}
_LABELS: Final[Mapping[Language, tuple[str, str, str]]] = {
    "en": ("Completeness: {}.", "Factualness: {}.", " {}"),
    "zh": ("完整度：{}。", "真实度：{}。", "理由：{}"),
}
#: How models write a level, at the beginning of what they write.
_SPELLINGS: Final[tuple[tuple[Level, str], ...]] = (
    ("low", "very low|low|none|incomplete|insufficient|unlikely|poor|not |不完整|不足|[很较极]?低|差"),
    ("medium", "medium|moderate|partial|likely|fair|average|mid|中|部分|一般|尚可"),
    ("high", "very high|high|full|complete|strong|certain|excellent|good|[很较极]?高|非常高|完整|完全|充分|好"),
)


@dataclass(frozen=True, slots=True)
class Rating:
    """One rating by the model that wrote the pair.

    Attributes:
        level: ``high``, ``medium`` or ``low``; ``None`` for what could not be read as one.
        said: As the model wrote it.
        reason: Its rationale; may be empty.
    """

    level: Level | None
    said: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A pair as a model made it.

    Attributes:
        id: Unique in a run, the same whenever its replies are read again: segment, visit and place.
        question: White space folded; empty where there was none.
        answer: White space folded; empty where there was none.
        completeness: Whether the question stands by itself.
        factualness: Whether the segment bears out the answer.
        segment: What it was made from.
        receipt: Where it comes from, as JSON: the segment without its text, the round and the visit (from 0), the
            ``place`` in the reply, what the request asked for above all, the hash of the prompt, model, endpoint, and
            the request's key in the journal.
        problem: Why it is no pair, in words; ``None`` for one that is.
    """

    id: str
    question: str
    answer: str
    completeness: Rating
    factualness: Rating
    segment: Segment
    receipt: Mapping[str, Any]
    problem: str | None = None

    @property
    def type(self) -> QuestionType:
        """``script_agnostic`` or ``script_based``."""
        return self.segment.type

    def confidence(self, language: Language) -> str:
        """Return both ratings as a text that opens with the completeness, as the release's ``metrics``."""
        *labels, reason = _LABELS[language]
        parts = []
        for label, rating in zip(labels, (self.completeness, self.factualness), strict=True):
            wording = rating.said or "?"
            if rating.level:
                wording = WORDS[language][rating.level]
            part = label.format(wording)
            if rating.reason:
                part += reason.format(rating.reason)
            parts.append(part)
        return ("" if language == "zh" else " ").join(parts)


def build_pairs_schema(language: Language) -> Schema:
    """Return the schema of a reply, strict enough for servers that ask for every key and no other."""
    text = {"type": "string"}
    level = {"type": "string", "enum": list(WORDS[language].values())}
    rating = {"type": "object", "properties": {"level": level, "reason": text}}
    parts = {"question": text, "answer": text, "completeness": rating, "factualness": rating}
    pair = {"type": "object", "properties": parts}
    return make_object_schema("pairs", pairs={"type": "array", "items": pair})


def parse_pairs(request: Request, reply: Reply) -> list[Any]:
    """Return the items of a reply's list as they are: the `accept` of Context-Instruct.

    One item that is no pair does not cost the others, so items are looked at later, each by itself; and of a list that
    was cut off at the reply's most tokens, the whole items count.

    Raises:
        UnacceptableError: With the kind ``malformed``, for a reply without a list or one whole item.
    """
    try:
        return parse_items(reply.text, "pairs")
    except UnacceptableError:
        items = _find_misplaced_items(reply.text)
        if items is None:
            raise
        return items


def _find_misplaced_items(text: str) -> list[Any] | None:
    """Find the list that a model put under another key, or the one pair that it wrote without a list."""
    try:
        value = parse_json(text)
    except UnacceptableError:
        return None
    if "question" in value:
        return [value]
    lists = (item for item in value.values() if isinstance(item, list) and item)
    return next(lists, None)


def parse_candidate(
    item: Any, segment: Segment, receipt: Mapping[str, Any], example_reasons: Container[str] = ()
) -> Candidate:
    """Make a candidate of an item of the list; it has a `problem` if the item is not a pair.

    Args:
        item: As the model wrote it.
        segment: What it was made from.
        receipt: Where it comes from.
        example_reasons: Reasons of our examples, folded: a rating that has one of them keeps its level alone.
    """
    name = f"{segment.id}/{receipt['visit']:03}/{receipt['place']:02}"
    if not isinstance(item, Mapping):
        item = {}
    texts = {key: _read_text(item.get(key)) for key in ("question", "answer")}
    problem = None
    for key, text in texts.items():
        if not text:
            keys = ", ".join(map(str, list(item)[:8])) or "nothing"
            problem = f"no text `{key}` (found: {keys})"[:200]
            break
    ratings = []
    for key in ("completeness", "factualness"):
        rating = parse_rating(item.get(key))
        if fold(rating.reason) in example_reasons:
            rating = replace(rating, reason="")
        ratings.append(rating)
    complete, factual = ratings
    return Candidate(name, texts["question"], texts["answer"], complete, factual, segment, receipt, problem)


def parse_rating(value: Any) -> Rating:
    """Parse a rating as models write it: an object with level and reason, a bare level, or both in one text.

    >>> parse_rating("High: the question stands by itself.")
    Rating(level='high', said='High', reason='the question stands by itself.')
    """
    if isinstance(value, Mapping):
        wording = _read_text(value.get("level"))
        reason = _read_text(value.get("reason"))
        return Rating(parse_level(wording), wording, reason)
    wording, _, reason = _read_text(value).partition(":")
    return Rating(parse_level(wording), wording.strip(), reason.strip())


def parse_level(wording: str) -> Level | None:
    """Return the level that a model's wording means; ``None`` for one that names no level.

    >>> parse_level("Full"), parse_level("中等"), parse_level("incomplete"), parse_level("blue")
    ('high', 'medium', 'low', None)
    """
    text = wording.strip(" \"'“”*.。").casefold()
    return next((level for level, spellings in _SPELLINGS if re.match(spellings, text)), None)


def _read_text(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return ""
    return " ".join(replace_surrogates(str(value)).split())
