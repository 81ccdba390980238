"""Two runs side by side: what changed, what of it is more than luck, and which questions moved most.

All differences are of the second run minus the first, over the rows that both have, paired by row. Interval and p are
of one test, for these roles and for new ones; p is corrected by Holm for the number of tests in the whole comparison.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from rolellm.core.errors import DataError, SettingsError
from rolellm.core.fingerprint import hash_json
from rolellm.core.records import Row
from rolellm.core.table import Interval
from rolellm.core.text import fold
from rolellm.data.rolebench.schema import ANONYMOUS
from rolellm.judging.records import RESULT, JudgeRun, read_run
from rolellm.judging.result import JudgingResult
from rolellm.judging.settings import CompareSettings
from rolellm.judging.summary import adjust_tests
from rolellm.judging.verdicts import Field, RowClusters, Tally
from rolellm.scoring.predictions import Predictions, read_predictions
from rolellm.scoring.rows import read_dataset_rows
from rolellm.scoring.score import hash_rows, score_rows
from rolellm.scoring.score_report import ScoreReport
from rolellm.scoring.settings import Bootstrap, ScoreOptions
from rolellm.scoring.statistics.intervals import SHARE, encode_interval, estimate_mean, estimate_share

#: Measure to system to row id to value.
Measures = dict[str, dict[str, dict[str, float]]]
SystemPairs = Sequence[tuple[str, str]]
ROUGE = ("CUS", "RAW", "SPE")
_JUDGED = ("win_rate", "average_rank")


@dataclass(frozen=True, slots=True)
class RunSide:
    """A run, or predictions, as one side of a comparison.

    Attributes:
        name: Its path.
        kind: ``judged`` (a judging run) or ``scored`` (predictions).
        rows: The rows of the dataset.
        answers: System to row id to answer.
        measures: ``win_rate`` and ``average_rank`` of a judging run, ``CUS``, ``RAW`` and ``SPE`` of predictions.
        reasons: System to row id to the judges' reasons.
        settings: Flat names to values.
        problems: What its result says against it.
        baseline: The system that win rates are against.
    """

    name: str
    kind: Literal["judged", "scored"]
    rows: Sequence[Row]
    answers: Mapping[str, Mapping[str, str]]
    measures: Measures
    reasons: Mapping[str, Mapping[str, Sequence[str]]] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    problems: Sequence[str] = ()
    baseline: str | None = None


def read_judged_side(folder: str | Path) -> RunSide:
    """Read a finished judging run.

    Raises:
        DataError: When the folder is not a judging run's, or its files do not fit together.
    """
    run = read_run(folder)
    result = JudgingResult.from_dict(run.result, run.folder / RESULT)
    tally = Tally(run.comparison, run.judgements(), Bootstrap())
    names, outcomes = list(run.comparison.answers), tally.verdicts.outcomes
    fields: Mapping[str, Field] = {"win_rate": "win", "average_rank": "rank"}
    measures = {
        measure: values
        for measure, field in fields.items()
        if (values := {name: of for name in names if (of := tally.values(name, field))})
    }
    reasons = {name: {row: of[name].reasons for row, of in outcomes.items() if name in of} for name in names}
    return RunSide(
        name=str(folder),
        kind="judged",
        rows=run.comparison.rows,
        answers=run.comparison.answers,
        measures=measures,
        reasons=reasons,
        settings=_flatten_settings(run, result),
        problems=result.problems,
        baseline=run.comparison.baseline,
    )


def read_scored_side(path: str | Path, rows: Sequence[Row], options: ScoreOptions) -> RunSide:
    """Read predictions and score them by Rouge-L; the one system is named after the file.

    Raises:
        PredictionError: When the file cannot be read, or answers no row.
    """
    path = Path(path)
    predictions = read_predictions(path)
    report = score_rows(rows, predictions, options)
    texts = predictions.map_texts(rows, report.answers)
    # The options are the same for both sides; what differs is in the predictions.
    settings = flatten({key: value for key, value in report.fingerprint.items() if key != "hash"})
    problems = [str(finding) for finding in report.findings if finding.refused]
    answered = [row for row in rows if row.id in texts]
    measures = _collect_scores(path.name, report)
    return RunSide(str(path), "scored", answered, {path.name: texts}, measures, settings=settings, problems=problems)


def add_rouge(run_side: RunSide, names: Sequence[str], options: ScoreOptions) -> RunSide:
    """Add Rouge-L of some systems' stored answers."""
    measures = {measure: dict(values) for measure, values in run_side.measures.items()}
    for name in names:
        answers = run_side.answers[name]
        rows = [row for row in run_side.rows if row.id in answers]
        if rows:
            predictions = Predictions.pair_texts([row.id for row in rows], [answers[row.id] for row in rows])
            for measure, values in _collect_scores(name, score_rows(rows, predictions, options)).items():
                measures.setdefault(measure, {}).update(values)
    return replace(run_side, measures=measures)


def _collect_scores(name: str, report: ScoreReport) -> Measures:
    measures: Measures = {}
    for score in report.scores:
        measures.setdefault(score.metric, {}).setdefault(name, {})[score.id] = score.value
    return {measure: measures[measure] for measure in ROUGE if measure in measures}


def flatten(value: Any, name: str = "", depth: int = 40) -> dict[str, Any]:
    """Flatten nested settings: ``a.b`` of an object in an object, ``a[NAME].b`` of a list of named objects.

    >>> flatten({"judges": [{"name": "j", "seed": 1}], "orders": [0, 1]})
    {'judges[j].name': 'j', 'judges[j].seed': 1, 'orders': [0, 1]}
    """
    return dict(_iter_leaves(value, name, depth))


def _iter_leaves(value: Any, name: str, depth: int) -> Iterator[tuple[str, Any]]:
    if not depth:
        yield name, "… (nested too deeply to show)"
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _iter_leaves(item, f"{name}.{key}" if name else str(key), depth - 1)
    elif isinstance(value, list | tuple) and any(isinstance(item, Mapping | list | tuple) for item in value):
        for number, item in enumerate(value):
            key = item.get("name", number) if isinstance(item, Mapping) else number
            yield from _iter_leaves(item, f"{name}[{key}]", depth - 1)
    else:
        yield name, value


def _flatten_settings(run: JudgeRun, result: JudgingResult) -> dict[str, Any]:
    """Flatten the manifest, the result's judges, and hashes of the rows and answers themselves."""
    recipe = {key: value for key, value in run.recipe.items() if key not in ("hash", "judges")}
    judges = [judge.describe() for judge in result.judges]
    comparison = run.comparison
    return flatten(
        {
            **{key: getattr(result, key) for key in ("config", "split", "baseline")},
            # One judge next to another is a change of the judge, not one judge less and one more.
            **({"judge": judges[0]} if len(judges) == 1 else {"judges": judges}),
            **recipe,
            "rows": {"count": len(comparison.rows), "hash": hash_rows(comparison.rows)},
            "answers": {name: hash_json(sorted(answers.items())) for name, answers in comparison.answers.items()},
        }
    )


def compare_runs(first: str | Path, second: str | Path, settings: CompareSettings) -> dict[str, Any]:
    """Compare two judging runs, or two files of predictions; see `compare_sides`."""
    files = [path for path in (first, second) if Path(path).is_file()]
    if not files:
        return compare_sides(read_judged_side(first), read_judged_side(second), settings)
    if len(files) == 1:
        raise SettingsError(
            f"{files[0]} is a file and the other is not; give two folders of judging runs, or two files of predictions"
        )
    if settings.config is None:
        raise SettingsError("two prediction files need their dataset; add --config, such as --config sample")
    from rolellm.data.rolebench import dataset_fingerprint, load_rolebench

    def read_side(path: str | Path, config: str) -> RunSide:
        rows = read_dataset_rows(load_rolebench(config, settings.split, data_dir=settings.data_dir))
        fingerprint = dataset_fingerprint(config, settings.data_dir)
        return read_scored_side(path, rows, replace(settings.score, config=config, dataset_fingerprint=fingerprint))

    twin = ANONYMOUS if settings.anonymous else ""
    return compare_sides(read_side(first, settings.config + twin), read_side(second, settings.config), settings)


def compare_sides(first: RunSide, second: RunSide, settings: CompareSettings) -> dict[str, Any]:
    """Compare two sides of one kind.

    Args:
        first: The side before, from `read_judged_side` or `read_scored_side`.
        second: The side after, of the same kind.
        settings: How to compare them.

    Returns:
        One JSON object: ``anonymous`` (whether ``a`` answered the twins of ``b``), ``config``, ``a`` and ``b`` (what is
        compared), ``shared`` (rows, questions, systems), ``settings`` (those that differ), ``changes`` (system by
        measure, with tests), ``moved`` (the questions that moved most) and ``problems`` in words.

    Raises:
        SettingsError: When the two are not of one kind, or a pair names a system that is not in the runs.
        DataError: When they have no row or no system in common.
    """
    if first.kind != second.kind:
        raise SettingsError(f"{first.name} is {first.kind} and {second.name} is {second.kind}; give two of one kind")
    rows, problems = _find_shared_rows(first, second, twins=settings.anonymous)
    pairs = _join_systems(first, second, settings.pairs or ())
    if first.kind == "judged":
        changed = [
            (a, b)
            for a, b in pairs
            if any(first.answers[a].get(row.id) != second.answers[b].get(row.id) for row in rows)
        ]
        first = add_rouge(first, [name for name, _ in changed], settings.score)
        second = add_rouge(second, [name for _, name in changed], settings.score)
    first_names, second_names = ({pair[at] for pair in pairs} for at in (0, 1))
    problems += [f"{run_side.name}: {problem}" for run_side in (first, second) for problem in run_side.problems]
    if first.baseline != second.baseline:
        problems.append(
            f"win rates are against {first.baseline or 'nobody'} in the first and {second.baseline or 'nobody'} in the "
            "second: their difference is not due to the systems alone"
        )
    return {
        "anonymous": settings.anonymous,
        "config": second.settings.get("config") or second.settings.get("dataset.config"),
        "a": {"name": first.name, "kind": first.kind, "rows": len(first.rows)},
        "b": {"name": second.name, "kind": second.kind, "rows": len(second.rows)},
        "shared": {
            "rows": len(rows),
            "questions": len(set(RowClusters(rows).questions.values())),
            "systems": [list(pair) for pair in pairs],
            "only_a": [name for name in first.answers if name not in first_names],
            "only_b": [name for name in second.answers if name not in second_names],
        },
        "settings": [
            {"name": name, "before": first.settings.get(name), "after": second.settings.get(name)}
            for name in dict.fromkeys((*first.settings, *second.settings))
            if first.settings.get(name) != second.settings.get(name)
        ],
        "changes": _measure_changes(first, second, pairs, rows),
        "moved": _list_moves(first, second, pairs, rows)[: settings.top],
        "problems": problems,
    }


def _find_shared_rows(first: RunSide, second: RunSide, *, twins: bool) -> tuple[list[Row], list[str]]:
    second_rows = {row.id: (row.role, fold(row.question)) for row in second.rows}
    common = [row for row in first.rows if row.id in second_rows]
    rows = [row for row in common if twins or (row.role, fold(row.question)) == second_rows[row.id]]
    if not rows:
        raise DataError(f"{first.name} and {second.name} have no row in common; compare runs of one data set")
    problems = []
    if len(rows) < len(common):
        problems.append(f"{len(common) - len(rows):,} rows have the same id and another question; they are left out")
    unshared = len(first.rows) - len(common), len(second.rows) - len(common)
    if any(unshared):
        problems.append(f"{unshared[0]:,} rows are only in the first and {unshared[1]:,} only in the second; left out")
    return rows, problems


def _join_systems(first: RunSide, second: RunSide, requested: Sequence[str]) -> list[tuple[str, str]]:
    """Pair systems as requested, then those of the same name."""
    pairs = []
    for text in requested:
        before, _, after = text.partition("=")
        if not (before and after):
            raise SettingsError(f"--pair {text}: expected NAME_A=NAME_B, a system of the first run and of the second")
        pairs.append((before, after))
    if first.kind == "scored" and not pairs:
        return list(zip(first.answers, second.answers, strict=True))
    for pair in pairs:
        for name, run_side in zip(pair, (first, second), strict=True):
            if name not in run_side.answers:
                raise SettingsError(f"no system {name!r} in {run_side.name}; there are {', '.join(run_side.answers)}")
    paired = [{pair[at] for pair in pairs} for at in (0, 1)]
    pairs += [(n, n) for n in first.answers if n in second.answers and n not in paired[0] and n not in paired[1]]
    if not pairs:
        raise DataError(
            f"no system of {first.name} ({', '.join(first.answers)}) is in {second.name} "
            f"({', '.join(second.answers)}); name two that belong together with --pair NAME_A=NAME_B"
        )
    return pairs


def _measure_changes(first: RunSide, second: RunSide, pairs: SystemPairs, rows: Sequence[Row]) -> list[dict[str, Any]]:
    clusters = RowClusters(rows)

    def estimate(measure: str, values: Mapping[str, float]) -> Interval:
        sample = clusters.join_values(values.items())
        if measure == "win_rate":
            return estimate_share(sample)
        return estimate_mean([sample], bounds=SHARE if measure in ROUGE else (1.0, math.inf))

    changes: list[dict[str, Any]] = []
    for pair in pairs:
        names = {"system": pair[0], "system_b": pair[1]}
        for measure in (*_JUDGED, *ROUGE):
            old, new = _select_values(first, second, measure, pair, rows)
            if test := clusters.compare_values(new, old):
                means = {"before": estimate(measure, old), "after": estimate(measure, new)}
                changes.append({**names, "measure": measure, **means, **test._asdict()})
    return [
        {name: encode_interval(value) if isinstance(value, Interval) else value for name, value in change.items()}
        for change in adjust_tests(changes)
    ]


def _select_values(
    first: RunSide, second: RunSide, measure: str, pair: tuple[str, str], rows: Sequence[Row]
) -> tuple[dict[str, float], dict[str, float]]:
    """Select a measure of two systems on the rows that both have."""
    old, new = (
        run_side.measures.get(measure, {}).get(name, {}) for run_side, name in zip((first, second), pair, strict=True)
    )
    shared = [row.id for row in rows if row.id in old and row.id in new]
    return {row: old[row] for row in shared}, {row: new[row] for row in shared}


def _list_moves(first: RunSide, second: RunSide, pairs: SystemPairs, rows: Sequence[Row]) -> list[dict[str, Any]]:
    """List rows by how far they moved: in wins, or else in ranks; predictions in Rouge-L."""
    judged = next((name for name in _JUDGED if name in first.measures and name in second.measures), None)
    moves = []
    for measure in ROUGE if judged is None else (judged,):
        for a, b in pairs:
            old, new = _select_values(first, second, measure, (a, b), rows)
            for row in (row for row in rows if old.get(row.id) != new.get(row.id)):
                before, after = first.answers[a].get(row.id), second.answers[b].get(row.id)
                move = {
                    "row": row.id,
                    "role": row.role,
                    "question": row.question,
                    "system": a,
                    "system_b": b,
                    "answer_before": before,
                    "answer_after": after,
                    "same_answer": before == after,
                    "reasons_before": list(first.reasons.get(a, {}).get(row.id, ())),
                    "reasons_after": list(second.reasons.get(b, {}).get(row.id, ())),
                    "measure": measure,
                    "before": old[row.id],
                    "after": new[row.id],
                }
                moves.append((abs(new[row.id] - old[row.id]), move))
    return [move for _, move in sorted(moves, key=lambda item: -item[0])]
