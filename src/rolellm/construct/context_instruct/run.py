"""Context-Instruct from a character to judged pairs: rounds of requests until there are enough, then the filters.

How many are enough is counted before any filter, in different questions: so which filters there are changes neither the
prompts nor their number, and a run with other filters takes every reply from the journal.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rolellm.construct.context_instruct.candidates import LEVELS, Candidate, Origin, candidate_of, pairs_of
from rolellm.construct.context_instruct.filters import FILTERS, Verdict, judge
from rolellm.construct.context_instruct.prompts import (
    TOKENS_A_PAIR,
    Lane,
    Task,
    focuses,
    prompts_hash,
    reasons_of_examples,
    request_of,
)
from rolellm.construct.context_instruct.segments import Count, QuestionType, Segment, segments_of
from rolellm.construct.settings import InstructSettings
from rolellm.construct.sheet import Sheet, check_run_folder
from rolellm.core.errors import DataError
from rolellm.core.files import write_json
from rolellm.core.fingerprint import hash_file, hash_json
from rolellm.core.jsonl import read_jsonl, write_jsonl
from rolellm.core.typed_json import read_as
from rolellm.llm.client import Client
from rolellm.llm.llm import LLM
from rolellm.llm.model import Answer, Failure, Finish, Outcome, Request
from rolellm.llm.settings import described
from rolellm.llm.tokens import TokenCounter
from rolellm.rolebench.release import Text
from rolellm.version import __version__

#: A reply that was cut off still has whole pairs.
_CUT_OFF: tuple[Finish, ...] = ("length",)


@dataclass(frozen=True, slots=True)
class InstructResult:
    """What a run made.

    Attributes:
        character: Whose questions they are.
        settings: What it was made with.
        verdicts: One for each candidate, in the order in which they were made.
        segments: All that there are; those with ``about_role`` were asked about.
        rounds: Of each round: requests, failures, candidates and different questions, by type.
        failures: Requests without an answer.
        distinct: Different questions by type, before filters.
        shortfall: Why there are fewer than were asked for, in words; ``None`` where there are enough.
    """

    character: Sheet
    settings: InstructSettings
    verdicts: tuple[Verdict, ...]
    segments: tuple[Segment, ...]
    rounds: tuple[dict[str, Any], ...]
    failures: tuple[Failure, ...]
    distinct: dict[QuestionType, int]
    shortfall: str | None = None

    @property
    def kept(self) -> list[Verdict]:
        """What passed all filters."""
        return [verdict for verdict in self.verdicts if verdict.kept]

    @property
    def dropped(self) -> list[Verdict]:
        """What did not, each with its reason."""
        return [verdict for verdict in self.verdicts if not verdict.kept]

    def counts(self) -> dict[str, Any]:
        """Candidates by verdict and type, and the share of kept questions that call the role by name."""
        kept = self.kept
        by_filter = Counter(verdict.by for verdict in self.dropped)
        by_type = Counter(verdict.candidate.type for verdict in kept)
        names = self.character.names
        named = sum(any(name.casefold() in item.candidate.question.casefold() for name in names) for item in kept)
        return {
            "candidates": len(self.verdicts),
            "distinct": sum(self.distinct.values()),
            "kept": len(kept),
            "kept_by_type": {name: by_type[name] for name in ("script_agnostic", "script_based")},
            "dropped": {name: by_filter[name] for name in FILTERS},
            "names_the_role": round(named / len(kept), 3) if kept else None,
            "verified": self._verified(),
        }

    def _verified(self) -> dict[str, dict[str, int]]:
        """By the lower of the model's own two ratings: how many well-formed pairs the material bears out, and not."""
        least = self.settings.filters.min_grounding
        found: dict[str, dict[str, int]] = {}
        for verdict in self.verdicts:
            if verdict.grounding is not None:
                levels = (verdict.candidate.completeness.level, verdict.candidate.factualness.level)
                rated = min((level for level in levels if level), key=LEVELS.index, default="none")
                counts = found.setdefault(rated, {"borne_out": 0, "not_borne_out": 0})
                needed = least if verdict.candidate.type == "script_based" else 0.0
                counts["not_borne_out" if verdict.grounding.reason(needed) else "borne_out"] += 1
        return dict(sorted(found.items()))


def context_instruct(
    character: Sheet, client: Client, settings: InstructSettings | None = None, *, count: Count | None = None
) -> InstructResult:
    """Make questions and answers for a role, and filter them.

    Args:
        character: What is known of it.
        client: Asks, and keeps the replies in its folder.
        settings: How many, from what, and with which filters.
        count: Tokens of a text; by default an estimate. Segments depend on it, and so do the prompts.

    Raises:
        DataError: For a character of whom there is nothing to make questions from.
        StoppedShortError: When asking was stopped; what was answered is in the journal.
        EndpointError: When no endpoint answers.
    """
    chosen = settings or InstructSettings()
    plan = _Plan(character, chosen, count or TokenCounter().count)
    while len(plan.rounds) < chosen.rounds and (tasks := plan.next_round()):
        requests = [request for *_, request in tasks]
        outcomes = client.ask(requests, pairs_of, label=f"round {len(plan.rounds) + 1}", also=_CUT_OFF)
        if not plan.take(tasks, outcomes):
            break
    return InstructResult(
        character=character,
        settings=chosen,
        verdicts=tuple(judge(plan.candidates, character, chosen.filters)),
        segments=tuple(plan.segments),
        rounds=tuple(plan.rounds),
        failures=tuple(plan.failures),
        distinct=plan.distinct,
        shortfall=_shortfall(plan),
    )


def instruct_folder(
    character: Sheet, folder: str | Path, settings: InstructSettings, llm: LLM
) -> tuple[InstructResult, dict[str, Any]]:
    """Run Context-Instruct in a folder that keeps every reply, and write the result there.

    Args:
        character: Whose questions to make.
        folder: The run's; a run that stopped short continues from what is in it.
        settings: How many, from what, and with which filters.
        llm: Who is asked.

    Returns:
        The result, and what its manifest says.

    Raises:
        SettingsError: When the folder holds something else.
        RoleLLMError: As `context_instruct`.
    """
    check_run_folder(folder, "instruct", "replies.jsonl")
    with Client(folder, llm.models, llm.options) as client:
        result = context_instruct(character, client, settings, count=llm.counter.count)
        return result, write_result(result, folder, client)


def planned_requests(
    character: Sheet, settings: InstructSettings | None = None, *, count: Count | None = None
) -> list[Request]:
    """What a run would ask if every request brought as many new questions as it asks for.

    Later rounds list questions that were asked before, which nobody knows yet; stand-ins take the room that these may.

    Args:
        character: What is known of it.
        settings: As for `context_instruct`.
        count: As for `context_instruct`.

    Raises:
        DataError: For a character of whom there is nothing to make questions from.
    """
    chosen = settings or InstructSettings()
    plan = _Plan(character, chosen, count or TokenCounter().count)
    requests: list[Request] = []
    for _ in range(chosen.rounds):
        for lane, task, request in plan.next_round():
            requests.append(request)
            lane.note(task, [_stand_in(character, task, number) for number in range(task.count)])
    return requests


def _stand_in(character: Sheet, task: Task, number: int) -> str:
    """As long as questions of the release are: 16 words in English, 28 characters in Chinese (our count)."""
    mark = f"{task.segment.id}/{task.visit}/{number}"
    words = (
        "说说你在那件事里看见了什么又做了什么？"
        if character.language == "zh"
        else "what did you see and what did you do about it?"
    )
    return f"{character.role}, {mark} {words}"


class _Plan:
    """The lanes of a character, all its segments, and what was made of them so far."""

    def __init__(self, character: Sheet, settings: InstructSettings, count: Count) -> None:
        self.character, self.settings = character, settings
        self.segments = segments_of(
            character, count, chunk_tokens=settings.chunk_tokens, overlap_tokens=settings.overlap_tokens
        )
        self.rounds: list[dict[str, Any]] = []
        self.failures: list[Failure] = []
        self.candidates: list[Candidate] = []
        self.ours = reasons_of_examples(character.language)
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
        """What to ask next, and for which lane; nothing once there is enough, or no more to expect."""
        missing = max(self.settings.per_role - sum(self.distinct.values()), 0)
        tasks = []
        for lane in self.lanes:
            wanted = lane.target - len(lane.distinct)
            if all(other is lane or other.dry for other in self.lanes):
                # The only one that is left makes up for what the other falls short of.
                wanted = max(wanted, missing)
            for task in lane.next_round(wanted):
                tasks.append((lane, task, request_of(self.character, task, self.settings.sampling)))
        return tasks

    def take(self, tasks: Sequence[tuple[Lane, Task, Request]], outcomes: Sequence[Outcome[list[Any]]]) -> bool:
        """Note what a round brought; whether anything was answered."""
        before, made = self.distinct, len(self.candidates)
        failed = [outcome for outcome in outcomes if isinstance(outcome, Failure)]
        for (lane, task, _), outcome in zip(tasks, outcomes, strict=True):
            if isinstance(outcome, Answer):
                items = enumerate(outcome.value)
                found = [candidate_of(item, self._origin(task, outcome, place), self.ours) for place, item in items]
                self.candidates += found
                lane.note(task, [item.question for item in found if item.problem is None])
        self.failures += failed
        self.rounds.append(
            {
                "requests": dict(Counter(lane.type for lane, *_ in tasks)),
                "failed": len(failed),
                "candidates": len(self.candidates) - made,
                "distinct": {kind: number - before[kind] for kind, number in self.distinct.items()},
            }
        )
        return len(failed) < len(outcomes)

    def _origin(self, task: Task, outcome: Answer[list[Any]], place: int) -> Origin:
        return Origin(
            segment=task.segment,
            round=len(self.rounds),
            visit=task.visit,
            place=place,
            focus=focuses(self.character.language, task.segment.kind)[task.focus],
            prompt=outcome.request.prompt_hash,
            repeat=task.repeat,
            model=outcome.reply.model,
            endpoint=outcome.reply.endpoint,
            key=outcome.key,
        )


def _shortfall(plan: _Plan) -> str | None:
    wanted, distinct = plan.settings.per_role, sum(plan.distinct.values())
    if distinct >= wanted:
        return None
    text = f"{distinct} different questions of the {wanted} requested, in {len(plan.rounds)} rounds"
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
MANIFEST = "manifest.json"


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


def write_result(result: InstructResult, folder: str | Path, client: Client) -> dict[str, Any]:
    """Write a run's files into its folder, each complete or not at all; return what the manifest says.

    Args:
        result: Of `rolellm.construct.context_instruct.run.context_instruct`.
        folder: The run's.
        client: That asked; its models and what was spent go into the manifest.
    """
    target, character, language = Path(folder), result.character, result.character.language
    write_jsonl(target / KEPT, (verdict.to_dict(language) for verdict in result.kept))
    write_jsonl(target / DROPPED, (verdict.to_dict(language) for verdict in result.dropped))
    manifest = {
        "role": result.character.role,
        "language": language,
        "counts": result.counts(),
        "shortfall": result.shortfall,
        "settings": {**result.settings.to_dict(), "tokens_a_pair": TOKENS_A_PAIR},
        "segments": {
            "found": {
                kind: sum(item.kind == kind for item in result.segments) for kind in ("profile", "script", "lore")
            },
            "without_the_role": sum(not item.about_role for item in result.segments),
            "hash": hash_json([[item.id, item.text] for item in result.segments]),
        },
        "rounds": list(result.rounds),
        "prompts": prompts_hash(language),
        "character": character.fingerprint,
        "models": [described(model) for model in client.models],
        "failed": len(result.failures),
        "spent": client.spent.to_dict(),
        "files": {name: hash_file(target / name) for name in (KEPT, DROPPED)},
        "version": __version__,
    }
    write_json(target / MANIFEST, manifest)
    return manifest


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
