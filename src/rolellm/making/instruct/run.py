"""Context-Instruct from a character to judged pairs: rounds of requests until there are enough, then the filters.

How many are enough is counted before any filter, in different questions: so which filters there are changes neither the
prompts nor their number, and a run with other filters takes every reply from the journal.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from rolellm.core.errors import DataError
from rolellm.core.fingerprint import hash_json
from rolellm.core.jsonl import read_jsonl
from rolellm.core.records import Profile
from rolellm.core.typed_json import read_as
from rolellm.data.rolebench.release import Text
from rolellm.llm.llm import LLM
from rolellm.llm.model import Answer, Failure, Outcome, Request
from rolellm.making.instruct.candidates import LEVELS, Candidate, Origin, parse_candidate, parse_pairs
from rolellm.making.instruct.filters import FILTERS, Verdict, filter_candidates
from rolellm.making.instruct.prompts import (
    TOKENS_A_PAIR,
    Lane,
    Task,
    build_request,
    collect_example_reasons,
    hash_prompts,
    list_focuses,
)
from rolellm.making.instruct.segments import Count, QuestionType, Segment, build_segments
from rolellm.making.settings import InstructSettings
from rolellm.runs import Plan, Records, Round, Step


@dataclass(frozen=True, slots=True)
class InstructResult:
    """Result of a run.

    Attributes:
        verdicts: One for each candidate, in the order in which they were made.
        segments: All that there are; those with ``about_role`` were asked about.
        rounds: Of each round: requests, failures, candidates and different questions, by type.
        distinct: Different questions by type, before filters.
        shortfall: Why there are fewer than were asked for, in words; ``None`` where there are enough.
    """

    verdicts: tuple[Verdict, ...]
    segments: tuple[Segment, ...]
    rounds: tuple[dict[str, Any], ...]
    distinct: dict[QuestionType, int]
    shortfall: str | None = None

    @property
    def kept(self) -> list[Verdict]:
        """Verdicts that passed all filters."""
        return [verdict for verdict in self.verdicts if verdict.kept]

    @property
    def dropped(self) -> list[Verdict]:
        """Verdicts that failed a filter, each with its reason."""
        return [verdict for verdict in self.verdicts if not verdict.kept]


@dataclass(frozen=True)
class Instruct(Step[InstructResult]):
    """Context-Instruct for one role.

    Attributes:
        character: What is known of the role.
        settings: How many questions, from what, and with which filters.
    """

    character: Profile
    settings: InstructSettings = field(default_factory=InstructSettings)
    kind: ClassVar[str] = "instruct"

    def plan(self, llm: LLM) -> Plan[InstructResult]:
        """Ask in rounds until there are enough different questions, then filter.

        Raises:
            DataError: For a character of whom there is nothing to make questions from.
        """
        plan = _Plan(self.character, self.settings, llm.counter.count)
        while len(plan.rounds) < self.settings.rounds and (tasks := plan.next_round()):
            outcomes = yield Round(
                [request for *_, request in tasks],
                parse_pairs,
                label=f"questions, round {len(plan.rounds) + 1}",
                # A reply that was cut off still has whole pairs.
                also=["length"],
                stand_in=partial(_make_stand_ins, self.character, {request.tag: task for _, task, request in tasks}),
            )
            if not plan.take(tasks, outcomes):
                break
        return InstructResult(
            verdicts=tuple(filter_candidates(plan.candidates, self.character, self.settings.filters)),
            segments=tuple(plan.segments),
            rounds=tuple(plan.rounds),
            distinct=plan.distinct,
            shortfall=_explain_shortfall(plan),
        )

    def records(self, result: InstructResult) -> Records:
        """Return ``kept.jsonl`` and ``dropped.jsonl``."""
        pairs = {KEPT: result.kept, DROPPED: result.dropped}
        return {
            name: (verdict.to_dict(self.character.language) for verdict in verdicts) for name, verdicts in pairs.items()
        }

    def describe(self, result: InstructResult) -> dict[str, Any]:
        """Return the material, the rounds and the prompts."""
        kinds = Counter(item.kind for item in result.segments)
        return {
            "language": self.character.language,
            "tokens_a_pair": TOKENS_A_PAIR,
            "similarity": self.settings.filters.least_similarity,
            "segments": {
                "found": {kind: kinds[kind] for kind in ("profile", "script", "lore")},
                "without_the_role": sum(not item.about_role for item in result.segments),
                "hash": hash_json([[item.id, item.text] for item in result.segments]),
            },
            "rounds": list(result.rounds),
            "prompts": hash_prompts(self.character.language),
            "character": self.character.fingerprint,
        }

    def summarize(self, result: InstructResult) -> dict[str, Any]:
        """Count candidates by verdict and type, and the share of kept questions that call the role by name."""
        by_filter = Counter(verdict.by for verdict in result.dropped)
        by_type = Counter(verdict.candidate.type for verdict in result.kept)
        names = [name.casefold() for name in self.character.names]
        questions = [verdict.candidate.question.casefold() for verdict in result.kept]
        named = sum(any(name in question for name in names) for question in questions)
        counts = {
            "candidates": len(result.verdicts),
            "distinct": sum(result.distinct.values()),
            "kept": len(questions),
            "kept_by_type": {name: by_type[name] for name in ("script_agnostic", "script_based")},
            "dropped": {name: by_filter[name] for name in FILTERS},
            "names_the_role": round(named / len(questions), 3) if questions else None,
            "verified": _count_verified(result.verdicts, self.settings.filters.min_grounding),
        }
        return {
            "role": self.character.role,
            "counts": counts,
            "enough": result.shortfall is None,
            "shortfall": result.shortfall,
        }


def _count_verified(verdicts: Iterable[Verdict], least: float) -> dict[str, dict[str, int]]:
    """Count well-formed pairs that the material bears out, and those it does not, by the model's lower own rating."""
    verified: dict[str, dict[str, int]] = {}
    for verdict in verdicts:
        if verdict.grounding is not None:
            levels = (verdict.candidate.completeness.level, verdict.candidate.factualness.level)
            rated = min((level for level in levels if level), key=LEVELS.index, default="none")
            counts = verified.setdefault(rated, {"borne_out": 0, "not_borne_out": 0})
            needed = least if verdict.candidate.type == "script_based" else 0.0
            counts["not_borne_out" if verdict.grounding.reason(needed) else "borne_out"] += 1
    return dict(sorted(verified.items()))


def _make_stand_ins(character: Profile, tasks: Mapping[str, Task], request: Request) -> list[Any]:
    """Make as many pairs as are requested; later rounds list their questions, which nobody knows yet.

    A question is as long as those of the release: 16 words in English, 28 characters in Chinese (our count).
    """
    task = tasks[request.tag]
    words = {"zh": "说说你在那件事里看见了什么又做了什么？", "en": "what did you see and what did you do about it?"}
    asked = f"{character.role}, {task.segment.id}/{task.visit}/{{}} {words[character.language]}"
    return [{"question": asked.format(number), "answer": "."} for number in range(task.count)]


class _Plan:
    """The lanes of a character, all its segments, and what was made of them so far."""

    def __init__(self, character: Profile, settings: InstructSettings, count: Count) -> None:
        self.character, self.settings = character, settings
        self.segments = build_segments(
            character, count, chunk_tokens=settings.chunk_tokens, overlap_tokens=settings.overlap_tokens
        )
        self.rounds: list[dict[str, Any]] = []
        self.failures: list[Failure] = []
        self.candidates: list[Candidate] = []
        self.example_reasons = collect_example_reasons(character.language)
        used = [segment for segment in self.segments if segment.about_role]
        if not used:
            raise DataError(
                f"nothing to ask {character.role} about: no description, no catchphrases, no lore, and no part "
                "of a script in which the role speaks or is named. Build a profile first: rolellm role build"
            )
        agnostic = [segment for segment in used if segment.type == "script_agnostic"]
        based = [segment for segment in used if segment.type == "script_based"]
        # So that the first ones come from all over the script.
        random.Random(f"{settings.seed}/{character.role}").shuffle(based)
        share = settings.script_agnostic_share if agnostic and based else float(bool(agnostic))
        target = round(settings.per_role * share)
        shared = character.language, settings.per_request, settings.asked_tokens, count
        self.lanes = [
            Lane("script_agnostic", agnostic, target, *shared),
            Lane("script_based", based, settings.per_role - target, *shared),
        ]

    @property
    def distinct(self) -> dict[QuestionType, int]:
        """Different questions so far, by type."""
        return {lane.type: len(lane.distinct) for lane in self.lanes}

    def next_round(self) -> list[tuple[Lane, Task, Request]]:
        """Plan the next requests, each with its lane; none once there is enough, or no more to expect."""
        missing = max(self.settings.per_role - sum(self.distinct.values()), 0)
        tasks = []
        for lane in self.lanes:
            needed = lane.target - len(lane.distinct)
            if all(peer is lane or peer.dry for peer in self.lanes):
                # The only one that is left makes up for what the other falls short of.
                needed = max(needed, missing)
            for task in lane.next_round(needed):
                tasks.append((lane, task, build_request(self.character, task, self.settings.sampling)))
        return tasks

    def take(self, tasks: Sequence[tuple[Lane, Task, Request]], outcomes: Sequence[Outcome[list[Any]]]) -> bool:
        """Record what a round brought; return whether anything was answered."""
        before, earlier_count = self.distinct, len(self.candidates)
        failed = [outcome for outcome in outcomes if isinstance(outcome, Failure)]
        for (lane, task, _), outcome in zip(tasks, outcomes, strict=True):
            if isinstance(outcome, Answer):
                items = enumerate(outcome.value)
                candidates = [
                    parse_candidate(item, self._build_origin(task, outcome, index), self.example_reasons)
                    for index, item in items
                ]
                self.candidates += candidates
                lane.note(task, [item.question for item in candidates if item.problem is None])
        self.failures += failed
        self.rounds.append(
            {
                "requests": dict(Counter(lane.type for lane, *_ in tasks)),
                "failed": len(failed),
                "candidates": len(self.candidates) - earlier_count,
                "distinct": {kind: number - before[kind] for kind, number in self.distinct.items()},
            }
        )
        return len(failed) < len(outcomes)

    def _build_origin(self, task: Task, outcome: Answer[list[Any]], index: int) -> Origin:
        return Origin(
            segment=task.segment,
            round=len(self.rounds),
            visit=task.visit,
            place=index,
            focus=list_focuses(self.character.language, task.segment.kind)[task.focus],
            prompt=outcome.request.prompt_hash,
            repeat=task.repeat,
            model=outcome.reply.model,
            endpoint=outcome.reply.endpoint,
            key=outcome.key,
        )


def _explain_shortfall(plan: _Plan) -> str | None:
    requested, distinct = plan.settings.per_role, sum(plan.distinct.values())
    if distinct >= requested:
        return None
    text = f"{distinct} different questions of the {requested} requested, in {len(plan.rounds)} rounds"
    if plan.failures:
        kinds = Counter(failure.kind for failure in plan.failures)
        listed = ", ".join(f"{number} {kind}" for kind, number in kinds.most_common())
        text += f"; {len(plan.failures)} requests got no usable reply ({listed}; see failed.jsonl)"
    if all(lane.dry for lane in plan.lanes):
        return f"{text}. The last requests only repeated earlier questions: the model finds no more in this profile"
    if len(plan.rounds) >= plan.settings.rounds:
        return f"{text}. Allow more rounds (--rounds), or request fewer (--per-role)"
    return f"{text}. No request of the last round was answered; run the same command with --retry-failed"


KEPT = "kept.jsonl"
DROPPED = "dropped.jsonl"


@dataclass(frozen=True, slots=True)
class Question:
    """A pair that was kept.

    Attributes:
        id: Unique in its file.
        question: Put to the role.
        answer: In the role's words.
        type: ``script_agnostic`` or ``script_based``.
        confidence: Both ratings with their reasons, as text.
        receipt: Where it comes from, and what the filters said.
    """

    id: Text
    question: Text
    answer: Text
    type: QuestionType
    confidence: str = ""
    receipt: Mapping[str, Any] = field(default_factory=dict)


def read_questions(path: str | Path) -> list[Question]:
    """Read ``kept.jsonl``.

    Args:
        path: The file, or the folder of its run.

    Raises:
        DataError: Where there is none, or at a line that is not a pair; names file and line.
    """
    file = Path(path) / KEPT if Path(path).is_dir() else Path(path)
    if not file.is_file():
        raise DataError(f"no {KEPT} here; make it with `rolellm instruct PROFILE`", path=path)
    return [read_as(Question, value, "the pair", path=file, line=number) for number, value in read_jsonl(file)]
