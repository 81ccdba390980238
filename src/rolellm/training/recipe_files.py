"""Recipes as files: found by name or path, read with what they extend, overridden, and checked as a whole."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rolellm.core.errors import RecipeError, SettingsError
from rolellm.core.jsonl import read_json
from rolellm.core.settings import (
    Values,
    describe_alternatives,
    iterate_leaves,
    list_keys,
    merge_values,
    parse_yaml,
    read,
    read_file,
    resolve_paths,
)
from rolellm.data.rolebench.source import find_only_config
from rolellm.models.find import find_model, is_hub_id, locate_model
from rolellm.training.recipe import Lora, Recipe, TrainingRecipe
from rolellm.training.run_folder import RECIPE

#: The one key of a file that is not part of the recipe: the files that it builds on.
EXTENDS = "extends"


def list_shipped_recipes() -> dict[str, Path]:
    """The recipes that come with the library, by name."""
    # The wheel carries them next to this file; a clone has them in its own folder.
    module = Path(__file__).resolve()
    recipes = {}
    for folder in (module.parent / "recipes", module.parents[3] / "recipes"):
        for file in sorted(folder.glob("*.yaml")):
            recipes[file.stem] = file
    return recipes


def find_recipe(name: str | Path, folder: Path = Path()) -> Path:
    """The file of a recipe: a path from a folder, or the name of one that ships, such as ``smoke-cpu``.

    Raises:
        RecipeError: When there is neither; names those that ship.
    """
    path, shipped = folder / name, list_shipped_recipes()
    if path.is_file():
        return path
    if str(name) in shipped:
        return shipped[str(name)]
    raise RecipeError(f"no recipe at {path}{describe_alternatives(str(name), sorted(shipped))}")


@contextmanager
def _raise_recipe_errors() -> Iterator[None]:
    """Make errors of settings errors of the recipe."""
    try:
        yield
    except SettingsError as error:
        raise RecipeError(str(error)) from None


@_raise_recipe_errors()
def load_recipe(
    source: str | Path | Mapping[str, Any] | Recipe,
    overrides: Sequence[str] = (),
    *,
    base: str | Path | None = None,
    **training: Any,
) -> Recipe:
    """Read a recipe.

    Args:
        source: A YAML file, the name of a recipe that ships, a dict with the same sections, or a recipe. What it leaves
            out has its default or, with ``extends: other.yaml`` (or a list of files, of which later ones win), that
            file's value. A key without a value goes back to its default.
        overrides: ``section.key=value`` each, the value written as in YAML; they win over the source.
        base: A folder with a model, or the id of one on the Hub, in place of the recipe's base. The folder of a tuned
            adapter names its base, too; the recipe's prompt and method are then those of its run.
        training: Values of the ``training`` section; they win over both.

    Raises:
        RecipeError: For a file that is missing or not YAML, one that extends itself, an unknown key (with the nearest
            known one), a value of the wrong type or outside its limits, and choices that conflict.
    """
    if isinstance(source, Recipe):
        layers: list[Values] = [source.to_dict()]
    elif isinstance(source, Mapping):
        layers = list(_extend(dict(source), "recipe", Path(), ()))
    else:
        layers = list(_read_layers(find_recipe(source), ()))
    values: Values = {}
    chosen: Values = {"training": training}
    base = None if base is None else locate_model(str(base))
    if base is not None and (Path(base) / "adapter_config.json").is_file():
        chosen["base"], run = _find_adapter(Path(base))
        layers.append(run)
    elif base is not None:
        is_id = not Path(base).is_dir() and is_hub_id(base)
        chosen["base"] = {"model" if is_id else "path": base}
    for layer in [*layers, _parse_overrides(overrides), chosen]:
        _check_nulls(layer)
        values = merge_values(values, _complete_layer(layer))
    recipe = read(Recipe, values)
    check_recipe(recipe)
    return recipe


def override_data(
    data_dir: str | Path | None = None,
    path: str | None = None,
    columns: Mapping[str, str] | None = None,
    skip_bad: bool = False,
) -> list[str]:
    """Make the overrides of a recipe's data for `load_recipe`; see `rolellm.training.recipe.DataRecipe`."""
    folder = None if data_dir is None else str(data_dir)
    values = {"data_dir": folder, "path": path, "columns": dict(columns or {}), "skip_bad": skip_bad}
    # JSON text is YAML text, whatever a path holds.
    return [f"data.{key}={json.dumps(value, ensure_ascii=False)}" for key, value in values.items() if value]


def _find_adapter(folder: Path) -> tuple[Values, Values]:
    """The base section for an adapter, and the layer with the prompt and method that its run has on record.

    Raises:
        ModelError: When its base is not there.
    """
    source = find_model(str(folder))
    base: Values = {"model": source.base, "revision": source.revision}
    if Path(source.base).is_dir():
        base = {"path": str(Path(source.base).resolve())}
    run = folder.parent if folder.name.startswith("checkpoint-") else folder
    recorded: Values = {}
    if (run / RECIPE).is_file():
        recorded = read_json(run / RECIPE)
    layer: Values = {}
    for key in recorded.keys() & {"prompt", "method"}:
        layer[key] = recorded[key]
    return {**base, "adapter": str(folder)}, layer


def check_recipe(recipe: Recipe) -> None:
    """Check the choices that depend on each other.

    Raises:
        RecipeError: With the keys concerned.
    """
    base, tiny, training = recipe.base, recipe.base.tiny, recipe.training
    if sum(choice is not None for choice in (base.model, base.path, base.build)) != 1:
        raise RecipeError("base: give one of model (on the Hub), path (a folder with a model) and build: tiny-llama")
    if base.adapter is not None and (base.build is not None or recipe.method.name == "full"):
        raise RecipeError("base.adapter: needs base.path or base.model, and method.name: lora or qlora")
    if base.revision is not None and base.model is None:
        raise RecipeError("base.revision: only a base.model on the Hub has revisions")
    if base.build is not None and recipe.prompt.form == "model":
        raise RecipeError("prompt.form: a built base has no chat template of its own; use rolellama")
    if recipe.data.source == "script" and recipe.prompt.profile == "retrieval":
        raise RecipeError("prompt.profile: retrieval searches by question, and data.source: script has none")
    if tiny.hidden_size % (2 * tiny.heads):
        raise RecipeError("base.tiny.hidden_size must be a multiple of twice base.tiny.heads")
    if recipe.data.mix.general == 0 and recipe.data.mix.role_specific == 0:
        raise RecipeError("data.mix leaves no rows: general and role_specific are both 0")
    if training.trainer == "grpo" and not training.reward_funcs:
        raise RecipeError("training.reward_funcs: trainer: grpo needs at least one, such as rolellm.rewards.rouge")
    if training.trainer != "grpo" and training.reward_funcs:
        raise RecipeError(f"training.reward_funcs: only trainer: grpo has rewards, not {training.trainer}")
    weights = training.extra.get("reward_weights")
    if weights is not None and len(weights) != len(training.reward_funcs):
        raise RecipeError(
            f"training.reward_weights: {len(weights)} weights for {len(training.reward_funcs)} reward_funcs; give each "
            "its own, 0 to only watch it"
        )
    if training.trainer != "sft" and recipe.data.source == "script":
        raise RecipeError(f"data.source: script has nothing for training.trainer: {training.trainer} to learn from")
    if recipe.data.mix.safety and training.trainer != "sft":
        raise RecipeError(f"data.mix.safety: only trainer: sft learns replies, refusals too; not {training.trainer}")
    if recipe.data.safety_prompts is not None and not recipe.data.mix.safety:
        raise RecipeError("data.safety_prompts needs a share in data.mix.safety, such as 0.05")
    if training.eval_strategy == "steps" and training.eval_steps is None:
        raise RecipeError("training.eval_strategy: steps needs training.eval_steps; or evaluate every epoch")
    if training.early_stopping_patience is not None and training.eval_strategy == "no":
        raise RecipeError("training.early_stopping_patience needs training.eval_strategy: steps or epoch")


def _read_layers(file: Path, above: tuple[Path, ...]) -> Iterator[Values]:
    """Read what a file builds on, the lowest first, and then what it says itself."""
    here = file.resolve()
    if here in above:
        circle = [*above[above.index(here) :], here]
        chain = " extends ".join(path.name for path in circle)
        raise RecipeError(f"{file}: a recipe cannot extend itself: {chain}")
    values = read_file(file)
    yield from _extend(values, str(file), file.parent, (*above, here))


def _extend(values: Values, source: str, folder: Path, above: tuple[Path, ...]) -> Iterator[Values]:
    named = values.pop(EXTENDS, [])
    names = [named] if isinstance(named, str) else named
    if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
        raise RecipeError(f"{source}: {EXTENDS}: expected a recipe's file or a list of files, found {named!r}")
    extended: Values = {}
    for name in names:
        for layer in _read_layers(find_recipe(name, folder), above):
            extended = merge_values(extended, layer)
            yield layer
    keys = [key for key in values if isinstance(key, str)]
    close = difflib.get_close_matches(EXTENDS, keys, n=1)
    if close:
        raise RecipeError(f"{source}: unknown key {close[0]}; did you mean {EXTENDS}?")
    # Whoever asks for a recipe need not know what it extends; which keys there are depends on the trainer.
    training = extended.get("training") or {}
    trainer = {"training": {"trainer": training["trainer"]}} if training.get("trainer") else {}
    read(Recipe, merge_values(trainer, values), source)
    files = ["data.data_dir", "data.safety_prompts", "base.path", "base.adapter", "prompt.system_template"]
    path = (values.get("data") or {}).get("path")
    # Anything else is an id on the Hub.
    if path is not None and (folder / path).exists():
        files.append("data.path")
    yield resolve_paths(values, folder.absolute(), *files)


def _check_nulls(layer: Values) -> None:
    """Refuse a misspelled key that has no value: laying it over another file would drop it silently."""
    sections: dict[str, type[Lora | TrainingRecipe]] = {"training": TrainingRecipe, "method.lora": Lora}
    for name, value in iterate_leaves(layer):
        section, _, key = name.rpartition(".")
        if value is not None or name in list_keys(Recipe):
            continue
        if section not in sections:
            raise RecipeError(f"unknown key {name}{describe_alternatives(name, list_keys(Recipe))}")
        sections[section].check({key: None}, layer.get(section) or {})


def _complete_layer(layer: Values) -> Values:
    """Complete a layer that names a base, in place of any other, or a data set that has only one config."""
    base, data = layer.get("base"), layer.get("data")
    ways = ("model", "path", "build")
    if isinstance(base, Mapping) and any(base.get(way) is not None for way in ways):
        replaced = dict.fromkeys([*ways, "revision", "adapter"])
        layer = {**layer, "base": {**replaced, **base}}
    if isinstance(data, Mapping) and data.get("data_dir") is not None and "config" not in data:
        config = find_only_config(data["data_dir"])
        if config:
            layer = {**layer, "data": {**data, "config": config}}
    return layer


def _parse_overrides(overrides: Iterable[str]) -> Values:
    """Overrides as a file would say them: ``a.b=1`` is ``a: {b: 1}``."""
    sections: Values = {}
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals or not key.strip():
            raise RecipeError(f"{override!r} is not an override; write section.key=value, such as training.max_steps=5")
        value = parse_yaml(text, override)
        *names, last = key.strip().split(".")
        section = sections
        for name in names:
            if not isinstance(section.get(name), dict):
                section[name] = {}
            section = section[name]
        section[last] = value
    return sections
