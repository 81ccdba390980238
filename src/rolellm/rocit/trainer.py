"""RoCIT from a recipe to a run folder: rows, tokens, base, training, and what is left on disk.

A run folder holds the adapter or model with its tokenizer, ``metrics.jsonl`` (one object a step), ``recipe.json``,
``checkpoint-N/`` folders, ``base-<hash>/`` where the base was built, and last of all ``manifest.json``.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rolellm.errors import RecipeError
from rolellm.extras import require
from rolellm.files import write_json
from rolellm.fingerprint import hash_bytes
from rolellm.records import Row
from rolellm.rocit import manifest
from rolellm.rocit.bases import base_positions, base_tokenizer, build_base, check_base, load_model
from rolellm.rocit.config import check_recipe
from rolellm.rocit.recipe import Recipe
from rolellm.rocit.rows import Example, check_positions, conversations, encode, select_rows, templates

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from rolellm.rocit.sft import Fitted

# What a run writes into its folder besides checkpoints; nothing else there is ever removed. The manifest goes first:
# from then on the folder is no finished run.
_OWN_FILES = (
    manifest.MANIFEST,
    "metrics.jsonl",
    "recipe.json",
    "model*.safetensors",
    "model.safetensors.index.json",
    "adapter_model.safetensors",
    "adapter_config.json",
    "config.json",
    "generation_config.json",
    "tokenizer*.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)


@dataclass(frozen=True, slots=True)
class TrainResult:
    """What a finished run did.

    Attributes:
        out: The run's folder.
        base: The base's folder.
        rows: Rows trained on.
        examples: (row, reference) pairs trained on.
        steps: Optimiser steps.
        first_loss: The loss of the first step, in nats a trained token.
        last_loss: The mean loss of the last tenth of the steps.
        seconds: Wall time of the whole run, the base's building included.
        training_seconds: Wall time of the optimiser steps alone.
    """

    out: Path
    base: Path
    rows: int
    examples: int
    steps: int
    first_loss: float
    last_loss: float
    seconds: float
    training_seconds: float

    def to_dict(self) -> dict[str, Any]:
        """The result as JSON values."""
        return {**asdict(self), "out": str(self.out), "base": str(self.base)}


@dataclass(frozen=True, slots=True)
class Prepared:
    """Everything that is settled before training: rows chosen and turned into tokens.

    Attributes:
        rows: The training rows.
        tokenizer: The base's tokenizer.
        examples: One a (row, reference).
    """

    rows: list[Row]
    tokenizer: PreTrainedTokenizerBase
    examples: list[Example]


def load_rows(recipe: Recipe) -> list[Row]:
    """The rows that a recipe trains on, from the data set that it names.

    Raises:
        RecipeError: When the data set has no such split, or the recipe leaves no row of it.
        ReleaseNotFoundError: When the release is not there.
    """
    from rolellm.rolebench import load_rolebench

    data = recipe.data
    splits = load_rolebench(data.config, data_dir=data.data_dir)
    if data.split not in splits:
        raise RecipeError(f"data.split: {data.config} has no split {data.split!r}; it has {', '.join(splits)}")
    rows = (Row.from_columns(columns) for columns in splits[data.split])
    return select_rows(rows, data, recipe.training.seed)


def prepare(recipe: Recipe, out: Path, rows: Sequence[Row] | None = None) -> Prepared:
    """Choose the rows and turn them into tokens, without building or loading a model.

    Args:
        recipe: The recipe.
        out: The run's folder, where a built base may lie already.
        rows: The training rows, where they are at hand.

    Raises:
        ModelError: When the base is not there.
        RecipeError: When a row cannot be trained on; names it.
    """
    check_recipe(recipe)
    check_base(recipe)
    check_positions(recipe.training.max_length, base_positions(recipe))
    chosen = list(rows) if rows is not None else load_rows(recipe)
    tokenizer = base_tokenizer(recipe, chosen, out)
    chats = conversations(chosen, templates(recipe.prompt), first_only=recipe.data.replies == "first")
    training = recipe.training
    examples = encode(
        list(chats), tokenizer, max_length=training.max_length, truncate_replies=training.truncate_replies
    )
    return Prepared(chosen, tokenizer, examples)


def train(recipe: Recipe, out: Path | None = None, *, overwrite: bool = False) -> TrainResult:
    """Carry out a recipe.

    Under ``accelerate launch`` every process calls this; the first one writes.

    Args:
        recipe: The recipe, as from `rolellm.rocit.config.load_recipe`.
        out: The run's folder, in place of ``output.dir``.
        overwrite: Replace the run that is there; a base built there before is kept and used.

    Raises:
        RecipeError: For a recipe, row or folder that will not do; before any work.
        ModelError: For a base that is not there or does not fit; before any work.
        DivergedError: When the loss is no number.
    """
    require("torch", "transformers", "trl", "peft", "accelerate", extra="train")
    start = time.monotonic()
    run = out or recipe.output.dir
    _refuse_taken(run, overwrite)
    prepared = prepare(recipe, run)
    # Not at the head: what is refused is refused before these slow imports.
    from rolellm.rocit.sft import Fit, fit, world

    here = world(recipe.training)
    # No process may look at the folder after the first one has begun to write there.
    here.wait_for_everyone()
    if here.is_main_process:
        _claim(run, recipe)
    base = build_base(recipe, prepared.rows, run, prepared.tokenizer)
    lora = recipe.method.name == "lora"
    model = load_model(base, half=lora and recipe.training.precision == "bf16")
    job = Fit(training=recipe.training, method=recipe.method, folder=run, label="tuning", output=recipe.output)
    fitted = fit(model, prepared.tokenizer, prepared.examples, job)
    fitted.save(run)
    result = _result(run, base, prepared, fitted, time.monotonic() - start)
    if here.is_main_process:
        manifest.write_manifest(run, _manifest(recipe, prepared, result, here.num_processes))
    here.wait_for_everyone()
    return result


def is_first_process() -> bool:
    """Whether this process is the one that writes and prints; always so when nothing launched several."""
    from accelerate import PartialState

    return bool(PartialState().is_main_process)


def _refuse_taken(run: Path, overwrite: bool) -> None:
    """Refuse a folder that holds a run already."""
    if run.exists() and not run.is_dir():
        raise RecipeError(f"{run} is a file; a run needs a folder")
    if overwrite:
        return
    if (run / manifest.MANIFEST).is_file():
        raise RecipeError(f"{run} holds a finished run; choose another folder with --out, or --overwrite it")
    if next(run.glob("checkpoint-*"), None) or (run / "model.safetensors").exists():
        raise RecipeError(f"{run} holds an unfinished run or a model; choose another folder, or --overwrite it")


def _claim(run: Path, recipe: Recipe) -> None:
    """Clear away what an earlier run wrote here, and nothing else; leave the recipe."""
    run.mkdir(parents=True, exist_ok=True)
    for pattern in _OWN_FILES:
        for file in run.glob(pattern):
            file.unlink()
    for checkpoint in run.glob("checkpoint-*"):
        shutil.rmtree(checkpoint)
    write_json(run / "recipe.json", recipe.to_dict())


def _result(run: Path, base: Path, prepared: Prepared, fitted: Fitted, seconds: float) -> TrainResult:
    losses = manifest.loss_summary(fitted.losses)
    return TrainResult(
        out=run,
        base=base,
        rows=len(prepared.rows),
        examples=len(prepared.examples),
        steps=len(fitted.losses),
        first_loss=losses["first"],
        last_loss=losses["last"],
        seconds=round(seconds, 2),
        training_seconds=round(fitted.seconds, 2),
    )


def _manifest(recipe: Recipe, prepared: Prepared, result: TrainResult, processes: int) -> dict[str, Any]:
    from rolellm.rolebench import dataset_fingerprint

    template = templates(recipe.prompt)
    examples = prepared.examples
    return {
        "format": 1,
        "kind": "rocit",
        "recipe": recipe.to_dict(),
        "recipe_hash": recipe.hash,
        "data": {
            "config": recipe.data.config,
            "split": recipe.data.split,
            "fingerprint": dataset_fingerprint(recipe.data.config, recipe.data.data_dir),
            "rows": len(prepared.rows),
            "examples": len(examples),
            "tokens_read": sum(len(example.prompt_ids) for example in examples),
            "tokens_trained": sum(len(example.reply_ids) for example in examples),
        },
        "trained_on": manifest.trained_on(prepared.rows),
        "prompt": {
            "form": recipe.prompt.form,
            "system_templates": {"en": template("en").hash, "zh": template("zh").hash},
            "chat_template": hash_bytes(str(prepared.tokenizer.chat_template).encode("utf-8")),
        },
        "base": {
            "kind": recipe.base.build or "path",
            "name": result.base.name,
            "files": manifest.file_hashes(result.base),
        },
        "method": recipe.method.name,
        "seed": recipe.training.seed,
        "result": {"steps": result.steps, "first_loss": result.first_loss, "last_loss": result.last_loss},
        "seconds": {"all": result.seconds, "training": result.training_seconds},
        "processes": processes,
        "versions": manifest.versions(),
        "files": manifest.file_hashes(result.out),
    }
