"""Reading recipes: what is known is typed, what a file leaves out is as in those it extends, the rest is refused."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from rolellm.core.errors import SettingsError
from rolellm.core.files import write_json
from rolellm.data.rolebench.schema import KIND
from rolellm.training.recipe import BaseRecipe, Recipe
from rolellm.training.recipe_files import find_recipe, load_recipe

BUILD = "base: {build: tiny-llama}\n"
PARENT = """
data: {data_dir: release, roles: [A, B], mix: {general: 0.5}}
base: {path: models/base}
training: {num_train_epochs: 2, learning_rate: 1e-3}
output: {dir: runs/base}
"""


def write(file: Path, text: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return file


def read(folder: Path, text: str, *overrides: str, **options: Any) -> Recipe:
    return load_recipe(write(folder / "child.yaml", text), overrides, **options)


def test_values_are_typed_overrides_win_and_the_rest_has_defaults(tmp_path: Path) -> None:
    data = "data: {roles: [李白, Ahab], languages: [zh], mix: {general: 0.5}}\n"
    text = BUILD + data + "training: {learning_rate: 2e-4, num_train_epochs: 2}\n"
    recipe = read(tmp_path, text, "training.num_train_epochs=2.5", "method.lora.r=4")
    assert recipe.data.roles == ("李白", "Ahab")
    assert (recipe.data.mix.general, recipe.data.mix.role_specific) == (0.5, 1.0)
    assert (recipe.training.learning_rate, recipe.training.num_train_epochs, recipe.method.lora.r) == (2e-4, 2.5, 4)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("training: {learning_rat: 1}", "did you mean learning_rate?", id="typo"),
        pytest.param("data: {mix: {genral: 1}}", "data.mix.genral; did you mean data.mix.general?", id="nested-typo"),
        pytest.param("data: {max_length: 1}", "did you mean training.max_length?", id="key-in-wrong-section"),
        pytest.param("training: {zzz: 1}", "known keys: ", id="nothing-near"),
        pytest.param("data: {mix: {general: 0, role_specific: 0}}", "leaves no rows", id="empty-mix"),
        pytest.param("training: {lr_scheduler_type: cosin}", "did you mean cosine?", id="schedule-typo"),
        pytest.param("training: {padding_free: true}", "share no prefixes; see shared_prefix", id="padding-free"),
        pytest.param("training: {parallelism_config: {}}", "parallelism_config cannot be set", id="context-parallel"),
        pytest.param("training: {trainer: grpo}", "trainer: grpo needs at least one", id="no-reward"),
        pytest.param("training: {reward_funcs: [length]}", "only trainer: grpo has rewards, not sft", id="reward"),
        pytest.param(
            "training: {trainer: grpo, reward_funcs: [length], reward_weights: [1, 2]}", "2 weights for 1", id="weights"
        ),
        pytest.param("data: {mix: {safety: 0.1}}\ntraining: {trainer: dpo}", "only trainer: sft", id="safety-and-dpo"),
        pytest.param("data: {safety_prompts: p.csv}", "a share in data.mix.safety", id="safety-prompts-alone"),
        pytest.param("base: {build: tiny-llama, adapter: x}", "base.adapter: needs", id="adapter-of-a-built-base"),
        pytest.param("prompt: {form: model}", "a built base has no chat template", id="form-of-a-built-base"),
        pytest.param("base: {tiny: {hidden_size: 30, heads: 4}, build: tiny-llama}", "multiple of twice", id="heads"),
        pytest.param("base: {}", "base: give one of", id="no-base"),
        pytest.param("base: {build: tiny-llama, path: here}", "base: give one of", id="two-bases"),
        pytest.param("base: {path: here, revision: main}", "base.revision: only a base.model", id="folder-revision"),
        pytest.param("extend: other.yaml", "did you mean extends?", id="extends-typo"),
        pytest.param("extends: link.yaml", "child.yaml extends child.yaml", id="itself-by-a-link"),
        pytest.param("extends: back.yaml", "child.yaml extends back.yaml extends child.yaml", id="cycle"),
        pytest.param("extends: ", "a list of files, found None", id="extends-nothing"),
        pytest.param("extends: none.yaml", "known: adapter, ", id="no-such-file"),
        pytest.param("extends: [base.yaml, 3]", "file or a list of files, found ['base.yaml', 3]", id="list"),
        pytest.param("extends: typo.yaml", "typo.yaml: unknown key data.role; did you mean data.roles?", id="above"),
    ],
)
def test_what_cannot_be_carried_out_is_refused_in_words(tmp_path: Path, text: str, words: str) -> None:
    write(tmp_path / "base.yaml", PARENT)
    write(tmp_path / "back.yaml", "extends: child.yaml")
    write(tmp_path / "typo.yaml", "data: {role: [A]}")
    (tmp_path / "link.yaml").symlink_to("child.yaml")
    with pytest.raises(SettingsError) as caught:
        read(tmp_path, text if "base:" in text else BUILD + text)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("training.max_step=5", "did you mean max_steps?"),
        ("training.num_train_epochs", "is not an override"),
        ("training.num_train_epochs=[", "not valid YAML"),
    ],
)
def test_overrides_are_checked_alike(override: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as caught:
        read(tmp_path, BUILD, override)
    assert words in str(caught.value)


def test_a_base_replaces_that_of_the_recipe(tmp_path: Path) -> None:
    (tmp_path / "owner").mkdir()
    for name, base in [
        ("owner/name", BaseRecipe(model="owner/name")),
        (str(tmp_path), BaseRecipe(path=tmp_path)),
        ("none", BaseRecipe(path=Path("none"))),
    ]:
        for text in (BUILD, "base: {model: owner/other, revision: main}"):
            assert read(tmp_path, text, base=name).base == base
    assert read(tmp_path, BUILD, "base.revision=v2", "base.model=owner/name").base.revision == "v2"


def test_a_data_set_with_one_config_is_taken_with_it(tmp_path: Path) -> None:
    configs = {"one": ["instruction-generalization-zh"], "two": ["instruction-generalization-eng", "sample"]}
    for name, values in configs.items():
        (tmp_path / name).mkdir()
        write_json(tmp_path / name / "manifest.json", {"kind": KIND, "configs": values})
    text = BUILD + "data: {config: sample}\n"
    one, two = (f"data.data_dir={tmp_path / name}" for name in configs)
    assert read(tmp_path, text, one).data.config == "instruction-generalization-zh"
    assert read(tmp_path, text, two).data.config == "sample"
    assert read(tmp_path, text, "data.config=sample", one).data.config == "sample"
    write(tmp_path / "parent.yaml", text)
    child = "extends: parent.yaml\ndata: {data_dir: one}"
    assert read(tmp_path, child).data.config == "instruction-generalization-zh"


def test_the_hash_names_the_recipe_and_not_the_place(tmp_path: Path) -> None:
    one = read(tmp_path, BUILD)
    assert read(tmp_path, BUILD, "output.dir=elsewhere", "data.data_dir=/release").hash == one.hash
    assert read(tmp_path, BUILD, "training.seed=7").hash != one.hash


def test_an_unknown_name_names_the_recipes_that_ship() -> None:
    with pytest.raises(SettingsError, match="smoke-cpu"):
        find_recipe("smoke")


def test_no_value_takes_a_key_or_a_section_back_to_its_default(tmp_path: Path) -> None:
    write(tmp_path / "base.yaml", PARENT)
    child = "extends: base.yaml\nbase: {build: tiny-glm}\ntraining: {num_train_epochs: null}\ndata:\n"
    recipe = read(tmp_path, child)
    assert (recipe.base.path, recipe.base.build) == (None, "tiny-glm")
    assert recipe.training.num_train_epochs == Recipe().training.num_train_epochs
    assert (recipe.training.learning_rate, recipe.data) == (1e-3, Recipe().data)


def test_paths_are_relative_to_the_file_that_names_them_and_those_of_overrides_are_not(tmp_path: Path) -> None:
    write(tmp_path / "shared/base.yaml", PARENT)
    child = "extends: ../shared/base.yaml\nprompt: {system_template: role.txt}\n"
    recipe = read(tmp_path / "mine", child, "data.data_dir=here")
    assert recipe.base.path == tmp_path / "mine/../shared/models/base"
    assert recipe.prompt.system_template == tmp_path / "mine/role.txt"
    assert (recipe.data.data_dir, recipe.output.dir) == (Path("here"), Path("runs/base"))


def test_chains_and_lists_bring_along_the_keys_of_their_trainer(tmp_path: Path) -> None:
    write(tmp_path / "base.yaml", PARENT)
    write(tmp_path / "middle.yaml", "extends: base.yaml\ntraining: {num_train_epochs: 5, seed: 5}\n")
    write(tmp_path / "other.yaml", "extends: base.yaml\ntraining: {seed: 6}\n")
    recipe = read(tmp_path, "extends: [middle.yaml, other.yaml]\noutput: {dir: runs/last}\n")
    # The second of the list brings what it extends along, so its epochs are the base's.
    assert (recipe.training.seed, recipe.training.num_train_epochs, str(recipe.output.dir)) == (6, 2.0, "runs/last")
    grpo = read(tmp_path, "extends: rocit-grpo\ntraining: {max_completion_length: 20}\n")
    assert grpo.training.extra["max_completion_length"] == 20


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
        if isinstance(value, dict):
            found += leaves(value, f"{dotted}{key}.")
        else:
            found.append(f"{dotted}{key}={yaml.safe_dump(value).split('...')[0]}")
    return found


@given(under=SECTIONS, over=SECTIONS)
def test_a_file_on_top_says_what_its_lines_would_say_as_overrides(
    under: dict[str, Any], over: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("property")
    write(folder / "empty.yaml", BUILD)
    lower = write(folder / "lower.yaml", yaml.safe_dump({"extends": "empty.yaml", **under}))
    upper = write(folder / "upper.yaml", yaml.safe_dump({"extends": "lower.yaml", **over}))
    assert load_recipe(upper) == load_recipe(lower, leaves(over))
