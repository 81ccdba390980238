"""One run, one folder: a second process is told at once, the first goes on unharmed, and a kill lets go."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rolellm.core.errors import RunInUseError
from rolellm.core.locks import check_unlocked, lock_folder
from rolellm.training.recipe import Recipe
from rolellm.training.recipe_files import load_recipe
from rolellm.training.train import train

pytestmark = pytest.mark.slow

WriteRecipe = Callable[..., Path]
TrainApart = Callable[..., Any]
STEPS = 40


@pytest.fixture
def recipe(base: Path, tmp_path: Path, write_recipe: WriteRecipe) -> Recipe:
    return load_recipe(write_recipe(tmp_path, base={"path": str(base)}, training__max_steps=STEPS))


@pytest.fixture
def holder(recipe: Recipe, train_apart: TrainApart) -> Any:
    """A process that trains in the recipe's folder, past its first checkpoint and held there."""
    process = train_apart(recipe)
    while not (recipe.output.dir / "checkpoint-2" / "checkpoint.json").is_file():
        assert process.is_alive()
        time.sleep(0.001)
    os.kill(process.pid, signal.SIGSTOP)
    yield process
    process.kill()
    process.join()


def state_of(run: Path) -> dict[str, bytes]:
    return {path.relative_to(run).as_posix(): path.read_bytes() for path in run.rglob("*") if path.is_file()}


def test_a_second_run_is_refused_at_once_and_a_kill_lets_go_of_the_folder(recipe: Recipe, holder: Any) -> None:
    before = state_of(recipe.output.dir)
    with pytest.raises(
        RunInUseError,
        match=rf"is in use by another run \(process {holder.pid} on .*; wait for it, or choose another folder",
    ):
        train(recipe, overwrite=True)
    assert state_of(recipe.output.dir) == before
    holder.kill()
    holder.join()
    assert train(recipe, resume=True).steps == STEPS
    assert not (recipe.output.dir / ".lock").exists()


def test_a_folder_is_free_once_its_run_is_over_even_in_one_process(tmp_path: Path) -> None:
    for _ in range(2):
        with lock_folder(tmp_path):
            with pytest.raises(RunInUseError):
                check_unlocked(tmp_path)
            with pytest.raises(RunInUseError), lock_folder(tmp_path):
                pass
        check_unlocked(tmp_path)
    with pytest.raises(KeyError), lock_folder(tmp_path):
        raise KeyError
    check_unlocked(tmp_path)
    assert list(tmp_path.iterdir()) == []
