"""The prompts of Context-Instruct: what all share comes first, then the role, then the segment, then what varies.

Order: instructions and worked examples, the same for every role of a language; the role and its description, the same
for the role's segments; the segment, the same in each round; how many pairs, about what, and what was asked already.
Servers that cache prefixes so compute little twice. The wording is ours (files ``instruct_*`` of the prompts).
"""

from __future__ import annotations

import functools
import json
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

from rolellm.core.fingerprint import hash_json
from rolellm.core.records import Language, Profile
from rolellm.core.text import fold
from rolellm.llm.model import Message, Request, Sampling, assistant, system, user
from rolellm.making.instruct.candidates import build_pairs_schema
from rolellm.making.instruct.segments import Count, QuestionType, Segment, SegmentKind
from rolellm.making.settings import InstructSettings
from rolellm.models.prompts.render import hash_templates, load_template


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


@functools.cache
def collect_example_reasons(language: Language) -> frozenset[str]:
    """Collect the reasons of the examples' ratings, folded: a model that copies one gives none."""
    reasons: set[str] = set()
    for example in load_examples(language):
        for pair in example["pairs"]:
            reasons |= {fold(pair[key]["reason"]) for key in ("completeness", "factualness")}
    return frozenset(reasons)


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
#: Requests in a row without a new question after which a lane is given up, laps being as long as scripts.
_PATIENCE = 16


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
        stale: How many requests in a row brought nothing new.
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
    _history: dict[str, list[tuple[int, str]]] = field(default_factory=lambda: defaultdict(list))

    @property
    def dry(self) -> bool:
        """True if no more is expected: a lap's worth of requests in a row brought nothing new."""
        return not self.segments or self.stale >= min(self._lap, _PATIENCE)

    @property
    def _lap(self) -> int:
        visits = math.ceil(len(self._focuses) / len(self.segments))
        return visits * len(self.segments)

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
        # What was asked under the same focus is most likely to come again; then what was asked last.
        earlier = self._history[segment.id][::-1]
        earlier.sort(key=lambda entry: entry[0] != focus)
        asked: list[str] = []
        room = _EARLIER_TOKENS
        for _, question in earlier:
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
        self.stale += 1
        history = self._history[task.segment.id]
        for question in questions:
            folded = fold(question)
            if folded not in self.distinct:
                history.append((task.focus, question))
                self.distinct.add(folded)
                self.stale = 0
