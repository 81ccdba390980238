"""The candidates of Context-Instruct: the requests for them, and how they are read out of replies.

A candidate is a question, its answer and the model's confidence, with where it comes from. The paper's triplet is
question, confidence with rationale, answer (arXiv 2310.00746). Its confidence is textual; the release's ``metrics``
opens with a completeness rating. Factualness as the second rating, three levels, and rating after the answer is written
are our choice.

What all prompts share comes first, then the role, then the segment, then what varies: instructions and worked examples,
the same for every role of a language; the role and its description, the same for the role's segments; the segment, the
same in each round; how many pairs, about what, and what was asked already. Servers that cache prefixes so compute
little twice. The wording is ours (files ``instruct_*`` of the prompts).
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import Any, Final

from rolellm.core.fingerprint import hash_json
from rolellm.core.records import Language, Profile
from rolellm.core.text import fold, replace_surrogates
from rolellm.llm.json_reply import make_object_schema, parse_items, parse_json
from rolellm.llm.model import Message, Reply, Request, Sampling, Schema, UnacceptableError, assistant, system, user
from rolellm.making.instruct.segments import Count, QuestionType, Segment, SegmentKind
from rolellm.making.settings import InstructSettings, Level
from rolellm.models.prompts.render import hash_templates, load_template

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


def parse_candidate(item: Any, segment: Segment, receipt: Mapping[str, Any]) -> Candidate:
    """Make a candidate of an item of the list; it has a `problem` if the item is not a pair.

    Args:
        item: As the model wrote it.
        segment: What it was made from.
        receipt: Where it comes from.
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
    complete = parse_rating(item.get("completeness"))
    factual = parse_rating(item.get("factualness"))
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


@dataclass(frozen=True, slots=True)
class Task:
    """Pairs to request from a model.

    Attributes:
        segment: What to make pairs from.
        count: How many pairs.
        focus: What to ask about above all; by its place in `list_focuses`.
        visit: How often the segment was asked about before.
        repeat: How often the same was asked before.
        asked: Questions not to ask again.
    """

    segment: Segment
    count: int
    focus: int
    visit: int = 0
    repeat: int = 0
    asked: tuple[str, ...] = ()


@functools.cache
def list_focuses(language: Language, kind: SegmentKind) -> tuple[str, ...]:
    """List the focuses that requests about a kind of segment take in turn."""
    name = "profile" if kind == "profile" else "script"
    lines = _fill_template(language, f"focus_{name}").splitlines()
    return tuple(filter(str.strip, lines))


@functools.cache
def hash_prompts(language: Language) -> str:
    """Hash all templates and examples of a language (SHA-256); receipts and manifests name the wording by it."""
    return hash_json(hash_templates(language, "instruct_"))


def build_request(character: Profile, task: Task, sampling: Sampling) -> Request:
    """Build the request for a task; its tag is ``instruct/SEGMENT/VISIT``."""
    language = character.language
    focus = list_focuses(language, task.segment.kind)[task.focus]
    last = _fill_template(language, "round", count=str(task.count), focus=focus, role=character.role)
    if task.asked:
        listed = "\n".join(f"- {question}" for question in task.asked)
        last += "\n" + _fill_template(language, "asked", asked=listed)
    described = character.full_description or character.background
    material = _fill_material(language, task.segment.kind, character.role, described, task.segment.text)
    messages = (*_build_shared_messages(language), user(f"{material}\n\n{last}"))
    schema = build_pairs_schema(language)
    tag = f"instruct/{task.segment.id}/{task.visit:03}"
    repair = load_template(language, "repair").text
    return Request(messages, sampling, task.repeat, schema=schema, tag=tag, repair=repair)


@functools.cache
def _build_shared_messages(language: Language) -> tuple[Message, ...]:
    messages = [system(_fill_template(language, "system"))]
    for example in load_examples(language):
        material = _fill_material(
            language, example["kind"], example["role"], example["description"], example.get("segment", "")
        )
        count = str(len(example["pairs"]))
        last = _fill_template(language, "round", count=count, focus=example["focus"], role=example["role"])
        reply = json.dumps({"pairs": example["pairs"]}, ensure_ascii=False)
        messages += [user(f"{material}\n\n{last}"), assistant(reply)]
    return tuple(messages)


def _fill_material(language: Language, kind: SegmentKind, role: str, description: str | None, segment: str) -> str:
    persona = description or _fill_template(language, "unknown")
    return _fill_template(language, kind, role=role, description=persona, segment=segment)


@functools.cache
def load_examples(language: Language) -> list[dict[str, Any]]:
    """Load the worked examples of a language: roles of our own, with good pairs and, rated so, weak ones."""
    file = resources.files("rolellm.models.prompts").joinpath(language, "instruct_examples.json")
    examples: list[dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))
    return examples


def _fill_template(language: Language, name: str, **texts: str) -> str:
    template = load_template(language, f"instruct_{name}")
    # The profile has no segment next to the description.
    if "segment" not in template.slots:
        texts.pop("segment", None)
    return template.fill(**texts)


#: Tokens of a segment that one pair is worth: shorter segments are asked for fewer pairs.
_TOKENS_A_PAIR = 40
_FEWEST = 3
#: Maximum tokens of a prompt that list earlier questions.
_EARLIER_TOKENS = 400
#: Requests in a row that were of no use after which a lane is given up, laps being as long as scripts.
_PATIENCE = 16
#: A request is of no use unless a quarter of its pairs are new questions: a 0.5B model brought one in ten, and took 49
#: requests for 20 questions.
_USEFUL = 4


@dataclass(slots=True)
class Lane:
    """The segments of one type of question, and how far they were asked about.

    Attributes:
        type: Of its questions.
        segments: In the order of their visits.
        target: How many different questions are wanted.
        language: Of its prompts.
        settings: For the most pairs per request.
        count: Tokens of a text.
        position: The next place.
        distinct: Different questions so far, folded.
        stale: How many requests in a row brought little new.
    """

    type: QuestionType
    segments: Sequence[Segment]
    target: int
    language: Language
    settings: InstructSettings
    count: Count
    position: int = 0
    stale: int = 0
    distinct: set[str] = field(default_factory=set)
    _history: dict[str, list[tuple[int, int, str]]] = field(default_factory=lambda: defaultdict(list))

    @property
    def dry(self) -> bool:
        """True if no more is expected: a lap's worth of requests in a row brought little new."""
        return not self.segments or self.stale >= min(self._lap, _PATIENCE)

    @property
    def _lap(self) -> int:
        return self._visits * len(self.segments)

    @property
    def _visits(self) -> int:
        """Visits of a segment in a lap, in which every focus has its turn."""
        return math.ceil(len(self._focuses) / len(self.segments))

    @property
    def _focuses(self) -> Sequence[str]:
        return list_focuses(self.language, self.segments[0].kind)

    def next_round(self, needed: int) -> list[Task]:
        """Plan a round: tasks for as many questions as are needed, up to the end of the lap."""
        tasks: list[Task] = []
        while needed > 0 and not self.dry:
            tasks.append(self._plan_task(self.position))
            needed -= tasks[-1].count
            self.position += 1
            if self.position % self._lap == 0:
                break
        return tasks

    def _plan_task(self, position: int) -> Task:
        visit, index = divmod(position, len(self.segments))
        segment = self.segments[index]
        repeat, turn = divmod(visit, len(self._focuses))
        focus = (turn + index) % len(self._focuses)
        # Within a lap nothing is listed: a 0.5B model copies what is, whatever the focus.
        lap = visit - visit % self._visits
        earlier = [entry for entry in self._history[segment.id] if entry[0] < lap]
        # What was asked under the same focus is most likely to come again; then what was asked last.
        earlier.sort(key=lambda entry: (entry[1] != focus, -entry[0]))
        asked: list[str] = []
        room = _EARLIER_TOKENS
        for _, _, question in earlier:
            room -= self.count(f"- {question}\n")
            if room < 0:
                break
            asked.append(question)
        pairs = self.settings.per_request
        if segment.kind != "profile":
            pairs = min(pairs, max(_FEWEST, segment.tokens // _TOKENS_A_PAIR))
        return Task(segment, pairs, focus, visit, repeat, tuple(asked))

    def note(self, task: Task, questions: Sequence[str]) -> None:
        """Record the questions that a task brought."""
        before = len(self.distinct)
        history = self._history[task.segment.id]
        for question in questions:
            folded = fold(question)
            if folded not in self.distinct:
                history.append((task.visit, task.focus, question))
                self.distinct.add(folded)
        gained = len(self.distinct) - before
        self.stale += 1
        if gained * _USEFUL >= task.count:
            self.stale = 0
