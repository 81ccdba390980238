"""The prompts of Context-Instruct: what all share comes first, then the role, then the segment, then what varies.

Order: instructions and worked examples, the same for every role of a language; the role and its description, the same
for the role's segments; the segment, the same in each round; how many pairs, about what, and what was asked already.
Servers that cache prefixes so compute little twice. The wording is ours (`rolellm.prompts`, files ``instruct_*``).
"""

from __future__ import annotations

import functools
import itertools
import json
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

from rolellm.construct.context_instruct.candidates import pairs_schema
from rolellm.construct.context_instruct.segments import Count, QuestionType, Segment, SegmentKind
from rolellm.construct.sheet import Sheet
from rolellm.core.fingerprint import hash_bytes, hash_json
from rolellm.core.records import Language
from rolellm.core.text import fold
from rolellm.llm.model import Message, Request, Sampling, assistant, system, user
from rolellm.prompts.render import load_template

_TEMPLATES = ("system", "profile", "script", "lore", "round", "asked", "unknown", "focus_profile", "focus_script")
_EXAMPLES = "instruct_examples.json"


@dataclass(frozen=True, slots=True)
class Task:
    """What a request is to bring.

    Attributes:
        segment: What to make pairs from.
        count: How many pairs.
        focus: What to ask about above all; by its place in `focuses`.
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
def focuses(language: Language, kind: SegmentKind) -> tuple[str, ...]:
    """What requests about a kind of segment ask for in turn."""
    name = "profile" if kind == "profile" else "script"
    return tuple(line for line in _filled(language, f"focus_{name}").splitlines() if line.strip())


@functools.cache
def prompts_hash(language: Language) -> str:
    """SHA-256 over all templates and examples of a language: what receipts and manifests name the wording by."""
    names = ("repair", *(f"instruct_{name}" for name in _TEMPLATES))
    hashes = [load_template(language, name).hash for name in names]
    return hash_json([*hashes, hash_bytes(_examples_text(language).encode("utf-8"))])


def request_of(character: Sheet, task: Task, sampling: Sampling) -> Request:
    """The request that a task is put as; its tag is ``instruct/SEGMENT/VISIT``."""
    language = character.language
    focus = focuses(language, task.segment.kind)[task.focus]
    last = _filled(language, "round", count=str(task.count), focus=focus, role=character.role)
    if task.asked:
        last += "\n" + _filled(language, "asked", asked="\n".join(f"- {question}" for question in task.asked))
    described = character.described() or character.background
    material = _material(language, task.segment.kind, character.role, described, task.segment.text)
    return Request(
        messages=(*_shared(language), user(f"{material}\n\n{last}")),
        sampling=sampling,
        repeat=task.repeat,
        schema=pairs_schema(language),
        tag=f"instruct/{task.segment.id}/{task.visit:03}",
        repair=load_template(language, "repair").text,
    )


@functools.cache
def _shared(language: Language) -> tuple[Message, ...]:
    messages = [system(_filled(language, "system"))]
    for example in examples(language):
        material = _material(
            language, example["kind"], example["role"], example["description"], example.get("segment", "")
        )
        count = str(len(example["pairs"]))
        last = _filled(language, "round", count=count, focus=example["focus"], role=example["role"])
        reply = json.dumps({"pairs": example["pairs"]}, ensure_ascii=False)
        messages += [user(f"{material}\n\n{last}"), assistant(reply)]
    return tuple(messages)


def _material(language: Language, kind: SegmentKind, role: str, description: str | None, segment: str) -> str:
    who = description or _filled(language, "unknown")
    return _filled(language, kind, role=role, description=who, segment=segment)


def examples(language: Language) -> list[dict[str, Any]]:
    """The worked examples of a language: roles of our own, with good pairs and, rated so, weak ones."""
    found: list[dict[str, Any]] = json.loads(_examples_text(language))
    return found


@functools.cache
def reasons_of_examples(language: Language) -> frozenset[str]:
    """The reasons of the examples' ratings, folded: a model that copies one gives none."""
    pairs = [pair for example in examples(language) for pair in example["pairs"]]
    return frozenset(fold(pair[key]["reason"]) for pair in pairs for key in ("completeness", "factualness"))


def _examples_text(language: Language) -> str:
    return resources.files("rolellm.prompts").joinpath(language, _EXAMPLES).read_text(encoding="utf-8")


def _filled(language: Language, name: str, **texts: str) -> str:
    template = load_template(language, f"instruct_{name}")
    # The profile has no segment next to the description.
    return template.fill(**{slot: text for slot, text in texts.items() if slot != "segment" or slot in template.slots})


def within(questions: Sequence[str], budget: int, count: Count) -> tuple[str, ...]:
    """As many of the questions, from the first on, as fit into a budget of tokens."""
    used = itertools.accumulate(count(f"- {question}\n") for question in questions)
    return tuple(question for question, tokens in zip(questions, used, strict=True) if tokens <= budget)


#: Tokens of a segment that one pair is worth (our choice): shorter segments are asked for fewer pairs.
TOKENS_A_PAIR = 40
_FEWEST = 3
#: Requests in a row without a new question after which a lane is given up, laps being as long as scripts (our choice).
_PATIENCE = 16


@dataclass(slots=True)
class Lane:
    """The segments of one type of question, and how far they were asked about.

    Attributes:
        type: Of its questions.
        segments: In the order of their visits.
        target: How many different questions are wanted.
        language: Of its prompts.
        per_request: Maximum pairs per request.
        asked_tokens: Maximum tokens of a prompt's list of earlier questions.
        count: Tokens of a text.
        position: The next place.
        requests: How many requests brought a reply that was read.
        distinct: Different questions so far, folded.
        stale: How many requests in a row brought nothing new.
    """

    type: QuestionType
    segments: Sequence[Segment]
    target: int
    language: Language
    per_request: int
    asked_tokens: int
    count: Count
    position: int = 0
    requests: int = 0
    stale: int = 0
    distinct: set[str] = field(default_factory=set)
    _asked: dict[str, list[tuple[int, int, str]]] = field(default_factory=lambda: defaultdict(list))

    @property
    def dry(self) -> bool:
        """Whether no more is to be expected: as many requests in a row brought nothing new as would make a lap."""
        return not self.segments or self.stale >= min(self.lap, _PATIENCE)

    @property
    def lap(self) -> int:
        """How many places a lap has."""
        return len(self.segments) * self._visits_a_lap

    @property
    def _visits_a_lap(self) -> int:
        return math.ceil(len(self._focuses) / len(self.segments))

    @property
    def _focuses(self) -> Sequence[str]:
        return focuses(self.language, self.segments[0].kind)

    def next_round(self, wanted: int) -> list[Task]:
        """The tasks of a round: as many as `wanted` questions take at the yield so far, up to the end of the lap."""
        if self.dry or wanted <= 0:
            return []
        left = self.lap - self.position % self.lap
        tasks: list[Task] = []
        while len(tasks) < left and wanted > 0:
            task = self._task(self.position)
            wanted -= math.ceil(task.count * self._yield())
            tasks.append(task)
            self.position += 1
        return tasks

    def _yield(self) -> float:
        """New questions for each one asked for, as far as is known; never so low that a round grows without end."""
        if not self.requests:
            return 1.0
        return min(max(len(self.distinct) / (self.requests * self.per_request), 0.25), 1.0)

    def _task(self, position: int) -> Task:
        visit, place = divmod(position, len(self.segments))
        segment = self.segments[place]
        repeat, turn = divmod(visit, len(self._focuses))
        focus = (turn + place) % len(self._focuses)
        before = visit - visit % self._visits_a_lap
        asked = [(other != focus, -when, text) for when, other, text in self._asked[segment.id] if when < before]
        # What was asked under the same focus is most likely to come again; then what was asked last.
        listed = [text for _, _, text in sorted(asked, key=lambda item: item[:2])]
        pairs = self.per_request
        if segment.kind != "profile":
            pairs = min(pairs, max(_FEWEST, segment.tokens // TOKENS_A_PAIR))
        return Task(segment, pairs, focus, visit, repeat, within(listed, self.asked_tokens, self.count))

    def note(self, task: Task, questions: Sequence[str]) -> None:
        """Take down what a task brought."""
        self.requests += 1
        self.stale += 1
        for question in questions:
            if fold(question) not in self.distinct:
                self._asked[task.segment.id].append((task.visit, task.focus, question))
                self.distinct.add(fold(question))
                self.stale = 0
