"""The prompts of Context-Instruct: what all share comes first, then the role, then the segment, then what varies.

Order: instructions and worked examples, the same for every role of a language; the role and its description, the same
for the role's segments; the segment, the same in each round; how many pairs, about what, and what was asked already.
Servers that cache prefixes so compute little twice. The wording is ours (`rolellm.prompts`, files ``instruct_*``).
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

from rolellm.construct.character import Character
from rolellm.construct.context_instruct.candidates import pairs_schema
from rolellm.construct.context_instruct.segments import Count, Segment, SegmentKind
from rolellm.fingerprint import hash_bytes, hash_json
from rolellm.llm.model import Message, Request, Sampling, assistant, system, user
from rolellm.prompts.template import load_template
from rolellm.records import Language

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
    hashes = [load_template(language, f"instruct_{name}").hash for name in _TEMPLATES]
    return hash_json([*hashes, hash_bytes(_examples_text(language).encode("utf-8"))])


def request_of(character: Character, task: Task, sampling: Sampling) -> Request:
    """The request that a task is put as; its tag is ``instruct/SEGMENT/VISIT``."""
    language = character.language
    last = _filled(language, "round", count=str(task.count), focus=focuses(language, task.segment.kind)[task.focus])
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
    )


@functools.cache
def _shared(language: Language) -> tuple[Message, ...]:
    messages = [system(_filled(language, "system"))]
    for example in examples(language):
        material = _material(
            language, example["kind"], example["role"], example["description"], example.get("segment", "")
        )
        last = _filled(language, "round", count=str(len(example["pairs"])), focus=example["focus"])
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


def _examples_text(language: Language) -> str:
    return resources.files("rolellm.prompts").joinpath(language, _EXAMPLES).read_text(encoding="utf-8")


def _filled(language: Language, name: str, **texts: str) -> str:
    template = load_template(language, f"instruct_{name}")
    # The profile has no segment beside the description.
    return template.fill(**{slot: text for slot, text in texts.items() if slot != "segment" or slot in template.slots})


def within(questions: Sequence[str], budget: int, count: Count) -> tuple[str, ...]:
    """As many of the questions, from the first on, as fit into a budget of tokens."""
    kept: list[str] = []
    for question in questions:
        budget -= count(f"- {question}\n")
        if budget < 0:
            break
        kept.append(question)
    return tuple(kept)
