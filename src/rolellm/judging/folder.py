"""A judging run's folder: everything that a report, a comparison or a person's labels need, in plain files.

::

    RUN/
      manifest.json        how it was judged: judges, systems, data set, settings, fingerprint
      rows.jsonl           the rows, with the data set's columns
      answers.jsonl        {"id", "answers": {system: text}} a row, in the order of rows.jsonl
      judgements.jsonl     every verdict, and every request without one
      unscored.jsonl       the requests without a verdict, with their transcripts
      result.json          what `rolellm judge --json` prints
      labels/NAME.jsonl    what people said (rankings); labels/NAME.audit.jsonl (the audit)
      journal.jsonl        every reply of a judge, see `rolellm.llm`
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rolellm.core.errors import DataError
from rolellm.core.files import write_json
from rolellm.core.jsonl import read_json, read_jsonl, write_jsonl
from rolellm.core.records import Row
from rolellm.core.typed_json import read_as
from rolellm.judging.types import Comparison, Judgement, System

MANIFEST = "manifest.json"
ROWS = "rows.jsonl"
ANSWERS = "answers.jsonl"
JUDGEMENTS = "judgements.jsonl"
UNSCORED = "unscored.jsonl"
RESULT = "result.json"
LABELS = "labels"
STAGE = "judge"


@dataclass(frozen=True, slots=True)
class DatasetName:
    """The data set that a run's manifest names."""

    config: str | None = None
    split: str | None = None
    fingerprint: str | None = None


@dataclass(frozen=True, slots=True)
class Manifest:
    """What other code reads of a run's manifest; all of it is in `JudgeRun.manifest`."""

    systems: tuple[System, ...]
    dataset: DatasetName = DatasetName()
    hash: str | None = None


@dataclass(frozen=True, slots=True)
class _Answers:
    """A line of the answers' file."""

    id: str
    answers: dict[str, str]


@dataclass(frozen=True, slots=True)
class JudgeRun:
    """A judging run, read back.

    Attributes:
        folder: Where it is.
        manifest: How it was judged, as written.
        named: What of that is read by name.
        comparison: Rows, systems and answers.
        result: What was found, see `rolellm.judging.result`.
    """

    folder: Path
    manifest: Mapping[str, Any]
    named: Manifest
    comparison: Comparison
    result: Mapping[str, Any]

    def judgements(self) -> list[Judgement]:
        """Every judgement, in the order asked; a million take about a gigabyte.

        Raises:
            DataError: For a line that is not a judgement of this run's answers; names file and line.
        """
        path = self.folder / JUDGEMENTS
        rows = {row.id for row in self.comparison.rows}
        found = []
        for line, value in _lines(path):
            one = read_as(Judgement, value, "the judgement", path=path, line=line)
            problem = _problem(one, rows, self.comparison.answers)
            if problem:
                raise DataError(f"{problem}; judge again", path=path, line=line)
            found.append(one)
        counted = _counted(self.result)
        if counted not in (None, len(found)):
            problem = f"holds {len(found):,} judgements, but {RESULT} summarizes {counted:,}"
            raise DataError(f"{problem}; rerun the `rolellm judge` command", path=path)
        return found


def _problem(one: Judgement, rows: Collection[str], names: Collection[str]) -> str:
    """What keeps a judgement from being one of this run, in words; empty where nothing does."""
    strangers = [name for name in one.order if name not in names]
    if one.row not in rows:
        return f"{ROWS} has no row {one.row!r:.80}"
    if strangers:
        return f"{strangers[0]!r:.80} is not a system of this run"
    if one.design == "pairwise" and len(one.order) != 2:
        return f"a pair has two answers, not {len(one.order)}"
    if one.ranks is not None and (len(one.ranks) != len(one.order) or not all(map(math.isfinite, one.ranks))):
        return "ranks must be finite numbers, one per answer"
    if one.lead is not None and not math.isfinite(one.lead):
        return "odds must be finite"
    return ""


def _counted(result: Mapping[str, Any]) -> int | None:
    """How many judgements a result is of, where it says so."""
    try:
        return sum(map(int, result["diagnostics"]["judgements"].values()))
    except (KeyError, AttributeError, TypeError, ValueError, OverflowError):
        return None


def is_judge_run(folder: Path) -> bool:
    """Whether a folder is one of a judging run, finished or not."""
    try:
        return bool(read_json(folder / MANIFEST).get("stage") == STAGE)
    except DataError:
        return False


def write_comparison(folder: Path, comparison: Comparison) -> None:
    """Write rows and answers; systems go into the manifest."""
    write_jsonl(folder / ROWS, (asdict(row) for row in comparison.rows))
    given = [(one.name, comparison.answers[one.name]) for one in comparison.systems]
    ids = (row.id for row in comparison.rows)
    write_jsonl(
        folder / ANSWERS, ({"id": row, "answers": {name: of[row] for name, of in given if row in of}} for row in ids)
    )


def write_judgements(folder: Path, judgements: Iterable[Judgement]) -> None:
    """Write every judgement."""
    # What says nothing is left out of these.
    optional = ("named", "unscored", "copied", "touched", "lead")
    every = (asdict(one) for one in judgements)
    write_jsonl(folder / JUDGEMENTS, ({k: v for k, v in one.items() if v or k not in optional} for one in every))


def write_manifest(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Write how it was judged."""
    write_json(folder / MANIFEST, {"stage": STAGE, **manifest})


def read_run(folder: str | Path) -> JudgeRun:
    """Read a finished run, all but its judgements.

    Raises:
        DataError: When the folder is not a judging run's, or the run is not finished; says what to do.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise DataError("no such folder; expected the folder of a judging run", path=folder)
    if not is_judge_run(folder):
        raise DataError("not the folder of a judging run; create one with `rolellm judge … --out RUN`", path=folder)
    if not (folder / RESULT).is_file():
        raise DataError("the run is not finished; rerun its `rolellm judge` command", path=folder)
    manifest = read_json(folder / MANIFEST)
    named = read_as(Manifest, manifest, "the manifest", path=folder / MANIFEST)
    return JudgeRun(folder, manifest, named, _read_comparison(folder, named), read_json(folder / RESULT))


def _read_comparison(folder: Path, named: Manifest) -> Comparison:
    path = folder / ROWS
    rows = [read_as(Row, value, "the row", path=path, line=line) for line, value in _lines(path)]
    path = folder / ANSWERS
    answers: dict[str, dict[str, str]] = {one.name: {} for one in named.systems}
    answered = []
    for line, value in _lines(path):
        given = read_as(_Answers, value, "the line", path=path, line=line)
        answered.append(given.id)
        for name, text in given.answers.items():
            if name not in answers:
                raise DataError(f"{name!r:.80} is not a system of this run; judge again", path=path, line=line)
            answers[name][given.id] = text
    if answered != [row.id for row in rows] or len(set(answered)) < len(answered):
        raise DataError(f"{ANSWERS} and {ROWS} do not have the same rows, each once; judge again", path=folder)
    if len(answers) < len(named.systems):
        raise DataError("two systems have one name; judge again", path=folder / MANIFEST)
    return Comparison(rows, named.systems, answers)


def _lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    try:
        yield from read_jsonl(path)
    except OSError as error:
        raise DataError(f"cannot be read ({error.strerror or error}); judge again", path=path) from error
