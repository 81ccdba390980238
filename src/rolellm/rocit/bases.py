"""Base models: one from a folder, or a tiny LLaMA built from the training rows, so that a recipe needs no download."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rolellm.errors import ModelError
from rolellm.extras import require
from rolellm.files import write_json
from rolellm.prompts.render import chat_template
from rolellm.records import Row
from rolellm.rocit import tiny
from rolellm.rocit.config import check_recipe
from rolellm.rocit.recipe import MethodRecipe, Recipe

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

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
        raise ModelError(f"base.path: no folder at {path}; give one that save_pretrained wrote, or build: tiny-llama")
    if not (path / "config.json").is_file():
        raise ModelError(f"base.path: {path} has no config.json, so it is not a saved model")


def load_tokenizer(path: Path, *, own_template: bool = False) -> PreTrainedTokenizerBase:
    """Load a tokenizer and set the chat template that training and inference will use.

    Args:
        path: A folder as ``save_pretrained`` writes it.
        own_template: Keep the tokenizer's own chat template instead of the ``rolellama`` form.

    Raises:
        ModelError: When there is no tokenizer to load, or its own template is asked for and it has none.
    """
    require("torch", "transformers", extra="train")
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: its tokenizer cannot be loaded: {error}") from error
    if not own_template:
        tokenizer.chat_template = chat_template("rolellama")
    elif not tokenizer.chat_template:
        raise ModelError(f"{path}: its tokenizer has no chat template; use prompt.form: rolellama")
    return tokenizer


def base_positions(recipe: Recipe) -> int | None:
    """How many tokens a recipe's base takes, read from its configuration alone; ``None`` where it does not say."""
    if recipe.base.path is None:
        return recipe.training.max_length
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(recipe.base.path, local_files_only=True)
    except (OSError, ValueError) as error:
        raise ModelError(f"base.path: {recipe.base.path}: its config.json cannot be read: {error}") from error
    return getattr(config, "max_position_embeddings", None)


def load_model(path: Path, *, half: bool = False) -> PreTrainedModel:
    """Load a causal language model.

    Args:
        path: A folder as ``save_pretrained`` writes it.
        half: Hold the weights in bfloat16 instead of float32.

    Raises:
        ModelError: When it cannot be loaded.
    """
    require("torch", "transformers", extra="train")
    import torch
    from transformers import AutoModelForCausalLM

    dtype = torch.bfloat16 if half else torch.float32
    try:
        return AutoModelForCausalLM.from_pretrained(path, local_files_only=True, dtype=dtype)
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: its model cannot be loaded: {error}") from error


def base_folder(recipe: Recipe, rows: Sequence[Row], out: Path) -> Path:
    """The folder of a recipe's base: ``base.path``, or where under ``out`` the built one lies, by content hash.

    Args:
        recipe: The recipe.
        rows: The training rows, as from `rolellm.rocit.rows.select_rows`.
        out: The run's folder.
    """
    if recipe.base.path is not None:
        return recipe.base.path
    return out / f"base-{tiny.build_hash(recipe, rows)[:12]}"


def base_tokenizer(recipe: Recipe, rows: Sequence[Row], out: Path) -> PreTrainedTokenizerBase:
    """The tokenizer of a recipe's base, without building or loading the model.

    Args:
        recipe: The recipe.
        rows: The training rows.
        out: The run's folder, where a built base may lie already.

    Raises:
        ModelError: When it cannot be loaded.
    """
    check_base(recipe)
    folder = base_folder(recipe, rows, out)
    if recipe.base.path is not None or (folder / _DONE).is_file():
        return load_tokenizer(folder, own_template=recipe.prompt.form == "model")
    return tiny.build_tokenizer(recipe, rows)


def build_base(
    recipe: Recipe, rows: Sequence[Row], out: Path, tokenizer: PreTrainedTokenizerBase | None = None
) -> Path:
    """Build and warm a recipe's tiny LLaMA, unless the same one was built under ``out`` before.

    Args:
        recipe: A recipe with ``base.build``; with ``base.path`` there is nothing to build.
        rows: The training rows, as from `rolellm.rocit.rows.select_rows`; never test rows.
        out: The run's folder; the base goes to ``out/base-<hash>``, complete or not at all.
        tokenizer: The tokenizer as `base_tokenizer` made it, where it is at hand.

    Returns:
        The folder with the model and its tokenizer.

    Raises:
        ModelError: When ``base.path`` is not there.
        RecipeError: When the rows have nothing to warm on, or something that cannot be trained on.
    """
    check_recipe(recipe)
    check_base(recipe)
    folder = base_folder(recipe, rows, out)
    if recipe.base.path is not None or (folder / _DONE).is_file():
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
        batch_size=warm.batch_size,
        grad_accumulation=1,
        learning_rate=warm.learning_rate,
    )
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
