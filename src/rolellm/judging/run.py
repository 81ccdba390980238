"""A judging run from answers to result: request verdicts, write the folder, and refuse a run that lacks too many."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rolellm.core.errors import JudgingError, PredictionError, SettingsError
from rolellm.core.files import write_json
from rolellm.core.folders import use_working_folder
from rolellm.core.locks import check_unlocked
from rolellm.core.records import Row
from rolellm.core.sanitize import make_visible
from rolellm.core.settings import read
from rolellm.judging.certificate import find_certificate
from rolellm.judging.folder import RESULT, UNSCORED, DatasetName
from rolellm.judging.overlap_judge import make_words_judge
from rolellm.judging.result import JudgingResult, Unscored
from rolellm.judging.settings import JudgingSettings
from rolellm.judging.step import Judging
from rolellm.judging.systems import make_comparison
from rolellm.judging.types import Comparison
from rolellm.llm.llm import LLM
from rolellm.runs import check_run_folder, run_step
from rolellm.scoring.matching import MatchFinding
from rolellm.scoring.predictions import Predictions, is_paths, make_predictions, read_predictions
from rolellm.scoring.rows import get_provenance, read_dataset_rows

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
    judge_llm = LLM.of(llm, {"words": make_words_judge})
    comparison, data, findings = join_predictions(predictions, dataset, chosen)
    for name, finding in findings:
        sys.stderr.write(f"note: {make_visible(f'{name}: {finding}')}\n")
    with use_working_folder("judge", out) as folder:
        return run_judging(folder, comparison, judge_llm, chosen, data)


def join_predictions(
    predictions: Mapping[str, Any], dataset: Any, settings: JudgingSettings
) -> tuple[Comparison, DatasetName, Sequence[tuple[str, MatchFinding]]]:
    """Join the answers of all systems to the rows.

    Returns:
        What there is to judge, the dataset of its rows as far as it is named, and what a reader must know of each join
        of answers and rows, by system.
    """
    if not isinstance(predictions, Mapping) or not predictions:
        raise SettingsError('expected the predictions of each system by its name, as in {"tuned": answers}')
    data, rows = load_judged_rows(predictions, dataset, settings)
    where = "/".join(filter(None, (data.config, data.split))) or "these rows"
    loaded = {name: _load_predictions(name, answers, rows, settings) for name, answers in predictions.items()}
    comparison, findings = make_comparison(rows, loaded, settings, where)
    return comparison, data, findings


def load_judged_rows(
    predictions: Mapping[str, Any], dataset: Any, settings: JudgingSettings
) -> tuple[DatasetName, list[Row]]:
    """Load the rows to judge, and their dataset as far as it is named; see `judge` for what may be given."""
    if isinstance(dataset, str):
        from rolellm.data.rolebench import dataset_fingerprint, load_rolebench

        config, _, split = dataset.partition("/")
        data = DatasetName(config, split or "test", dataset_fingerprint(config, settings.data_dir))
        columns = load_rolebench(config, split or "test", data_dir=settings.data_dir)
        return data, read_dataset_rows(columns, settings.roles or (), settings.subset)
    if isinstance(dataset, list) and all(isinstance(row, Row) for row in dataset):
        return DatasetName(), dataset
    answered = [answers for answers in predictions.values() if hasattr(answers, "column_names")]
    sets = answered if dataset is None else [dataset]
    if not sets:
        raise SettingsError("files and lists of texts need the rows that they answer; give dataset=…")
    # One question may be answered by some systems only; every row counts once.
    rows: dict[str, Row] = {}
    for row in (row for table in sets for row in read_dataset_rows(table, needed=_NEEDED)):
        rows.setdefault(row.id, row)
    chosen = read_dataset_rows([asdict(row) for row in rows.values()], settings.roles or (), settings.subset)
    return DatasetName(**get_provenance(sets[0])), chosen


def _load_predictions(name: str, answers: Any, rows: Sequence[Row], settings: JudgingSettings) -> Predictions:
    if is_paths(answers):
        return read_predictions(answers, skip_bad=settings.skip_bad)
    try:
        if hasattr(answers, "column_names"):
            return make_predictions(answers, read_dataset_rows(answers, needed=_NEEDED), own=True)
        return make_predictions(answers, rows)
    except (PredictionError, SettingsError) as error:
        raise type(error)(f"{name}: {error}") from error


def run_judging(
    folder: Path, comparison: Comparison, llm: LLM, settings: JudgingSettings, data: DatasetName | None = None
) -> JudgingResult:
    """Compare systems into a run folder; a second run in the same folder asks only for what is new.

    Args:
        folder: New, or an earlier judging run's.
        comparison: Rows and answers, see `rolellm.judging.systems.make_comparison`.
        llm: The models that judge; with ``jury``, each of them judges everything.
        settings: How they judge.
        data: The dataset of the rows, as far as it is named.

    Raises:
        JudgingError: When more verdicts are missing than allowed; the result is in the folder, marked invalid.
        StoppedShortError: At the budget, on Ctrl-C or with a full disk; nothing that was paid for is lost.
        EndpointError: When no endpoint answers.
        SettingsError: When nothing can be compared as asked, or the folder holds something else.
        RunInUseError: When another process judges in it.
    """
    if settings.budget is not None:
        llm = copy(llm)
        llm.options = replace(llm.options, budget=settings.budget)
    judging = Judging(comparison, settings, data or DatasetName())
    check_run_folder(folder, judging.kind)
    check_unlocked(folder)
    (folder / RESULT).unlink(missing_ok=True)
    run = run_step(judging, llm, folder)
    judged = run.result.result
    homes = (folder.absolute().parent, Path())
    judges = tuple(replace(judge, certificate=find_certificate(judge, homes, judged.config)) for judge in judged.judges)
    result = replace(judged, judges=judges, spent=run.manifest["spent"], folder=folder)
    write_json(folder / RESULT, result.to_dict())
    unscored = result.diagnostics.unscored
    if (unscored.share or 0) > settings.max_unscored:
        raise JudgingError(_describe_unscored(unscored, folder))
    return result


def _describe_unscored(unscored: Unscored, folder: Path) -> str:
    reason = next(iter(unscored.by_reason), "none given")
    return (
        f"{unscored.count:,} of {unscored.of:,} verdicts are missing ({unscored.share:.1%}; at most "
        f"{unscored.limit:.1%} may be), most often: {reason:.200}. They count for nothing; "
        f"{folder / UNSCORED} lists them with their transcripts. Try a model that follows a schema, or --retry-failed; "
        "--max-unscored allows more"
    )
