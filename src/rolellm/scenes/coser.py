"""CoSER's benchmark of acting in given circumstances (arXiv 2502.09082, https://github.com/Neph0s/CoSER/tree/624efc5).

A row is a scene of a book. `rolellm.scenes.play` plays it, and a judge lists the flaws of each of four dimensions, each
with a severity from 1 to 5. A dimension's score is ``100 - 5 * (severities - 0.3 * turns)``, kept within 0 and 100,
where the environment's turns do not count. BLEU and ROUGE-L compare the scene with the book's.

ROUGE-L is that of PyPI's ``rouge-chinese`` 1.0.3, which made CoSER's published figures, equal to the last bit. BLEU is
NLTK's, without smoothing, over the words of `word_tokenize`: NLTK 3.10 splits single quotes in another way than the 3.9
that CoSER used, and without NLTK's data ``punkt_tab`` some ends of sentences differ (up to 0.0003 on CoSER's rows).
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, Final

from pydantic import Field
from rapidfuzz.distance import LCSseq

from rolellm.core.errors import DataError, require
from rolellm.core.foreign import read_text
from rolellm.core.result import Result
from rolellm.core.table import Table
from rolellm.core.text import format_count
from rolellm.core.typed_json import read_as
from rolellm.llm.model import Request
from rolellm.playing.thoughts import strip_inner_thoughts
from rolellm.scenes.scene import ENVIRONMENT, Scene, SceneCharacter
from rolellm.scoring.statistics.agreement import compute_spearman
from rolellm.scoring.statistics.intervals import DECIDED, Interval, adjust_p_values, compare_pairs, name_clusters

DIMENSIONS: Final = ("Storyline Consistency", "Anthropomorphism", "Character Fidelity", "Storyline Quality")
#: Maximum turns, and the turns before which a scene cannot end.
_TURNS: Final = 20
_MIN_TURNS: Final = 6
#: Where `rouge-chinese` begins a new line: after the end of a sentence that no closing quote follows.
_SENTENCE_ENDS: Final = tuple(
    re.compile(end + follower)
    for end, follower in (
        ("([。！？?])", "([^”’])"),
        (r"(\.{6})", "([^”’])"),
        ("(…{2})", "([^”’])"),
        ("([。！？?][”’])", "([^，。！？?])"),
    )
)


@dataclass(frozen=True)
class _KeyCharacter:
    name: str
    motivation: str = ""
    thought: str = ""
    description: str = ""


@dataclass(frozen=True)
class _Plot:
    i_p: int
    summary: str = ""
    key_characters: tuple[_KeyCharacter, ...] = ()


@dataclass(frozen=True)
class _BookLine:
    character: str
    message: str


@dataclass(frozen=True)
class CoserRow:
    """A row of CoSER's test set; keys that are not here are ignored.

    Attributes:
        book: The book's title.
        scenario: Where and when the scene is, and what has happened.
        topic: What it is about.
        key_characters: Characters with their motivation, which the released test set calls ``thought``.
        dialogues: The scene in the book.
        speaking_characters_w_env: Who speaks, ``Environment`` included; the first begins.
        major_characters: Those that matter most.
        plot: What happens around the scene, and its number in the book.
        character_profiles: Name to profile.
        i_c: The conversation's number in the plot.
        tag: ``id`` or ``ood``: whether the book was in CoSER's training data.
    """

    book: str
    scenario: str
    key_characters: tuple[_KeyCharacter, ...]
    dialogues: tuple[_BookLine, ...]
    speaking_characters_w_env: Annotated[tuple[str, ...], Field(min_length=1)]
    major_characters: tuple[str, ...]
    plot: _Plot
    character_profiles: dict[str, str]
    i_c: int
    topic: str = ""
    tag: str = ""

    @property
    def name(self) -> str:
        """The name that CoSER's results have for it."""
        return f"{self.book}-{self.plot.i_p}-{self.i_c}"

    @property
    def profiles(self) -> dict[str, str]:
        """Name to profile of each character that speaks: what the plot says of it, then its profile."""
        in_plot = {character.name: character.description for character in self.plot.key_characters}
        profiles: dict[str, str] = {}
        for name in self.speaking_characters_w_env:
            if name == ENVIRONMENT:
                continue
            texts = (in_plot.get(name, "").strip("\n"), self.character_profiles.get(name, "").strip("\n"))
            profiles[name] = "\n\n".join(filter(None, texts)).strip()
        return profiles

    @property
    def reference(self) -> list[tuple[str, str]]:
        """The scene in the book: speakers, and what others see of their lines."""
        return [(line.character, _show(line.character, line.message)) for line in self.dialogues]

    def to_scene(self) -> Scene:
        """Return the scene to play."""
        motivations = {each.name: each.motivation or each.thought for each in self.key_characters}
        characters = []
        for name, profile in self.profiles.items():
            motivation = motivations.get(name, "")
            characters.append(
                SceneCharacter(name=name, description=profile or name, motivation=motivation, known_as=profile)
            )
        return Scene(
            title=self.name,
            setting=self.scenario,
            topic=self.topic,
            characters=tuple(characters),
            first=self.speaking_characters_w_env[0],
            environment=True,
            speakers="model",
            turns=_TURNS,
            min_turns=_MIN_TURNS,
        )


def read_coser_rows(path: str | Path) -> list[CoserRow]:
    """Read a test set of CoSER.

    Raises:
        DataError: For a file that is not a list of its rows; names the first place that does not fit.
    """
    values = _read_json(path)
    if not isinstance(values, list) or not values:
        raise DataError("not a test set of CoSER: expected a list of rows", path=path)
    return [read_as(CoserRow, value, f"row {number}", path=path) for number, value in enumerate(values, start=1)]


def _read_json(path: str | Path) -> Any:
    try:
        return json.loads(read_text(path))
    except ValueError as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"not JSON ({error})", path=path) from error


@dataclass(frozen=True)
class Flaw:
    """A flaw that a judge found.

    Attributes:
        severity: From 1 to 5; CoSER counts a flaw without one as 1.
        instance: The words in which it shows.
        type: Its kind.
    """

    severity: Annotated[int, Field(ge=1, le=5, strict=True)] = 1
    instance: str = ""
    type: str = ""


@dataclass(frozen=True)
class Flaws:
    """The flaws of a dimension."""

    flaws: tuple[Flaw, ...]


@dataclass(frozen=True)
class _Turn:
    role: str
    content: str


@dataclass(frozen=True)
class _Case:
    simulation: tuple[_Turn, ...]
    critique: dict[str, Any]


def score_flaws(flaws: Iterable[Flaw], turns: int) -> float:
    """Score a dimension of a scene, from 0 to 100.

    Args:
        flaws: The flaws that the judge listed.
        turns: Number of turns that are not the environment's; longer scenes may have more flaws.

    >>> score_flaws([Flaw(2), Flaw(3)], turns=5)
    82.5
    """
    severities = sum(flaw.severity for flaw in flaws)
    return max(0, min(100 - (severities - 0.3 * turns) * 5, 100))


@dataclass(frozen=True, slots=True, repr=False)
class CoserScores(Result):
    """Scores of scenes.

    Attributes:
        cases: Scene to dimension to score.
        scores: Dimension to mean over the scenes; ``avg`` is the mean over the dimensions.
    """

    cases: Mapping[str, Mapping[str, float]]
    scores: Mapping[str, float]

    @classmethod
    def from_cases(cls, cases: Mapping[str, Mapping[str, float]]) -> CoserScores:
        """Average the scenes' scores."""
        scores: dict[str, float] = {}
        for dimension in DIMENSIONS:
            values = [case[dimension] for case in cases.values()]
            scores[dimension] = sum(values) / len(values)
        scores["avg"] = sum(scores.values()) / len(DIMENSIONS)
        return cls(cases, scores)

    def tables(self) -> tuple[Table, ...]:
        """Build the table of scenes and their mean."""
        rows: list[list[Any]] = []
        for name, case in self.cases.items():
            rows.append([name, *(case[dimension] for dimension in DIMENSIONS), fmean(case.values())])
        rows.append(["all", *self.scores.values()])
        return (Table.from_rows("CoSER", ("Scene", *DIMENSIONS, "Mean"), rows),)


def rescore(path: str | Path) -> CoserScores:
    """Compute the scores of a file that CoSER's evaluation wrote from the flaws in it.

    Raises:
        DataError: For a file of another form, such as HER's, a dimension without flaws, and a severity that is not 1 to
            5; names the scene.
    """
    value = _read_json(path)
    cases = value.get("cases") if isinstance(value, dict) else None
    if not isinstance(cases, dict) or not cases:
        raise DataError(f"not an evaluation of CoSER: it has no `cases`{_recognize_her(value)}", path=path)
    scored: dict[str, dict[str, float]] = {}
    for name, content in cases.items():
        case = read_as(_Case, content, f"case {name!r}", path=path)
        turns = sum(turn.role not in (ENVIRONMENT, "NSP") for turn in case.simulation)
        scored[name] = {}
        for dimension in DIMENSIONS:
            subject = f"case {name!r}, {dimension},"
            if dimension not in case.critique:
                raise DataError(f"{subject} is not judged", path=path)
            flaws = read_flaws(case.critique[dimension], subject, path)
            scored[name][dimension] = score_flaws(flaws, turns)
    return CoserScores.from_cases(scored)


def read_flaws(value: Any, subject: str, path: str | Path | None = None) -> tuple[Flaw, ...]:
    """Read the flaws of a dimension.

    Raises:
        DataError: Without a list of flaws, or with a severity that is not 1 to 5.
    """
    if isinstance(value, dict) and isinstance(value.get("flaws"), list):
        for flaw in value["flaws"]:
            if isinstance(flaw, dict) and flaw.get("severity") is None:
                flaw.pop("severity", None)
    return read_as(Flaws, value, subject, path=path).flaws


def _recognize_her(value: Any) -> str:
    """Say that a file has HER's form, where it has."""
    first = value[0] if isinstance(value, list) and value else value
    if isinstance(first, dict) and {"sample_id", "dimension_results", "inference_result", "details"} & first.keys():
        return (
            "; it is HER's, whose scorer gives 50 where the judge's JSON fails: do not compare its scores with CoSER's"
        )
    return ""


def compute_rouge_l(simulation: str, reference: str) -> float:
    """ROUGE-L F1 of a scene against the book's, from 0 to 1; 0 where either has no word."""
    words, reference_words = _list_rouge_words(simulation), _list_rouge_words(reference)
    common = LCSseq.similarity(words, reference_words)
    if not common:
        return 0.0
    precision, recall = common / len(words), common / len(reference_words)
    return 2.0 * ((precision * recall) / (precision + recall + 1e-8))


def _list_rouge_words(text: str) -> list[str]:
    for pattern in _SENTENCE_ENDS:
        text = pattern.sub(r"\1\n\2", text)
    words: list[str] = []
    for line in text.rstrip().split("\n"):
        if line:
            # A line of spaces is one empty word there.
            words += " ".join(line.split()).split(" ")
    return words


def compute_bleu(simulation: str, reference: str) -> float:
    """BLEU-4 of a scene against the book's, from 0 to 1.

    Raises:
        MissingExtraError: Without ``nltk``.
    """
    require("nltk", extra="scenes")
    from nltk.translate.bleu_score import sentence_bleu

    words, reference_words = _list_bleu_words(simulation), _list_bleu_words(reference)
    if not words or not reference_words:
        return 0.0
    with warnings.catch_warnings():
        # That a short scene shares no run of four words with the book's is no fault.
        warnings.simplefilter("ignore", UserWarning)
        return float(sentence_bleu([reference_words], words))


def _list_bleu_words(text: str) -> list[str]:
    import nltk
    from nltk.tokenize import NLTKWordTokenizer
    from nltk.tokenize.punkt import PunktSentenceTokenizer

    text = text.lower()
    try:
        nltk.data.find("tokenizers/punkt_tab/english/")
    except LookupError:
        sentences = PunktSentenceTokenizer().tokenize(text)
    else:
        sentences = nltk.sent_tokenize(text)
    tokenizer = NLTKWordTokenizer()
    return [word for sentence in sentences for word in tokenizer.tokenize(sentence)]


def join_reference(row: CoserRow) -> str:
    """Join the book's scene to one text, as CoSER's judge and metrics read it."""
    return "\n\n".join(f"{speaker}: {text}".strip("\n") for speaker, text in row.reference)


def join_simulation(turns: Iterable[tuple[str, str]]) -> str:
    """Join a played scene to one text: each turn as it came, without thoughts."""
    return "\n\n".join(_show(speaker, text).strip("\n") for speaker, text in turns)


def _show(speaker: str, text: str) -> str:
    return text if speaker == ENVIRONMENT else strip_inner_thoughts(text)


@dataclass(frozen=True, slots=True, repr=False)
class ScoresCompared(Result):
    """Two evaluations of the same scenes.

    Attributes:
        scenes: Number of scenes that both have.
        differences: Dimension to the mean of first minus second over these scenes, with its interval.
        p_values: Dimension to the p-value of no difference, adjusted for the number of dimensions by Holm.
        correlations: Dimension to Spearman's rank correlation over the scenes; ``None`` where it is not defined.
        is_same_play: Whether both judged the same transcripts, so that what differs is the judge.
    """

    scenes: int
    differences: Mapping[str, Interval]
    p_values: Mapping[str, float]
    correlations: Mapping[str, float | None]
    is_same_play: bool

    def tables(self) -> tuple[Table, ...]:
        """Build the table of dimensions."""
        rows: list[list[Any]] = []
        for name, difference in self.differences.items():
            rows.append([name, difference, self.p_values[name], self.correlations[name]])
        heads = ("Dimension", "First minus second", "p (Holm)", "Rank correlation")
        return (replace(Table.from_rows("First against second", heads, rows), digits=1),)

    def remarks(self) -> list[str]:
        """Say in which dimensions one of them is ahead, or how far two judges agree."""
        subject = "judge is milder" if self.is_same_play else "cast is ahead"
        sentences = []
        for name, difference in self.differences.items():
            if self.p_values[name] < DECIDED:
                leader = "first" if difference.mean > 0 else "second"
                sentences.append(f"{name}: the {leader} {subject} by {abs(difference.mean):.1f} points.")
        scenes = format_count(self.scenes, "scene")
        return sentences or [f"Nothing is decided on {scenes}: no difference holds after Holm's adjustment."]


def compare_scores(first: str | Path, second: str | Path) -> ScoresCompared:
    """Compare two evaluations of the same scenes: two casts by one judge, or one play by two judges.

    Differences are paired by scene, and scenes of one book are one cluster.

    Raises:
        DataError: As `rescore`, and when they have no scene in common.
    """
    scores = [rescore(path).cases for path in (first, second)]
    names = [name for name in scores[0] if name in scores[1]]
    if not names:
        raise DataError(f"has no scene in common with {first}", path=second)
    books = [name.rsplit("-", 2)[0] for name in names]
    differences: dict[str, Interval] = {}
    p_values = []
    correlations: dict[str, float | None] = {}
    for dimension in DIMENSIONS:
        columns = [[cases[name][dimension] for name in names] for cases in scores]
        test = compare_pairs(columns[0], columns[1], books)
        differences[dimension] = name_clusters(test.difference, "book")
        p_values.append(test.p)
        correlations[dimension] = compute_spearman(columns[0], columns[1])
    adjusted = dict(zip(DIMENSIONS, adjust_p_values(p_values), strict=True))
    first_cases, second_cases = (_read_json(path)["cases"] for path in (first, second))
    is_same_play = all(first_cases[name]["simulation"] == second_cases[name]["simulation"] for name in names)
    return ScoresCompared(len(names), differences, adjusted, correlations, is_same_play)


def repeat_last_line(request: Request) -> str:
    """Answer with the last line that the character saw, without the speaker's name."""
    last = request.messages[-1].content.split("\n\n")[-1]
    name, separator, line = last.partition(": ")
    return line if separator and "\n" not in name else last


def swap_profiles(scene: Scene) -> Scene:
    """Give each character the description and the motivation of the next one."""
    characters = []
    others = (*scene.characters[1:], *scene.characters[:1])
    for character, other in zip(scene.characters, others, strict=True):
        swapped = replace(character, card=other.card, description=other.description, motivation=other.motivation)
        characters.append(swapped)
    return replace(scene, characters=tuple(characters))
