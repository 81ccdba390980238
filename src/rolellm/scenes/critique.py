"""The judge of CoSER's benchmark: four calls a scene, each of which lists the flaws of one dimension."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Final

from rolellm.core.errors import DataError, SettingsError
from rolellm.core.result import Result
from rolellm.core.table import Cell, Format, Table, TableRow
from rolellm.llm.json_reply import accept_json
from rolellm.llm.llm import LLM
from rolellm.llm.model import Accept, Answer, Request, Sampling, Schema, UnacceptableError, system, user
from rolellm.models.prompts.render import Template, load_template, load_texts
from rolellm.runs import Plan, Records, Round, Step
from rolellm.scenes.coser import (
    DIMENSIONS,
    CoserRow,
    CoserScores,
    Flaw,
    compute_bleu,
    compute_rouge_l,
    join_reference,
    join_simulation,
    read_flaws,
    score_flaws,
)
from rolellm.scenes.names import SPOKE_FOR, find_only_named
from rolellm.scenes.play import PlayedScene
from rolellm.scenes.prompts import load_scene_prompts
from rolellm.scenes.scene import ENVIRONMENT
from rolellm.scenes.visibility import add_speaker
from rolellm.scoring.statistics.intervals import ClusteredSample, Interval, estimate_mean, estimate_share, name_clusters

#: The name of CoSER's own file, which its tools and `rescore` read.
EVALUATION: Final = "evaluation.json"
_BOUNDS: Final = (0.0, 100.0)
#: The name under which all characters together are rated.
_ALL: Final = "all"
_MAX_TOKENS: Final = 2000
_FLAW: Final = {
    "type": "object",
    "properties": {
        "instance": {"type": "string"},
        "type": {"type": "string"},
        "severity": {"type": ["integer", "null"]},
    },
}
_FLAWS: Final = {"type": "object", "required": ["flaws"], "properties": {"flaws": {"type": "array", "items": _FLAW}}}


@dataclass(frozen=True, slots=True)
class JudgedScene:
    """A scene with what its judge found.

    Attributes:
        name: The row's name.
        book: The book's title.
        turns: The scene as the judge read it: speakers and texts without thoughts.
        flaws: Dimension to the flaws found; a dimension whose judge gave no usable answer is left out.
        bleu: BLEU against the book's scene, from 0 to 1.
        rouge_l: ROUGE-L F1 against it, from 0 to 1.
    """

    name: str
    book: str
    turns: tuple[tuple[str, str], ...]
    flaws: Mapping[str, tuple[Flaw, ...]]
    bleu: float
    rouge_l: float

    @property
    def scores(self) -> dict[str, float]:
        """Dimension to score, from 0 to 100."""
        own_turns = sum(speaker != ENVIRONMENT for speaker, _ in self.turns)
        return {dimension: score_flaws(flaws, own_turns) for dimension, flaws in self.flaws.items()}

    @property
    def severities(self) -> Counter[str]:
        """Sum of severities by the one character whom a flaw names; under an empty name, of all other flaws."""
        names = {speaker for speaker, _ in self.turns if speaker != ENVIRONMENT}
        severities = Counter[str]()
        for flaw in chain.from_iterable(self.flaws.values()):
            severities[find_only_named(flaw.instance, names)] += flaw.severity
        return severities

    @property
    def is_whole(self) -> bool:
        """True if every dimension was judged."""
        return len(self.flaws) == len(DIMENSIONS)

    def to_case(self) -> dict[str, Any]:
        """Return it in the form of CoSER's own results."""
        scores = self.scores
        critique: dict[str, Any] = {}
        for dimension, flaws in self.flaws.items():
            critique[dimension] = {"flaws": [asdict(flaw) for flaw in flaws], "score": scores[dimension]}
        critique |= {"bleu": self.bleu, "rouge_l": self.rouge_l}
        turns = [{"role": speaker, "content": text} for speaker, text in self.turns]
        score = sum(scores.values()) / len(DIMENSIONS)
        return {
            "simulation": turns,
            "simulation_str": join_simulation(self.turns),
            "score": score,
            "critique": critique,
        }


@dataclass(frozen=True, slots=True, repr=False)
class CritiqueResult(Result):
    """Result of a run.

    Attributes:
        scenes: The scenes with what the judge found.
        means: Name of a score to its mean over the scenes that have it, with its interval over books.
        characters: Character to the share of its turns that went on with another's lines, and the severity a turn of
            the flaws that name nobody else, with intervals over scenes; of all characters, over books.
        certificate: What the judge's certificate says; empty where nobody looked for one.
        own_prompts: Which prompts were the user's own; figures made with ours do not compare with published ones.
    """

    scenes: tuple[JudgedScene, ...]
    means: Mapping[str, Interval]
    characters: Mapping[str, tuple[Interval, Interval]]
    certificate: str = ""
    own_prompts: tuple[str, ...] = ()

    @property
    def has_passed(self) -> bool:
        """True where every dimension of every scene was judged."""
        return all(scene.is_whole for scene in self.scenes)

    def tables(self) -> tuple[Table, ...]:
        """Build the table of means, and that of characters."""
        cells: tuple[Cell, ...] = tuple(self.means.values())
        share = Format(4)
        row = TableRow((f"{len(self.scenes)} scenes",), cells)
        formats = {"BLEU": share, "ROUGE-L": share}
        means = Table("CoSER", ("",), tuple(self.means), (row,), digits=1, formats=formats)
        rows = [(name, *ratings) for name, ratings in self.characters.items()]
        heads = ("Character", "Spoke for another %", "Severity of its flaws a turn")
        return (means, Table.from_rows("Characters", heads, rows))

    def remarks(self) -> list[str]:
        """Say whether the figures compare with published ones, what flaws count for a character, and who judged."""
        origin = "Prompts of our own: these figures compare with each other, not with those that CoSER published."
        needed = {"character", "environment", "speaker", "critique"}
        if needed <= {*self.own_prompts}:
            origin = (
                "All prompts are your own. If they are CoSER's, and the judge is too, the figures compare with its."
            )
        severities: Counter[str] = sum((scene.severities for scene in self.scenes), Counter())
        total = severities.total()
        named = total - severities[""]
        points = f"{named} of {total} points of severity"
        flaws = f"Flaws that name exactly one character, {points}, count for it; others for nobody."
        return list(filter(None, (origin, flaws, self.certificate)))

    def notes(self) -> list[str]:
        """Return which scenes are not wholly judged."""
        notes = []
        for scene in self.scenes:
            missing = [dimension for dimension in DIMENSIONS if dimension not in scene.flaws]
            if missing:
                notes.append(f"note: {scene.name}: no usable verdict on {', '.join(missing)}; it does not count there")
        return notes


@dataclass(frozen=True)
class CritiqueScenes(Step[CritiqueResult]):
    """Judge played scenes as CoSER does.

    Attributes:
        rows: The rows of the test set.
        scenes: The scenes played, one a row.
        prompts: A YAML file with prompts of the user's own.
        certificate: What the judge's certificate says, in a sentence.
        settings: Nothing to set.
    """

    rows: Sequence[CoserRow]
    scenes: Sequence[PlayedScene]
    prompts: str | Path | None = None
    certificate: str = ""
    settings: Any = None
    kind: ClassVar[str] = "critique"

    def plan(self, llm: LLM) -> Plan[CritiqueResult]:
        """Ask for the flaws of each dimension of each scene.

        Raises:
            SettingsError: When the scenes are not those of the rows.
        """
        names = [row.name for row in self.rows]
        if names != [scene.title for scene in self.scenes]:
            raise SettingsError("the scenes are not those of the rows; judge the scenes that were played from them")
        prompts = load_scene_prompts("en", self.prompts)
        requests = []
        accepts: dict[str, Accept[tuple[Flaw, ...]]] = {}
        for row, scene in zip(self.rows, self.scenes, strict=True):
            played = join_simulation(_list_turns(scene))
            for request, accept in _list_requests(row, played, prompts.critique):
                requests.append(request)
                accepts[request.tag] = accept
        outcomes = yield Round(
            requests,
            lambda request, reply: accepts[request.tag](request, reply),
            label="judging scenes",
            stand_in=lambda _: (),
        )
        by_tag = {outcome.request.tag: outcome for outcome in outcomes}
        judged = []
        for row, scene in zip(self.rows, self.scenes, strict=True):
            flaws: dict[str, tuple[Flaw, ...]] = {}
            for dimension in DIMENSIONS:
                outcome = by_tag[_tag(row, dimension)]
                if isinstance(outcome, Answer):
                    flaws[dimension] = outcome.value
            judged.append(_measure(row, scene, flaws))
        characters = _rate_characters(self.scenes, judged)
        return CritiqueResult(tuple(judged), _average(judged), characters, self.certificate, prompts.own)

    def records(self, result: CritiqueResult) -> Records:
        """Return the scenes in the form of CoSER's own results."""
        whole = {scene.name: scene.scores for scene in result.scenes if scene.is_whole}
        scores = CoserScores.from_cases(whole).scores if whole else {}
        return {EVALUATION: {"scores": scores, "cases": {scene.name: scene.to_case() for scene in result.scenes}}}

    def summarize(self, result: CritiqueResult) -> dict[str, Any]:
        """Return the means, those of characters, and what is known of the judge."""
        means = {name: interval.to_columns() for name, interval in result.means.items()}
        characters = {}
        for name, (share, severity) in result.characters.items():
            characters[name] = {"spoke_for": share.to_columns(), "severity": severity.to_columns()}
        summary: dict[str, Any] = {"scenes": len(result.scenes), "means": means, "characters": characters}
        return summary | {"certificate": result.certificate, "own_prompts": list(result.own_prompts)}


def _tag(row: CoserRow, dimension: str) -> str:
    return f"{row.name}/{dimension}"


def _list_requests(row: CoserRow, played: str, prompt: Template) -> Iterator[tuple[Request, Accept[tuple[Flaw, ...]]]]:
    """List the requests of a scene, one a dimension, each with what reads its reply."""
    criteria = load_texts("scenes", "en")["criteria"]
    profiles = "\n\n".join(f"### {name}\n\n{profile}" for name, profile in row.profiles.items() if profile)
    texts = {"book": row.book, "plot": row.plot.summary, "setting": row.scenario, "profiles": profiles}
    texts |= {"original": join_reference(row), "names": ", ".join(row.major_characters)}
    repair = load_template("en", "repair").text
    sampling = Sampling(temperature=0.0, max_tokens=_MAX_TOKENS)
    for dimension in DIMENSIONS:
        instruction = prompt.fill(**texts, dimension=dimension, criteria=criteria[dimension])
        messages = (system(instruction), user(played or "(Nobody says anything.)"))
        schema = Schema("flaws", {"type": "object", "required": [dimension], "properties": {dimension: _FLAWS}})
        request = Request(messages, sampling, schema=schema, tag=_tag(row, dimension), repair=repair)
        yield request, accept_json(schema, partial(_read_verdict, dimension))


def _read_verdict(dimension: str, value: Any) -> tuple[Flaw, ...]:
    try:
        return read_flaws(value[dimension], dimension)
    except DataError as error:
        raise UnacceptableError(str(error), "malformed") from error


def _list_turns(scene: PlayedScene) -> tuple[tuple[str, str], ...]:
    return tuple((turn.speaker, add_speaker(turn.text, turn.speaker)) for turn in scene.turns)


def _measure(row: CoserRow, scene: PlayedScene, flaws: Mapping[str, tuple[Flaw, ...]]) -> JudgedScene:
    turns = _list_turns(scene)
    played, reference = join_simulation(turns), join_reference(row)
    bleu, rouge_l = compute_bleu(played, reference), compute_rouge_l(played, reference)
    return JudgedScene(row.name, row.book, turns, flaws, bleu, rouge_l)


def _rate_characters(
    scenes: Sequence[PlayedScene], judged: Sequence[JudgedScene]
) -> dict[str, tuple[Interval, Interval]]:
    """Rate each character over its wholly judged scenes, and all of them over books."""
    turns: dict[str, list[tuple[float, float, str]]] = {}
    for played, scene in zip(scenes, judged, strict=True):
        counts = Counter(turn.speaker for turn in played.turns)
        severities = scene.severities
        for turn in played.turns:
            if turn.speaker == ENVIRONMENT or not scene.is_whole:
                continue
            spoke = float(SPOKE_FOR in turn.note)
            severity = severities[turn.speaker] / counts[turn.speaker]
            turns.setdefault(_ALL, []).append((spoke, severity, scene.book))
            turns.setdefault(f"{scene.book}: {turn.speaker}", []).append((spoke, severity, scene.name))
    ratings = {}
    for name, values in turns.items():
        spoken, flaws, clusters = zip(*values, strict=True)
        share = estimate_share(ClusteredSample(spoken, clusters))
        mean = estimate_mean([ClusteredSample(flaws, clusters)], bounds=(0.0, math.inf))
        ratings[name] = name_clusters((share, mean), "book" if name == _ALL else "scene")
    return ratings


def _average(scenes: Sequence[JudgedScene]) -> dict[str, Interval]:
    """Average each score over the scenes that have it; scenes of one book are one cluster."""
    columns: dict[str, list[tuple[float, str]]] = {}
    for scene in scenes:
        scores = scene.scores
        for dimension, score in scores.items():
            columns.setdefault(dimension, []).append((score, scene.book))
        if scene.is_whole:
            columns.setdefault("Mean", []).append((sum(scores.values()) / len(scores), scene.book))
        columns.setdefault("BLEU", []).append((scene.bleu, scene.book))
        columns.setdefault("ROUGE-L", []).append((scene.rouge_l, scene.book))
    means: dict[str, Interval] = {}
    for name in (*DIMENSIONS, "Mean", "BLEU", "ROUGE-L"):
        if name in columns:
            values, books = zip(*columns[name], strict=True)
            bounds = (0.0, 1.0) if name in ("BLEU", "ROUGE-L") else _BOUNDS
            means[name] = estimate_mean([ClusteredSample(values, books)], bounds=bounds)
    return name_clusters(means, "book")
