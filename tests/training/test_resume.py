"""Killed at any moment and taken up again, a run gives what it would have given: losses and weights, bit for bit."""

import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rolellm.core.errors import RunInUseError, SettingsError
from rolellm.training.recipe import Recipe
from rolellm.training.run_folder import MARK, find_last_step
from rolellm.training.train import train

from .runs import make_recipe, read_lines, read_object

TrainApart = Callable[..., Any]
MakeRecipe = Callable[..., Recipe]

pytestmark = pytest.mark.slow

ADAPTER = {"r": 4, "lora_dropout": 0.3}
TRAINING = {
    "num_train_epochs": 3,
    "max_steps": -1,
    "learning_rate": 1e-2,
    "replies_per_step": 6,
    "replies_per_pass": 3,
    "max_length": 512,
    "use_cpu": True,
    "threads": 1,
}
# 40 replies, 6 a step: 7 steps an epoch, 21 in all.
STEPS_PER_EPOCH, STEPS = 7, 21
EVERY = 3
MODEL = "adapter_model.safetensors"


@pytest.fixture(scope="module")
def recipe_of(base: Path, tmp_path_factory: pytest.TempPathFactory) -> MakeRecipe:
    """A recipe on that base with a run folder of its own."""

    def make(method: str = "lora", *, every: int = EVERY, keep: int = 2, **training: Any) -> Recipe:
        quantization = {"bnb_4bit_compute_dtype": "float32"}
        return make_recipe(
            tmp_path_factory.mktemp("runs"),
            base={"path": str(base)},
            data__max_rows=8,
            method={"name": method, "lora": ADAPTER, "quantization": quantization},
            training=TRAINING | {"save_steps": every, "save_total_limit": keep} | training,
        )

    return make


@pytest.fixture(scope="module")
def whole(recipe_of: MakeRecipe) -> Recipe:
    """A run that was never stopped, with all its checkpoints; read only."""
    recipe = recipe_of(keep=100)
    train(recipe)
    return recipe


@pytest.fixture
def cut(whole: Recipe, tmp_path: Path) -> Callable[..., Recipe]:
    """What a kill right after a checkpoint leaves: the run as it was then, in a folder of its own."""

    def make(step: int) -> Recipe:
        run = tmp_path / "cut"
        shutil.copytree(whole.output.dir, run)
        for name in ("manifest.json", "adapter_model.safetensors", "adapter_config.json"):
            (run / name).unlink()
        for folder in run.glob("checkpoint-*"):
            if int(folder.name.removeprefix("checkpoint-")) > step:
                shutil.rmtree(folder)
        lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
        (run / "metrics.jsonl").write_text("".join(lines[: step + 1]) + '{"step": 99, "lo', encoding="utf-8")
        return replace(whole, output=replace(whole.output, dir=run))

    return make


def numbers_of(run: Path) -> list[tuple[int, float, float, float]]:
    return [(line["step"], line["loss"], line["grad_norm"], line["learning_rate"]) for line in read_lines(run)]


def assert_same(run: Path, other: Path) -> None:
    assert [step for step, *_ in numbers_of(run)] == list(range(1, STEPS + 1))
    assert numbers_of(run) == numbers_of(other)
    weights = [next(folder.glob("*model.safetensors")).read_bytes() for folder in (run, other)]
    assert weights[0] == weights[1]
    seconds = [line["seconds"] for line in read_lines(run)]
    assert seconds == sorted(seconds)


def steps_done(run: Path) -> int:
    file = run / "metrics.jsonl"
    return file.read_bytes().count(b"\n") if file.is_file() else 0


def killed_at(process: Any, moment: Callable[[], bool]) -> None:
    """Kill a process at a moment, which has to come before its end."""
    until = time.monotonic() + 60
    while process.is_alive() and not moment():
        assert time.monotonic() < until
        time.sleep(0.0005)
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL


def being_written(run: Path, after: int) -> bool:
    """Whether a checkpoint past a step is there that has no mark yet."""
    folders = (folder for folder in run.glob("checkpoint-*") if not (folder / MARK).is_file())
    return any(int(folder.name.removeprefix("checkpoint-")) > after for folder in folders)


@pytest.mark.parametrize(("method", "shared_prefix"), [("full", False), ("lora", True), ("qlora", True)])
def test_killed_at_any_moment_and_resumed_a_run_is_the_one_that_was_never_stopped(
    method: str, shared_prefix: bool, recipe_of: MakeRecipe, train_apart: TrainApart
) -> None:
    chance = random.Random(f"{method}-{shared_prefix}")
    recipe = recipe_of(method, shared_prefix=shared_prefix)
    run = recipe.output.dir
    moments = [
        (1, 0.0),  # before the first checkpoint
        (chance.randint(4, STEPS_PER_EPOCH - 1), chance.uniform(0, 0.05)),
        (chance.randint(STEPS_PER_EPOCH + 2, 2 * STEPS_PER_EPOCH - 2), chance.uniform(0, 0.05)),
    ]
    seen: list[tuple[int, float, float, float]] = []
    for step, more in moments:
        process = train_apart(recipe, resume=run.exists())
        killed_at(process, lambda at=step: steps_done(run) >= at)  # type: ignore[misc]
        time.sleep(more)
        seen += numbers_of(run)[:step]
    process = train_apart(recipe, resume=True)
    killed_at(process, lambda: being_written(run, 2 * STEPS_PER_EPOCH - 2))
    assert not (run / "manifest.json").exists()
    process = train_apart(recipe, resume=True)
    process.join()
    assert process.exitcode == 0

    straight = recipe_of(method, shared_prefix=shared_prefix)
    train(straight)
    assert_same(run, straight.output.dir)
    # What was trained twice because of a kill came out the same both times.
    assert set(seen) <= set(numbers_of(run))
    assert read_object(run)["result"]["steps"] == STEPS
    assert len(list(run.glob("checkpoint-*"))) == 2


def test_a_second_run_is_refused_at_once_and_changes_nothing(recipe_of: MakeRecipe, train_apart: TrainApart) -> None:
    recipe = recipe_of()
    process = train_apart(recipe)
    while not (recipe.output.dir / f"checkpoint-{EVERY}" / MARK).is_file():
        assert process.is_alive()
        time.sleep(0.001)
    os.kill(process.pid, signal.SIGSTOP)
    words = rf"is in use by another run \(process {process.pid} on .*; wait for it, or choose another folder"
    try:
        files = [path for path in recipe.output.dir.rglob("*") if path.is_file()]
        before = {path: path.read_bytes() for path in files}
        with pytest.raises(RunInUseError, match=words):
            train(recipe, overwrite=True)
        assert {path: path.read_bytes() for path in recipe.output.dir.rglob("*") if path.is_file()} == before
    finally:
        process.kill()
        process.join()


def unmark(run: Path, *steps: int) -> None:
    for step in steps:
        (run / f"checkpoint-{step}" / MARK).unlink()


@pytest.mark.parametrize(
    ("step", "spoil"),
    [
        pytest.param(9, lambda run: unmark(run, 9), id="newest-torn"),
        pytest.param(6, lambda run: unmark(run, 3, 6), id="all-torn"),
        pytest.param(STEPS, lambda run: (run / MODEL).write_bytes(b"half"), id="ended-within-saving"),
        pytest.param(6, lambda run: (run / "metrics.jsonl").write_bytes(b"\xff{"), id="metrics-not-text"),
    ],
)
def test_what_is_torn_is_passed_over_or_written_again(
    step: int, spoil: Callable[[Path], Any], cut: Callable[..., Recipe], whole: Recipe
) -> None:
    recipe = cut(step)
    run = recipe.output.dir
    spoil(run)
    result = train(recipe, resume=True)
    assert_same(run, whole.output.dir)
    assert (result.steps, result.first_loss) == (STEPS, read_lines(run)[0]["loss"])


def test_what_is_torn_does_not_cost_the_last_that_is_whole(
    cut: Callable[..., Recipe], whole: Recipe, train_apart: TrainApart
) -> None:
    """A torn checkpoint is of more steps than those that a closer schedule writes next."""
    recipe = cut(15)
    run = recipe.output.dir
    unmark(run, 9, 12, 15)
    closer = replace(recipe, training=replace(recipe.training, save_steps=1, save_total_limit=1))
    killed_at(train_apart(closer, resume=True), (run / "checkpoint-8" / MARK).is_file)
    assert 7 <= find_last_step(run) < 15
    train(closer, resume=True)
    assert [path.name for path in run.glob("checkpoint-*")] == [f"checkpoint-{STEPS}"]
    assert_same(run, whole.output.dir)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        pytest.param({"learning_rate": 1.0}, r"learning_rate was 0\.01 and is now 1\.0;", id="rate"),
        pytest.param(
            {"replies_per_step": 12, "replies_per_pass": 6}, "replies_per_step was 6 and is now 12; resume", id="step"
        ),
    ],
)
def test_a_run_is_not_taken_up_under_another_recipe(
    changes: dict[str, Any], words: str, cut: Callable[..., Recipe]
) -> None:
    recipe = cut(6)
    before = (recipe.output.dir / "recipe.json").read_bytes()
    with pytest.raises(SettingsError, match=rf"holds a run of another recipe: training\.{words}"):
        train(replace(recipe, training=replace(recipe.training, **changes)), resume=True)
    assert (recipe.output.dir / "recipe.json").read_bytes() == before
    assert steps_done(recipe.output.dir) == 7


def test_a_run_is_not_taken_up_on_other_data(
    recipe_of: MakeRecipe, write_release: Callable[..., Path], tmp_path: Path
) -> None:
    """The recipe says where data lie, not what they are: a reply that has the same length is another one still."""
    made = recipe_of(max_steps=2, every=1, replies_per_step=2)
    data = replace(made.data, config="instruction-generalization-eng", data_dir=write_release())
    recipe = replace(made, data=data)
    train(recipe)
    (recipe.output.dir / "manifest.json").unlink()
    file = data.data_dir / "rolebench-eng/instruction-generalization/role_specific/train.jsonl"  # type: ignore[operator]
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace('"Grapes."', '"grapes."'), encoding="utf-8")
    with pytest.raises(SettingsError, match="differs in data, so going on"):
        train(recipe, resume=True)
    file.write_text(text, encoding="utf-8")
    assert train(recipe, resume=True).steps == 2


def test_a_folder_that_has_moved_is_the_same_run_and_another_base_is_not(
    cut: Callable[..., Recipe], base: Path, tmp_path: Path, whole: Recipe
) -> None:
    """A folder of the same name may hold another model."""
    recipe = cut(6)
    moved = tmp_path / "elsewhere"
    recipe.output.dir.rename(moved)
    copied = Path(shutil.copytree(base, tmp_path / base.name))
    recipe = replace(recipe, base=replace(recipe.base, path=copied))
    weights = (copied / "model.safetensors").read_bytes()
    (copied / "model.safetensors").write_bytes(weights[:-1] + b"\0")
    with pytest.raises(SettingsError, match="differs in base, so going on"):
        train(recipe, out=moved, resume=True)
    (copied / "model.safetensors").write_bytes(weights)
    train(recipe, out=moved, resume=True)
    assert_same(moved, whole.output.dir)


def test_what_is_no_run_to_go_on_with_is_refused(whole: Recipe, cut: Callable[..., Recipe], tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="holds a finished run"):
        train(whole, resume=True)
    with pytest.raises(SettingsError, match="give one of them"):
        train(whole, resume=True, overwrite=True)
    unfinished = cut(6)
    (unfinished.output.dir / "recipe.json").unlink()
    with pytest.raises(SettingsError, match=r"holds tokenizer\.json, but no run of this command"):
        train(unfinished, resume=True)
    for content in ("", "[]", '{"data": {}}'):
        (unfinished.output.dir / "recipe.json").write_text(content, encoding="utf-8")
        with pytest.raises(SettingsError, match=r"recipe\.json cannot be read"):
            train(unfinished, resume=True)
