"""RoCIT from a recipe to a run folder: rows, tokens, base, training, and what is left on disk.

A run folder holds the adapter or model with its tokenizer, ``metrics.jsonl`` (one object a step), ``recipe.json``,
``checkpoint-N/`` folders, ``base-<hash>/`` where the base was built, and last of all ``manifest.json``.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rolellm.core.errors import HubError, RecipeError, RoleLLMWarning, require
from rolellm.core.files import write_json
from rolellm.core.fingerprint import hash_bytes, hash_json
from rolellm.core.folders import use_working_folder
from rolellm.core.jsonl import read_jsonl
from rolellm.core.locks import check_unlocked, lock_folder
from rolellm.core.records import Row
from rolellm.core.row_files import read_rows
from rolellm.models.families import explain_not_shared
from rolellm.models.find import find_manifests, hash_model
from rolellm.models.prompts.render import DescriptionPrompts
from rolellm.models.prompts.settle import list_switches
from rolellm.models.training_record import MANIFEST, TrainedOn, read_manifest
from rolellm.training import bases, run_folder
from rolellm.training import rows as data
from rolellm.training.examples import Example, encode
from rolellm.training.publish import check_publishing, push
from rolellm.training.recipe import OutputRecipe, Recipe, TrainingRecipe
from rolellm.training.recipe_files import check_recipe, load_recipe
from rolellm.training.rewards import (
    RewardChange,
    check_rewards,
    describe_hacking,
    find_reward,
    learn_reward,
    measure_changes,
    name_reward,
)
from rolellm.training.safety import answer_in_role

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from rolellm.training.fit import Fitted

# Rows in a forward pass where they share no prefixes, at most (our choice).
_ROWS = 8


@dataclass(frozen=True, slots=True)
class Prepared:
    """All that a recipe trains on.

    Attributes:
        rows: The rows that a built base is made from.
        replies: The rows, lines or turns that are trained on.
        tokenizer: The base's tokenizer.
        training: How to train: as the recipe has it, row by row where packs are not known to be exact for the base.
        examples: One for each trained reply: a (row, reference), a line of a script, an assistant turn, a preference.
        ask: Makes the messages that ask a row's question of its role.
        held_out: The replies that `training.eval_strategy` computes the loss of.
        fingerprint: A content hash of a dataset that was given.
        safety: What the base said to harmful prompts and look-alikes, which is trained on, too.
    """

    rows: list[Row]
    replies: data.Replies
    tokenizer: PreTrainedTokenizerBase
    training: TrainingRecipe
    examples: list[Example]
    ask: DescriptionPrompts
    held_out: Sequence[Example] = ()
    fingerprint: str | None = None
    safety: Sequence[data.Conversation] = ()


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
    config = bases.read_base_config(recipe)
    context = bases.find_context(recipe, config)
    data.check_positions(training.max_length, context)
    replies: list[Any] = list(data.load_replies(recipe) if rows is None else rows)
    if training.eval_strategy == "no":
        held_out = []
    elif held_out is None:
        replies, held_out = data.split_held_out(replies, recipe.data.held_out, training.seed)
    base_rows = data.select_base_rows(recipe, replies)
    tokenizer = bases.load_base_tokenizer(recipe, base_rows, out)
    bases.check_targets(recipe, config, tokenizer)
    row_items = [item for item in (*replies, *held_out) if isinstance(item, Row)]
    ask = data.prepare_ask(recipe, row_items)
    data.check_prompts(row_items, ask, tokenizer, context, recipe.data)

    def encode_items(items: data.Replies) -> list[Example]:
        first_only = recipe.data.replies == "first"
        chats = list(data.make_conversations(items, ask, training.trainer, first_only=first_only))
        if items and not chats:
            raise RecipeError(
                f"training.trainer: {training.trainer} prefers replies to role-free answers, and no row has both"
            )
        limits: dict[str, Any] = {"max_length": training.max_length, "truncate_replies": training.truncate_replies}
        return encode(chats, tokenizer, trainer=training.trainer, **limits)

    examples, held_out_examples = encode_items(replies), encode_items(held_out)
    if training.shared_prefix and config is not None:
        longest = max(example.length for example in (*examples, *held_out_examples))
        if recipe.data.mix.safety:
            longest = training.max_length  # replies that are still to come
        if reason := explain_not_shared(config, longest):
            training = _disable_sharing(training)
            warnings.warn(
                "replies are trained row by row, without shared prefixes, "
                f"{training.per_device_train_batch_size} in a forward pass: the base is {reason}",
                RoleLLMWarning,
                stacklevel=2,
            )
    return Prepared(
        rows=base_rows,
        replies=replies,
        tokenizer=tokenizer,
        training=training,
        examples=examples,
        ask=ask,
        held_out=held_out_examples,
        fingerprint=None if rows is None else hash_json([asdict(item) for item in replies]),
    )


def _disable_sharing(training: TrainingRecipe) -> TrainingRecipe:
    """The same steps in passes of a few rows, which take more memory each."""
    step = training.replies_per_step
    rows = max(n for n in range(1, min(_ROWS, training.per_device_train_batch_size) + 1) if step % n == 0)
    return replace(
        training, shared_prefix=False, per_device_train_batch_size=rows, gradient_accumulation_steps=step // rows
    )


@dataclass(frozen=True, slots=True)
class TrainingRun:
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
        hacked: With ``trainer: grpo``, which rewards rise while those that are only watched (weight 0) fall.
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
    hacked: str | None = None

    @property
    def model_dir(self) -> Path:
        """The folder with the tuned model or adapter."""
        return self.out

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """``metrics.jsonl``: one dict for each step, with ``step``, ``loss`` and TRL's metrics."""
        return [line for _, line in read_jsonl(self.out / run_folder.METRICS)]

    def to_dict(self) -> dict[str, Any]:
        """The result as JSON values."""
        return {**asdict(self), "out": str(self.out), "base": str(self.base)}


def train(
    recipe: str | Path | Mapping[str, Any] | Recipe,
    *,
    train_dataset: Any = None,
    eval_dataset: Any = None,
    base: str | Path | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    callbacks: Sequence[Any] = (),
    **training: Any,
) -> TrainingRun:
    """Tune a model to speak as the roles of a dataset.

    Under ``accelerate launch``, every process calls this; the first one writes.

    >>> run = train("smoke-cpu", num_train_epochs=1, learning_rate=2e-3)  # doctest: +SKIP
    >>> run.model_dir, run.metrics[-1]["loss"]  # doctest: +SKIP

    Args:
        recipe: The name of a recipe that ships, a YAML file, a dict with the same sections, or a recipe.
        train_dataset: Train on this `datasets.Dataset` instead of the recipe's data: RoleBench's columns (``role``,
            ``question`` and ``references`` at least), or TRL's ``prompt``/``completion`` or ``messages``; with
            ``trainer: dpo``, ``kto`` or ``grpo``, TRL's columns for it.
        eval_dataset: Compute ``eval_loss`` on this dataset, in the same form; with ``eval_strategy`` alone, it is
            computed on instructions held out from training.
        base: Tune this model instead of the recipe's base: a folder, or an id on the Hub.
        out: The run's folder; by default the ``output.dir`` of your own recipe or, for one that ships, a temporary
            folder whose name is printed.
        resume: Continue an unfinished run of the same recipe from its newest complete checkpoint; the result is that
            of a run that was never stopped.
        overwrite: Replace the run in the folder; a base built there is kept and used.
        callbacks: Callbacks of `transformers`.
        training: Values of the recipe's ``training`` section: fields of TRL's configuration, and rolellm's own;
            ``reward_funcs`` may be functions.

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
    rewards = training.pop("reward_funcs", None)
    if rewards is not None:
        rewards = [rewards] if callable(rewards) or isinstance(rewards, str) else list(rewards)
        training["reward_funcs"] = [name_reward(reward) for reward in rewards]
        # Those of a recipe are for its own rewards.
        training.setdefault("reward_weights", None)
    chosen = load_recipe(recipe, base=base, **training)
    functions = [find_reward(reward) for reward in rewards or chosen.training.reward_funcs]
    if train_dataset is None and chosen.data.path is not None:
        if not chosen.data.path.is_file():
            raise RecipeError(f"data.path: no file at {chosen.data.path}")
        train_dataset = [row for _, row in read_rows(chosen.data.path)]
    rows = None if train_dataset is None else data.read_dataset(train_dataset, chosen.training.trainer)
    if rows is not None:
        languages = tuple(sorted({row.language for row in rows}))
        chosen = replace(chosen, data=replace(chosen.data, source="dataset", languages=languages))
    held_out = None if eval_dataset is None else data.read_dataset(eval_dataset, chosen.training.trainer)
    shipped = isinstance(recipe, str) and not Path(recipe).is_file()
    if out is None and not shipped and chosen.output.dir != OutputRecipe().dir:
        out = chosen.output.dir
    if resume and out is None:
        raise RecipeError("resume needs out, the folder of the run to continue")
    start: run_folder.Start = "overwrite" if overwrite else "resume" if resume else "new"
    with _share_folder(out) as folder:
        again = f"the same call with out={str(folder)!r}"
        with run_folder.explain_stop(folder, again=again, resume=f"{again} and resume=True"):
            return _train_in_folder(chosen, rows, held_out, folder, start, callbacks, functions)


@contextmanager
def _share_folder(out: str | Path | None) -> Iterator[Path]:
    """The run's folder: the one given, else a temporary one of the first process, which the others use too."""
    if out is not None:
        yield Path(out)
        return
    from accelerate import PartialState
    from accelerate.utils import broadcast_object_list

    with use_working_folder("train") if PartialState().is_main_process else nullcontext() as folder:
        yield Path(broadcast_object_list([str(folder)])[0])


def _train_in_folder(
    recipe: Recipe,
    rows: data.Replies | None,
    held_out: data.Replies | None,
    run: Path,
    start: run_folder.Start,
    callbacks: Sequence[Any],
    rewards: Sequence[Any],
) -> TrainingRun:
    began = time.monotonic()
    check_unlocked(run)
    recipe, commit = run_folder.recall_start(run, recipe) if start == "resume" else (recipe, None)
    run_folder.check_training_folder(run, recipe, start)
    check_publishing(recipe)
    fixed = bases.pin_base(recipe, commit)
    prepared = prepare(fixed, run, rows, held_out)
    rewards = _prepare_rewards(recipe.training, rewards, prepared.replies, is_new=start != "resume")
    # Not at the head: what is refused is refused before these slow imports.
    from rolellm.training.fit import Fit, check_settings, fit, join_processes

    processes = join_processes(recipe.training)
    # No process may look at the folder after the first one has begun to write there.
    processes.wait_for_everyone()
    with lock_folder(run) if processes.is_main_process else nullcontext():
        if processes.is_main_process:
            run_folder.check_training_folder(run, recipe, start)
            run_folder.claim_folder(run, recipe, start, fixed.base.revision)
        job = Fit(
            training=prepared.training,
            method=recipe.method,
            folder=run,
            label="tuning",
            writes_checkpoints=True,
            resume=start == "resume",
            held_out=prepared.held_out,
            callbacks=callbacks,
            rewards=rewards,
        )
        check_settings(job)
        base = bases.build_base(fixed, prepared.rows, run, prepared.tokenizer)
        if recipe.data.mix.safety:
            prepared = _mix_safety(recipe, prepared, base, run, processes)
        # Of samples of its weights: a large base takes minutes to read, so it is read whole once, at the end.
        job = replace(job, facts={"recipe": recipe.hash, "base": hash_model(str(base)), **_hash_adapter(recipe)})
        model = bases.load_model(base, recipe.method, recipe.training, recipe.base.adapter)
        fitted = fit(model, prepared.tokenizer, prepared.examples, job)
        fitted.save(run, base=fixed.base.model, revision=fixed.base.revision)
        result = _sum_up(recipe, prepared, fitted, run, base, began)
        if processes.is_main_process:
            write_json(run / MANIFEST, _make_manifest(recipe, prepared, result, processes.num_processes))
        processes.wait_for_everyone()
    # After the others were let go: an upload may take longer than processes wait for each other.
    return _publish(recipe.output, result) if processes.is_main_process and recipe.output.push_to_hub else result


def _sum_up(recipe: Recipe, prepared: Prepared, fitted: Fitted, run: Path, base: Path, began: float) -> TrainingRun:
    last = fitted.losses[-max(1, len(fitted.losses) // 10) :]
    result = TrainingRun(
        out=run,
        base=base,
        rows=len(prepared.replies),
        examples=len(prepared.examples),
        steps=len(fitted.losses),
        first_loss=fitted.losses[0],
        last_loss=sum(last) / len(last),
        seconds=round(time.monotonic() - began, 2),
        training_seconds=round(fitted.seconds, 2),
    )
    return replace(result, hacked=describe_hacking(_measure_rewards(recipe, result)))


def _measure_rewards(recipe: Recipe, result: TrainingRun) -> list[RewardChange]:
    return measure_changes(result.metrics, recipe.training.extra.get("reward_weights"))


def _mix_safety(recipe: Recipe, prepared: Prepared, base: Path, run: Path, processes: Any) -> Prepared:
    """Add what the base says to harmful prompts and look-alikes; the first process asks it."""
    from accelerate.utils import broadcast_object_list

    chats: list[list[data.Conversation]] = [[]]
    if processes.is_main_process:
        count = len(prepared.examples)
        answers = answer_in_role(recipe, prepared.replies, prepared.ask, count, base, run).result
        chats = [answers.mixed]
        share = len(answers.mixed) / (count + len(answers.mixed))
        sys.stderr.write(f"data.mix.safety: {answers}; {len(answers.mixed):,} are mixed in, {share:.1%} of all\n")
    (safety,) = broadcast_object_list(chats)
    limit = recipe.training.max_length
    examples = encode(safety, prepared.tokenizer, max_length=limit, truncate_replies=True)
    return replace(prepared, examples=[*prepared.examples, *examples], safety=safety)


def _prepare_rewards(
    training: TrainingRecipe, rewards: Sequence[Any], replies: data.Replies, *, is_new: bool
) -> list[Any]:
    """Audit the rewards of a new training, and let those that learn do so."""
    rows = [item for item in replies if isinstance(item, Row)]
    if rewards and training.audit_rewards and is_new:
        if any(row.references for row in rows):
            names = [name_reward(reward) for reward in rewards]
            check_rewards(dict(zip(names, rewards, strict=True)), rows, training.extra.get("reward_weights"))
        else:
            sys.stderr.write("note: the rewards are not audited: the data has no references to compare with\n")
    return [learn_reward(reward, rows) if rows else reward for reward in rewards]


def _hash_adapter(recipe: Recipe) -> dict[str, str]:
    return {} if recipe.base.adapter is None else {"adapter": hash_model(str(recipe.base.adapter))}


def _publish(output: OutputRecipe, run: TrainingRun) -> TrainingRun:
    try:
        pushed = push(run, str(output.hub_repo), merge=output.merge, private=output.private)
        return replace(run, url=pushed.url)
    except HubError as error:
        again = f"rolellm push {run.out} {output.hub_repo}{' --merge' if output.merge else ''}"
        raise type(error)(f"{error}\nThe run in {run.out} is finished; publish it with: {again}") from error


def _read_earlier_training(recipe: Recipe) -> TrainedOn:
    """Read what the adapter that a run went on with had been trained on."""
    files = [] if recipe.base.adapter is None else find_manifests(str(recipe.base.adapter))
    return next(filter(None, map(read_manifest, files)), TrainedOn())


def _make_manifest(recipe: Recipe, prepared: Prepared, result: TrainingRun, processes: int) -> dict[str, Any]:
    from rolellm.data.rolebench import dataset_fingerprint
    from rolellm.data.rolebench.source import find_own_manifest

    examples, changes = prepared.examples, _measure_rewards(recipe, result)
    trained_on = data.collect_trained_on(recipe, prepared.replies) | _read_earlier_training(recipe)
    trained_on |= TrainedOn.of(prepared.safety)
    read = sum(len(example.prompt_ids) for example in examples)
    return {
        "format": 1,
        "kind": "rocit",
        "trainer": recipe.training.trainer,
        "recipe": recipe.to_dict(),
        "recipe_hash": recipe.hash,
        "data": {
            "config": recipe.data.config if prepared.fingerprint is None else "dataset",
            "split": recipe.data.split,
            **({"own": True} if prepared.fingerprint is None and find_own_manifest(recipe.data.data_dir) else {}),
            "fingerprint": prepared.fingerprint or dataset_fingerprint(recipe.data.config, recipe.data.data_dir),
            "rows": result.rows,
            "examples": len(examples),
            "tokens_read": read,
            "tokens_trained": sum(len(example.reply_ids) for example in examples),
            **({} if not prepared.held_out else {"held_out": len(prepared.held_out)}),
            **({} if not prepared.safety else {"safety": len(prepared.safety)}),
        },
        "trained_on": trained_on.to_dict(),
        "prompt": {
            "form": recipe.prompt.form,
            "profile": recipe.prompt.profile,
            "system_templates": prepared.ask.hashes,
            "chat_template": hash_bytes(str(prepared.tokenizer.chat_template).encode("utf-8")),
            "switches": list_switches(str(prepared.tokenizer.chat_template)),
        },
        "base": {
            "kind": recipe.base.build or ("path" if recipe.base.model is None else "hub"),
            "name": recipe.base.model or result.base.name,
            "model": recipe.base.model,
            "revision": None if recipe.base.model is None else result.base.name,
            "files": run_folder.hash_model_files(result.base),
            **_hash_adapter(recipe),
        },
        "method": recipe.method.name,
        "seed": recipe.training.seed,
        "result": {"steps": result.steps, "first_loss": result.first_loss, "last_loss": result.last_loss},
        "seconds": {"all": result.seconds, "training": result.training_seconds},
        "processes": processes,
        "versions": run_folder.list_versions(),
        "files": run_folder.hash_model_files(result.out),
        **({"rewards": [change._asdict() for change in changes]} if recipe.training.trainer == "grpo" else {}),
    }
