"""Two roles out of the sample's own scenes, from script to data set: stages 1 to 3 of the paper.

Without a model, rules that quote their prompt answer (`rolellm.making.scripted`): that shows that the stages work
together, and nothing about how good a real model's data would be.
"""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from rolellm.characters.reply_rules import RULES
from rolellm.characters.scripts.parse import ParsedScript, parse_script
from rolellm.characters.scripts.turns import write_turns
from rolellm.core.errors import require
from rolellm.core.records import Language
from rolellm.core.text import make_safe_name
from rolellm.data.rolebench.schema import SAMPLE
from rolellm.data.rolebench.source import sample_folder
from rolellm.llm.llm import LLM
from rolellm.making.instruct.filters import FilterName, Verdict
from rolellm.making.instruct.grounding import extract_content_words
from rolellm.making.instruct.run import KEPT, Instruct, InstructResult
from rolellm.making.profile.build import BuildProfile, build_folder
from rolellm.making.profile.start import start_sheet
from rolellm.making.release import INSTRUCTION_CONFIGS, gather, write_release
from rolellm.making.respond import InstructionReplies, Respond, read_instructions
from rolellm.making.scripted import scripted_model
from rolellm.making.settings import BuildSettings, InstructSettings, RespondSettings
from rolellm.runs import Run, run_step

ROLES = ("Queen of Hearts", "鲁智深")
BY = (
    "No language model was asked: rules that quote their prompt take its place, and spoil one pair in twelve on "
    "purpose, so that filters have something to do. The stages, their client and their files are the real ones."
)
#: Which dropped pair is shown: one with a place in the script, of the filter that says most about a pair.
_TELLING: tuple[FilterName, ...] = ("grounding", "standalone", "character", "confidence", "duplicate", "form")
_LINES = 4


class _Stages(NamedTuple):
    """The settings of each stage, and how many instructions each role gets."""

    build: BuildSettings
    instruct: InstructSettings
    respond: RespondSettings
    instructions: int


_BY_RULES = _Stages(
    BuildSettings(), InstructSettings(per_role=50, chunk_tokens=300, overlap_tokens=40), RespondSettings(), 10
)
# A reply takes a real model seconds, and a small one may write on without an end.
_BY_MODEL = _Stages(
    BuildSettings(max_tokens=1000),
    InstructSettings(per_role=10, chunk_tokens=300, overlap_tokens=40, rounds=3, max_tokens=1000),
    RespondSettings(replies=2),
    3,
)


class Clock:
    """Wall time by stage.

    Args:
        say: Called with a line before each stage.
    """

    def __init__(self, say: Callable[[str], None] = lambda _: None) -> None:
        self._say = say
        self._begun: dict[str, float] = {}

    def start(self, stage: str, line: str) -> None:
        """End the stage before, and begin this one."""
        self._say(line)
        self._begun[stage] = time.monotonic()

    def stop(self) -> dict[str, float]:
        """Return the seconds of each stage, the last one ending now."""
        ends = [*list(self._begun.values())[1:], time.monotonic()]
        return {stage: round(end - start, 2) for (stage, start), end in zip(self._begun.items(), ends, strict=True)}


def make_roles(
    folder: str | Path, clock: Clock | None = None, *, roles: Sequence[str] = ROLES, llm: LLM | None = None
) -> dict[str, Any]:
    """Make roles of the sample's scripts, and a data set of them that loads.

    Args:
        folder: Gets a folder for each character, and ``release``. What it holds is replaced; with ``llm``, replies that
            it holds are not asked for again.
        clock: Announces each stage and takes its time.
        roles: Roles of the sample.
        llm: Who answers; by default rules.

    Returns:
        ``by`` (who answered, in a sentence), ``release`` (the folder that loads as a data set), and ``roles``: the
        counts of each, and a few ``pairs`` with their receipts, which `rolellm.reporting.page` shows.

    Raises:
        MissingExtraError: Without ``bm25s`` or ``jsonschema``.
        StoppedShortError: On Ctrl-C with ``llm``; the same call continues.
        EndpointError: When no endpoint answers.
    """
    require("bm25s", "jsonschema", extra="demo")
    target, clock = Path(folder), clock or Clock()
    if target.is_symlink() or target.is_file():
        target.unlink()
    elif target.is_dir():
        shutil.rmtree(target if llm is None else target / "release", ignore_errors=llm is not None)
    target.mkdir(parents=True, exist_ok=True)
    by, stages, note = BY, _BY_RULES, "rules that quote their prompt answer, no language model"
    if llm is None:
        llm = LLM.of(scripted_model())
        llm.options = replace(llm.options, show_progress=False)
    else:
        by, stages = f"{', '.join(model.name for model in llm.models)} answered.", _BY_MODEL
        note = "a language model answers"
    clock.start("parse", f"Reading the scripts of {' and '.join(roles)}")
    works = [_Work(role, target, llm, stages) for role in roles]
    for stage, line in (
        ("build", f"Building their profiles; {note}"),
        ("instruct", "Making questions and answers from profile and script (Context-Instruct), and filtering them"),
        ("respond", f"Replying in each voice to {stages.instructions} general and to its own questions (RoleGPT)"),
    ):
        clock.start(stage, line)
        for work in works:
            getattr(work, stage)()
    clock.start("release", "Writing them as a data set, and loading it")
    rows = _release(target / "release", works)
    return {"by": by, "release": str(target / "release"), "roles": [work.made(rows[work.role]) for work in works]}


class _Work:
    """One role on its way from script to data, each stage as its command does it."""

    instructed: Run[InstructResult]
    responded: Run[tuple[InstructionReplies, ...]]

    def __init__(self, role: str, target: Path, llm: LLM, stages: _Stages) -> None:
        self.role, self.folder, self._llm, self._stages = role, target / make_safe_name(role), llm, stages
        self._script = sample_folder() / "scripts" / f"{role}.txt"
        self._parsed: ParsedScript = parse_script(self._script, role)
        turns = self.folder.with_suffix(".turns.jsonl")
        write_turns(turns, self._parsed.turns, role, speakers=dict(enumerate(self._parsed.speakers)))
        self.character = start_sheet(turns, role, language=self._parsed.language, script=self._script.stem)
        self._spent: list[Mapping[str, Any]] = []

    def build(self) -> None:
        run = build_folder(BuildProfile(self.character, self._stages.build, self.folder), self._llm)
        self.character, self._own_lines = run.result, run.summary["counts"]["own_lines"]
        self._spent.append(run.manifest["spent"])

    def instruct(self) -> None:
        step = Instruct(self.character, self._stages.instruct)
        self.instructed = run_step(step, self._llm, self.folder / "instruct")
        self._spent.append(self.instructed.manifest["spent"])

    def respond(self) -> None:
        self.responded = self._reply("respond", SAMPLE, self._stages.respond, self._stages.instructions)
        # One reply each to the role's own questions is RoleGPT's baseline for them.
        self._reply("respond-questions", self.folder / "instruct" / KEPT, RespondSettings(replies=1))

    def _reply(
        self, stage: str, file: str | Path, settings: RespondSettings, limit: int | None = None
    ) -> Run[tuple[InstructionReplies, ...]]:
        step = Respond(self.character, read_instructions(file, self.character, limit), settings)
        run = run_step(step, self._llm, self.folder / stage)
        self._spent.append(run.manifest["spent"])
        return run

    def made(self, rows: Mapping[str, int]) -> dict[str, Any]:
        """Return the counts of all stages, and pairs to show."""
        counts, replies = self.instructed.summary["counts"], self.responded.summary
        used = [spent["usage"] for spent in self._spent]
        text = self._script.read_bytes().decode(self._parsed.encoding)
        return {
            "role": self.role,
            "language": self.character.language,
            "script": self._script.name,
            "format": self._parsed.format,
            "turns": self._parsed.to_dict()["turns"],
            "own_lines": self._own_lines,
            "offered": self.character.made["build"]["offered"],
            "catchphrases": self.character.catchphrases,
            "candidates": counts["candidates"],
            "kept": counts["kept"],
            "dropped": counts["dropped"],
            "instructions": replies["instructions"],
            "replies": replies["replies"],
            "asked_again": {rule: replies["turned_down"][rule] for rule in RULES},
            "rows": rows,
            "calls": sum(spent["calls"] for spent in self._spent),
            "tokens": (sum(usage["prompt"] for usage in used), sum(usage["completion"] for usage in used)),
            "pairs": [
                _describe_pair(verdict, self.character.language, text, self._script.name)
                for verdict in _pick_verdicts(self.instructed.result)
            ],
        }


def _release(out: Path, works: Sequence[_Work]) -> dict[str, dict[str, int]]:
    """Write the release, load it as a user would, and count each role's rows by split."""
    from datasets import load_dataset

    from rolellm.data.rolebench.register import NAME, register

    write_release([gather(work.folder) for work in works], out)
    register()
    rows: dict[str, dict[str, int]] = {work.role: {} for work in works}
    for config in {INSTRUCTION_CONFIGS[work.character.language]: None for work in works}:
        for split, dataset in load_dataset(NAME, config, data_dir=str(out)).items():
            for role, count in Counter(dataset["role"]).items():
                rows[role][split] = count
    return rows


def _pick_verdicts(result: InstructResult) -> list[Verdict]:
    """Pick the first kept pair of each type, and a dropped one."""
    kinds = ("script_agnostic", "script_based")
    kept_verdicts = [next((item for item in result.kept if item.candidate.type == kind), None) for kind in kinds]
    dropped = sorted(
        result.dropped,
        key=lambda item: (item.candidate.origin.segment.start < 0, _TELLING.index(item.by or "form")),
    )
    return [item for item in (*kept_verdicts, *dropped[:1]) if item is not None]


def _describe_pair(verdict: Verdict, language: Language, script: str, source: str) -> dict[str, Any]:
    """Describe a pair with its receipt; ``lines`` are those of its source that have most of its words, numbered."""
    pair = verdict.candidate
    segment = pair.origin.segment
    lines: tuple[tuple[int, str], ...] = ((0, segment.text),)
    if segment.start >= 0:
        first = script.count("\n", 0, segment.start) + 1
        script_lines = script[segment.start : segment.end].split("\n")
        numbered = [(first + index, line.strip()) for index, line in enumerate(script_lines) if line.strip()]
        lines = _find_fullest(numbered, extract_content_words(f"{pair.question} {pair.answer}", language), language)
    return {
        **{name: getattr(pair, name) for name in ("question", "answer", "type")},
        **{name: getattr(pair.origin, name) for name in ("prompt", "model")},
        **{name: getattr(segment, name) for name in ("start", "end")},
        **{name: getattr(verdict, name) for name in ("by", "reason")},
        "confidence": pair.confidence(language),
        "source": source if segment.start >= 0 else f"the {segment.kind}",
        "lines": lines,
    }


def _find_fullest(
    numbered: Sequence[tuple[int, str]], words: Sequence[str], language: Language
) -> tuple[tuple[int, str], ...]:
    """Return the few lines in a row that have most of the words, the first of equals."""
    shared = [set(words).intersection(extract_content_words(line, language)) for _, line in numbered]
    best = max(
        range(max(len(numbered) - _LINES, 0) + 1),
        key=lambda start: len(frozenset().union(*shared[start : start + _LINES])),
    )
    return tuple(numbered[best : best + _LINES])
