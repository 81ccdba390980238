"""``rolellm improve``: preferences or rewards on a tuned adapter, and whether they made it better.

The folder holds ``pairs/`` (as ``rolellm prefer``; with DPO), ``adapter/`` (as ``rolellm train``), ``eval/`` (as
``rolellm eval``) and the page.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from pathlib import Path
from typing import Any, Final, NamedTuple

from rolellm.checks.breaks import find_breaks
from rolellm.core.errors import ModelError, SettingsError
from rolellm.core.files import write_json
from rolellm.core.folders import name_call, use_working_folder
from rolellm.core.jsonl import read_json, read_jsonl
from rolellm.core.locks import lock_folder
from rolellm.core.records import Profile, Row
from rolellm.core.settings import Advanced, Field, dump, read, settings, suggest_keywords
from rolellm.data.rolebench import load_rolebench
from rolellm.data.rolebench.source import resolve_config
from rolellm.journeys.evaluation import EvalResult, EvalSettings, evaluate
from rolellm.llm.vllm import find_vllm
from rolellm.models.prompts.leaks import list_word_runs
from rolellm.models.training_record import MANIFEST, read_manifest
from rolellm.preferences import PAIRS, prefer
from rolellm.reporting.findings import Evidence, PairTest, compare_values, describe_styles
from rolellm.reporting.page import write_page
from rolellm.scoring.rows import read_dataset_rows
from rolellm.training.recipe import Recipe
from rolellm.training.recipe_files import load_recipe
from rolellm.training.rewards import OWN, RewardedReply, call_reward, find_reward, learn_reward
from rolellm.training.rows import load_replies
from rolellm.training.train import read_replies, train

AFTER: Final = "after"
BEFORE: Final = "before"


@settings
class ImproveSettings(EvalSettings):
    """Training and measurement.

    Attributes:
        config: Config of RoleBench to train on and to answer; by default what the run was trained on.
        data_dir: A local copy of the release, or a data set of your own; by default that of the run.
        split: Split to answer.
        max_new_tokens: Maximum tokens per reply.
        temperature: Sampling temperature; 0 is greedy.
        recipe: rocit-grpo (rewards), rocit-dpo (pairs of replies), or a YAML file that extends one.
    """

    config: Advanced[str | None] = None
    data_dir: Advanced[Path | None] = None
    limit: Advanced[int | None] = Field(default=None, ge=1)
    split: str = Field(default="test", json_schema_extra={"cli": False})
    max_new_tokens: int = Field(default=200, ge=1, json_schema_extra={"cli": False})
    temperature: Advanced[float] = Field(default=0.0, ge=0)
    recipe: str = "rocit-grpo"


def _share_distinct(row: Row, reply: str) -> float:
    runs = list(list_word_runs(reply, 3))
    if not runs:
        return 1.0
    return len(set(runs)) / len(runs)


def _has_break(row: Row, reply: str) -> float:
    sheet = Profile(row.role, row.language, description=row.role_description)
    breaks = find_breaks(reply, sheet, row.question)
    return float(bool(breaks))


def _count_words(row: Row, reply: str) -> float:
    words = list(list_word_runs(reply, 1))
    return float(len(words))


class Behavior(NamedTuple):
    """What is measured of a reply beside scores and style.

    Attributes:
        measure: The measure.
        form: The format of a mean.
        better: 1 where more is better, -1 where less is, 0 where neither is.
    """

    measure: Callable[[Row, str], float]
    form: str
    better: int


BEHAVIOR: Final[Mapping[str, Behavior]] = {
    "replies that break character": Behavior(_has_break, "{:.1%}", -1),
    "distinct runs of three words": Behavior(_share_distinct, "{:.1%}", 1),
    "words a reply": Behavior(_count_words, "{:.1f}", 0),
}
#: How the measure of a reward is called in findings.
_REWARD: Final = "reward "


@dataclass(frozen=True)
class _Answers:
    """The replies after and before to the same held-out rows.

    Attributes:
        rows: The rows.
        replies: The replies of the adapter, and of the one that it went on from.
        config: The rows' config.
    """

    rows: Sequence[Row]
    replies: tuple[Sequence[str], Sequence[str]]
    config: str | None

    def compare(self, measure: str, after: Sequence[float], before: Sequence[float]) -> Iterator[PairTest]:
        """Test a measure on the rows that it applies to; nothing where it applies to none."""
        rows: list[Row] = []
        values: tuple[list[float], list[float]] = ([], [])
        for row, *pair in zip(self.rows, after, before, strict=True):
            if any(map(math.isnan, pair)):
                continue
            rows.append(row)
            for of_system, value in zip(values, pair, strict=True):
                of_system.append(value)
        if rows:
            questions = [row.question for row in rows]
            roles = [row.role for row in rows]
            yield compare_values((AFTER, BEFORE), measure, values, (questions, roles), self.config)

    def test_behavior(self) -> Iterator[PairTest]:
        """Test how replies changed beside scores and style."""
        for name, behavior in BEHAVIOR.items():
            after, before = (list(map(behavior.measure, self.rows, replies)) for replies in self.replies)
            yield from self.compare(name, after, before)

    def test_rewards(self, recipe: Recipe) -> Iterator[PairTest]:
        """Test the rewards that a recipe trained or watched, as they are after learning from its rows."""
        if not recipe.training.reward_funcs:
            return
        recipe, trained = read_replies(recipe)
        trained_rows = [item for item in trained or load_replies(recipe) if isinstance(item, Row)]
        for path in recipe.training.reward_funcs:
            reward = learn_reward(find_reward(path), trained_rows)
            rewards = []
            for replies in self.replies:
                candidates = list(map(RewardedReply, self.rows, repeat(OWN), replies))
                rewards.append(call_reward(reward, candidates))
            yield from self.compare(_name_measure(path), *rewards)


def _name_measure(reward: str) -> str:
    return _REWARD + reward.rpartition(".")[2]


@suggest_keywords(ImproveSettings)
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
    run = Path(run)
    chosen = _choose_rows(read(ImproveSettings, options), run)
    # Not only after the training.
    find_vllm(chosen.engine)
    with use_working_folder("improve", out) as folder, lock_folder(folder), name_call(folder):
        recipe = _load_recipe(run, folder, chosen)
        adapter = folder / "adapter"
        if not (adapter / MANIFEST).is_file():
            train(recipe, out=adapter, resume=(adapter / "recipe.json").is_file())
        return _measure(folder, run, judge, chosen, recipe)


def _choose_rows(chosen: ImproveSettings, run: Path) -> ImproveSettings:
    """Fill in the data set that the run was trained on, where no other is named."""
    manifest = run / MANIFEST
    trained = read_manifest(manifest) if manifest.is_file() else None
    if trained is None:
        raise ModelError(f"{run} holds no finished training run; tune one first: rolellm train RECIPE --out RUN")
    data_dir = chosen.data_dir
    data = read_json(manifest)["recipe"]["data"]
    if data.get("path") and chosen.config is None and data_dir is None:
        raise SettingsError(
            f"{run} was trained on {data['path']}; name a data set in RoleBench's form to improve it on "
            "(--set config=NAME or data_dir=FOLDER)"
        )
    if data_dir is None:
        folder = data["data_dir"]
        data_dir = Path(folder) if folder else None
    config = chosen.config or trained.config
    if config is None and data_dir is not None:
        config = resolve_config(None, data_dir)
    if config is None:
        raise SettingsError(
            f"{run} does not say what it was trained on; name a data set (--set config=NAME or data_dir=FOLDER)"
        )
    return replace(chosen, config=config, data_dir=data_dir)


def _load_recipe(run: Path, folder: Path, chosen: ImproveSettings) -> Recipe:
    """Load the recipe for the run and its data; make the pairs that it lacks."""
    overrides = [f"data.config={json.dumps(chosen.config)}"]
    if chosen.data_dir is not None:
        place = json.dumps(str(chosen.data_dir))
        overrides.append(f"data.data_dir={place}")
    recipe = load_recipe(chosen.recipe, overrides, base=run)
    if recipe.data.source == "dataset" and recipe.data.path is None:
        pairs = folder / "pairs"
        if not (pairs / MANIFEST).is_file():
            prefer(out=pairs, config=chosen.config, data_dir=chosen.data_dir)
        data = replace(recipe.data, path=str(pairs / PAIRS))
        recipe = replace(recipe, data=data)
    state = folder / "improve.json"
    if state.is_file() and read_json(state)["recipe"] != recipe.hash:
        raise SettingsError(f"{folder} holds an improvement of another run or by another recipe; name another --out")
    write_json(state, {"recipe": recipe.hash})
    return recipe


def _measure(folder: Path, run: Path, judge: Any, chosen: ImproveSettings, recipe: Recipe) -> EvalResult:
    """Compare the adapter with the one that it went on from, and write the page."""
    options = dump(chosen)
    del options["recipe"]
    models = {AFTER: folder / "adapter", BEFORE: run}
    measured = evaluate(models, judge=judge, out=folder / "eval", **options)
    leading = {name: report.leading for name, report in measured.reports.items()}
    judged = measured.judged and measured.judged.leading
    answers = _read_answers(measured, chosen)
    changes = [*answers.test_rewards(recipe), *answers.test_behavior()]
    evidence = Evidence(leading, judged, changes)
    trained = list_trained_rewards(recipe)
    findings = (
        *_describe_behavior(evidence.tests),
        *evidence.describe_judges(),
        *evidence.describe_pairs(),
        *describe_styles(measured.style),
    )
    failure = measured.content.answers[0].failure
    answer = replace(evidence.answer(), failure=failure)
    warnings = list(describe_hacking(evidence.tests, trained))
    name = run.resolve().name
    trainer = recipe.training.trainer.upper()
    content = replace(
        measured.content,
        title=f"{name}, trained further by {trainer}",
        summary="The adapter after and before, on rows held out from both.",
        warnings=warnings,
        answers=[answer],
        findings=findings,
        recipe=recipe.to_dict(),
    )
    page = write_page(folder / "report.html", content)
    return replace(measured, out=folder, page=page, findings=tuple(content.sentences), content=content)


def _read_answers(measured: EvalResult, chosen: ImproveSettings) -> _Answers:
    table = load_rolebench(chosen.config, chosen.split, data_dir=chosen.data_dir)
    by_system = []
    for name in (AFTER, BEFORE):
        lines = read_jsonl(measured.out / "answers" / f"{name}.jsonl")
        by_system.append({line["id"]: line["prediction"] for _, line in lines})
    answered = by_system[0].keys() & by_system[1].keys()
    rows = [row for row in read_dataset_rows(table) if row.id in answered]
    after, before = ([replies[row.id] for row in rows] for replies in by_system)
    return _Answers(rows, (after, before), chosen.config)


def list_trained_rewards(recipe: Recipe) -> set[str]:
    """List the measures of the rewards that training followed: all but those of weight 0, which are only watched."""
    names = recipe.training.reward_funcs
    weights = recipe.training.extra.get("reward_weights") or [1] * len(names)
    return {_name_measure(name) for name, weight in zip(names, weights, strict=True) if weight}


def describe_hacking(tests: Sequence[PairTest], trained: set[str]) -> Iterator[str]:
    """Say that rewards were hacked: a trained one rises and a measure falls, both decided.

    Args:
        tests: All tests of after against before, with p adjusted over them.
        trained: The measures of the rewards that were trained.
    """
    gains = [test.ends for test in tests if test.measure in trained and test.sign > 0]
    losses = [test.ends for test in tests if test.sign * _find_direction(test.measure) < 0]
    if gains and losses:
        rises = "; ".join(gains)
        falls = "; ".join(losses)
        yield f"Hacked: on held-out rows, trained rewards rise ({rises}) and others fall ({falls})."


def _find_direction(measure: str) -> int:
    if measure in BEHAVIOR:
        return BEHAVIOR[measure].better
    return 1


def _describe_behavior(tests: Sequence[PairTest]) -> Iterator[str]:
    """Say how rewards and replies changed where the difference is decided, and what did not."""
    same = []
    for test in tests:
        if test.measure in BEHAVIOR:
            form = BEHAVIOR[test.measure].form
        elif test.measure.startswith(_REWARD):
            form = "{:.3f}"
        else:
            continue
        after, before = map(form.format, test.means)
        details = f"n = {test.difference.n:,}"
        if test.difference.ends is not None:
            low, high = map(form.format, test.difference.ends)
            details = f"difference {low} to {high}, {details}"
        if test.sign:
            name = test.measure[:1].upper() + test.measure[1:]
            yield f"{name} {test.scope}: {after} after, {before} before ({details})."
        else:
            same.append(f"{test.measure} ({after} and {before}, {details})")
    if same:
        yield f"Not shown to differ after and before: {'; '.join(same)}."
