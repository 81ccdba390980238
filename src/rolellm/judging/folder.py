"""A judging run's folder: everything that a report, a comparison or a person's labels need, in plain files.

::

    RUN/
      manifest.json        how it was judged: judges, contestants, data set, settings, fingerprint
      rows.jsonl           the rows, with the data set's columns
      answers.jsonl        {"id", "answers": {contestant: text}} a row, in the order of rows.jsonl
      judgements.jsonl     every verdict, and every request that brought none
      unscored.jsonl       what brought none, with its transcript
      result.json          what `rolellm judge --json` prints
      labels/NAME.jsonl    what people said (rankings); labels/NAME.audit.jsonl (the audit)
      journal.jsonl        every reply of a judge, see `rolellm.llm`
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rolellm.core.errors import DataError
from rolellm.core.files import write_json
from rolellm.core.jsonl import read_jsonl, write_jsonl
from rolellm.core.records import Row
from rolellm.judging.types import Contest, Contestant, Judgement

MANIFEST = "manifest.json"
ROWS = "rows.jsonl"
ANSWERS = "answers.jsonl"
JUDGEMENTS = "judgements.jsonl"
UNSCORED = "unscored.jsonl"
RESULT = "result.json"
LABELS = "labels"
STAGE = "judge"


@dataclass(frozen=True, slots=True)
class JudgeRun:
    """A judging run, read back.

    Attributes:
        folder: Where it is.
        manifest: How it was judged.
        contest: Rows, contestants and answers.
        result: What was found, see `rolellm.judging.result`.
    """

    folder: Path
    manifest: Mapping[str, Any]
    contest: Contest
    result: Mapping[str, Any]

    def judgements(self) -> list[Judgement]:
        """Every judgement, in the order asked; a million take about a gigabyte.

        Raises:
            DataError: For a line that is none; names file and line.
        """
        path = self.folder / JUDGEMENTS
        found = []
        for line, value in read_jsonl(path):
            try:
                found.append(Judgement.from_dict(value))
            except (KeyError, TypeError, ValueError) as error:
                raise DataError(f"not a judgement ({error!r:.80})", path=path, line=line) from error
        counted = self.result.get("diagnostics", {}).get("judgements")
        if counted is not None and sum(counted.values()) != len(found):
            problem = f"holds {len(found):,} judgements, and {RESULT} is of {sum(counted.values()):,}"
            raise DataError(f"{problem}; give the run's `rolellm judge` command again", path=path)
        return found


def is_judge_run(folder: Path) -> bool:
    """Whether a folder is one of a judging run, finished or not."""
    try:
        return bool(read_json(folder / MANIFEST).get("stage") == STAGE)
    except DataError:
        return False


def write_contest(folder: Path, contest: Contest) -> None:
    """Write rows and answers; contestants go into the manifest."""
    write_jsonl(folder / ROWS, (asdict(row) for row in contest.rows))
    write_jsonl(folder / ANSWERS, ({"id": row.id, "answers": _answers_of(contest, row)} for row in contest.rows))


def write_judgements(folder: Path, judgements: Iterable[Judgement]) -> None:
    """Write every judgement."""
    write_jsonl(folder / JUDGEMENTS, (one.to_dict() for one in judgements))


def write_manifest(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Write how it was judged."""
    write_json(folder / MANIFEST, {"stage": STAGE, **manifest})


def read_run(folder: str | Path) -> JudgeRun:
    """Read a finished run, all but its judgements.

    Raises:
        DataError: When the folder is none of a judging run, or the run is not finished; says what to do.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise DataError("no such folder; expected one that `rolellm judge` wrote", path=folder)
    if not is_judge_run(folder):
        raise DataError("not the folder of a judging run; `rolellm judge … --out RUN` makes one", path=folder)
    if not (folder / RESULT).is_file():
        raise DataError("the run is not finished; give its `rolellm judge` command again", path=folder)
    manifest = read_json(folder / MANIFEST)
    try:
        contestants = [Contestant.from_dict(value) for value in manifest["contestants"]]
        rows = [Row.from_columns(value) for _, value in read_jsonl(folder / ROWS)]
        answers: dict[str, dict[str, str]] = {one.name: {} for one in contestants}
        answered = set()
        for _, value in read_jsonl(folder / ANSWERS):
            answered.add(value["id"])
            for name, text in value["answers"].items():
                answers[name][value["id"]] = text
        if answered != {row.id for row in rows}:
            raise KeyError(f"{ANSWERS} and {ROWS} name other rows")
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(f"the run's files do not fit together ({error!r:.80}); judge again", path=folder) from error
    return JudgeRun(folder, manifest, Contest(rows, contestants, answers), read_json(folder / RESULT))


def _answers_of(contest: Contest, row: Row) -> dict[str, str]:
    return {
        one.name: contest.answers[one.name][row.id]
        for one in contest.contestants
        if row.id in contest.answers[one.name]
    }


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file.

    Raises:
        DataError: When there is none.
    """
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"cannot be read as JSON ({error})", path=path) from error
    if not isinstance(value, dict):
        raise DataError("expected a JSON object", path=path)
    return value
