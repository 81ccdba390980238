"""RoCIT from a recipe to a run folder: rows, tokens, base, training, and what is left on disk.

A run folder holds the adapter or model with its tokenizer, ``metrics.jsonl`` (one object a step), ``recipe.json``,
``checkpoint-N/`` folders, ``base-<hash>/`` where the base was built, and last of all ``manifest.json``.
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rolellm.core.errors import HubError, RecipeError, require
from rolellm.core.files import write_json
from rolellm.core.fingerprint import hash_bytes, hash_json
from rolellm.core.records import Row
from rolellm.models.training_record import MANIFEST, Seen
from rolellm.prompts.settle import switched_off
from rolellm.rocit import rows as data
from rolellm.rocit.bases import base_config, base_tokenizer, build_base, check_targets, load_model, pinned
from rolellm.rocit.packing.examples import Examples
from rolellm.rocit.recipe import OutputRecipe, Recipe, TrainingRecipe, check_recipe, load_recipe
from rolellm.rocit.run_folder import METRICS, Start, begun, check_free, claim, file_hashes, stopped_short, versions
from rolellm.runtime.folders import temporary_folder
from rolellm.runtime.locks import check_unlocked, locked

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class RowByRowWarning(UserWarning):
    """Shared prefixes are not known to be exact for the base, so that it is trained row by row."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a recipe trains on.

    Attributes:
        rows: The rows that a built base is made from.
        tokenizer: The base's tokenizer.
        training: How to train: as the recipe has it, row by row where packs are not known to be exact for the base.
        examples: One for each trained reply: a (row, reference), a line of a script, or an assistant turn.
        seen: The roles and instructions among them.
        system_hashes: The hash of the system instruction's template, by language.
        trained: How many rows, lines or turns are trained on.
        held_out: The replies that `training.eval_strategy` computes the loss of.
        fingerprint: A content hash of a dataset that was given.
    """

    rows: list[Row]
    tokenizer: PreTrainedTokenizerBase
    training: TrainingRecipe
    examples: Examples
    seen: Seen
    system_hashes: dict[str, str]
    trained: int
    held_out: Examples | None = None
    fingerprint: str | None = None


def prepare(
    recipe: Recipe, out: Path, rows: data.Replies | None = None, held_out: data.Replies | None = None
) -> Prepared:
    """Choose what is trained on and turn it into tokens, without building or loading a model.

    Args:
        recipe: The recipe.
        out: The run's folder, which may already hold a built base.
        rows: What to train on, in place of what the recipe's data section names.
        held_out: What to evaluate on; by default split off the training rows, by instruction.

    Raises:
        ModelError: When the base is missing.
        RecipeError: When a row cannot be trained on, or a target of the adapter is not a layer of the base; names it.
    """
    require("torch", "transformers", extra="train")
    check_recipe(recipe)
    training = recipe.training
    config = base_config(recipe)
    data.check_positions(training.max_length, getattr(config, "max_position_embeddings", None))
    replies: list[Any] = list(data.named(recipe) if rows is None else rows)
    if training.eval_strategy != "no" and held_out is None:
        replies, held_out = data.split_off(replies, recipe.data.held_out, training.seed)
    chosen = data.for_base(recipe, replies)
    tokenizer = base_tokenizer(recipe, chosen, out)
    check_targets(recipe, config, tokenizer)
    ask, hashes = data.asking(recipe, [item for item in [*replies, *(held_out or ())] if isinstance(item, Row)])

    def encoded(items: data.Replies) -> Examples:
        chats = [item for item in items if isinstance(item, data.Conversation)]
        chats += data.conversations(
            (item for item in items if isinstance(item, Row)), ask, first_only=recipe.data.replies == "first"
        )
        return data.encode(chats, tokenizer, max_length=training.max_length, truncate_replies=training.truncate_replies)

    examples = encoded(replies)
    held = encoded(held_out) if held_out and training.eval_strategy != "no" else None
    if training.shared_prefix and config is not None:
        from rolellm.rocit.packing.attention import why_rows

        longest = max(int(some.lengths.max()) for some in (examples, held) if some is not None)
        if reason := why_rows(config, flex=not training.on_cpu, longest=longest):
            training = _row_by_row(training, longest)
            warnings.warn(
                "replies are trained row by row, without shared prefixes, "
                f"{training.per_device_train_batch_size} in a forward pass: the base is {reason}",
                RowByRowWarning,
                stacklevel=2,
            )
    return Prepared(
        rows=chosen,
        tokenizer=tokenizer,
        training=training,
        examples=examples,
        seen=data.seen(recipe, replies),
        system_hashes=hashes,
        trained=len(replies),
        held_out=held,
        fingerprint=None if rows is None else hash_json([asdict(item) for item in replies]),
    )


def _row_by_row(training: TrainingRecipe, longest: int) -> TrainingRecipe:
    """The same steps in rows: as many in a forward pass as a pack has room for, up to the recipe's own number."""
    step, most = training.replies_per_step, training.per_device_train_batch_size
    rows = max(n for n in range(1, most + 1) if step % n == 0 and n * longest <= training.pack_tokens)
    return replace(
        training, shared_prefix=False, per_device_train_batch_size=rows, gradient_accumulation_steps=step // rows
    )


@dataclass(frozen=True, slots=True)
class Run:
    """A finished run.

    Attributes:
        out: The run's folder.
        base: The base's folder.
        rows: Rows trained on; lines of a script, or replies of conversations.
        examples: Replies trained on.
        steps: Optimizer steps.
        first_loss: The loss of the first step, in nats per trained token.
        last_loss: The mean loss of the last tenth of the steps.
        seconds: Wall time of this call, including building the base.
        training_seconds: Wall time of the optimizer steps alone, those before a resume included.
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

    @property
    def model_dir(self) -> Path:
        """The folder with the tuned model or adapter."""
        return self.out

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """``metrics.jsonl``: one dict for each step, with ``step``, ``loss`` and TRL's metrics."""
        return [json.loads(line) for line in (self.out / METRICS).read_text(encoding="utf-8").splitlines()]

    def to_dict(self) -> dict[str, Any]:
        """The result as JSON values."""
        return {**asdict(self), "out": str(self.out), "base": str(self.base)}


def train(
    recipe: str | Path | Mapping[str, Any] | Recipe,
    *,
    train_dataset: Any = None,
    eval_dataset: Any = None,
    out: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    callbacks: Sequence[Any] = (),
    **training: Any,
) -> Run:
    """Tune a model to speak as the roles of a dataset.

    Under ``accelerate launch``, every process calls this; the first one writes.

    >>> run = train("smoke-cpu", num_train_epochs=1, learning_rate=2e-3)  # doctest: +SKIP
    >>> run.model_dir, run.metrics[-1]["loss"]  # doctest: +SKIP

    Args:
        recipe: The name of a recipe that ships, a YAML file, a dict with the same sections, or a recipe.
        train_dataset: Train on this `datasets.Dataset` instead of the recipe's data: RoleBench's columns (``role``,
            ``question`` and ``references`` at least), or TRL's ``prompt``/``completion`` or ``messages``.
        eval_dataset: Compute ``eval_loss`` on this dataset, in the same form; with ``eval_strategy`` alone, it is
            computed on instructions held out from training.
        out: The run's folder; by default the ``output.dir`` of your own recipe or, for one that ships, a temporary
            folder whose name is printed.
        resume: Continue an unfinished run of the same recipe from its newest complete checkpoint; the result is that
            of a run that was never stopped.
        overwrite: Replace the run in the folder; a base built there is kept and used.
        callbacks: Callbacks of `transformers`.
        training: Values of the recipe's ``training`` section: fields of TRL's `SFTConfig`, and rolellm's own.

    Raises:
        RecipeError: For a recipe, row or folder that cannot be used; before any work.
        ModelError: For a base that is missing or does not fit; before any work.
        DataError: For a dataset without the columns needed, or a row without a reply.
        RunInUseError: When another run works in the folder.
        DivergedError: When the loss is NaN or infinite.
        StoppedShortError: On Ctrl-C or a full disk; says how to continue.
        HubError: When the finished run cannot be published; `rolellm push` can do it later.
    """
    require("torch", "transformers", "trl", "peft", "accelerate", extra="train")
    if overwrite and resume:
        raise RecipeError("--overwrite starts over and --resume continues; give one of them")
    if eval_dataset is not None:
        training.setdefault("eval_strategy", "epoch")
    chosen = load_recipe(recipe, **training)
    rows = None if train_dataset is None else data.dataset_rows(train_dataset)
    if rows is not None:
        chosen = replace(chosen, data=replace(chosen.data, source="dataset", languages=data.languages_of(rows)))
    held_out = None if eval_dataset is None else data.dataset_rows(eval_dataset)
    shipped = isinstance(recipe, str) and not Path(recipe).is_file()
    if out is None and not shipped and chosen.output.dir != OutputRecipe().dir:
        out = chosen.output.dir
    if resume and out is None:
        raise RecipeError("resume needs out, the folder of the run to continue")
    folder = _temporary() if out is None else Path(out)
    again = f"the same call with out={str(folder)!r}"
    with stopped_short(folder, again=again, resume=f"{again} and resume=True"):
        start: Start = "overwrite" if overwrite else "resume" if resume else "new"
        return _train(chosen, rows, held_out, folder, start, callbacks)


def _temporary() -> Path:
    from accelerate import PartialState
    from accelerate.utils import broadcast_object_list

    made = [str(temporary_folder("train")) if PartialState().is_main_process else ""]
    return Path(broadcast_object_list(made)[0])


def _train(
    recipe: Recipe,
    rows: data.Replies | None,
    held_out: data.Replies | None,
    run: Path,
    start: Start,
    callbacks: Sequence[Any],
) -> Run:
    began = time.monotonic()
    check_unlocked(run)
    recipe, commit = begun(run, recipe) if start == "resume" else (recipe, None)
    check_free(run, recipe, start)
    if recipe.output.push_to_hub:
        from rolellm.rocit.publish import check_publishing

        check_publishing(recipe)
    fixed = pinned(recipe, commit)
    prepared = prepare(fixed, run, rows, held_out)
    # Not at the head: what is refused is refused before these slow imports.
    from rolellm.rocit.fit import Fit, fit, world

    here = world(recipe.training)
    # No process may look at the folder after the first one has begun to write there.
    here.wait_for_everyone()
    with locked(run) if here.is_main_process else nullcontext():
        if here.is_main_process:
            check_free(run, recipe, start)
            claim(run, recipe, start, fixed.base.revision)
        base = build_base(fixed, prepared.rows, run, prepared.tokenizer)
        # By the first process alone, and once: a large base takes a while to read.
        hashes = file_hashes(base) if here.is_main_process else {}
        job = Fit(
            training=prepared.training,
            method=recipe.method,
            folder=run,
            label="tuning",
            kept=True,
            resume=start == "resume",
            held_out=prepared.held_out,
            callbacks=callbacks,
            facts={"recipe": recipe.hash, "base": hash_json(hashes)},
        )
        model = load_model(base, recipe.method, recipe.training)
        fitted = fit(model, prepared.tokenizer, prepared.examples, job)
        fitted.save(run, base=fixed.base.model, revision=fixed.base.revision)
        last = fitted.losses[-max(1, len(fitted.losses) // 10) :]
        result = Run(
            out=run,
            base=base,
            rows=prepared.trained,
            examples=len(prepared.examples),
            steps=len(fitted.losses),
            first_loss=fitted.losses[0],
            last_loss=sum(last) / len(last),
            seconds=round(time.monotonic() - began, 2),
            training_seconds=round(fitted.seconds, 2),
        )
        if here.is_main_process:
            write_json(run / MANIFEST, _manifest(recipe, prepared, result, hashes, here.num_processes))
        here.wait_for_everyone()
    # After the others were let go: an upload may take longer than processes wait for each other.
    return _publish(recipe.output, result) if here.is_main_process and recipe.output.push_to_hub else result


def _publish(output: OutputRecipe, run: Run) -> Run:
    from rolellm.rocit.publish import push

    try:
        pushed = push(run, str(output.hub_repo), merge=output.merge, private=output.private)
        return replace(run, url=pushed.url)
    except HubError as error:
        again = f"rolellm push {run.out} {output.hub_repo}{' --merge' if output.merge else ''}"
        raise type(error)(f"{error}\nThe run in {run.out} is finished; publish it with: {again}") from error


def _manifest(recipe: Recipe, prepared: Prepared, result: Run, base: dict[str, str], processes: int) -> dict[str, Any]:
    from rolellm.rolebench import dataset_fingerprint
    from rolellm.rolebench.source import own_manifest

    examples = prepared.examples
    read = examples.prompts.lengths[examples.prompt_of]
    return {
        "format": 1,
        "kind": "rocit",
        "recipe": recipe.to_dict(),
        "recipe_hash": recipe.hash,
        "data": {
            "config": recipe.data.config if prepared.fingerprint is None else "dataset",
            "split": recipe.data.split,
            **({"own": True} if prepared.fingerprint is None and own_manifest(recipe.data.data_dir) else {}),
            "fingerprint": prepared.fingerprint or dataset_fingerprint(recipe.data.config, recipe.data.data_dir),
            "rows": prepared.trained,
            "examples": len(examples),
            "tokens_read": int(read.sum()),
            "tokens_trained": int(examples.replies.lengths.sum()),
            **({} if prepared.held_out is None else {"held_out": len(prepared.held_out)}),
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
            "files": base,
        },
        "method": recipe.method.name,
        "seed": recipe.training.seed,
        "result": {"steps": result.steps, "first_loss": result.first_loss, "last_loss": result.last_loss},
        "seconds": {"all": result.seconds, "training": result.training_seconds},
        "processes": processes,
        "versions": versions(),
        "files": file_hashes(result.out),
    }
