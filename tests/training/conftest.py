"""A recipe that trains in seconds, rows of the sample, and what is built from them."""

import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rolellm.core.records import Row
from rolellm.data.rolebench import load_rolebench
from rolellm.training.bases import build_base, build_tokenizer
from rolellm.training.recipe import Recipe
from rolellm.training.rows import load_rows
from rolellm.training.train import train

from .runs import make_recipe


@pytest.fixture
def mini(tmp_path: Path) -> Recipe:
    """The mini recipe, as read."""
    return make_recipe(tmp_path)


@pytest.fixture(scope="session")
def sample_rows() -> list[Row]:
    """All training rows of the embedded sample."""
    return [Row.from_columns(columns) for columns in load_rolebench("sample", "train")]


@pytest.fixture(scope="session")
def tokenizer(sample_rows: list[Row]) -> Any:
    """A tokenizer built from the sample, with the `rolellama` form."""
    recipe = Recipe()
    return build_tokenizer(recipe, sample_rows)


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the mini recipe's base, built once for all; read only."""
    folder = tmp_path_factory.mktemp("base")
    recipe = make_recipe(folder)
    return build_base(recipe, load_rows(recipe), folder)


TrainApart = Callable[..., Any]


@pytest.fixture(scope="session")
def train_apart() -> TrainApart:
    """Starts `train` in a process of its own; takes its arguments. Killing it is the test's business.

    The processes come from one that has imported what training needs, so each starts at once.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["rolellm.training.fit", "rolellm.training.train", "rolellm.data.rolebench", "peft"])

    def start(*words: Any, **options: Any) -> Any:
        process = context.Process(target=train, args=words, kwargs=options)
        process.start()
        return process

    return start
