"""A judging run from answers to result: asks, writes the folder, and refuses a run with too many missing verdicts."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rolellm.core.errors import JudgingError, PredictionError, SettingsError
from rolellm.core.files import write_json
from rolellm.core.fingerprint import hash_json
from rolellm.core.records import Row
from rolellm.core.sanitize import visible
from rolellm.core.settings import dump, read
from rolellm.core.text import listed
from rolellm.evaluation.matching import Finding
from rolellm.evaluation.predictions import Predictions, is_paths, predictions_for, read_predictions
from rolellm.evaluation.rows import provenance, rows_of
from rolellm.evaluation.score import rows_hash
from rolellm.judging.ask import JudgeModel, ask_jury, make_jury, requests
from rolellm.judging.figures import JudgingResult
from rolellm.judging.folder import (
    RESULT,
    UNSCORED,
    DatasetName,
    is_judge_run,
    write_comparison,
    write_judgements,
    write_manifest,
)
from rolellm.judging.judge_models import DEFAULT_JUDGES, Judge, load_judges
from rolellm.judging.orders import planned
from rolellm.judging.overlap_judge import words_judge
from rolellm.judging.result import summarize
from rolellm.judging.settings import JudgingSettings
from rolellm.judging.systems import NO_BASELINE, ROLEGPT, families_of, family_of, make_comparison
from rolellm.judging.types import Comparison
from rolellm.llm.llm import LLM
from rolellm.llm.model import Request
from rolellm.llm.settings import shown
from rolellm.runtime.folders import temporary_folder
from rolellm.runtime.locks import locked

_LOCK = ".judge.lock"
#: The columns that rows to be judged must have.
_NEEDED = ("role", "question")


def judge(
    predictions: Mapping[str, Any], dataset: Any = None, *, llm: Any, out: str | Path | None = None, **settings: Any
) -> JudgingResult:
    """Have language models compare the answers of several systems.

    What a run folder already holds is not asked again, so the same call continues a run that stopped.

    Args:
        predictions: Name of a system to its answers: a `datasets.Dataset` with the rows' columns and ``prediction``, a
            file of predictions (or a list of paths), or a list of texts, one per row of ``dataset``.
        dataset: The rows: a `datasets.Dataset`, or ``"CONFIG"`` or ``"CONFIG/SPLIT"`` of RoleBench. By default those of
            the datasets in ``predictions``.
        llm: The models that judge: a settings file, a dict of the same keys, a `Model`, or `rolellm.LLM`.
        out: The run's folder; by default a new temporary one.
        settings: Any field of `JudgingSettings`.

    Raises:
        DataError: For missing columns, or texts that do not fit the rows.
        SettingsError: For unknown settings, an ``llm`` that names no model, or a baseline that is not there.
        JudgingError: When more verdicts are missing than allowed; the result is in the folder, marked invalid.
        StoppedShortError: At the budget, on Ctrl-C or with a full disk; nothing that was paid for is lost.
        EndpointError: When no endpoint answers.
    """
    chosen = read(JudgingSettings, settings)
    asked = LLM.of(llm, {"words": words_judge})
    comparison, data, findings = compared(predictions, dataset, chosen)
    for name, finding in findings:
        sys.stderr.write(f"note: {visible(f'{name}: {finding}')}\n")
    folder = temporary_folder("judge") if out is None else Path(out)
    return run_judging(folder, comparison, asked, chosen, data)


def compared(
    predictions: Mapping[str, Any], dataset: Any, settings: JudgingSettings
) -> tuple[Comparison, DatasetName, Sequence[tuple[str, Finding]]]:
    """Join the answers of all systems to the rows.

    Returns:
        What there is to judge, the dataset of its rows as far as it is named, and what a reader must know of each join
        of answers and rows, by system.
    """
    if not isinstance(predictions, Mapping) or not predictions:
        raise SettingsError('expected the predictions of each system by its name, as in {"tuned": answers}')
    data, rows = _rows(predictions, dataset, settings)
    where = "/".join(filter(None, (data.config, data.split))) or "these rows"
    given = {name: _predictions(name, answers, rows, settings) for name, answers in predictions.items()}
    comparison, findings = make_comparison(rows, given, settings, where)
    return comparison, data, findings


def _rows(predictions: Mapping[str, Any], dataset: Any, settings: JudgingSettings) -> tuple[DatasetName, list[Row]]:
    if isinstance(dataset, str):
        from rolellm.rolebench import dataset_fingerprint, load_rolebench

        config, _, split = dataset.partition("/")
        data = DatasetName(config, split or "test", dataset_fingerprint(config, settings.data_dir))
        columns = load_rolebench(config, split or "test", data_dir=settings.data_dir)
        return data, rows_of(columns, settings.roles or (), settings.subset)
    sets = [dataset] if dataset is not None else [one for one in predictions.values() if hasattr(one, "column_names")]
    if not sets:
        raise SettingsError("files and lists of texts need the rows that they answer; give dataset=…")
    if isinstance(sets[0], list) and all(isinstance(one, Row) for one in sets[0]):
        return DatasetName(), sets[0]
    # One question may be answered by some systems only; every row counts once.
    rows: dict[str, Row] = {}
    for row in (row for one in sets for row in rows_of(one, needed=_NEEDED)):
        rows.setdefault(row.id, row)
    chosen = rows_of([asdict(row) for row in rows.values()], settings.roles or (), settings.subset)
    return DatasetName(**provenance(sets[0])), chosen


def _predictions(name: str, answers: Any, rows: Sequence[Row], settings: JudgingSettings) -> Predictions:
    if is_paths(answers):
        return read_predictions(answers, skip_bad=settings.skip_bad)
    try:
        if hasattr(answers, "column_names"):
            return predictions_for(answers, rows_of(answers, needed=_NEEDED), own=True)
        return predictions_for(answers, rows)
    except (PredictionError, SettingsError) as error:
        raise type(error)(f"{name}: {error}") from error


def judging_requests(comparison: Comparison, settings: JudgingSettings) -> Iterator[Request]:
    """The requests that one judge model would get, made one by one; none is sent."""
    asks = planned(comparison, load_judges(settings.judges or DEFAULT_JUDGES), settings)
    return (request for request, _ in requests(comparison, asks, settings.shown))


def run_judging(
    folder: Path, comparison: Comparison, llm: LLM, settings: JudgingSettings, data: DatasetName | None = None
) -> JudgingResult:
    """Compare systems into a run folder; a second run in the same folder asks only for what is new.

    Args:
        folder: New, or an earlier judging run's.
        comparison: Rows and answers, see `rolellm.judging.systems.make_comparison`.
        llm: Who judges; with ``jury``, each of its models judges everything.
        settings: How.
        data: The dataset of the rows, as far as it is named.

    Raises:
        JudgingError: When more verdicts are missing than allowed; the result is in the folder, marked invalid.
        StoppedShortError: At the budget, on Ctrl-C or with a full disk; nothing that was paid for is lost.
        EndpointError: When no endpoint answers.
        SettingsError: When nothing can be compared as asked, or the folder holds something else.
        RunInUseError: When another process judges in it.
    """
    _check(folder)
    data = data or DatasetName()
    # What cannot be asked is refused before an earlier run's files are touched.
    judges = load_judges(settings.judges or DEFAULT_JUDGES)
    asks = planned(comparison, judges, settings)
    jury = make_jury(llm.models, each=settings.jury)
    options = llm.options if settings.budget is None else replace(llm.options, budget=settings.budget)
    with locked(folder, _LOCK):
        manifest = _manifest(comparison, _judges(comparison, judges, jury), llm, settings, data)
        (folder / RESULT).unlink(missing_ok=True)
        write_manifest(folder, manifest)
        write_comparison(folder, comparison)
        judgements, spent = ask_jury(folder, comparison, asks, jury, settings.shown, options)
        write_judgements(folder, judgements)
        result = {
            **summarize(comparison, judgements, manifest["judges"], settings, data),
            "fingerprint": {"hash": manifest["hash"], "dataset": manifest["dataset"]},
            "spent": spent.to_dict(),
        }
        write_json(folder / RESULT, result)
    missing = result["diagnostics"]["unscored"]
    if (missing["share"] or 0) > settings.max_unscored:
        raise JudgingError(_too_many(missing, folder))
    return JudgingResult.from_dict(result, folder / RESULT)


def _check(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise SettingsError(f"{folder} is a file; a judging run needs a folder")
    if folder.is_dir() and any(folder.iterdir()) and not is_judge_run(folder):
        others = [path.name for path in folder.iterdir() if path.name not in (".lock", _LOCK)]
        if others:
            raise SettingsError(f"{folder} holds other files ({listed(sorted(others))}); name another with --out")


def _manifest(
    comparison: Comparison,
    judges: Sequence[Mapping[str, Any]],
    llm: LLM,
    settings: JudgingSettings,
    data: DatasetName,
) -> dict[str, Any]:
    """How it is judged, with a hash over all that decides the verdicts."""
    known = settings.baseline in (ROLEGPT, NO_BASELINE)
    given = dump(settings)
    recipe: dict[str, Any] = {
        "dataset": {
            **asdict(data),
            "fingerprint": data.fingerprint or rows_hash(comparison.rows),
            "rows": len(comparison.rows),
        },
        "entry": {
            "baseline": settings.baseline if known else Path(settings.baseline).name,
            "roles": list(settings.roles or ()),
            **{name: given[name] for name in ("canaries", "sample", "seed", "subset")},
        },
        "systems": [asdict(one) for one in comparison.systems],
        "judges": judges,
        "orders": {
            "pairs": "both",
            "shown_characters": settings.shown,
            **{name: given[name] for name in ("rotations", "name_probe", "seed")},
        },
        "statistics": {name: given[name] for name in ("resamples", "seed", "max_unscored")},
        "models": llm.describe(),
    }
    versions = {name: version(name) for name in ("rolellm", "numpy", "scipy")}
    return {**recipe, "versions": versions, "hash": hash_json(recipe)}


def _judges(comparison: Comparison, judges: Sequence[Judge], jury: Sequence[JudgeModel]) -> list[dict[str, Any]]:
    """Who judges with which prompts, and which systems are of the same family."""
    prompts = {judge.design: judge.to_dict() for judge in judges}
    found = []
    for judge_model in jury:
        identities = [shown(model.identity) for model in judge_model.models]
        names = [str(identity.get("model", judge_model.name)) for identity in identities]
        family = next(filter(None, map(family_of, names)), None)
        families = {family for name in names for family in families_of(name)}
        same = [one.name for one in comparison.systems if one.family in families]
        found.append(
            {"name": judge_model.name, "prompts": prompts, "model": identities, "family": family, "flagged": same}
        )
    return found


def _too_many(missing: Mapping[str, Any], folder: Path) -> str:
    reason = next(iter(missing["by_reason"]), "none given")
    return (
        f"{missing['count']:,} of {missing['of']:,} verdicts are missing ({missing['share']:.1%}; at most "
        f"{missing['limit']:.1%} may be), most often: {reason:.200}. They count for nothing; "
        f"{folder / UNSCORED} lists them with their transcripts. Try a model that follows a schema, or --retry-failed; "
        "--max-unscored allows more"
    )
