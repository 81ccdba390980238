"""Context-Instruct from a character to judged pairs: rounds of requests until there are enough, then the filters.

How many are enough is counted before any filter, in different questions: so which filters there are changes neither the
prompts nor their number, and a run with other filters takes every reply from the journal.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final, get_args

from rolellm.core.errors import DataError
from rolellm.core.jsonl import read_jsonl
from rolellm.core.records import Profile
from rolellm.core.result import Result
from rolellm.core.sanitize import label
from rolellm.core.table import Table
from rolellm.core.typed_json import read_as
from rolellm.data.rolebench.release import Text
from rolellm.llm.llm import LLM
from rolellm.llm.model import Answer, Failure, Request
from rolellm.making.instruct.candidates import (
    Candidate,
    Lane,
    Task,
    build_request,
    hash_prompts,
    list_focuses,
    parse_candidate,
    parse_pairs,
)
from rolellm.making.instruct.filters import FILTERS, Verdict, filter_candidates
from rolellm.making.instruct.segments import Count, QuestionType, Segment, build_segments
from rolellm.making.settings import AGNOSTIC_SHARE, InstructSettings
from rolellm.runs import Plan, Records, Round, Step

QUESTION_TYPES: Final[tuple[QuestionType, ...]] = get_args(QuestionType)
#: Rounds after which a run ends: a model that repeats itself gets no further.
ROUNDS: Final = 40
# Reasons for which a filter drops pairs that the table quotes, and their width.
_REASONS, _REASON_WIDTH = 3, 80


@dataclass(frozen=True, slots=True, repr=False)
class InstructResult(Result):
    """Result of a run.

    Attributes:
        role: Who was asked about.
        verdicts: One for each candidate, in the order in which they were made.
        rounds: Number of rounds.
        distinct: Different questions by type, before filters.
        shortfall: Why there are fewer than were asked for, in words; ``None`` where there are enough.
    """

    role: str
    verdicts: tuple[Verdict, ...]
    rounds: int
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

    @property
    def has_passed(self) -> bool:
        """Whether there is any candidate."""
        return bool(self.verdicts)

    def notes(self) -> list[str]:
        """Return why there are fewer pairs than were asked for."""
        if self.shortfall:
            return [f"warning: {self.shortfall}."]
        return []

    def remarks(self) -> list[str]:
        """Return how many pairs of each type passed."""
        by_type = Counter(verdict.candidate.type for verdict in self.kept)
        counts = ", ".join(f"{by_type[name]:,} {name}" for name in QUESTION_TYPES)
        share = f"{len(self.kept):,} of {len(self.verdicts):,}"
        return [f"Kept {share} pairs for {self.role}: {counts}."]

    def tables(self) -> tuple[Table]:
        """Build the table of verdicts, with reasons."""
        rows: list[tuple[str, int, str]] = [("kept", len(self.kept), "")]
        for name in FILTERS:
            dropped = [verdict for verdict in self.dropped if verdict.by == name]
            reasons = dict.fromkeys(label(verdict.reason or "", _REASON_WIDTH) for verdict in dropped)
            examples = "\n".join([*reasons][:_REASONS])
            rows.append((f"dropped: {name}", len(dropped), examples))
        different = sum(self.distinct.values())
        title = f"{len(self.verdicts):,} candidates for {self.role}, {different:,} different"
        return (Table.from_rows(title, ("verdict", "pairs", "such as"), rows),)


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
        settings = self.settings
        count = llm.counter.count
        segments = build_segments(self.character, count, chunk_tokens=settings.chunk_tokens)
        lanes = self._make_lanes(segments, count)
        candidates: list[Candidate] = []
        failures: list[Failure] = []
        rounds = 0
        while rounds < ROUNDS:
            tasks = self._plan_round(lanes)
            if not tasks:
                break
            rounds += 1
            requests: list[Request] = []
            tasks_by_tag: dict[str, Task] = {}
            for _, task in tasks:
                request = build_request(self.character, task, settings.sampling)
                requests.append(request)
                tasks_by_tag[request.tag] = task
            stand_in = partial(_make_stand_ins, self.character, tasks_by_tag)
            round_label = f"questions, round {rounds}"
            # A reply that was cut off still has whole pairs.
            outcomes = yield Round(requests, parse_pairs, label=round_label, also=["length"], stand_in=stand_in)
            for (lane, task), outcome in zip(tasks, outcomes, strict=True):
                if isinstance(outcome, Failure):
                    failures.append(outcome)
                    continue
                made = self._read_candidates(task, outcome, rounds - 1)
                candidates += made
                lane.note(task, [item.question for item in made if item.problem is None])
            if all(isinstance(outcome, Failure) for outcome in outcomes):
                break
        verdicts = filter_candidates(candidates, self.character, settings)
        distinct = {lane.type: len(lane.distinct) for lane in lanes}
        shortfall = self._explain_shortfall(lanes, rounds, failures)
        return InstructResult(self.character.role, tuple(verdicts), rounds, distinct, shortfall)

    def _make_lanes(self, segments: Sequence[Segment], count: Count) -> list[Lane]:
        character = self.character
        settings = self.settings
        used = [segment for segment in segments if segment.about_role]
        if not used:
            raise DataError(
                f"nothing to ask {character.role} about: no description, no catchphrases, no lore, and no part "
                "of a script in which the role speaks or is named. Build a profile first: rolellm role build"
            )
        agnostic = [segment for segment in used if segment.type == "script_agnostic"]
        language = character.language
        based = [segment for segment in used if segment.type == "script_based"]
        # So that the first ones come from all over the script.
        random.Random(character.role).shuffle(based)
        target = settings.per_role
        if not agnostic:
            target = 0
        elif based:
            target = round(target * AGNOSTIC_SHARE)
        return [
            Lane("script_agnostic", agnostic, target, language, settings, count),
            Lane("script_based", based, settings.per_role - target, language, settings, count),
        ]

    def _plan_round(self, lanes: Sequence[Lane]) -> list[tuple[Lane, Task]]:
        """Plan the next tasks, each with its lane; none once there is enough, or no more to expect."""
        missing = self.settings.per_role - sum(len(lane.distinct) for lane in lanes)
        tasks: list[tuple[Lane, Task]] = []
        for lane in lanes:
            needed = lane.target - len(lane.distinct)
            if all(peer is lane or peer.dry for peer in lanes):
                # The only one that is left makes up for what the other falls short of.
                needed = max(needed, missing)
            tasks += ((lane, task) for task in lane.next_round(needed))
        return tasks

    def _read_candidates(self, task: Task, outcome: Answer[list[Any]], number: int) -> list[Candidate]:
        focuses = list_focuses(self.character.language, task.segment.kind)
        receipt = {
            "segment": task.segment.to_dict(),
            "round": number,
            "visit": task.visit,
            "focus": focuses[task.focus],
            "prompt": outcome.request.prompt_hash,
            "repeat": task.repeat,
            "model": outcome.reply.model,
            "endpoint": outcome.reply.endpoint,
            "key": outcome.key,
        }
        candidates = []
        for index, item in enumerate(outcome.value):
            candidates.append(parse_candidate(item, task.segment, {**receipt, "place": index}))
        return candidates

    def _explain_shortfall(self, lanes: Sequence[Lane], rounds: int, failures: Sequence[Failure]) -> str | None:
        requested = self.settings.per_role
        distinct = sum(len(lane.distinct) for lane in lanes)
        if distinct >= requested:
            return None
        text = f"{distinct} different questions of the {requested} requested, in {rounds} rounds"
        if failures:
            kinds = Counter(failure.kind for failure in failures)
            listed = ", ".join(f"{number} {kind}" for kind, number in kinds.most_common())
            text += f"; {len(failures)} requests got no usable reply ({listed}; see failed.jsonl)"
        if all(lane.dry for lane in lanes):
            return f"{text}. The last requests brought few new questions: the model finds no more in this profile"
        return f"{text}. Run the same command with --set retry_failed=true, or request fewer (--per-role)"

    def records(self, result: InstructResult) -> Records:
        """Return ``kept.jsonl`` and ``dropped.jsonl``."""
        language = self.character.language
        return {
            KEPT: [verdict.to_dict(language) for verdict in result.kept],
            DROPPED: [verdict.to_dict(language) for verdict in result.dropped],
        }

    def describe(self, result: InstructResult) -> dict[str, Any]:
        """Return the material, the rounds and the prompts."""
        return {
            "language": self.character.language,
            "rounds": result.rounds,
            "prompts": hash_prompts(self.character.language),
            "character": self.character.fingerprint,
        }

    def summarize(self, result: InstructResult) -> dict[str, Any]:
        """Count candidates by verdict and type."""
        by_filter = Counter(verdict.by for verdict in result.dropped)
        by_type = Counter(verdict.candidate.type for verdict in result.kept)
        dropped = {name: by_filter[name] for name in FILTERS}
        counts = {
            "candidates": len(result.verdicts),
            "distinct": sum(result.distinct.values()),
            "kept": len(result.kept),
            "kept_by_type": dict(by_type),
            "dropped": dropped,
        }
        return {"role": self.character.role, "counts": counts, "shortfall": result.shortfall}


def _make_stand_ins(character: Profile, tasks: Mapping[str, Task], request: Request) -> list[Any]:
    """Make as many pairs as are requested; later rounds list their questions, which nobody knows yet.

    A question is as long as those of the release: 16 words in English, 28 characters in Chinese (our count).
    """
    task = tasks[request.tag]
    words = "what did you see and what did you do about it?"
    if character.language == "zh":
        words = "说说你在那件事里看见了什么又做了什么？"
    name = f"{character.role}, {task.segment.id}/{task.visit}"
    return [{"question": f"{name}/{number} {words}", "answer": "."} for number in range(task.count)]


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
