"""A judging run from answers to result: asks, writes the folder, and refuses a run with too many missing verdicts."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rolellm.core.errors import JudgingError, SettingsError
from rolellm.core.files import write_json
from rolellm.core.fingerprint import hash_json
from rolellm.core.records import Row
from rolellm.core.sanitize import visible
from rolellm.core.settings import read
from rolellm.core.text import listed
from rolellm.evaluation.matching import Finding
from rolellm.evaluation.rows import rows_of
from rolellm.evaluation.score import rows_hash
from rolellm.judging.ask import JudgeModel, JudgingOptions, ask_jury, make_jury
from rolellm.judging.columns import NEEDED, JudgeColumns, check_answers, figures, source_of
from rolellm.judging.figures import JudgingResult
from rolellm.judging.folder import (
    RESULT,
    UNSCORED,
    DataNamed,
    is_judge_run,
    write_comparison,
    write_judgements,
    write_manifest,
)
from rolellm.judging.judge_models import DEFAULT_JUDGES, Judge, load_judges
from rolellm.judging.orders import Design, planned
from rolellm.judging.overlap_judge import words_judge
from rolellm.judging.result import ResultOptions, summarise
from rolellm.judging.settings import JudgingSettings
from rolellm.judging.systems import NO_BASELINE, ROLEGPT, Entry, enter, families_of, family_of, same_family
from rolellm.judging.types import Comparison, System
from rolellm.llm.model import Model, RunOptions
from rolellm.llm.settings import LLMSettings, load_models, load_settings, shown
from rolellm.runtime.folders import temporary_folder
from rolellm.runtime.locks import locked

_LOCK = ".judge.lock"


@dataclass(frozen=True)
class Chosen:
    """What there is to judge.

    Attributes:
        comparison: Rows, systems and answers.
        data: The dataset that the rows come from, as far as it is named.
        findings: What a reader must know of each join of answers and rows, by system.
    """

    comparison: Comparison
    data: DataNamed
    findings: Sequence[tuple[str, Finding]]


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
    given = read(JudgingSettings, settings)
    asked = whom_to_ask(llm)
    chosen = choose(predictions, dataset, given)
    for name, finding in chosen.findings:
        sys.stderr.write(f"note: {visible(f'{name}: {finding}')}\n")
    folder = temporary_folder("judge") if out is None else Path(out)
    options = asked.options if given.budget is None else replace(asked.options, budget=given.budget)
    setup = JudgingSetup(
        config=chosen.data.config,
        split=chosen.data.split,
        dataset_fingerprint=chosen.data.fingerprint,
        options=judging_options(given),
        result=ResultOptions(resamples=given.resamples, seed=given.seed, max_unscored=given.max_unscored),
        run=options,
        models=asked.described,
        entry={
            "baseline": given.baseline if given.baseline in (ROLEGPT, NO_BASELINE) else Path(given.baseline).name,
            "canaries": given.canaries,
            "sample": given.sample,
            "seed": given.seed,
            "roles": list(given.roles or ()),
            "subset": given.subset,
        },
    )
    judges = load_judges(given.judges or DEFAULT_JUDGES)
    value = run_judging(folder, chosen.comparison, judges, make_jury(asked.models, each=given.jury), setup)
    return JudgingResult.from_dict(value, folder / RESULT)


def choose(predictions: Mapping[str, Any], dataset: Any, given: JudgingSettings) -> Chosen:
    """Join the answers of all systems to the rows; see `judge`."""
    if not isinstance(predictions, Mapping) or not predictions:
        raise SettingsError('expected the predictions of each system by its name, as in {"tuned": answers}')
    data, rows = _rows(predictions, dataset, given)
    where = "/".join(filter(None, (data.config, data.split))) or "these rows"
    sources = tuple(source_of(name, answers, rows) for name, answers in predictions.items())
    entry = Entry(sources, given.baseline, given.canaries, given.sample, given.seed, where, given.skip_bad)
    comparison, findings = enter(rows, entry)
    return Chosen(comparison, data, findings)


def judge_columns(
    predictions: Sequence[str],
    baseline: Sequence[str],
    columns: JudgeColumns,
    llm: Any,
    *,
    folder: str | Path = "role-judge",
    name: str = "model",
    baseline_name: str = "baseline",
    **settings: Any,
) -> dict[str, Any]:
    """Judge two lists of answers as `judge` does, for the `evaluate` module; returns `figures` of the model."""
    mine, theirs = check_answers(predictions, baseline)
    if llm is None:
        raise SettingsError("llm is missing: name the settings file of a model that judges (docs/endpoints.md)")
    if not all(isinstance(one, str) and one.strip() for one in (name, baseline_name)) or name == baseline_name:
        raise SettingsError(f"the model is called {name!r} and the baseline {baseline_name!r}; use two different names")
    rows = columns.rows(len(mine))
    answers = {name: mine, baseline_name: theirs}
    return figures(judge(answers, rows, llm=llm, out=folder, baseline=baseline_name, **settings), name)


def judging_options(given: JudgingSettings) -> JudgingOptions:
    """In which orders answers are shown, and how much of each."""
    return JudgingOptions(Design(given.rotations, given.name_probe, given.seed), given.shown)


def _rows(predictions: Mapping[str, Any], dataset: Any, given: JudgingSettings) -> tuple[DataNamed, list[Row]]:
    if isinstance(dataset, str):
        from rolellm.rolebench import dataset_fingerprint, load_rolebench

        config, _, split = dataset.partition("/")
        data = DataNamed(config, split or "test", dataset_fingerprint(config, given.data_dir))
        columns = load_rolebench(config, split or "test", data_dir=given.data_dir)
        return data, rows_of(columns, given.roles or (), given.subset)
    sets = [dataset] if dataset is not None else [one for one in predictions.values() if hasattr(one, "column_names")]
    if not sets:
        raise SettingsError("files and lists of texts need the rows that they answer; give dataset=…")
    if isinstance(sets[0], list) and all(isinstance(one, Row) for one in sets[0]):
        return DataNamed(), sets[0]
    # One question may be answered by some systems only; every row counts once.
    rows = {row.id: row for one in reversed(sets) for row in rows_of(one, needed=NEEDED)}
    first = [row.id for row in rows_of(sets[0], needed=NEEDED)]
    ordered = [rows.pop(name) for name in first if name in rows] + list(rows.values())
    info: Any = getattr(sets[0], "info", None)
    known = info is not None and info.dataset_name == "rolebench"
    data = DataNamed(info.config_name, str(sets[0].split)) if known else DataNamed()
    return data, rows_of([asdict(row) for row in ordered], given.roles or (), given.subset)


@dataclass(frozen=True)
class Asked:
    """Who judges.

    Attributes:
        models: The models.
        described: What the manifest says of them.
        options: Attempts, budget, progress.
    """

    models: Sequence[Model]
    described: Mapping[str, Any]
    options: RunOptions


def whom_to_ask(llm: Any) -> Asked:
    """The models of an ``llm=`` argument: a settings file, a dict of its keys, a `Model`, or `rolellm.LLM`.

    Raises:
        SettingsError: For anything else, and for settings that name no model.
    """
    if isinstance(llm, Mapping):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "llm.yaml"
            file.write_text(json.dumps(dict(llm)), encoding="utf-8")
            return whom_to_ask(load_settings(file))
    if isinstance(llm, str | Path):
        llm = load_settings(llm)
    if isinstance(llm, LLMSettings):
        options = RunOptions(max_attempts=llm.max_attempts, budget=llm.budget)
        return Asked(load_models(llm, {"words": words_judge}), llm.describe(), options)
    if isinstance(getattr(llm, "settings", None), LLMSettings):
        return Asked(llm.models, llm.settings.describe(), llm.options)
    if hasattr(llm, "identity"):
        return Asked([llm], {}, RunOptions())
    kind = type(llm).__name__
    raise SettingsError(f"llm names the models that judge: a settings file, a dict or rolellm.LLM(…), not {kind}")


@dataclass(frozen=True, slots=True)
class JudgingSetup:
    """Everything about a judging run but who takes part and who judges.

    Attributes:
        config: The data set's config, as results name it.
        split: Its split, likewise.
        dataset_fingerprint: Its content hash; by default a hash of the rows.
        options: In which orders, and how much of each answer.
        result: Resamples, seed and how many missing verdicts are too many.
        run: Attempts, budget, progress.
        models: What the manifest says of the models asked, such as `rolellm.llm.settings.LLMSettings.describe`.
        entry: What else the manifest says of how systems and rows were chosen.
    """

    config: str | None = None
    split: str | None = None
    dataset_fingerprint: str | None = None
    options: JudgingOptions = field(default_factory=JudgingOptions)
    result: ResultOptions = field(default_factory=ResultOptions)
    run: RunOptions = field(default_factory=RunOptions)
    models: Mapping[str, Any] = field(default_factory=dict)
    entry: Mapping[str, Any] = field(default_factory=dict)


def run_judging(
    folder: str | Path, comparison: Comparison, judges: Sequence[Judge], jury: Sequence[JudgeModel], setup: JudgingSetup
) -> dict[str, Any]:
    """Compare systems into a run folder; a second run in the same folder asks only for what is new.

    Args:
        folder: New, or an earlier judging run's.
        comparison: Rows and answers, see `rolellm.judging.systems.enter`.
        judges: At most one of each design.
        jury: Who judges; with several, the majority counts.
        setup: All else.

    Returns:
        The result, as ``result.json`` holds it (docs/judging.md lists its keys).

    Raises:
        JudgingError: When more verdicts are missing than allowed; the result is in the folder, marked invalid.
        StoppedShortError: At the budget, on Ctrl-C or with a full disk; nothing that was paid for is lost.
        EndpointError: When no endpoint answers.
        SettingsError: When nothing can be compared as asked, or the folder holds something else.
        RunInUseError: When another process judges in it.
    """
    folder = Path(folder)
    _check(folder, jury)
    # What cannot be asked is refused before an earlier run's files are touched.
    asks = planned(comparison, judges, setup.options.design)
    with locked(folder, _LOCK):
        manifest = _manifest(comparison, judges, jury, setup)
        (folder / RESULT).unlink(missing_ok=True)
        write_manifest(folder, manifest)
        write_comparison(folder, comparison)
        judged = ask_jury(folder, comparison, asks, jury, setup.options, setup.run)
        write_judgements(folder, judged.judgements)
        found = summarise(comparison, judged.judgements, manifest["judges"], setup.result)
        result = {
            "config": setup.config,
            "split": setup.split,
            **{key: value for key, value in found.items() if key not in ("config", "split")},
            "fingerprint": {"hash": manifest["hash"], "dataset": manifest["dataset"]},
            "spent": judged.spent.to_dict(),
        }
        write_json(folder / RESULT, result)
    missing = result["diagnostics"]["unscored"]
    if (missing["share"] or 0) > setup.result.max_unscored:
        raise JudgingError(_too_many(missing, folder))
    return result


def _check(folder: Path, jury: Sequence[JudgeModel]) -> None:
    if folder.exists() and not folder.is_dir():
        raise SettingsError(f"{folder} is a file; a judging run needs a folder")
    if folder.is_dir() and any(folder.iterdir()) and not is_judge_run(folder):
        others = [path.name for path in folder.iterdir() if path.name not in (".lock", _LOCK)]
        if others:
            raise SettingsError(f"{folder} holds other files ({listed(sorted(others))}); name another with --out")
    names = [judge_model.name for judge_model in jury]
    if not jury or len(set(names)) < len(names):
        raise SettingsError(f"give at least one judge model, each with its own name; got {', '.join(names) or 'none'}")


def _manifest(
    comparison: Comparison, judges: Sequence[Judge], jury: Sequence[JudgeModel], setup: JudgingSetup
) -> dict[str, Any]:
    """How it is judged, with a hash over all that decides the verdicts."""
    recipe: dict[str, Any] = {
        "dataset": {
            "config": setup.config,
            "split": setup.split,
            "fingerprint": setup.dataset_fingerprint or rows_hash(comparison.rows),
            "rows": len(comparison.rows),
        },
        "entry": dict(setup.entry),
        "systems": [one.to_dict() for one in comparison.systems],
        "judges": _judges(comparison, judges, jury),
        "orders": {
            "pairs": "both",
            "rotations": setup.options.design.rotations,
            "name_probe": setup.options.design.name_probe,
            "seed": setup.options.design.seed,
            "shown_characters": setup.options.shown,
        },
        "statistics": {
            "resamples": setup.result.resamples,
            "seed": setup.result.seed,
            "max_unscored": setup.result.max_unscored,
        },
        "models": dict(setup.models),
    }
    versions = {name: version(name) for name in ("rolellm", "numpy", "scipy")}
    return {**recipe, "versions": versions, "hash": hash_json(recipe)}


def _judges(comparison: Comparison, judges: Sequence[Judge], jury: Sequence[JudgeModel]) -> list[dict[str, Any]]:
    """Who judges with which prompts, and which systems are of the same family."""
    prompts = {judge.design: judge.to_dict() for judge in judges}
    listed = []
    for judge_model in jury:
        identities = [shown(model.identity) for model in judge_model.models]
        names = [str(identity.get("model", judge_model.name)) for identity in identities]
        family = next((found for found in map(family_of, names) if found), None)
        same = [one.name for one in comparison.systems if any(_shares_family(name, one) for name in names)]
        listed.append(
            {"name": judge_model.name, "prompts": prompts, "model": identities, "family": family, "flagged": same}
        )
    return listed


def _shares_family(judge: str, one: System) -> bool:
    """Told by names; what a system was tuned from counts before what it is called."""
    return one.family in families_of(judge) if one.family else same_family(judge, one.model or one.name)


def _too_many(missing: Mapping[str, Any], folder: Path) -> str:
    reason = next(iter(missing["by_reason"]), "none given")
    return (
        f"{missing['count']:,} of {missing['of']:,} verdicts are missing ({missing['share']:.1%}; at most "
        f"{missing['limit']:.1%} may be), most often: {reason:.200}. They count for nothing; "
        f"{folder / UNSCORED} lists them with their transcripts. Try a model that follows a schema, or --retry-failed; "
        "--max-unscored allows more"
    )
