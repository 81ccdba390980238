"""The base of a recipe: on the Hub, in a folder, or a tiny model built from the training rows without a download."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rolellm.errors import ModelError, RecipeError
from rolellm.extras import require
from rolellm.files import write_json
from rolellm.llm.model_source import load_failure
from rolellm.records import Row
from rolellm.rocit import tiny
from rolellm.rocit.config import check_recipe
from rolellm.rocit.loading import fetch, load_tokenizer
from rolellm.rocit.recipe import MethodRecipe, Recipe

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_DONE = "base.json"


def check_base(recipe: Recipe) -> None:
    """Check, before any work, that the base a recipe names is there.

    Raises:
        ModelError: When ``base.path`` is not a folder with a model.
    """
    path = recipe.base.path
    if path is None:
        return
    if not path.is_dir():
        raise ModelError(
            f"base.path: no folder at {path}; give one that save_pretrained or `rolellm convert-chatglm` wrote, "
            "a base.model on the Hub, or build: tiny-llama"
        )
    if not (path / "config.json").is_file():
        raise ModelError(f"base.path: {path} has no config.json, so it is not a saved model")


def base_config(recipe: Recipe) -> Any:
    """The configuration of a recipe's base, without its weights; ``None`` for one that is built to fit the recipe.

    Raises:
        ModelError: When it cannot be read.
    """
    if recipe.base.build is not None:
        return None
    from transformers import AutoConfig

    folder = _given(recipe)
    try:
        return AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise ModelError(f"{folder}: its config.json cannot be read: {load_failure(folder, error)}") from error


def check_targets(recipe: Recipe, config: Any, tokenizer: PreTrainedTokenizerBase) -> None:
    """Check that each of an adapter's targets is a layer of the base, on a model without weights.

    Args:
        recipe: The recipe.
        config: The base's configuration, as from `base_config`.
        tokenizer: The base's tokenizer.

    Raises:
        ModelError: When the configuration makes no causal language model.
        RecipeError: When a target is no layer; names those that are.
    """
    targets = recipe.method.lora.targets
    if recipe.method.name == "full" or targets == ("all-linear",):
        return
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.pytorch_utils import Conv1D

    with torch.device("meta"):
        try:
            empty = (
                tiny.new_model(recipe, tokenizer)
                if config is None
                else AutoModelForCausalLM.from_config(config, trust_remote_code=False)
            )
        except ValueError as error:
            raise ModelError(f"the base is no causal language model: {error}") from error
    layers = torch.nn.Linear, torch.nn.Embedding, Conv1D
    names = [f".{name}" for name, module in empty.named_modules() if isinstance(module, layers)]
    unknown = [target for target in targets if not any(name.endswith(f".{target}") for name in names)]
    if unknown:
        known = sorted({name.rpartition(".")[2] for name in names})
        raise RecipeError(
            f"method.lora.targets: the base has no layer {', '.join(unknown)}; it has {', '.join(known)}; "
            "all-linear takes every linear one"
        )


def base_tokenizer(recipe: Recipe, rows: Sequence[Row], out: Path) -> PreTrainedTokenizerBase:
    """The tokenizer of a recipe's base, without building or loading the model.

    Args:
        recipe: The recipe.
        rows: The training rows, as from `rolellm.rocit.rows.select_rows`.
        out: The run's folder, where a built base may lie already.

    Raises:
        ModelError: When it cannot be loaded.
    """
    check_base(recipe)
    if recipe.base.build is None:
        return load_tokenizer(_given(recipe), recipe.prompt.form)
    folder = _built(recipe, rows, out)
    if (folder / _DONE).is_file():
        return load_tokenizer(folder, recipe.prompt.form)
    return tiny.build_tokenizer(recipe, rows)


def pinned(recipe: Recipe, commit: str | None = None) -> Recipe:
    """The recipe with a commit of its base, by default what its revision is now: all of a run reads the same files."""
    if recipe.base.model is None:
        return recipe
    return replace(recipe, base=replace(recipe.base, revision=commit or _given(recipe).name))


def _given(recipe: Recipe, *, weights: bool = False) -> Path:
    """The folder of a base that is there already, or on the Hub."""
    if recipe.base.path is not None:
        return recipe.base.path
    return fetch(str(recipe.base.model), recipe.base.revision, weights=weights)


def _built(recipe: Recipe, rows: Sequence[Row], out: Path) -> Path:
    """Where under ``out`` a built base lies, by the hash of all that decides it."""
    return out / f"base-{tiny.build_hash(recipe, rows)[:12]}"


def build_base(
    recipe: Recipe, rows: Sequence[Row], out: Path, tokenizer: PreTrainedTokenizerBase | None = None
) -> Path:
    """The folder of a recipe's base; with ``base.build``, it is built and warmed unless that was done before.

    Args:
        recipe: The recipe.
        rows: The training rows, as from `rolellm.rocit.rows.select_rows`; never test rows.
        out: The run's folder; the base goes to ``out/base-<hash>``, complete or not at all.
        tokenizer: The tokenizer as `base_tokenizer` made it, where it is at hand.

    Returns:
        The folder with the model and its tokenizer.

    Raises:
        ModelError: When the base is not there.
        RecipeError: When the rows have nothing to warm on, or something that cannot be trained on.
    """
    check_recipe(recipe)
    check_base(recipe)
    if recipe.base.build is None:
        return _given(recipe, weights=True)
    folder = _built(recipe, rows, out)
    if (folder / _DONE).is_file():
        return folder
    require("torch", "transformers", "trl", "peft", "accelerate", extra="train")
    from rolellm.rocit.sft import Fit, fit, world

    chosen = tokenizer or tiny.build_tokenizer(recipe, rows)
    examples = tiny.warming(recipe, rows, chosen)
    warm = recipe.base.warm
    here = world(recipe.training)
    partial = out / f".{folder.name}.part"
    # The schedule, clipping and the rest are the tuning's own: one way of training, two sets of replies.
    training = replace(
        recipe.training,
        epochs=1.0,
        max_steps=None,
        # A step is of so many examples however many processes share it.
        batch_size=max(1, warm.batch_size // here.num_processes),
        grad_accumulation=1,
        learning_rate=warm.learning_rate,
    )
    if here.is_main_process:
        shutil.rmtree(partial, ignore_errors=True)  # what a kill left
    try:
        job = Fit(training=training, method=MethodRecipe(name="full"), folder=partial, label="warming the base")
        warmed = fit(tiny.new_model(recipe, chosen), chosen, examples, job)
        warmed.save(partial)
        if here.is_main_process:
            write_json(partial / _DONE, {"hash": tiny.build_hash(recipe, rows), "examples": len(examples)})
            shutil.rmtree(folder, ignore_errors=True)
            partial.replace(folder)
    finally:
        if here.is_main_process:
            shutil.rmtree(partial, ignore_errors=True)
    here.wait_for_everyone()
    return folder
