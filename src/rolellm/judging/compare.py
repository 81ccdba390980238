"""Two runs side by side: what changed, what of it is more than luck, and which questions moved most.

All differences are of the second run less the first, over the rows that both have, paired by row; p is corrected by
Holm for the number of tests in the whole comparison.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from rolellm.core.errors import DataError, SettingsError
from rolellm.core.fingerprint import hash_json
from rolellm.core.records import Row
from rolellm.core.text import fold
from rolellm.evaluation.predictions import Predictions, read_predictions
from rolellm.evaluation.rows import rows_of
from rolellm.evaluation.score import ScoreReport, metric_dict, rows_hash, score_rows
from rolellm.evaluation.settings import ScoreOptions
from rolellm.evaluation.statistics.bootstrap import Bootstrap, Interval, Sample
from rolellm.judging.aggregate import clusters_of, estimates, sort_out
from rolellm.judging.figures import JudgingResult
from rolellm.judging.folder import RESULT, JudgeRun, read_run
from rolellm.judging.result import adjusted, paired
from rolellm.judging.settings import CompareSettings
from rolellm.judging.systems import texts_by_row
from rolellm.rolebench.schema import ANONYMOUS

#: Measure to system to row id to value.
Measures = dict[str, dict[str, dict[str, float]]]
ROUGE = ("CUS", "RAW", "SPE")


@dataclass(frozen=True, slots=True)
class RunSide:
    """A run, or predictions, as one side of a comparison.

    Attributes:
        name: Where it is.
        kind: ``judged`` (a judging run) or ``scored`` (predictions).
        rows: What was asked.
        answers: System to row id to answer.
        measures: ``win_rate`` and ``average_rank`` of a judging run, ``CUS``, ``RAW`` and ``SPE`` of predictions.
        fitted: System to ``lc_win_rate``, of which no row has a value of its own.
        reasons: System to row id to the judges' reasons.
        settings: How it was made: flat names to values.
        problems: What its result says against it.
        baseline: Whom win rates are against.
    """

    name: str
    kind: Literal["judged", "scored"]
    rows: Sequence[Row]
    answers: Mapping[str, Mapping[str, str]]
    measures: Measures
    fitted: Mapping[str, Interval] = field(default_factory=dict)
    reasons: Mapping[str, Mapping[str, Sequence[str]]] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    problems: Sequence[str] = ()
    baseline: str | None = None


def judged_side(folder: str | Path) -> RunSide:
    """A finished judging run.

    Raises:
        DataError: When the folder is none, or its files do not fit together.
    """
    run = read_run(folder)
    baseline = run.comparison.baseline.name if run.comparison.baseline else None
    measures: Measures = {"win_rate": {}, "average_rank": {}}
    reasons: dict[str, dict[str, Sequence[str]]] = {}
    for row, outcomes in sort_out(run.judgements(), baseline, run.comparison.canaries).outcomes.items():
        for name, outcome in outcomes.items():
            for measure, value in (("win_rate", outcome.win), ("average_rank", outcome.rank)):
                if value is not None:
                    measures[measure].setdefault(name, {})[row] = value
            reasons.setdefault(name, {})[row] = outcome.reasons
    result = JudgingResult.from_dict(run.result, run.folder / RESULT)
    fitted = {}
    for one in result.models:
        if one.pairwise and one.pairwise.win_rate is None:
            measures["win_rate"].pop(one.name, None)
        if one.pairwise and one.pairwise.lc_win_rate:
            fitted[one.name] = one.pairwise.lc_win_rate
    return RunSide(
        name=str(folder),
        kind="judged",
        rows=run.comparison.rows,
        answers=run.comparison.answers,
        measures={measure: values for measure, values in measures.items() if values},
        fitted=fitted,
        reasons=reasons,
        settings=_judging_settings(run),
        problems=result.problems,
        baseline=baseline,
    )


def scored_side(path: str | Path, rows: Sequence[Row], options: ScoreOptions) -> RunSide:
    """Predictions, scored by Rouge-L; the one system is called as the file.

    Raises:
        PredictionError: When the file cannot be read, or answers no row.
    """
    path = Path(path)
    predictions = read_predictions(path)
    report = score_rows(rows, predictions, options)
    texts = texts_by_row(rows, predictions, report.answers)
    measures = _rouge_values(path.name, report)
    # What a run is given to score with is the same for both sides; what differs is in the predictions.
    settings = flatten({key: value for key, value in report.fingerprint.items() if key != "hash"})
    problems = [str(finding) for finding in report.findings if finding.refused]
    answered = [row for row in rows if row.id in texts]
    return RunSide(str(path), "scored", answered, {path.name: texts}, measures, settings=settings, problems=problems)


def with_rouge(side: RunSide, names: Sequence[str], options: ScoreOptions) -> RunSide:
    """The side with Rouge-L of some systems' stored answers, too."""
    measures = {measure: dict(values) for measure, values in side.measures.items()}
    for name in names:
        answers = side.answers[name]
        rows = [row for row in side.rows if row.id in answers]
        if not rows:
            continue
        predictions = Predictions.from_texts([row.id for row in rows], [answers[row.id] for row in rows])
        for measure, values in _rouge_values(name, score_rows(rows, predictions, options)).items():
            measures.setdefault(measure, {}).update(values)
    return replace(side, measures=measures)


def flatten(value: Any, name: str = "", depth: int = 40) -> dict[str, Any]:
    """Nested settings as flat names: ``a.b`` of an object in an object, ``a[NAME].b`` of a list of named objects.

    >>> flatten({"judges": [{"name": "j", "seed": 1}], "orders": [0, 1]})
    {'judges[j].name': 'j', 'judges[j].seed': 1, 'orders': [0, 1]}
    """
    return dict(_leaves(value, name, depth))


def _leaves(value: Any, name: str, depth: int) -> Iterator[tuple[str, Any]]:
    if not depth:
        yield name, "… (nested too deeply to show)"
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(item, f"{name}.{key}" if name else str(key), depth - 1)
    elif isinstance(value, list | tuple) and any(isinstance(one, Mapping | list | tuple) for one in value):
        for number, one in enumerate(value):
            place = one.get("name", number) if isinstance(one, Mapping) else number
            yield from _leaves(one, f"{name}[{place}]", depth - 1)
    else:
        yield name, value


def _judging_settings(run: JudgeRun) -> dict[str, Any]:
    """The manifest, the result's judges, and hashes of the rows and answers themselves."""
    manifest = {key: value for key, value in run.manifest.items() if key not in ("stage", "hash", "judges")}
    judges = run.result.get("judges") or []
    # One judge next to another is a change of the judge, not one judge less and one more.
    judging = {"judge": judges[0]} if len(judges) == 1 else {"judges": judges}
    result = {key: run.result.get(key) for key in ("config", "split", "baseline")}
    content = {
        "rows": {"count": len(run.comparison.rows), "hash": rows_hash(run.comparison.rows)},
        "answers": {name: hash_json(sorted(answers.items())) for name, answers in run.comparison.answers.items()},
    }
    return flatten({**result, **judging, **manifest, **content})


def _rouge_values(name: str, report: ScoreReport) -> Measures:
    found: Measures = {}
    for one in report.scores:
        found.setdefault(one.metric, {}).setdefault(name, {})[one.id] = one.value
    return {measure: found[measure] for measure in ROUGE if measure in found}


Pairs = Sequence[tuple[str, str]]
_MEASURES = ("win_rate", "average_rank", *ROUGE)


def compare(first: str | Path, second: str | Path, settings: CompareSettings) -> dict[str, Any]:
    """Compare two judging runs, or two files of predictions; see `compare_sides`."""
    files = [path for path in (first, second) if Path(path).is_file()]
    if not files:
        return compare_sides(judged_side(first), judged_side(second), settings)
    if len(files) == 1:
        raise SettingsError(
            f"{files[0]} is a file and the other is not; give two folders of judging runs, or two files of predictions"
        )
    if settings.config is None:
        raise SettingsError("two prediction files need their dataset; add --config, such as --config sample")
    from rolellm.rolebench import dataset_fingerprint, load_rolebench

    def side(path: str | Path, config: str) -> RunSide:
        rows = rows_of(load_rolebench(config, settings.split, data_dir=settings.data_dir))
        found = dataset_fingerprint(config, settings.data_dir)
        return scored_side(path, rows, replace(settings.score, config=config, dataset_fingerprint=found))

    twin = ANONYMOUS if settings.anonymous else ""
    return compare_sides(side(first, settings.config + twin), side(second, settings.config), settings)


def compare_sides(first: RunSide, second: RunSide, settings: CompareSettings) -> dict[str, Any]:
    """Compare two of one kind.

    Args:
        first: What was before, from `judged_side` or `scored_side`.
        second: What is after, of the same kind.
        settings: How.

    Returns:
        One JSON object: ``anonymous`` (whether ``a`` answered the twins of ``b``), ``a`` and ``b`` (what is compared),
        ``shared`` (rows, questions, systems), ``settings`` (those that differ), ``changes`` (system by measure, with
        tests), ``moved`` (the questions that moved most) and ``problems`` in words.

    Raises:
        SettingsError: When the two are not of one kind, or a pair names a system that is not there.
        DataError: When they have no row or no system in common.
    """
    if first.kind != second.kind:
        raise SettingsError(f"{first.name} is {first.kind} and {second.name} is {second.kind}; give two of one kind")
    rows, problems = _shared_rows(first, second, twins=settings.anonymous)
    pairs = _systems(first, second, settings.pairs or ())
    if settings.rouge and first.kind == "judged":
        ids = [row.id for row in rows]
        changed = [
            (a, b) for a, b in pairs if any(first.answers[a].get(row) != second.answers[b].get(row) for row in ids)
        ]
        first = with_rouge(first, [name for name, _ in changed], settings.score)
        second = with_rouge(second, [name for _, name in changed], settings.score)
    mine, theirs = ({pair[side] for pair in pairs} for side in (0, 1))
    return {
        "anonymous": settings.anonymous,
        "a": {"name": first.name, "kind": first.kind, "rows": len(first.rows)},
        "b": {"name": second.name, "kind": second.kind, "rows": len(second.rows)},
        "shared": {
            "rows": len(rows),
            "questions": len(set(clusters_of(rows).values())),
            "systems": [list(pair) for pair in pairs],
            "only_a": [name for name in first.answers if name not in mine],
            "only_b": [name for name in second.answers if name not in theirs],
        },
        "settings": [
            {"name": name, "before": first.settings.get(name), "after": second.settings.get(name)}
            for name in dict.fromkeys((*first.settings, *second.settings))
            if first.settings.get(name) != second.settings.get(name)
        ],
        "changes": _changes(first, second, pairs, rows, settings),
        "moved": _moved(first, second, pairs, rows)[: settings.top],
        "problems": [*problems, *_problems(first, second)],
    }


def _shared_rows(first: RunSide, second: RunSide, *, twins: bool) -> tuple[list[Row], list[str]]:
    others = {row.id: row for row in second.rows}
    both = [row for row in first.rows if row.id in others]
    asked = {row.id: (row.role, fold(row.question)) for row in both}
    rows = [row for row in both if twins or asked[row.id] == (others[row.id].role, fold(others[row.id].question))]
    if not rows:
        raise DataError(f"{first.name} and {second.name} have no row in common; compare runs of one data set")
    problems = []
    if len(rows) < len(both):
        problems.append(f"{len(both) - len(rows):,} rows have the same id and another question; they are left out")
    left = len(first.rows) - len(both), len(second.rows) - len(both)
    if any(left):
        problems.append(f"{left[0]:,} rows are in the first alone and {left[1]:,} in the second; they are left out")
    return rows, problems


def _systems(first: RunSide, second: RunSide, given: Sequence[str]) -> list[tuple[str, str]]:
    """Those paired by name on request, and those called the same."""
    named = []
    for text in given:
        before, _, after = text.partition("=")
        if not (before and after):
            raise SettingsError(f"--pair {text}: expected NAME_A=NAME_B, a system of the first run and of the second")
        named.append((before, after))
    if first.kind == "scored" and not named:
        return list(zip(first.answers, second.answers, strict=True))
    for mine, theirs in named:
        for name, side in ((mine, first), (theirs, second)):
            if name not in side.answers:
                raise SettingsError(f"no system {name!r} in {side.name}; there are {', '.join(side.answers)}")
    taken = [{pair[side] for pair in named} for side in (0, 1)]
    same = [(n, n) for n in first.answers if n in second.answers and n not in taken[0] and n not in taken[1]]
    pairs = [*named, *same]
    if not pairs:
        raise DataError(
            f"no system of {first.name} ({', '.join(first.answers)}) is in {second.name} "
            f"({', '.join(second.answers)}); name two that belong together with --pair NAME_A=NAME_B"
        )
    return pairs


def _changes(
    first: RunSide, second: RunSide, pairs: Pairs, rows: Sequence[Row], settings: Bootstrap
) -> list[dict[str, Any]]:
    clusters = clusters_of(rows)
    found: list[dict[str, Any]] = []
    for pair in pairs:
        names = {"system": pair[0], "system_b": pair[1]}
        for measure in _MEASURES:
            old, new = _both(first, second, measure, pair, rows)
            if test := paired(new, old, clusters, settings):
                questions = [clusters[row] for row in old]
                samples = {name: Sample(list(of.values()), questions) for name, of in (("before", old), ("after", new))}
                means = estimates(samples, settings, shares=measure == "win_rate")
                found.append(
                    {**names, "measure": measure, **means, "difference": metric_dict(test.difference), "p": test.p}
                )
        # A fitted figure has no value a row, and so no paired test; each is over all rows of its run.
        before, after = first.fitted.get(pair[0]), second.fitted.get(pair[1])
        if before and after:
            change = metric_dict(Interval(after.mean - before.mean)) or {}
            values = {"before": metric_dict(before), "after": metric_dict(after), "p": None}
            found.append(
                {**names, "measure": "lc_win_rate", **values, "difference": {**change, "n": None, "questions": None}}
            )
    return adjusted(found)


def _both(
    first: RunSide, second: RunSide, measure: str, pair: tuple[str, str], rows: Sequence[Row]
) -> tuple[dict[str, float], dict[str, float]]:
    """A measure of two systems, on the rows that both have."""
    old, new = (side.measures.get(measure, {}).get(name, {}) for side, name in zip((first, second), pair, strict=True))
    shared = [row.id for row in rows if row.id in old and row.id in new]
    return {row: old[row] for row in shared}, {row: new[row] for row in shared}


def _moved(first: RunSide, second: RunSide, pairs: Pairs, rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Rows by how far they moved under what a win rate is made of, else under ranks; predictions under Rouge-L."""
    judged = next((one for one in _MEASURES[:2] if one in first.measures and one in second.measures), None)
    found = []
    for measure in ROUGE if judged is None else (judged,):
        for pair in pairs:
            old, new = _both(first, second, measure, pair, rows)
            found += [
                _move(first, second, pair, row) | {"measure": measure, "before": old[row.id], "after": new[row.id]}
                for row in rows
                if old.get(row.id) != new.get(row.id)
            ]
    return sorted(found, key=lambda move: -abs(move["after"] - move["before"]))


def _move(first: RunSide, second: RunSide, pair: tuple[str, str], row: Row) -> dict[str, Any]:
    before, after = first.answers[pair[0]].get(row.id), second.answers[pair[1]].get(row.id)
    return {
        "row": row.id,
        "role": row.role,
        "question": row.question,
        "system": pair[0],
        "system_b": pair[1],
        "answer_before": before,
        "answer_after": after,
        "same_answer": before == after,
        "reasons_before": list(first.reasons.get(pair[0], {}).get(row.id, ())),
        "reasons_after": list(second.reasons.get(pair[1], {}).get(row.id, ())),
    }


def _problems(first: RunSide, second: RunSide) -> list[str]:
    found = [f"{side.name}: {problem}" for side in (first, second) for problem in side.problems]
    if first.baseline != second.baseline:
        found.append(
            f"win rates are against {first.baseline or 'nobody'} in the first and {second.baseline or 'nobody'} in the "
            "second: their difference is not the systems' alone"
        )
    return found
