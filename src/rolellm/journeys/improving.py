"""``rolellm improve``: preferences or rewards on a tuned adapter, and whether they made it better.

The folder holds ``pairs/`` (as ``rolellm prefer``; with DPO), ``adapter/`` (as ``rolellm train``), ``eval/`` (as
``rolellm eval``) and the page.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from rolellm.checks.breaks import find_breaks
from rolellm.core.errors import ModelError, SettingsError
from rolellm.core.files import write_json
from rolellm.core.folders import name_call, use_working_folder
from rolellm.core.jsonl import read_json, read_jsonl
from rolellm.core.locks import lock_folder
from rolellm.core.records import Profile, Row
from rolellm.core.settings import dump, read, settings
from rolellm.data.rolebench import load_rolebench
from rolellm.data.rolebench.source import resolve_config
from rolellm.journeys.evaluation import EvalResult, EvalSettings, evaluate
from rolellm.models.prompts.leaks import list_word_runs
from rolellm.models.training_record import MANIFEST, read_manifest
from rolellm.preferences import PAIRS, prefer
from rolellm.reporting.findings import Evidence, PairTest, compare_values, describe_styles
from rolellm.reporting.page import write_page
from rolellm.scoring.rows import read_dataset_rows
from rolellm.training.recipe import Recipe
from rolellm.training.recipe_files import load_recipe
from rolellm.training.rewards import describe_hacking
from rolellm.training.train import train

AFTER: Final = "after"
BEFORE: Final = "before"


@settings
class ImproveSettings(EvalSettings):
    """How, and on what it is measured.

    Attributes:
        config: Config of RoleBench to train on and to answer; by default what the run was trained on.
        data_dir: A local copy of the release, or a data set of your own; by default that of the run.
        recipe: rocit-grpo (rewards), rocit-dpo (pairs of replies), or a YAML file that extends one.
    """

    recipe: str = "rocit-grpo"


def _share_distinct(row: Row, reply: str) -> float:
    runs = list(list_word_runs(reply, 3))
    return len(set(runs)) / len(runs) if runs else 1.0


def _has_break(row: Row, reply: str) -> float:
    sheet = Profile(row.role, row.language, description=row.role_description)
    return float(bool(find_breaks(reply, sheet, row.question)))


#: What is measured of a reply beside scores and style: how, and the format of a mean.
BEHAVIOR: Final[Mapping[str, tuple[Callable[[Row, str], float], str]]] = {
    "replies that break character": (_has_break, "{:.1%}"),
    "distinct runs of three words": (_share_distinct, "{:.1%}"),
    "words a reply": (lambda row, reply: float(len(list(list_word_runs(reply, 1)))), "{:.1f}"),
}


def improve(run: str | Path, *, judge: Any = None, out: str | Path | None = None, **options: Any) -> EvalResult:
    """Train a tuned adapter further, by rewards or preferences, and say whether it became better on held-out rows.

    What it was trained on is trained on again: with rewards its rows, with DPO pairs that `rolellm.preferences.prefer`
    makes of them. The same call continues after any stop.

    Args:
        run: The folder of a tuned adapter.
        judge: Models that compare the answers of before and after: a settings file, a dict, or `rolellm.LLM`.
        out: The folder; by default a new temporary one.
        options: Any field of `ImproveSettings`. Without ``config`` and ``data_dir``, those of the run.

    Returns:
        The evaluation of ``after`` and ``before``, whose first finding is the verdict.

    Raises:
        ModelError: When the folder holds no tuned model.
        SettingsError: When what it was trained on is not known, and for a folder of another improvement.
        RecipeError: For a recipe that does not fit, and rewards that a canary beats.
        StoppedShortError: On Ctrl-C, with what is done kept.
    """
    chosen, run = read(ImproveSettings, options), Path(run)
    if not (run / MANIFEST).is_file() or (trained := read_manifest(run / MANIFEST)) is None:
        raise ModelError(f"{run} holds no finished training run; tune one first: rolellm train RECIPE --out RUN")
    data_dir = chosen.data_dir or read_json(run / MANIFEST)["recipe"]["data"]["data_dir"]
    config = chosen.config or trained.config or (data_dir and resolve_config(None, data_dir))
    if config is None:
        raise SettingsError(f"{run} does not say which data set it was trained on; name one (--config or --data-dir)")
    where: dict[str, Any] = {"config": config, "data_dir": data_dir and Path(data_dir)}
    with use_working_folder("improve", out) as folder, lock_folder(folder), name_call(folder):
        recipe = _load_recipe(chosen.recipe, run, folder, where)
        adapter = folder / "adapter"
        if not (adapter / MANIFEST).is_file():
            train(recipe, out=adapter, resume=(adapter / "recipe.json").is_file())
        return _measure(folder, run, judge, replace(chosen, **where), recipe)


def _load_recipe(name: str, run: Path, folder: Path, where: Mapping[str, Any]) -> Recipe:
    """Load the recipe for the run and its data; make the pairs that it lacks."""
    overrides = [f"data.{key}={json.dumps(str(value))}" for key, value in where.items() if value is not None]
    recipe = load_recipe(name, overrides, base=run)
    if recipe.data.source == "dataset" and recipe.data.path is None:
        pairs = folder / "pairs"
        if not (pairs / MANIFEST).is_file():
            prefer(out=pairs, **where)
        recipe = replace(recipe, data=replace(recipe.data, path=pairs / PAIRS))
    state = folder / "improve.json"
    if state.is_file() and read_json(state)["recipe"] != recipe.hash:
        raise SettingsError(f"{folder} holds an improvement of another run or by another recipe; name another --out")
    write_json(state, {"recipe": recipe.hash})
    return recipe


def _measure(folder: Path, run: Path, judge: Any, chosen: ImproveSettings, recipe: Recipe) -> EvalResult:
    """Compare the adapter with the one that it went on from, and write the page."""
    options = {name: value for name, value in dump(chosen).items() if name != "recipe"}
    measured = evaluate({AFTER: folder / "adapter", BEFORE: run}, judge=judge, out=folder / "eval", **options)
    leading = {name: report.leading for name, report in measured.reports.items()}
    judged = measured.judged and measured.judged.leading
    evidence = Evidence(leading, judged, list(_test_behavior(measured, chosen)))
    changes = read_json(folder / "adapter" / MANIFEST).get("rewards", ())
    hacked = describe_hacking(changes)
    findings = (
        *([f"{hacked[:1].upper()}{hacked[1:]}."] if hacked else []),
        evidence.describe_gain(),
        *_describe_rewards(changes),
        *_describe_behavior(evidence.tests),
        *evidence.describe_scores(),
        *describe_styles(measured.style, chosen.config),
        *evidence.describe_verdicts(),
    )
    content = replace(
        measured.content,
        title=f"{run.resolve().name}, trained further by {recipe.training.trainer.upper()}",
        summary="The adapter after and before, on rows held out from both.",
        findings=findings,
        recipe=recipe.to_dict(),
    )
    return replace(
        measured, out=folder, page=write_page(folder / "report.html", content), findings=findings, content=content
    )


def _describe_rewards(changes: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Say what training did to its own rewards."""
    clauses = []
    for reward in changes:
        low, high = reward["difference"]
        watched = "" if reward["weight"] else ", only watched"
        figures = "{before:.3f} → {after:.3f}, difference {0:+.3f} to {1:+.3f}, n = {steps} steps".format(
            low, high, **reward
        )
        clauses.append(f"{reward['name']} {reward['change']}{watched} ({figures})")
    if clauses:
        yield f"Rewards, from the first quarter of the steps to the last: {', '.join(clauses)}."


def _test_behavior(measured: EvalResult, chosen: ImproveSettings) -> Iterator[PairTest]:
    """Test how replies changed beside scores and style."""
    rows = read_dataset_rows(load_rolebench(chosen.config, chosen.split, data_dir=chosen.data_dir))
    answers = {
        name: {line["id"]: line["prediction"] for _, line in read_jsonl(measured.out / "answers" / f"{name}.jsonl")}
        for name in (AFTER, BEFORE)
    }
    rows = [row for row in rows if all(row.id in replies for replies in answers.values())]
    clusters = ([row.question for row in rows], [row.role for row in rows])
    for name, (measure, _) in BEHAVIOR.items():
        after, before = ([measure(row, replies[row.id]) for row in rows] for replies in answers.values())
        yield compare_values((AFTER, BEFORE), name, (after, before), clusters, chosen.config)


def _describe_behavior(tests: Sequence[PairTest]) -> Iterator[str]:
    """Say how replies changed where the difference is decided, and what did not."""
    same = []
    for test in tests:
        if test.measure not in BEHAVIOR:
            continue
        form = BEHAVIOR[test.measure][1]
        after, before = map(form.format, test.means)
        details = [f"n = {test.difference.n:,}"]
        if test.difference.ends is not None:
            details.insert(0, "difference {} to {}".format(*map(form.format, test.difference.ends)))
        if test.sign:
            name = f"{test.measure[:1].upper()}{test.measure[1:]}"
            yield f"{name} {test.scope}: {after} after, {before} before ({', '.join(details)})."
        else:
            same.append(f"{test.measure} ({after} and {before}, {', '.join(details)})")
    if same:
        yield f"Not shown to differ after and before: {'; '.join(same)}."
