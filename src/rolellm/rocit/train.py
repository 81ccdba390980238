"""RoCIT from a recipe to a run folder: rows, tokens, base, training, and what is left on disk.

A run folder holds the adapter or model with its tokenizer, ``metrics.jsonl`` (one object a step), ``recipe.json``,
``checkpoint-N/`` folders, ``base-<hash>/`` where the base was built, and last of all ``manifest.json``.
"""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rolellm.core.errors import HubError, RecipeError, require
from rolellm.core.fingerprint import hash_bytes, hash_json
from rolellm.prompts.settle import switched_off
from rolellm.rocit import run_folder as manifest
from rolellm.rocit.bases import build_base, pinned
from rolellm.rocit.loading import load_model
from rolellm.rocit.prepare import Prepared, prepare
from rolellm.rocit.recipe import Recipe
from rolellm.rocit.run_folder import Start, begun, check_free, check_unlocked, claim, locked

if TYPE_CHECKING:
    from rolellm.rocit.fit import Fitted


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
        seconds: Wall time of this call, the base's building included.
        training_seconds: Wall time of the optimiser steps alone, those of an earlier part of the run included.
        url: Where the run was published, with ``output.push_to_hub``.
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
    url: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """The result as JSON values."""
        return {**asdict(self), "out": str(self.out), "base": str(self.base)}


@dataclass(frozen=True, slots=True)
class _Base:
    folder: Path
    hashes: dict[str, str]


def train(recipe: Recipe, out: Path | None = None, *, overwrite: bool = False, resume: bool = False) -> TrainResult:
    """Carry out a recipe.

    Under ``accelerate launch`` every process calls this; the first one writes.

    Args:
        recipe: The recipe, as from `rolellm.rocit.recipe.load_recipe`.
        out: The run's folder, in place of ``output.dir``.
        overwrite: Replace the run that is there; a base built there before is kept and used.
        resume: Go on with an unfinished run of the same recipe from its newest complete checkpoint, or from the
            beginning where it has none; the result is that of a run that was never stopped. A base on the Hub is read
            at the commit that the run began with.

    Raises:
        RecipeError: For a recipe, row or folder that will not do; before any work.
        ModelError: For a base that is not there or does not fit; before any work.
        RunInUseError: When another run works in the folder.
        DivergedError: When the loss is no number.
        HubError: When the finished run cannot be published; it can be with ``rolellm push``, then.
    """
    require("torch", "transformers", "trl", "peft", "accelerate", extra="train")
    if overwrite and resume:
        raise RecipeError("--overwrite begins anew and --resume goes on; give one of them")
    began = time.monotonic()
    run = out or recipe.output.dir
    start: Start = "overwrite" if overwrite else "resume" if resume else "new"
    check_unlocked(run)
    recipe, commit = begun(run, recipe) if resume else (recipe, None)
    check_free(run, recipe, start)
    if recipe.output.push_to_hub:
        from rolellm.rocit.publish import check_publishing

        check_publishing(recipe)
    fixed = pinned(recipe, commit)
    prepared = prepare(fixed, run)
    # Not at the head: what is refused is refused before these slow imports.
    from rolellm.rocit.fit import world

    here = world(recipe.training)
    # No process may look at the folder after the first one has begun to write there.
    here.wait_for_everyone()
    with locked(run) if here.is_main_process else nullcontext():
        if here.is_main_process:
            check_free(run, recipe, start)
            claim(run, recipe, start, fixed.base.revision)
        folder = build_base(fixed, prepared.rows, run, prepared.tokenizer)
        # By the first process alone, and once: a large base takes a while to read.
        base = _Base(folder, manifest.file_hashes(folder) if here.is_main_process else {})
        fitted = _fit(recipe, run, prepared, base, resume=resume)
        fitted.save(run, base=fixed.base.model, revision=fixed.base.revision)
        result = _result(run, folder, prepared, fitted, time.monotonic() - began)
        if here.is_main_process:
            manifest.write_manifest(run, _manifest(recipe, prepared, result, base, here.num_processes))
        here.wait_for_everyone()
    # After the others were let go: an upload may take longer than processes wait for each other.
    return _publish(recipe, run, result) if here.is_main_process else result


def _publish(recipe: Recipe, run: Path, result: TrainResult) -> TrainResult:
    """Publish a finished run where the recipe says so."""
    output = recipe.output
    if not output.push_to_hub:
        return result
    from rolellm.hub import PushOptions
    from rolellm.rocit.publish import PublishOptions, publish_run

    options = PublishOptions(merge=output.merge, push=PushOptions(private=output.private))
    try:
        return replace(result, url=publish_run(run, str(output.hub_repo), options).url)
    except HubError as error:
        again = f"rolellm push {run} {output.hub_repo}{' --merge' if output.merge else ''}"
        raise type(error)(f"{error}\nThe run in {run} is finished; publish it with: {again}") from error


def _fit(recipe: Recipe, run: Path, prepared: Prepared, base: _Base, *, resume: bool) -> Fitted:
    """Tune the base."""
    from rolellm.rocit.fit import Fit, fit

    model = load_model(base.folder, recipe.method, recipe.training)
    job = Fit(
        training=recipe.training,
        method=recipe.method,
        folder=run,
        label="tuning",
        output=recipe.output,
        resume=resume,
        facts={"recipe": recipe.hash, "base": hash_json(base.hashes)},
    )
    return fit(model, prepared.tokenizer, prepared.examples, job)


def is_first_process() -> bool:
    """Whether this process is the one that writes and prints; always so when nothing launched several."""
    from accelerate import PartialState

    return bool(PartialState().is_main_process)


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


def _manifest(recipe: Recipe, prepared: Prepared, result: TrainResult, base: _Base, processes: int) -> dict[str, Any]:
    from rolellm.rolebench import dataset_fingerprint

    examples = prepared.examples
    read = examples.prompts.lengths[examples.prompt_of]
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
            "tokens_read": int(read.sum()),
            "tokens_trained": int(examples.replies.lengths.sum()),
        },
        "trained_on": prepared.seen.to_dict(),
        "prompt": {
            "form": recipe.prompt.form,
            "profile": recipe.prompt.profile,
            "system_templates": prepared.system_hashes,
            "chat_template": hash_bytes(str(prepared.tokenizer.chat_template).encode("utf-8")),
            "switches": switched_off(str(prepared.tokenizer.chat_template)),
        },
        "base": {
            "kind": recipe.base.build or ("path" if recipe.base.model is None else "hub"),
            "name": recipe.base.model or result.base.name,
            "model": recipe.base.model,
            "revision": None if recipe.base.model is None else result.base.name,
            "files": base.hashes,
        },
        "method": recipe.method.name,
        "seed": recipe.training.seed,
        "result": {"steps": result.steps, "first_loss": result.first_loss, "last_loss": result.last_loss},
        "seconds": {"all": result.seconds, "training": result.training_seconds},
        "processes": processes,
        "versions": manifest.versions(),
        "files": manifest.file_hashes(result.out),
    }
