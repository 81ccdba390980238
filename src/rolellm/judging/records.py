"""Who takes part in judging, what was answered and what each judge said of it; and the folder that keeps all of it.

A report, a comparison and a person's labels need nothing but its plain files.

::

    RUN/
      manifest.json        how it was judged: judges, systems, data set, settings, fingerprint
      rows.jsonl           the rows, with the data set's columns
      answers.jsonl        {"id", "answers": {system: text}} a row, in the order of rows.jsonl
      judgements.jsonl     every verdict, and every request without one
      unscored.jsonl       the requests without a verdict, with their transcripts
      result.json          what `rolellm judge --json` prints
      labels/NAME.jsonl    what people said
      journal.jsonl        every reply of a judge, see `rolellm.llm`
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import FiniteFloat

from rolellm.core.errors import DataError
from rolellm.core.files import write_json
from rolellm.core.jsonl import read_json, read_jsonl, write_jsonl
from rolellm.core.records import Row
from rolellm.core.typed_json import read_as
from rolellm.llm.journal import JOURNAL
from rolellm.runs import MANIFEST, find_runs

SystemKind = Literal["model", "baseline", "canary"]
#: ``pairwise``: a system against the baseline. ``listwise``: all systems ranked at once.
Design = Literal["pairwise", "listwise"]


@dataclass(frozen=True, slots=True)
class System:
    """Someone whose answers are judged.

    Attributes:
        name: Unique in the run; shown in reports, never to a judge.
        kind: ``model``, ``baseline`` (what win rates are against), or ``canary`` (an attacker that must not win).
        model: What gave the answers, as their sidecar names it; ``None`` where nothing says.
        family: The model's family, such as ``llama``, where one is recognized.
        source: Where the answers came from: files with their SHA-256 and sidecars, or what made them.
    """

    name: str
    kind: SystemKind = "model"
    model: str | None = None
    family: str | None = None
    source: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Rows, and what every system answered.

    Attributes:
        rows: What was asked, in the data set's order.
        systems: The baseline among them, where pairs are judged.
        answers: System name to row id to answer; a row that a system did not answer is absent.
    """

    rows: Sequence[Row]
    systems: Sequence[System]
    answers: Mapping[str, Mapping[str, str]]

    @property
    def baseline(self) -> str | None:
        """The name of the system that pairs are against."""
        return next((system.name for system in self.systems if system.kind == "baseline"), None)

    @property
    def canaries(self) -> frozenset[str]:
        """The names of the attackers."""
        return frozenset(system.name for system in self.systems if system.kind == "canary")


@dataclass(frozen=True, slots=True)
class Judgement:
    """One verdict of one judge on the answers to one row.

    Attributes:
        row: The row's id.
        judge: The judge's name in the run.
        design: ``pairwise`` or ``listwise``.
        order: Names of the systems in the order in which they were shown.
        ranks: A rank for each, in the same order, from 1 (best); those who tie share the mean of their places. ``None``
            where there is no verdict.
        reasons: The judge's reason for each, in the same order; empty where there is none.
        unscored: Why there is no verdict, in words; ``None`` where there is one.
        key: What the journal has the reply under; empty where there was none.
        attempts: Replies until this verdict.
        copied: Whose answer the judge repeated a verdict from, instead of giving one.
        lead: Of a pair judged by odds: log odds of the first answer over the second.
    """

    row: str
    judge: str
    design: Design
    order: tuple[str, ...]
    ranks: tuple[FiniteFloat, ...] | None
    reasons: tuple[str, ...] = ()
    unscored: str | None = None
    key: str = ""
    attempts: int = 1
    copied: str | None = None
    lead: FiniteFloat | None = None


def compute_mid_ranks(values: Sequence[float]) -> tuple[float, ...]:
    """Compute ranks from 1, in which those who tie share the mean of theirs.

    >>> compute_mid_ranks([1, 3, 1])
    (1.5, 3.0, 1.5)
    """
    from scipy.stats import rankdata

    return tuple(rankdata(values).tolist())


ROWS = "rows.jsonl"
ANSWERS = "answers.jsonl"
JUDGEMENTS = "judgements.jsonl"
UNSCORED = "unscored.jsonl"
RESULT = "result.json"
LABELS = "labels"
KIND = "judge"
# What a manifest says of the run, not of how it was judged.
_OF_THE_RUN = ("kind", "rolellm", "summary", "requests", "files", "spent")


@dataclass(frozen=True, slots=True)
class DatasetName:
    """The data set that a run's manifest names."""

    config: str | None = None
    split: str | None = None
    fingerprint: str | None = None


@dataclass(frozen=True, slots=True)
class JudgeRun:
    """A judging run, read back.

    Attributes:
        folder: Where it is.
        manifest: How it was judged, as written.
        dataset: The data set that it names.
        comparison: Rows, systems and answers.
        result: What was found, see `rolellm.judging.result`.
    """

    folder: Path
    manifest: Mapping[str, Any]
    dataset: DatasetName
    comparison: Comparison
    result: Mapping[str, Any]

    @property
    def recipe(self) -> dict[str, Any]:
        """The part of the manifest that says how it was judged."""
        return {name: value for name, value in self.manifest.items() if name not in _OF_THE_RUN}

    def judgements(self) -> list[Judgement]:
        """Read every judgement, in the order asked; a million take about a gigabyte.

        Raises:
            DataError: For a line that is not a judgement; names file and line.
        """
        path = self.folder / JUDGEMENTS
        lines = _read_lines(path)
        return [read_as(Judgement, value, "the judgement", path=path, line=line) for line, value in lines]


def list_records(comparison: Comparison, judgements: Iterable[Judgement]) -> dict[str, Iterable[dict[str, Any]]]:
    """List the files of a run with rows, answers and judgements; systems are in the manifest."""
    return {
        ROWS: map(asdict, comparison.rows),
        ANSWERS: _list_answers(comparison),
        JUDGEMENTS: map(_dump_judgement, judgements),
    }


def _list_answers(comparison: Comparison) -> Iterator[dict[str, Any]]:
    for row in comparison.rows:
        answers = {}
        for system in comparison.systems:
            texts = comparison.answers[system.name]
            if row.id in texts:
                answers[system.name] = texts[row.id]
        yield {"id": row.id, "answers": answers}


def _dump_judgement(judgement: Judgement) -> dict[str, Any]:
    """Make a line of a judgement; what says nothing is left out."""
    line = asdict(judgement)
    for name in ("unscored", "copied", "lead"):
        if not line[name]:
            del line[name]
    return line


def write_run(
    folder: Path,
    comparison: Comparison,
    judgements: Iterable[Judgement] = (),
    result: Mapping[str, Any] | None = None,
    **manifest: Any,
) -> None:
    """Write the folder of a run that no model was asked for."""
    for name, lines in list_records(comparison, judgements).items():
        write_jsonl(folder / name, lines)
    systems = [asdict(system) for system in comparison.systems]
    write_json(folder / MANIFEST, {"kind": KIND, "systems": systems, **manifest})
    write_json(folder / RESULT, result or {})


def read_run(folder: str | Path) -> JudgeRun:
    """Read a finished run, all but its judgements.

    Raises:
        DataError: When the folder is not a judging run's, or the run is not finished; says what to do.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise DataError("no such folder; expected the folder of a judging run", path=folder)
    manifest = next((run.manifest for run in find_runs(folder, KIND) if run.folder == folder), None)
    is_begun = manifest is not None or (folder / JOURNAL).is_file()
    if is_begun and not (folder / RESULT).is_file():
        raise DataError("the run is not finished; rerun the command that began it", path=folder)
    if manifest is None:
        raise DataError("not the folder of a judging run; create one with `rolellm judge … --out RUN`", path=folder)
    path = folder / MANIFEST
    dataset = read_as(DatasetName, manifest.get("dataset", {}), "the manifest's dataset", path=path)
    systems = read_as(tuple[System, ...], manifest.get("systems"), "the manifest's list of systems", path=path)
    comparison = _read_comparison(folder, systems)
    return JudgeRun(folder, manifest, dataset, comparison, read_json(folder / RESULT))


def _read_comparison(folder: Path, systems: Sequence[System]) -> Comparison:
    path = folder / ROWS
    rows = [read_as(Row, value, "the row", path=path, line=line) for line, value in _read_lines(path)]
    path = folder / ANSWERS
    answers: dict[str, dict[str, str]] = {system.name: {} for system in systems}
    answered = []
    for line, value in _read_lines(path):
        row_id = str(value.get("id"))
        answered.append(row_id)
        texts = read_as(dict[str, str], value.get("answers"), "the answers", path=path, line=line)
        for name, text in texts.items():
            answers[name][row_id] = text
    if answered != [row.id for row in rows]:
        raise DataError(f"{ANSWERS} and {ROWS} do not have the same rows; judge again", path=folder)
    return Comparison(rows, systems, answers)


def _read_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    try:
        yield from read_jsonl(path)
    except OSError as error:
        raise DataError(f"cannot be read ({error.strerror or error}); judge again", path=path) from error
