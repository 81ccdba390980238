"""RoCIT from a recipe to a run folder: rows, tokens, base, training, and what is left on disk.

A run folder holds the adapter or model with its tokenizer, ``metrics.jsonl`` (one object a step), ``recipe.json``,
``checkpoint-N/`` folders, ``base-<hash>/`` where the base was built, and last of all ``manifest.json``.
"""

from __future__ import annotations

import gc
import shlex
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rolellm.core.errors import RecipeError, RoleLLMWarning, note_out_of_memory, require
from rolellm.core.files import write_json
from rolellm.core.fingerprint import hash_bytes, hash_json
from rolellm.core.folders import use_working_folder
from rolellm.core.jsonl import read_json, read_jsonl
from rolellm.core.locks import check_unlocked, lock_folder
from rolellm.core.records import Row
from rolellm.core.result import Result
from rolellm.core.text import format_count
from rolellm.data.own_rows import OwnRows
from rolellm.models.families import explain_not_shared
from rolellm.models.find import hash_model, read_trained_on
from rolellm.models.prompts.encode import list_switches
from rolellm.models.prompts.render import DescriptionPrompts
from rolellm.models.training_record import MANIFEST, TrainedOn
from rolellm.training import bases, run_folder
from rolellm.training import rows as data
from rolellm.training.dialogues import describe_dialogues, encode_dialogues
from rolellm.training.examples import Example, ExampleChain, encode
from rolellm.training.kernels import check_kernels
from rolellm.training.recipe import DataRecipe, OutputRecipe, Recipe, TrainingRecipe
from rolellm.training.recipe_files import check_recipe, load_recipe, override_data
from rolellm.training.rewards import find_reward, prepare_rewards, take_rewards
from rolellm.training.safety import answer_in_role, plan_answers

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from rolellm.training.fit import Fitted


@dataclass(frozen=True, slots=True)
class Prepared:
    """All that a recipe trains on.

    Attributes:
        rows: The rows that a built base is made from.
        replies: The rows, lines or dialogues that are trained on.
        row_count: Number of them.
        tokenizer: The base's tokenizer.
        training: How to train: as the recipe has it, row by row where packs are not known to be exact for the base.
        examples: One for each trained reply: a (row, reference), a line of a script, a preference; or a dialogue.
        ask: Makes the messages that ask a row's question of its role.
        trained_on: The roles and instructions that the run will show its model.
        held_out: What the loss is computed on.
        fingerprint: A content hash of rows of one's own.
        safety: What the base said to harmful prompts and look-alikes, which is trained on, too.
    """

    rows: list[Row]
    replies: data.Replies
    row_count: int
    tokenizer: PreTrainedTokenizerBase
    training: TrainingRecipe
    examples: Sequence[Example]
    ask: DescriptionPrompts
    trained_on: TrainedOn
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
    config = bases.read_base_config(recipe)
    context = bases.find_context(recipe, config)
    data.check_positions(recipe.training.max_length, context)
    replies = data.load_replies(recipe) if rows is None else rows
    base_rows = data.select_base_rows(recipe, replies)
    tokenizer = bases.load_base_tokenizer(recipe, base_rows, out)
    bases.check_targets(recipe, config, tokenizer)
    if isinstance(replies, OwnRows):
        prepared = _prepare_dialogues(recipe, replies, held_out, tokenizer, base_rows)
    else:
        is_own = rows is not None
        prepared = _prepare_rows(recipe, replies, held_out, tokenizer, base_rows, is_own=is_own)
        row_items = [item for item in replies if isinstance(item, Row)]
        data.check_prompts(row_items, prepared.ask, tokenizer, context, recipe.data)
    if recipe.training.eval_strategy != "no" and not prepared.held_out:
        raise RecipeError("training.eval_strategy: with a single instruction, none can be held out; give eval_dataset")
    if config is not None:
        check_kernels(recipe.training, config)
    training = _settle_sharing(recipe, config, prepared)
    return replace(prepared, training=training)


def _prepare_dialogues(
    recipe: Recipe,
    dialogues: OwnRows[Any],
    held_out: data.Replies | None,
    tokenizer: PreTrainedTokenizerBase,
    base_rows: list[Row],
) -> Prepared:
    training = recipe.training
    ask = DescriptionPrompts(recipe.prompt.system_template)
    table = encode_dialogues(dialogues, tokenizer, training)
    note = describe_dialogues(dialogues, table, training.max_length)
    if held_out is None:
        train_part, held_out_part = table.split(recipe.data.held_out)
        held_out_examples: Sequence[Example] = held_out_part.examples
        note += f"; {held_out_part.dialogues:,} held out"
    else:
        train_part, _ = table.split(0)
        held_out_examples = _encode_held_out(recipe, held_out, ask, tokenizer)
    sys.stderr.write(f"{note}\n")
    return Prepared(
        rows=base_rows,
        replies=dialogues,
        row_count=train_part.dialogues,
        tokenizer=tokenizer,
        training=training,
        examples=train_part.examples,
        ask=ask,
        trained_on=train_part.trained_on,
        held_out=held_out_examples,
        fingerprint=table.fingerprint,
    )


def _encode_held_out(
    recipe: Recipe, held_out: data.Replies, ask: DescriptionPrompts, tokenizer: PreTrainedTokenizerBase
) -> Sequence[Example]:
    if not isinstance(held_out, OwnRows):
        return _encode_replies(recipe, held_out, ask, tokenizer)
    everything, _ = encode_dialogues(held_out, tokenizer, recipe.training).split(0)
    return everything.examples


def _prepare_rows(
    recipe: Recipe,
    replies: Sequence[Row] | Sequence[data.Conversation],
    held_out: data.Replies | None,
    tokenizer: PreTrainedTokenizerBase,
    base_rows: list[Row],
    *,
    is_own: bool,
) -> Prepared:
    training = recipe.training
    rows = [item for item in replies if isinstance(item, Row)]
    ask = data.prepare_ask(recipe, rows)
    fingerprint = None
    if is_own:
        fingerprint = hash_json(list(map(asdict, replies)))
    # Rows of one's own have no test split.
    is_split = training.eval_strategy != "no" or (is_own and training.trainer == "sft")
    if held_out is None and is_split:
        replies, held_out = data.split_held_out(replies, recipe.data.held_out, training.seed)
    held_out_examples: Sequence[Example] = ()
    if held_out:
        held_out_examples = _encode_held_out(recipe, held_out, ask, tokenizer)
    return Prepared(
        rows=base_rows,
        replies=replies,
        row_count=len(replies),
        tokenizer=tokenizer,
        training=training,
        examples=_encode_replies(recipe, replies, ask, tokenizer),
        ask=ask,
        trained_on=data.collect_trained_on(recipe, replies),
        held_out=held_out_examples,
        fingerprint=fingerprint,
    )


def _encode_replies(
    recipe: Recipe,
    replies: Sequence[Row] | Sequence[data.Conversation],
    ask: DescriptionPrompts,
    tokenizer: PreTrainedTokenizerBase,
) -> list[Example]:
    training = recipe.training
    first_only = recipe.data.replies == "first"
    chats = list(data.make_conversations(replies, ask, training.trainer, first_only=first_only))
    if replies and not chats:
        raise RecipeError(
            f"training.trainer: {training.trainer} prefers replies to role-free answers, and no row has both"
        )
    return encode(
        chats,
        tokenizer,
        trainer=training.trainer,
        max_length=training.max_length,
        truncate_replies=training.truncate_replies,
    )


def _settle_sharing(recipe: Recipe, config: Any, prepared: Prepared) -> TrainingRecipe:
    """Settle how to train: where packs are not exact for the base, the same steps row by row.

    Warns:
        RoleLLMWarning: When prefixes should be shared, and that is not known to be exact for the base.
    """
    training = recipe.training
    if not training.shared_prefix or config is None:
        return training
    # With a safety mix, replies are still to come.
    longest = training.max_length
    if not recipe.data.mix.safety:
        lengths = (example.length for example in chain(prepared.examples, prepared.held_out))
        longest = max(lengths)
    reason = explain_not_shared(config, longest)
    if not reason:
        return training
    warnings.warn(
        f"replies are trained row by row, without shared prefixes: the base is {reason}",
        RoleLLMWarning,
        stacklevel=3,
    )
    return replace(training, shared_prefix=False)


@dataclass(frozen=True, slots=True, repr=False)
class TrainingRun(Result):
    """A finished run.

    Attributes:
        out: The run's folder.
        base: The base's folder.
        rows: Rows trained on; lines of a script, or dialogues.
        examples: Replies trained on.
        steps: Optimizer steps.
        first_loss: The loss of the first step, in nats per trained token.
        last_loss: The mean loss of the last tenth of the steps.
        seconds: Wall time of this call, including building the base.
        training_seconds: Wall time of the optimizer steps alone, those before a resume included.
        eval_loss: The loss of what was held out, after training, in nats per token.
        held_out: Rows held out.
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
    eval_loss: float | None = None
    held_out: int = 0

    @property
    def model_dir(self) -> Path:
        """The folder with the tuned model or adapter."""
        return self.out

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """``metrics.jsonl``: one dict for each step, with ``step``, ``loss`` and TRL's metrics."""
        return [line for _, line in read_jsonl(self.out / run_folder.METRICS)]

    def remarks(self) -> list[str]:
        """Return what was trained, how the loss went, and where the run is."""
        steps = format_count(self.steps, "step")
        replies = format_count(self.examples, "reply", "replies")
        amount = f"{steps} on {replies} of {format_count(self.rows, 'row')}"
        losses = f"{self.first_loss:.3f} → {self.last_loss:.3f}"
        lines = [f"{amount}: loss {losses} in {self.seconds:.0f} s"]
        if self.eval_loss is not None:
            count = format_count(self.held_out, "held-out row")
            lines.append(f"loss on {count}: {self.eval_loss:.3f}")
        return [*lines, str(self.out)]

    @property
    def continues_with(self) -> list[str]:
        """The command lines that evaluate, improve and publish the run."""
        data = read_json(self.out / MANIFEST)["recipe"]["data"]
        run = str(self.out)
        evaluate = ["eval", run]
        commands = [evaluate, ["push", run, "OWNER/NAME", "--license", "LICENSE"]]
        if data["source"] != "dataset":
            evaluate += ["--config", data["config"]]
            commands.insert(1, ["improve", run])
        if data["data_dir"] is not None:
            evaluate += ["--data-dir", data["data_dir"]]
        return [shlex.join(["rolellm", *command]) for command in commands]


def train(
    recipe: str | Path | Mapping[str, Any] | Recipe,
    *,
    train_dataset: Any = None,
    eval_dataset: Any = None,
    columns: Mapping[str, str] | None = None,
    skip_bad: bool = False,
    data_dir: str | Path | None = None,
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
        train_dataset: Train on these rows instead of the recipe's data: a file, an id on the Hub, a dataset or stream
            of `datasets`, or a list of dicts; for their forms see docs/training.md.
        eval_dataset: Compute ``eval_loss`` on these rows instead of a part that is held out.
        columns: Columns of ``train_dataset`` that have other names, such as ``{"prompt": "question"}``.
        skip_bad: Skip bad rows of ``train_dataset`` and count them.
        data_dir: A local copy of the release, or a data set of ``rolellm role release``, instead of the recipe's.
        base: Tune this model instead of the recipe's base: a folder, or an id on the Hub.
        out: The run's folder; by default the ``output.dir`` of your own recipe or, for one that ships, a temporary
            folder whose name is printed.
        resume: Continue an unfinished run of the same recipe from its newest complete checkpoint.
        overwrite: Replace the run in the folder; a base built there is kept and used.
        callbacks: Callbacks of `transformers`.
        training: Values of the recipe's ``training`` section; ``reward_funcs`` may be functions.

    Raises:
        RecipeError: For a recipe, row or folder that cannot be used; before any work.
        ModelError: For a base that is missing or does not fit; before any work.
        DataError: For rows whose columns fit no form, or a row without a reply.
        RunInUseError: When another run works in the folder.
        DivergedError: When the loss is NaN or infinite.
        StoppedShortError: On Ctrl-C or a full disk; says how to continue.
    """
    require("torch", "transformers", "trl", "peft", "accelerate", extra="train")
    start = _choose_start(resume, overwrite)
    if eval_dataset is not None:
        training.setdefault("eval_strategy", "epoch")
    rewards = take_rewards(training)
    overrides = override_data(data_dir, columns=columns, skip_bad=skip_bad)
    chosen = load_recipe(recipe, overrides, base=base, **training)
    functions = [find_reward(reward) for reward in rewards or chosen.training.reward_funcs]
    chosen, rows = read_replies(chosen, train_dataset)
    held_out = None if eval_dataset is None else _read_own_rows(chosen, eval_dataset)
    with _share_folder(_choose_folder(recipe, chosen.output, resume) if out is None else out) as folder:
        again = f"the same call with out={str(folder)!r}"
        with run_folder.explain_stop(folder, again=again, resume=f"{again} and resume=True"):
            result = _train_in_folder(chosen, rows, held_out, folder, start, callbacks, functions)
    # A trainer and its model refer to each other: the memory would stay taken until Python happens to look.
    gc.collect()
    return result


def _choose_start(resume: bool, overwrite: bool) -> run_folder.Start:
    if overwrite and resume:
        raise RecipeError("--overwrite starts over and --resume continues; give one of them")
    if overwrite:
        return "overwrite"
    return "resume" if resume else "new"


def _choose_folder(recipe: object, output: OutputRecipe, resume: bool) -> Path | None:
    """Choose the folder that the recipe names; none for a recipe that ships, and where it names none."""
    is_shipped = isinstance(recipe, str) and not Path(recipe).is_file()
    if not is_shipped and output.dir != OutputRecipe().dir:
        return output.dir
    if resume:
        raise RecipeError("resume needs out, the folder of the run to continue")
    return None


def read_replies(recipe: Recipe, dataset: Any = None) -> tuple[Recipe, data.Replies | None]:
    """Read rows of one's own that were given or that the recipe names, if any; with the recipe that says so."""
    source = recipe.data.path if dataset is None else dataset
    if source is None:
        return recipe, None
    rows = _read_own_rows(recipe, source)
    section = replace(recipe.data, source="dataset", languages=data.list_languages(rows))
    return replace(recipe, data=section), rows


def _read_own_rows(recipe: Recipe, source: Any) -> data.Replies:
    section = recipe.data
    return data.read_own_rows(source, recipe.training.trainer, section.columns, skip_bad=section.skip_bad)


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
    commit = None
    if start == "resume":
        recipe, commit = run_folder.recall_start(run, recipe)
    run_folder.check_training_folder(run, recipe, start)
    fixed = bases.pin_base(recipe, commit)
    prepared = prepare(fixed, run, rows, held_out)
    if not isinstance(prepared.replies, OwnRows):
        rewards = prepare_rewards(recipe.training, rewards, prepared.replies, is_new=start != "resume")
    # Not at the head: what is refused is refused before these slow imports.
    from rolellm.training.fit import Fit, check_trainer_settings, fit, join_processes

    processes = join_processes(recipe.training)
    is_first = processes.is_main_process
    # No process may look at the folder after the first one has begun to write there.
    processes.wait_for_everyone()
    with lock_folder(run) if is_first else nullcontext():
        if is_first:
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
        check_trainer_settings(job)
        base = bases.build_base(fixed, prepared.rows, run, prepared.tokenizer)
        prepared = _mix_safety(recipe, prepared, base, run, processes)
        # Of samples of its weights: a large base takes minutes to read, so it is read whole once, at the end.
        facts = {"recipe": recipe.hash, "base": hash_model(str(base)), **_hash_adapter(recipe)}
        problems: list[str] = []
        with note_out_of_memory(problems):
            model = bases.load_model(base, recipe.method, recipe.training, recipe.base.adapter)
            fitted = fit(model, prepared.tokenizer, prepared.examples, replace(job, facts=facts))
        if problems:
            raise RecipeError(
                f"this device has too little memory ({problems[0]}); use a smaller training.replies_per_pass, "
                "method.name: qlora, a smaller base or a larger device"
            )
        fitted.save(run, base=fixed.base.model, revision=fixed.base.revision)
        result = _sum_up(prepared, fitted, run, base, began)
        if is_first:
            manifest = _make_manifest(recipe, prepared, result, processes.num_processes)
            manifest["passes"] = fitted.trainer.plan.to_dict()
            manifest["liger_kernels"] = fitted.trainer.kernels
            write_json(run / MANIFEST, manifest)
        processes.wait_for_everyone()
    return result


def _sum_up(prepared: Prepared, fitted: Fitted, run: Path, base: Path, began: float) -> TrainingRun:
    tenth = max(1, len(fitted.losses) // 10)
    last = fitted.losses[-tenth:]
    return TrainingRun(
        out=run,
        base=base,
        rows=prepared.row_count,
        examples=sum(example.replies for example in prepared.examples),
        steps=len(fitted.losses),
        first_loss=fitted.losses[0],
        last_loss=sum(last) / len(last),
        seconds=round(time.monotonic() - began, 2),
        training_seconds=round(fitted.seconds, 2),
        eval_loss=fitted.eval_loss,
        held_out=len({example.row_id for example in prepared.held_out}),
    )


def _mix_safety(recipe: Recipe, prepared: Prepared, base: Path, run: Path, processes: Any) -> Prepared:
    """Add what the base says to harmful prompts and look-alikes, if the recipe asks for it; the first process asks."""
    if not recipe.data.mix.safety:
        return prepared
    from accelerate.utils import broadcast_object_list

    chats: list[list[data.Conversation]] = [[]]
    if processes.is_main_process:
        count = sum(example.replies for example in prepared.examples)
        step = plan_answers(recipe, data.list_voices(prepared.replies), prepared.ask, count)
        answers = answer_in_role(step, recipe.training, base, run)
        chats = [answers.mixed]
        mixed = len(answers.mixed)
        share = mixed / (count + mixed)
        sys.stderr.write(f"data.mix.safety: {answers}; {mixed:,} are mixed in, {share:.1%} of all\n")
    (safety,) = broadcast_object_list(chats)
    limit = recipe.training.max_length
    examples = encode(safety, prepared.tokenizer, max_length=limit, truncate_replies=True)
    return replace(prepared, examples=ExampleChain(prepared.examples, examples), safety=safety)


def _hash_adapter(recipe: Recipe) -> dict[str, str]:
    adapter = recipe.base.adapter
    return {} if adapter is None else {"adapter": hash_model(str(adapter))}


def _make_manifest(recipe: Recipe, prepared: Prepared, result: TrainingRun, processes: int) -> dict[str, Any]:
    trained_on = prepared.trained_on | TrainedOn.of(prepared.safety)
    if recipe.base.adapter is not None:
        trained_on |= read_trained_on(str(recipe.base.adapter))
    chat_template = str(prepared.tokenizer.chat_template)
    prompt = {
        "form": recipe.prompt.form,
        "profile": recipe.prompt.profile,
        "system_templates": prepared.ask.hashes,
        "chat_template": hash_bytes(chat_template.encode("utf-8")),
        "switches": list_switches(chat_template),
    }
    return {
        "format": 1,
        "kind": "rocit",
        "trainer": recipe.training.trainer,
        "recipe": recipe.to_dict(),
        "recipe_hash": recipe.hash,
        "data": _describe_data(recipe.data, prepared, result),
        "trained_on": trained_on.to_dict(),
        "prompt": prompt,
        "base": _describe_base(recipe, result.base),
        "method": recipe.method.name,
        "seed": recipe.training.seed,
        "result": {key: getattr(result, key) for key in ("steps", "first_loss", "last_loss", "eval_loss")},
        "seconds": {"all": result.seconds, "training": result.training_seconds},
        "processes": processes,
        "versions": run_folder.list_versions(),
        "files": run_folder.hash_model_files(result.out),
    }


def _describe_data(recipe: DataRecipe, prepared: Prepared, result: TrainingRun) -> dict[str, Any]:
    from rolellm.data.rolebench import dataset_fingerprint
    from rolellm.data.rolebench.source import find_own_manifest

    config = "dataset"
    fingerprint = prepared.fingerprint
    is_own = False
    if fingerprint is None:
        config = recipe.config
        fingerprint = dataset_fingerprint(config, recipe.data_dir)
        is_own = find_own_manifest(recipe.data_dir) is not None
    tokens = sum(example.length for example in prepared.examples)
    trained_tokens = sum(example.trained_tokens for example in prepared.examples)
    described = {
        "config": config,
        "split": recipe.split,
        "fingerprint": fingerprint,
        "rows": result.rows,
        "examples": result.examples,
        "tokens_read": tokens - trained_tokens,
        "tokens_trained": trained_tokens,
    }
    where_present = {"own": is_own, "held_out": result.held_out, "safety": len(prepared.safety)}
    for key, value in where_present.items():
        if value:
            described[key] = value
    return described


def _describe_base(recipe: Recipe, folder: Path) -> dict[str, Any]:
    base = recipe.base
    on_hub = base.model is not None
    return {
        "kind": base.build or ("hub" if on_hub else "path"),
        "name": base.model or folder.name,
        "model": base.model,
        "revision": folder.name if on_hub else None,
        "files": run_folder.hash_model_files(folder),
        **_hash_adapter(recipe),
    }
