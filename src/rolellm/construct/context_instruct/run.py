"""Context-Instruct from a character to judged pairs: rounds of requests until there are enough, then the filters.

How many are enough is counted before any filter, in different questions: so which filters there are changes neither the
prompts nor their number, and a run with other filters takes every reply from the journal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from rolellm.construct.context_instruct.candidates import Candidate, Origin, candidate_of, pairs_of
from rolellm.construct.context_instruct.filters import FILTERS, Verdict, judge
from rolellm.construct.context_instruct.prompts import (
    TOKENS_A_PAIR,
    Lane,
    Task,
    focuses,
    prompts_hash,
    request_of,
    shuffled,
    wanted_of,
)
from rolellm.construct.context_instruct.segments import Count, QuestionType, Segment, segments_of
from rolellm.construct.settings import InstructSettings
from rolellm.construct.sheet import Sheet, check_run_folder
from rolellm.core.errors import DataError
from rolellm.core.files import write_json
from rolellm.core.fingerprint import hash_file, hash_json
from rolellm.core.jsonl import read_jsonl, write_jsonl
from rolellm.llm.client import Client
from rolellm.llm.llm import LLM
from rolellm.llm.model import Answer, Failure, Finish, Outcome, Request
from rolellm.llm.settings import described
from rolellm.llm.tokens import TokenCounter
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
        }


@dataclass(slots=True)
class _Plan:
    """The lanes of a character, and all its segments."""

    character: Sheet
    settings: InstructSettings
    segments: list[Segment]
    lanes: list[Lane]
    rounds: int = 0
    candidates: list[Candidate] = field(default_factory=list)

    def next_round(self) -> list[tuple[Lane, Task]]:
        if self.rounds >= self.settings.rounds:
            return []
        wanted = wanted_of(self.lanes, self.settings.per_role)
        tasks = [(lane, task) for lane in self.lanes for task in lane.next_round(wanted(lane))]
        self.rounds += bool(tasks)
        return tasks


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
    plan = _plan(character, chosen, count or TokenCounter().count)
    rounds: list[dict[str, Any]] = []
    failures: list[Failure] = []
    while tasks := plan.next_round():
        requests = [request_of(character, task, chosen.sampling) for _, task in tasks]
        label = f"round {plan.rounds}"
        outcomes = client.ask(requests, pairs_of, label=label, also=_CUT_OFF)
        failed = [outcome for outcome in outcomes if isinstance(outcome, Failure)]
        failures += failed
        rounds.append(_take(plan, tasks, outcomes))
        if len(failed) == len(outcomes):
            break
    verdicts = judge(plan.candidates, character, chosen.filters)
    distinct = {lane.type: len(lane.distinct) for lane in plan.lanes}
    return InstructResult(
        character=character,
        settings=chosen,
        verdicts=tuple(verdicts),
        segments=tuple(plan.segments),
        rounds=tuple(rounds),
        failures=tuple(failures),
        distinct=distinct,
        shortfall=_shortfall(plan, sum(distinct.values()), failures),
    )


def instruct_folder(
    character: Sheet, folder: str | Path, settings: InstructSettings, llm: LLM
) -> tuple[InstructResult, dict[str, Any]]:
    """Run Context-Instruct in a folder that keeps every reply, and write the result there.

    Args:
        character: Whose questions to make.
        folder: The run's; a run that stopped short goes on from what is in it.
        settings: How many, from what, and with which filters.
        llm: Who is asked.

    Returns:
        The result, and what its manifest says.

    Raises:
        SettingsError: When the folder holds something else.
        RoleLLMError: As `context_instruct`.
    """
    check_run_folder(folder, "replies.jsonl")
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
    plan = _plan(character, chosen, count or TokenCounter().count)
    requests: list[Request] = []
    while tasks := plan.next_round():
        for lane, task in tasks:
            requests.append(request_of(character, task, chosen.sampling))
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


def _plan(character: Sheet, settings: InstructSettings, count: Count) -> _Plan:
    segments = segments_of(character, count, chunk_tokens=settings.chunk_tokens, overlap_tokens=settings.overlap_tokens)
    used = [segment for segment in segments if segment.about_role]
    if not used:
        raise DataError(
            f"nothing to ask {character.role} about: no description, no catchphrases, no lore, and no part "
            "of a script in which the role speaks or is named. Build a profile first: rolellm role build"
        )
    agnostic = [segment for segment in used if segment.type == "script_agnostic"]
    based = shuffled([segment for segment in used if segment.type == "script_based"], settings.seed, character.role)
    share = settings.script_agnostic_share if agnostic and based else float(bool(agnostic))
    target = round(settings.per_role * share)
    parts: tuple[tuple[QuestionType, list[Segment], int], ...] = (
        ("script_agnostic", agnostic, target),
        ("script_based", based, settings.per_role - target),
    )
    lanes = [
        Lane(kind, group, wanted, character.language, settings.per_request, settings.asked_tokens, count)
        for kind, group, wanted in parts
    ]
    return _Plan(character, settings, segments, lanes)


def _take(plan: _Plan, tasks: Sequence[tuple[Lane, Task]], outcomes: Sequence[Outcome[list[Any]]]) -> dict[str, Any]:
    """Note what a round brought."""
    before = {lane.type: len(lane.distinct) for lane in plan.lanes}
    made = 0
    for (lane, task), outcome in zip(tasks, outcomes, strict=True):
        if isinstance(outcome, Failure):
            continue
        found = _candidates(plan, task, outcome, outcome.key)
        made += len(found)
        plan.candidates += found
        lane.note(task, [item.question for item in found if item.problem is None])
    return {
        "requests": dict(Counter(lane.type for lane, _ in tasks)),
        "failed": sum(isinstance(outcome, Failure) for outcome in outcomes),
        "candidates": made,
        "distinct": {lane.type: len(lane.distinct) - before[lane.type] for lane in plan.lanes},
    }


def _candidates(plan: _Plan, task: Task, outcome: Answer[list[Any]], key: str) -> list[Candidate]:
    focus = focuses(plan.character.language, task.segment.kind)[task.focus]
    return [
        candidate_of(
            item,
            Origin(
                segment=task.segment,
                round=plan.rounds - 1,
                visit=task.visit,
                place=place,
                focus=focus,
                prompt=outcome.request.prompt_hash,
                repeat=task.repeat,
                model=outcome.reply.model,
                endpoint=outcome.reply.endpoint,
                key=key,
            ),
        )
        for place, item in enumerate(outcome.value)
    ]


def _shortfall(plan: _Plan, distinct: int, failures: Sequence[Failure]) -> str | None:
    wanted = plan.settings.per_role
    if distinct >= wanted:
        return None
    text = f"{distinct} different questions of the {wanted} requested, in {plan.rounds} rounds"
    if failures:
        kinds = Counter(failure.kind for failure in failures)
        listed = ", ".join(f"{number} {kind}" for kind, number in kinds.most_common())
        text += f"; {len(failures)} requests got no usable reply ({listed}; see failed.jsonl)"
    if all(lane.dry for lane in plan.lanes):
        return f"{text}. The last requests only repeated earlier questions: the model finds no more in this profile"
    if plan.rounds >= plan.settings.rounds:
        return f"{text}. Allow more rounds (--rounds), or request fewer (--per-role)"
    return f"{text}. No request of the last round was answered; run the same command with --retry-failed"


# --- Files of a run


KEPT = "kept.jsonl"
DROPPED = "dropped.jsonl"
MANIFEST = "manifest.json"
_TYPES = ("script_agnostic", "script_based")


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

    id: str
    question: str
    answer: str
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
    target = Path(folder)
    language = result.character.language
    write_jsonl(target / KEPT, (verdict.to_dict(language) for verdict in result.kept))
    write_jsonl(target / DROPPED, (verdict.to_dict(language) for verdict in result.dropped))
    manifest = {
        "role": result.character.role,
        "language": language,
        "counts": result.counts(),
        "shortfall": result.shortfall,
        "settings": {**result.settings.to_dict(), "tokens_a_pair": TOKENS_A_PAIR},
        "segments": _segments(result),
        "rounds": list(result.rounds),
        "prompts": prompts_hash(language),
        "character": _fingerprint(result),
        "models": [described(model) for model in client.models],
        "failed": len(result.failures),
        "spent": client.spent.to_dict(),
        "files": {name: hash_file(target / name) for name in (KEPT, DROPPED)},
        "version": __version__,
    }
    write_json(target / MANIFEST, manifest)
    return manifest


def _segments(result: InstructResult) -> dict[str, Any]:
    kinds = ("profile", "script", "lore")
    return {
        "found": {kind: sum(item.kind == kind for item in result.segments) for kind in kinds},
        "without_the_role": sum(not item.about_role for item in result.segments),
        "hash": hash_json([[item.id, item.text] for item in result.segments]),
    }


def _fingerprint(result: InstructResult) -> str:
    character = result.character
    turns = [[turn.speaker, turn.content, turn.kind, turn.scene] for turn in character.turns]
    lore = [[item.name, item.content] for item in character.lore]
    return hash_json([character.role, character.described(), character.background, turns, lore])


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
    found = []
    for number, value in read_jsonl(file):
        for key in ("id", "question", "answer"):
            if not isinstance(value.get(key), str) or not value[key].strip():
                raise DataError(f"expected a text `{key}`, found {value.get(key)!r:.60}", path=file, line=number)
        if value.get("type") not in _TYPES:
            problem = f"expected `type` to be one of {', '.join(_TYPES)}, found {value.get('type')!r:.60}"
            raise DataError(problem, path=file, line=number)
        kind = cast(QuestionType, value["type"])
        confidence, receipt = value.get("confidence"), value.get("receipt")
        found.append(
            Question(
                value["id"],
                value["question"],
                value["answer"],
                kind,
                confidence if isinstance(confidence, str) else "",
                receipt if isinstance(receipt, dict) else {},
            )
        )
    return found
