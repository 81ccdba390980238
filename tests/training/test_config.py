"""Reading recipes: what is known is typed, what is not is refused with the way out."""

from pathlib import Path

import pytest

from rolellm.core.errors import SettingsError
from rolellm.core.files import write_json
from rolellm.data.rolebench.schema import KIND
from rolellm.training.recipe import BaseRecipe, Recipe
from rolellm.training.recipe_files import find_recipe, load_recipe

BUILD = "base: {build: tiny-llama}\n"


def read(tmp_path: Path, text: str, *overrides: str) -> Recipe:
    file = tmp_path / "recipe.yaml"
    file.write_text(text, encoding="utf-8")
    return load_recipe(file, overrides)


def test_values_are_typed_and_the_rest_has_defaults(tmp_path: Path) -> None:
    data = "data: {roles: [李白, Ahab], languages: [zh], mix: {general: 0.5}}\n"
    recipe = read(tmp_path, BUILD + data + "training: {learning_rate: 2e-4, num_train_epochs: 2}\n")
    assert recipe.data.roles == ("李白", "Ahab")
    assert recipe.data.mix.general == 0.5
    assert recipe.data.mix.role_specific == 1.0
    assert recipe.training.learning_rate == 2e-4
    assert recipe.training.num_train_epochs == 2.0
    assert isinstance(recipe.training.num_train_epochs, float)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("training: {learning_rat: 1}", "did you mean learning_rate?", id="typo"),
        pytest.param("data: {mix: {genral: 1}}", "data.mix.genral; did you mean data.mix.general?", id="nested-typo"),
        pytest.param("data: {max_length: 1}", "did you mean training.max_length?", id="key-in-wrong-section"),
        pytest.param("training: {zzz: 1}", "known keys: ", id="nothing-near"),
        pytest.param("data: {mix: {general: 0, role_specific: 0}}", "leaves no rows", id="empty-mix"),
        pytest.param("training: {lr_scheduler_type: cosin}", "did you mean cosine?", id="schedule-typo"),
        pytest.param("extend: other.yaml", "did you mean extends?", id="extends-typo"),
        pytest.param("method: {name: qlorra}", "did you mean qlora?", id="choice-typo"),
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
    ],
)
def test_what_cannot_be_carried_out_is_refused_in_words(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(SettingsError) as caught:
        read(tmp_path, text if "base:" in text else BUILD + text)
    assert words in str(caught.value)


def test_overrides_win_and_are_checked_alike(tmp_path: Path) -> None:
    text = BUILD + "training: {num_train_epochs: 1}"
    recipe = read(tmp_path, text, "training.num_train_epochs=2.5", "data.roles=[A, B]", "method.lora.r=4")
    assert recipe.training.num_train_epochs == 2.5
    assert recipe.data.roles == ("A", "B")
    assert recipe.method.lora.r == 4
    for override, words in [
        ("training.max_step=5", "did you mean max_steps?"),
        ("training.num_train_epochs", "is not an override"),
        ("training.num_train_epochs=[", "not valid YAML"),
    ]:
        with pytest.raises(SettingsError) as caught:
            read(tmp_path, text, override)
        assert words in str(caught.value)


def test_paths_that_are_read_are_relative_to_the_recipe_and_overrides_are_not(tmp_path: Path) -> None:
    text = "base: {path: models/base}\ndata: {data_dir: /release}\noutput: {dir: runs/x}"
    recipe = read(tmp_path, text)
    assert recipe.base.path == tmp_path / "models/base"
    assert recipe.data.data_dir == Path("/release")
    assert recipe.output.dir == Path("runs/x")
    assert read(tmp_path, text, "base.path=models/other").base.path == Path("models/other")


def test_a_base_replaces_that_of_the_recipe(tmp_path: Path) -> None:
    (tmp_path / "owner").mkdir()
    text = "base: {model: owner/other, revision: main}"
    for name, base in [
        ("owner/name", BaseRecipe(model="owner/name")),
        (str(tmp_path), BaseRecipe(path=tmp_path)),
        ("none", BaseRecipe(path=Path("none"))),
    ]:
        for recipe in (BUILD, text):
            (tmp_path / "recipe.yaml").write_text(recipe, encoding="utf-8")
            assert load_recipe(tmp_path / "recipe.yaml", base=name).base == base
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
    (tmp_path / "parent.yaml").write_text(text, encoding="utf-8")
    child = "extends: parent.yaml\ndata: {data_dir: one}"
    assert read(tmp_path, child).data.config == "instruction-generalization-zh"


def test_the_hash_names_the_recipe_and_not_the_place(tmp_path: Path) -> None:
    one = read(tmp_path, BUILD)
    assert read(tmp_path, BUILD, "output.dir=elsewhere", "data.data_dir=/release").hash == one.hash
    assert read(tmp_path, BUILD, "training.seed=7").hash != one.hash


def test_an_unknown_name_names_the_recipes_that_ship() -> None:
    with pytest.raises(SettingsError, match="smoke-cpu"):
        find_recipe("smoke")
    with pytest.raises(SettingsError, match="no recipe at"):
        find_recipe("recipes/nowhere.yaml")
