"""Two roles out of the sample's own scenes, from script to data set: stages 1 to 3 of the paper.

Rules that quote their prompt answer (`rolellm.making.scripted`): that shows that the stages work together, and nothing
about how good a real model's data would be.
"""

from __future__ import annotations

import shutil
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rolellm.characters.reply_rules import RULES
from rolellm.characters.scripts.parse import parse_script
from rolellm.core.errors import require
from rolellm.core.records import Language, Profile
from rolellm.core.text import make_safe_name
from rolellm.data.rolebench.schema import SAMPLE
from rolellm.data.rolebench.source import sample_folder
from rolellm.llm.llm import LLM
from rolellm.making.content_words import extract_content_words
from rolellm.making.instruct.filters import FilterName, Verdict
from rolellm.making.instruct.run import KEPT, Instruct, InstructResult
from rolellm.making.profile.build import BuildProfile, build_folder
from rolellm.making.profile.start import start_sheet
from rolellm.making.release import INSTRUCTION_CONFIGS, gather, write_release
from rolellm.making.respond import Respond, read_instructions
from rolellm.making.scripted import scripted_model
from rolellm.making.settings import BuildSettings, InstructSettings, RespondSettings
from rolellm.runs import run_step

ROLES = ("Queen of Hearts", "鲁智深")
BY = (
    "No language model was asked: rules that quote their prompt take its place, and spoil one pair in twelve on "
    "purpose, so that filters have something to do. The stages, their client and their files are the real ones."
)
#: Which dropped pair is shown: one with a place in the script, of the filter that says most about a pair.
_TELLING: tuple[FilterName, ...] = ("overlap", "confidence", "duplicate", "form")
_LINES = 4


_INSTRUCT = InstructSettings(per_role=50, chunk_tokens=300)
_INSTRUCTIONS = 10


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
        _, *ends = [*self._begun.values(), time.monotonic()]
        spans = zip(self._begun.items(), ends, strict=True)
        return {stage: round(end - start, 2) for (stage, start), end in spans}


def make_roles(folder: str | Path, clock: Clock | None = None, *, roles: Sequence[str] = ROLES) -> dict[str, Any]:
    """Make roles of the sample's scripts, and a data set of them that loads.

    Args:
        folder: Gets a folder for each character, and ``release``. What it holds is replaced.
        clock: Announces each stage and takes its time.
        roles: Roles of the sample.

    Returns:
        ``by`` (who answered, in a sentence), ``release`` (the folder that loads as a data set), and ``roles``: the
        counts of each, and a few ``pairs`` with their receipts, which `rolellm.reporting.page` shows.

    Raises:
        MissingExtraError: Without ``bm25s`` or ``jsonschema``.
    """
    require("bm25s", "jsonschema", extra="demo")
    target = Path(folder)
    clock = clock or Clock()
    if target.is_symlink() or target.is_file():
        target.unlink()
    elif target.is_dir():
        shutil.rmtree(target)
    target.mkdir(parents=True, exist_ok=True)
    llm = LLM.of(scripted_model())
    llm.options = replace(llm.options, show_progress=False)
    note = "rules that quote their prompt answer, no language model"
    folders = {role: target / make_safe_name(role) for role in roles}
    described = []
    for role, home in folders.items():
        clock.start(role, f"Making {role} of its script: profile, questions, replies; {note}")
        described.append(_make_role(role, home, llm))
    clock.start("release", "Writing them as a data set, and loading it")
    rows = _release(target / "release", list(folders.values()))
    for entry in described:
        entry["rows"] = rows[entry["role"]]
    return {"by": BY, "release": str(target / "release"), "roles": described}


def _make_role(role: str, folder: Path, llm: LLM) -> dict[str, Any]:
    """Make one role of its script, each stage as its command does it."""
    script = sample_folder() / "scripts" / f"{role}.txt"
    parsed = parse_script(script, role)
    start = start_sheet(parsed.turns, role, language=parsed.language, script=script.stem)
    built = build_folder(BuildProfile(start, BuildSettings(), folder), llm)
    character = built.result
    instructed = run_step(Instruct(character, _INSTRUCT), llm, folder / "instruct")
    general = read_instructions(SAMPLE, character, _INSTRUCTIONS)
    responded = run_step(Respond(character, general), llm, folder / "respond")
    # One reply each to the role's own questions is RoleGPT's baseline for them.
    own = read_instructions(folder / "instruct" / KEPT, character)
    baseline = run_step(Respond(character, own, RespondSettings(replies=1)), llm, folder / "respond-questions")
    counts = instructed.summary["counts"]
    replies = responded.summary
    spent = [run.manifest["spent"] for run in (built, instructed, responded, baseline)]
    text = script.read_bytes().decode(parsed.encoding)
    verdicts = _pick_verdicts(instructed.result)
    return {
        "role": role,
        "language": character.language,
        "script": script.name,
        "format": parsed.format,
        "turns": parsed.kinds,
        "own_lines": built.summary["counts"]["own_lines"],
        "offered": character.made["build"]["offered"],
        "catchphrases": character.catchphrases,
        "candidates": counts["candidates"],
        "kept": counts["kept"],
        "dropped": counts["dropped"],
        "instructions": replies["instructions"],
        "replies": replies["replies"],
        "asked_again": {rule: replies["turned_down"][rule] for rule in RULES},
        "calls": sum(item["calls"] for item in spent),
        "tokens": tuple(sum(item["usage"][kind] for item in spent) for kind in ("prompt", "completion")),
        "pairs": [_describe_pair(verdict, character, text, script.name) for verdict in verdicts],
    }


def _release(out: Path, folders: Sequence[Path]) -> dict[str, dict[str, int]]:
    """Write the release, load it as a user would, and count each role's rows by split."""
    from datasets import load_dataset

    from rolellm.data.rolebench.register import NAME, register

    release = write_release([gather(folder) for folder in folders], out)
    register()
    rows: dict[str, dict[str, int]] = defaultdict(dict)
    for config in INSTRUCTION_CONFIGS.values():
        if config not in release.configs:
            continue
        for split, dataset in load_dataset(NAME, config, data_dir=str(out)).items():
            for role, count in Counter(dataset["role"]).items():
                rows[role][split] = count
    return rows


def _pick_verdicts(result: InstructResult) -> list[Verdict]:
    """Pick the first kept pair of each type, and a dropped one."""
    picked = []
    for kind in ("script_agnostic", "script_based"):
        picked += [verdict for verdict in result.kept if verdict.candidate.type == kind][:1]

    def rank(verdict: Verdict) -> tuple[bool, int]:
        return verdict.candidate.segment.kind != "script", _TELLING.index(verdict.by or "form")

    return picked + sorted(result.dropped, key=rank)[:1]


def _describe_pair(verdict: Verdict, character: Profile, script: str, source: str) -> dict[str, Any]:
    """Describe a pair with its receipt; ``lines`` are those of its source that have most of its words, numbered."""
    pair = verdict.candidate
    segment, language = pair.segment, character.language
    is_of_script = segment.kind == "script"
    start = end = -1
    lines = [(0, segment.text)]
    if is_of_script:
        start, end = character.turns[segment.first].start, character.turns[segment.last].end
        first = script.count("\n", 0, start) + 1
        script_lines = enumerate(script[start:end].split("\n"), first)
        numbered = [(number, line.strip()) for number, line in script_lines if line.strip()]
        words = extract_content_words(f"{pair.question} {pair.answer}", language)
        lines = _find_fullest(numbered, frozenset(words), language)
    return {
        "question": pair.question,
        "answer": pair.answer,
        "type": pair.type,
        "prompt": pair.receipt["prompt"],
        "model": pair.receipt["model"],
        "start": start,
        "end": end,
        "by": verdict.by,
        "reason": verdict.reason,
        "confidence": pair.confidence(language),
        "source": source if is_of_script else f"the {segment.kind}",
        "lines": lines,
    }


def _find_fullest(
    numbered: Sequence[tuple[int, str]], words: frozenset[str], language: Language
) -> list[tuple[int, str]]:
    """Find the few lines in a row that have most of the words, the first of equals."""
    shared = [words.intersection(extract_content_words(line, language)) for _, line in numbered]
    starts = range(max(len(numbered) - _LINES, 0) + 1)

    def count_words(start: int) -> int:
        return len(frozenset().union(*shared[start : start + _LINES]))

    fullest = max(starts, key=count_words)
    return list(numbered[fullest : fullest + _LINES])
