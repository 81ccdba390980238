"""Two roles out of the sample's own scenes, from script to data set: stages 1 to 3 of the paper, offline.

Who answers are rules that quote their prompt (`rolellm.construct.scripted`), and no language model: this shows that the
stages work together, and nothing about how good a real model's data would be.
"""

from __future__ import annotations

import re
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rolellm.construct.context_instruct import InstructResult
from rolellm.construct.context_instruct.filters import FilterName, Verdict
from rolellm.construct.context_instruct.grounding import STOP_WORDS
from rolellm.construct.context_instruct.segments import Segment
from rolellm.core.errors import require
from rolellm.core.records import Language
from rolellm.core.text import chinese_words, safe_name
from rolellm.llm.model import RunOptions
from rolellm.report.construct_section import Made, MadePair, MadeRole, Receipt
from rolellm.rolebench.source import sample_folder

if TYPE_CHECKING:
    from rolellm.construct.profile import Built
    from rolellm.construct.rolegpt.respond import RespondResult
    from rolellm.construct.scripts.parse import Parsed
    from rolellm.construct.settings import RespondSettings
    from rolellm.construct.sheet import Sheet
    from rolellm.llm.scripted import ScriptedModel

# --- A few pairs of a run with the lines that they were made from, for a reader to compare


#: Which dropped pair is shown: one that has a place in the script, of the filter that says most about a pair.
_TELLING: tuple[FilterName, ...] = ("grounding", "standalone", "character", "confidence", "duplicate", "form")
_LINES = 4


def shown_pairs(result: InstructResult, script: str, name: str) -> tuple[MadePair, ...]:
    """The first kept pair of each type, and a dropped one.

    Args:
        result: Of Context-Instruct.
        script: The decoded text of the script, in which offsets are places.
        name: What the script is called.
    """
    return tuple(_pair(verdict, result.character.language, script, name) for verdict in _picked(result))


def _picked(result: InstructResult) -> Iterator[Verdict]:
    for kind in ("script_agnostic", "script_based"):
        yield from [verdict for verdict in result.kept if verdict.candidate.type == kind][:1]
    dropped = sorted(
        result.dropped,
        key=lambda item: (item.candidate.origin.segment.start < 0, _TELLING.index(item.by or "form")),
    )
    yield from dropped[:1]


def _pair(verdict: Verdict, language: Language, script: str, name: str) -> MadePair:
    pair = verdict.candidate
    segment = pair.origin.segment
    receipt = Receipt(
        source=name if segment.start >= 0 else f"the {segment.kind}",
        lines=_lines(segment, _words(f"{pair.question} {pair.answer}", language), language, script),
        prompt=pair.origin.prompt,
        model=pair.origin.model,
        start=segment.start,
        end=segment.end,
        by=verdict.by,
        reason=verdict.reason,
    )
    return MadePair(pair.question, pair.answer, pair.type, pair.confidence(language), receipt)


def _lines(segment: Segment, words: frozenset[str], language: Language, script: str) -> tuple[tuple[int, str], ...]:
    """The few lines in a row that have most of the words, the first of equals; of a profile, all of it."""
    if segment.start < 0:
        return ((0, segment.text),)
    first = script.count("\n", 0, segment.start) + 1
    numbered = [
        (first + place, line.strip())
        for place, line in enumerate(script[segment.start : segment.end].split("\n"))
        if line.strip()
    ]
    shared = [_words(line, language) & words for _, line in numbered]

    def found(place: int) -> int:
        return len(frozenset().union(*shared[place : place + _LINES]))

    best = max(range(max(len(numbered) - _LINES, 0) + 1), key=found)
    return tuple(numbered[best : best + _LINES])


def _words(text: str, language: Language) -> frozenset[str]:
    cut = chinese_words()(text) if language == "zh" else re.findall(r"[a-z]{3,}", text.casefold())
    return frozenset(word for word in cut if word not in STOP_WORDS[language])


# --- Wall time by stage, and the line that announces each


class Clock:
    """Wall time by stage.

    Args:
        say: Called with a line before each stage.
    """

    def __init__(self, say: Callable[[str], None] = lambda _: None) -> None:
        self._say = say
        self._seconds: dict[str, float] = {}
        self._begun: tuple[str, float] | None = None

    def start(self, stage: str, line: str) -> None:
        """End the stage before, and begin this one."""
        self.stop()
        self._say(line)
        self._begun = stage, time.monotonic()

    def stop(self) -> dict[str, float]:
        """End the stage; return the seconds of all."""
        if self._begun is not None:
            stage, begun = self._begun
            self._seconds[stage] = round(time.monotonic() - begun, 2)
            self._begun = None
        return self._seconds


# --- Two roles out of the sample's own scenes, from script to data set: stages 1 to 3 of the paper, offline


ROLES = ("Queen of Hearts", "鲁智深")
BY = (
    "No language model was asked: rules that quote their prompt stand in for one, and spoil one pair in twelve on "
    "purpose, so that filters have something to do. The stages, their client and their files are the real ones."
)
_PAIRS = 50
_INSTRUCTIONS = 10
_CHUNK_TOKENS, _OVERLAP_TOKENS = 300, 40
_CONFIGS = {"en": "instruction-generalization-eng", "zh": "instruction-generalization-zh"}
_FOLDERS = {"en": "instructions-eng", "zh": "instructions-zh"}
_QUIET = RunOptions(show_progress=False)


def make_roles(folder: str | Path, clock: Clock | None = None, *, roles: Sequence[str] = ROLES) -> Made:
    """Make roles of the sample's scripts, and a data set of them that loads; what the folder holds is replaced.

    Args:
        folder: Gets a folder for each character, and ``release``.
        clock: Announces each stage and takes its time.
        roles: Of the sample.

    Raises:
        MissingExtraError: Without ``bm25s`` or ``jsonschema``.
    """
    require("bm25s", "jsonschema", extra="demo")
    from rolellm.construct.scripted import scripted_model

    target, clock = Path(folder), clock or Clock()
    _clear(target)
    target.mkdir(parents=True)
    model = scripted_model()
    clock.start("parse", f"Reading the scripts of {' and '.join(roles)}")
    works = [_Work(role, target, model) for role in roles]
    clock.start("build", "Building their profiles; rules that quote their prompt answer, no language model")
    for work in works:
        work.build()
    clock.start("instruct", "Making questions and answers of profile and script (Context-Instruct), and filtering them")
    for work in works:
        work.instruct()
    clock.start(
        "respond", f"Replying in each voice to {_INSTRUCTIONS} general instructions and to its own questions (RoleGPT)"
    )
    for work in works:
        work.respond()
    clock.start("release", "Writing them as a data set, and loading it")
    rows = _release(target / "release", works)
    clock.stop()
    return Made(BY, str(target / "release"), tuple(work.made(rows[work.role]) for work in works))


def _clear(folder: Path) -> None:
    if folder.is_symlink() or folder.is_file():
        folder.unlink()
    elif folder.is_dir():
        shutil.rmtree(folder)


@dataclass(slots=True)
class _Spent:
    """What the clients of one role did."""

    calls: int = 0
    prompt: int = 0
    reply: int = 0

    def add(self, spent: Mapping[str, Any]) -> None:
        self.calls += spent["calls"]
        self.prompt += spent["usage"]["prompt"]
        self.reply += spent["usage"]["completion"]


class _Work:
    """One role on its way from script to data, each stage as its command does it."""

    built: Built
    instructed: InstructResult
    responded: RespondResult

    def __init__(self, role: str, target: Path, model: ScriptedModel) -> None:
        from rolellm.construct.asking import Asking
        from rolellm.construct.scripts.parse import parse_script
        from rolellm.construct.scripts.turns import write_turns

        self.role = role
        self.folder = target / safe_name(role)
        self.script = sample_folder() / "scripts" / f"{role}.txt"
        self.parsed: Parsed = parse_script(self.script, role)
        self._turns = self.folder.with_suffix(".turns.jsonl")
        write_turns(self._turns, self.parsed.turns, role, speakers=dict(enumerate(self.parsed.speakers)))
        self._asking = Asking([model], _QUIET)
        self._spent = _Spent()

    @property
    def character(self) -> Sheet:
        """As far as it is known."""
        return self.built.character

    def build(self) -> None:
        from rolellm.construct.profile import build_folder, start_sheet
        from rolellm.construct.settings import BuildSettings

        start = start_sheet(self._turns, self.role, language=self.parsed.language, script=self.script.stem)
        self.built = build_folder(start, self.folder, BuildSettings(), self._asking)
        self._spent.add(self.built.manifest["spent"])

    def instruct(self) -> None:
        from rolellm.construct.context_instruct.run import instruct_folder
        from rolellm.construct.settings import InstructSettings

        settings = InstructSettings(per_role=_PAIRS, chunk_tokens=_CHUNK_TOKENS, overlap_tokens=_OVERLAP_TOKENS)
        self.instructed, manifest = instruct_folder(self.character, self.folder / "instruct", settings, self._asking)
        self._spent.add(manifest["spent"])

    def respond(self) -> None:
        from rolellm.construct.context_instruct.run import KEPT
        from rolellm.construct.settings import RespondSettings

        general = sample_folder() / _FOLDERS[self.character.language] / "instructions-general.jsonl"
        self.responded = self._reply("respond", general, RespondSettings(), _INSTRUCTIONS)
        # One reply each to the role's own questions is RoleGPT's baseline for them.
        self._reply("respond-questions", self.folder / "instruct" / KEPT, RespondSettings(replies=1))

    def _reply(self, stage: str, file: Path, settings: RespondSettings, limit: int | None = None) -> RespondResult:
        from rolellm.construct.rolegpt.respond import instructions_of, respond_folder

        asked = instructions_of(file, self.role, limit)
        result, summary = respond_folder(self.character, asked, self.folder / stage, settings, self._asking)
        self._spent.add(summary["spent"])
        return result

    def made(self, rows: Mapping[str, int]) -> MadeRole:
        """The counts of all stages."""
        from rolellm.construct.clean import RULES

        turns = self.parsed.to_dict()["turns"]
        counts, replies = self.instructed.counts(), self.responded.summary()
        return MadeRole(
            role=self.role,
            language=self.character.language,
            script=self.script.name,
            format=self.parsed.format,
            turns=turns,
            own_lines=self.built.manifest["counts"]["own_lines"],
            offered=self.character.made["build"]["offered"],
            catchphrases=self.character.catchphrases,
            candidates=counts["candidates"],
            kept=counts["kept"],
            dropped=counts["dropped"],
            instructions=replies["instructions"],
            replies=replies["replies"],
            asked_again={rule: replies["turned_down"][rule] for rule in RULES},
            rows=rows,
            calls=self._spent.calls,
            tokens=(self._spent.prompt, self._spent.reply),
            pairs=shown_pairs(self.instructed, self.script.read_bytes().decode(self.parsed.encoding), self.script.name),
        )


def _release(out: Path, works: Sequence[_Work]) -> dict[str, dict[str, int]]:
    """Write the release, load it as anybody would, and count each role's rows by split."""
    from datasets import load_dataset

    from rolellm.construct.release import gather, write_release
    from rolellm.rolebench.register import NAME, register

    write_release([gather(work.folder) for work in works], out)
    register()
    rows: dict[str, dict[str, int]] = {work.role: {} for work in works}
    for config in {_CONFIGS[work.character.language]: None for work in works}:
        for split, found in load_dataset(NAME, config, data_dir=str(out)).items():
            for role, count in Counter(found["role"]).items():
                rows[role][split] = count
    return rows
