"""Recipes that build on others: what a file does not name is as in those, and nothing is lost on the way."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from rolellm.core.errors import SettingsError
from rolellm.training.recipe import Recipe
from rolellm.training.recipe_files import load_recipe

BASE = """
data: {data_dir: release, roles: [A, B], mix: {general: 0.5}}
base: {path: models/base}
training: {num_train_epochs: 2, learning_rate: 1e-3}
output: {dir: runs/base}
"""


def write(file: Path, text: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return file


def test_no_value_takes_a_key_or_a_section_back_to_its_default(tmp_path: Path) -> None:
    write(tmp_path / "base.yaml", BASE)
    child = "extends: base.yaml\nbase: {build: tiny-glm}\ntraining: {num_train_epochs: null}\ndata:\n"
    recipe = load_recipe(write(tmp_path / "child.yaml", child))
    assert (recipe.base.path, recipe.base.build) == (None, "tiny-glm")
    assert recipe.training.num_train_epochs == Recipe().training.num_train_epochs
    assert (recipe.training.learning_rate, recipe.data) == (1e-3, Recipe().data)


def test_paths_are_relative_to_the_file_that_names_them(tmp_path: Path) -> None:
    write(tmp_path / "shared/base.yaml", BASE)
    child = write(tmp_path / "mine/child.yaml", "extends: ../shared/base.yaml\nprompt: {system_template: role.txt}\n")
    recipe = load_recipe(child, ["data.data_dir=here"])
    assert recipe.base.path == tmp_path / "mine/../shared/models/base"
    assert recipe.prompt.system_template == tmp_path / "mine/role.txt"
    assert (recipe.data.data_dir, recipe.output.dir) == (Path("here"), Path("runs/base"))


def test_chains_and_lists(tmp_path: Path) -> None:
    write(tmp_path / "base.yaml", BASE)
    write(tmp_path / "middle.yaml", "extends: base.yaml\ntraining: {num_train_epochs: 5, seed: 5}\n")
    write(tmp_path / "other.yaml", "extends: base.yaml\ntraining: {seed: 6}\n")
    last = write(tmp_path / "last.yaml", "extends: [middle.yaml, other.yaml]\noutput: {dir: runs/last}\n")
    recipe = load_recipe(last)
    # The second of the list brings what it extends along, so its epochs are the base's.
    assert (recipe.training.seed, recipe.training.num_train_epochs, str(recipe.output.dir)) == (6, 2.0, "runs/last")


def test_a_recipe_has_the_keys_of_the_trainer_that_it_extends(tmp_path: Path) -> None:
    child = write(tmp_path / "child.yaml", "extends: rocit-grpo\ntraining: {max_completion_length: 20}\n")
    assert load_recipe(child).training.extra["max_completion_length"] == 20


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("extends: child.yaml", "child.yaml extends child.yaml", id="itself"),
        pytest.param("extends: back.yaml", "child.yaml extends back.yaml extends child.yaml", id="cycle"),
        pytest.param("extends: link.yaml", "child.yaml extends child.yaml", id="itself-by-a-link"),
        pytest.param("extends: none.yaml", "known: adapter, ", id="no-such-file"),
        pytest.param("extends: ", "expected a recipe's file or a list of files, found None", id="no-value"),
        pytest.param("extends: [base.yaml, 3]", "found ['base.yaml', 3]", id="number-in-the-list"),
        pytest.param("extends: typo.yaml", "typo.yaml: unknown key data.role; did you mean data.roles?", id="typo"),
    ],
)
def test_what_cannot_be_extended_is_refused_in_words(tmp_path: Path, text: str, words: str) -> None:
    write(tmp_path / "base.yaml", BASE)
    write(tmp_path / "back.yaml", "extends: child.yaml")
    write(tmp_path / "typo.yaml", "data: {role: [A]}")
    (tmp_path / "link.yaml").symlink_to("child.yaml")
    with pytest.raises(SettingsError) as caught:
        load_recipe(write(tmp_path / "child.yaml", text))
    assert words in str(caught.value)


def some(**values: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=values)


SECTIONS = some(
    data=some(
        max_rows=st.none() | st.integers(1, 9), mix=some(general=st.floats(0.1, 1)), roles=st.just(["A"]) | st.none()
    ),
    training=some(num_train_epochs=st.none() | st.floats(0.5, 4), seed=st.none() | st.integers(0, 9)),
    method=st.none() | some(lora=st.none() | some(r=st.integers(1, 64), target_modules=st.just(["q_proj"]))),
)


def leaves(values: dict[str, Any], dotted: str = "") -> list[str]:
    found = []
    for key, value in values.items():
        deeper = isinstance(value, dict)
        found += (
            leaves(value, f"{dotted}{key}.") if deeper else [f"{dotted}{key}={yaml.safe_dump(value).split('...')[0]}"]
        )
    return found


@given(under=SECTIONS, over=SECTIONS)
def test_a_file_on_top_says_what_its_lines_would_say_as_overrides(
    under: dict[str, Any], over: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("property")
    write(folder / "empty.yaml", "base: {build: tiny-llama}")
    lower = write(folder / "lower.yaml", yaml.safe_dump({"extends": "empty.yaml", **under}))
    upper = write(folder / "upper.yaml", yaml.safe_dump({"extends": "lower.yaml", **over}))
    assert load_recipe(upper) == load_recipe(lower, leaves(over))
