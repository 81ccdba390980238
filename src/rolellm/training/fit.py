"""Setting the training loop up and running it: from examples and a recipe's training section to a tuned model.

This module imports torch, transformers and trl at its head; import it inside functions.
"""

from __future__ import annotations

import dataclasses
import os
import sys
import urllib.request
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import trl
from accelerate.utils import broadcast_object_list
from datasets import Dataset
from peft import LoraConfig, PeftModel
from peft.helpers import disable_input_dtype_casting
from torch.nn.utils.rnn import pad_sequence
from transformers.trainer_callback import EarlyStoppingCallback, PrinterCallback
from transformers.trainer_utils import set_seed
from trl.import_utils import is_vllm_available

from rolellm.core.errors import RecipeError, hide_peft_warning
from rolellm.core.interrupts import note_stop_requests
from rolellm.core.settings import dump
from rolellm.models.load import add_stop_token
from rolellm.models.prefix_sharing import share_prefixes
from rolellm.models.prompts.encode import find_end_token
from rolellm.training import run_folder
from rolellm.training.callbacks import CheckpointMarker, Recorder, StepCheck
from rolellm.training.examples import IGNORED, Example, ExampleChain, hash_examples
from rolellm.training.kernels import check_kernels, use_kernels
from rolellm.training.passes import (
    PassPlan,
    choose_plan,
    get_default_pass,
    make_step_trainer,
    set_checkpointing,
    split_sampling,
)
from rolellm.training.recipe import MethodRecipe, TrainingRecipe
from rolellm.training.schedule import EMPTY, Schedule, schedule_replies


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """The work that `fit` is to do.

    Attributes:
        training: How to train.
        method: All weights, or an adapter.
        folder: Where checkpoints and ``metrics.jsonl`` go.
        label: Shown next to the progress bar.
        writes_checkpoints: Write checkpoints and metrics.
        resume: Go on from the newest complete checkpoint in ``folder``, if there is one.
        facts: What a checkpoint must have in common with this run, besides its examples and their order.
        held_out: What the loss is computed of, at the end and as `training.eval_strategy` says.
        callbacks: Further callbacks of transformers.
        rewards: With ``training.trainer: grpo``, functions that take their place of ``training.reward_funcs``.
    """

    training: TrainingRecipe
    method: MethodRecipe
    folder: Path
    label: str
    writes_checkpoints: bool = False
    resume: bool = False
    facts: Mapping[str, Any] = field(default_factory=dict)
    held_out: Sequence[Example] = ()
    callbacks: Sequence[Any] = ()
    rewards: Sequence[Any] = ()


@dataclass(frozen=True, slots=True)
class Fitted:
    """A model that was trained.

    Attributes:
        trainer: The trainer that holds the model.
        losses: The loss of each optimizer step, in order, those of an earlier part of the run included.
        seconds: Wall time of training alone, as `Recorder` has it.
        eval_loss: The loss of what is held out, after the last step.
    """

    trainer: Any
    losses: tuple[float, ...]
    seconds: float
    eval_loss: float | None = None

    def save(self, folder: Path, *, base: str | None = None, revision: str | None = None) -> None:
        """Write the model or adapter, and the tokenizer with its chat template, into a folder.

        Args:
            folder: Where to.
            base: What an adapter is to call its base, where that is not the folder it was loaded from.
            revision: That base's commit.
        """
        if self.trainer.is_fsdp_enabled:
            # Under sharded dictionaries transformers writes no model.
            self.trainer.accelerator.state.fsdp_plugin.set_state_dict_type("FULL_STATE_DICT")
        self.trainer.save_model(str(folder))
        if not self.trainer.is_world_process_zero():
            return
        run_folder.remove_foreign_files(folder)
        run_folder.name_base(folder, base, revision)


def fit(model: Any, tokenizer: Any, examples: Sequence[Example], job: Fit) -> Fitted:
    """Train a model.

    Args:
        model: A causal language model; with LoRA it is wrapped.
        tokenizer: Its tokenizer, which is saved with it.
        examples: What to train on.
        job: How, and where to.

    Raises:
        DivergedError: When the loss or the gradient is not finite; names the rows.
        ModelError: With ``shared_prefix``, for a type of model that it is not known to be exact for.
        RecipeError: When a setting does not fit the model, or the run belongs to another checkpoint.
        KeyboardInterrupt: When it was asked to stop; the step was finished (with GRPO, those on the same samples), and
            a checkpoint is written.
    """
    training = job.training
    processes = join_processes(training)
    if training.threads is not None:
        torch.set_num_threads(training.threads)
    schedule = schedule_replies(examples, training)
    count = processes.num_processes
    facts = {**job.facts, "data": hash_examples(examples), "order": schedule.hash, "processes": count}
    start = None
    if job.resume:
        start = _find_start(job, facts)
    with use_kernels(model, training) as kernels:
        trainer = build_trainer(model, tokenizer, examples, schedule, job)
        trainer.kernels = kernels
        return _run_trainer(trainer, examples, schedule, job, start, facts)


def _run_trainer(
    trainer: Any,
    examples: Sequence[Example],
    schedule: Schedule,
    job: Fit,
    start: Path | None,
    facts: Mapping[str, Any],
) -> Fitted:
    """Run a trainer to its end, from a checkpoint where there is one."""
    training = job.training
    metrics = None
    if job.writes_checkpoints:
        metrics = job.folder / run_folder.METRICS
    recorder = Recorder(job.label, metrics, steps_per_epoch=schedule.steps_per_epoch)
    for callback in (StepCheck(trainer, examples, schedule), recorder, *job.callbacks):
        trainer.add_callback(callback)
    if training.early_stopping_patience is not None:
        trainer.add_callback(EarlyStoppingCallback(training.early_stopping_patience))
    # It prints every step's numbers to standard output, which belongs to the command's own result.
    trainer.remove_callback(PrinterCallback)
    # Autocast casts the inputs of adapters as well.
    casts = disable_input_dtype_casting(trainer.model, active=training.half_precision)
    with closing(recorder), hide_peft_warning(), casts:
        _settle_passes(trainer, schedule, job)
        if not job.writes_checkpoints:
            trainer.train()
        else:
            is_single = trainer.args.world_size == 1
            moment = "after the last step on these samples" if training.trainer == "grpo" else "after this step"
            plan = f"stopping {moment}, with a checkpoint"
            with note_stop_requests(plan, is_single=is_single) as request:
                marker = CheckpointMarker(trainer, training.save_total_limit, facts, request)
                trainer.add_callback(marker)
                trainer.train(resume_from_checkpoint=None if start is None else str(start))
            if marker.stopped and trainer.state.global_step < trainer.state.max_steps:
                raise KeyboardInterrupt
    losses = [float(entry["loss"]) for entry in trainer.state.log_history if "loss" in entry]
    seconds = recorder.seconds
    eval_loss = None
    if job.held_out:
        eval_loss = _evaluate(trainer)
    return Fitted(trainer, tuple(losses), seconds, eval_loss)


def _settle_passes(trainer: Any, schedule: Schedule, job: Fit) -> None:
    """Settle how a step goes through the model, by trial where the recipe leaves it open and a GPU is there."""
    training = job.training
    set_checkpointing(trainer)
    if not job.writes_checkpoints:
        return
    is_open = "auto" in (training.replies_per_pass, training.gradient_checkpointing)
    is_sharded = trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled
    # Samples are not there yet, and under sharding a pass that fails leaves the others waiting.
    if is_open and not training.on_cpu and not is_sharded and training.trainer != "grpo":
        choose_plan(trainer)
    kernels = ""
    if trainer.kernels:
        kernels = f", Liger's {', '.join(trainer.kernels)}"
    if trainer.is_world_process_zero():
        sys.stderr.write(f"{trainer.plan}{kernels}{_describe_time(trainer.step_seconds, schedule)}\n")


def _describe_time(step_seconds: float, schedule: Schedule) -> str:
    """The time of a run whose steps were timed; they are seldom as heavy as the one that was tried."""
    if not step_seconds:
        return ""
    steps = len(schedule.order) // schedule.step_size
    minutes = steps * step_seconds / 60
    return f"; up to {step_seconds:.3g} s a step, {minutes:,.0f} minutes for {steps:,} steps"


def _evaluate(trainer: Any) -> float:
    """Compute the loss of what is held out, unless it was just computed."""
    for entry in reversed(trainer.state.log_history):
        if "eval_loss" in entry and entry["step"] == trainer.state.global_step:
            return float(entry["eval_loss"])
    return float(trainer.evaluate()["eval_loss"])


def build_trainer(model: Any, tokenizer: Any, examples: Sequence[Example], schedule: Schedule, job: Fit) -> Any:
    """A stock trainer of TRL on rows in the schedule's order, with shared prefixes where the recipe has them."""
    training = job.training
    config = model.config.get_text_config()
    routed = getattr(config, "output_router_logits", None)
    add_stop_token(model.generation_config, find_end_token(tokenizer))
    # TRL before 1.16 draws an adapter's first weights before it sets the seed.
    set_seed(training.seed)
    # Going on with a tuned adapter, TRL keeps a frozen copy of it for reference, named "ref".
    goes_on = isinstance(model, PeftModel)
    new_adapter = not goes_on and job.method.name != "full"
    adapter = LoraConfig(task_type="CAUSAL_LM", **dump(job.method.lora)) if new_adapter else None
    tuned = {}
    if goes_on:
        for name, weight in model.named_parameters():
            if weight.requires_grad:
                tuned[name] = weight.detach().clone()
    trainer_class = make_step_trainer(getattr(trl, f"{training.trainer.upper()}Trainer"))
    with hide_peft_warning(), _raise_recipe_errors():
        trainer = trainer_class(
            model=model,
            args=_build_arguments(job, schedule),
            processing_class=tokenizer,
            peft_config=adapter,
            **_choose_rows(examples, schedule, job, tokenizer),
        )
    is_sharded = trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled
    trainer.plan = PassPlan.of(training, trainer.accelerator.num_processes, is_sharded=is_sharded)
    trainer.training, trainer.steps_per_epoch = training, schedule.steps_per_epoch
    # TRL and peft would write one with each checkpoint, which names neither the data nor the recipe.
    trainer.create_model_card = trainer.model.create_or_update_model_card = lambda *_, **__: None
    if routed is not None:
        # TRL switches it on, and a model saved so would weigh its routers in inference, too.
        config.output_router_logits = routed
    if job.method.name == "qlora":
        # TRL puts an adapter on 4 bits in bfloat16, where small updates are lost and peft does not load it again.
        for name, parameter in trainer.model.named_parameters():
            if parameter.requires_grad:
                parameter.data = tuned.get(name, parameter.data).float()
    if training.trainer == "grpo" and not is_sharded:
        split_sampling(trainer.model)
    if training.shared_prefix:
        # The copy of a model that preferences are measured against goes through the same rows.
        for each in (trainer.model, getattr(trainer, "ref_model", None)):
            if each is not None:
                model = trainer.accelerator.unwrap_model(each)
                share_prefixes(model, attention=training.attention)
    return trainer


def _choose_rows(examples: Sequence[Example], schedule: Schedule, job: Fit, tokenizer: Any) -> dict[str, Any]:
    """Give the data of a trainer, as its arguments."""
    if job.training.trainer == "sft":
        every = ExampleChain(examples, job.held_out)
        held_out = Dataset.from_dict({"example": range(len(examples), len(every))})
        return {
            "train_dataset": Dataset.from_dict({"example": schedule.order}),
            "eval_dataset": held_out if job.held_out else None,
            "data_collator": RowCollator(every, tokenizer.pad_token_id or 0),
        }
    order = schedule.order[schedule.order != EMPTY]
    if job.training.trainer == "grpo":
        # It samples by itself, epoch after epoch in the same order.
        numbers = dict.fromkeys(order.tolist())
        rows = [examples[number].row for number in numbers]
        return {"train_dataset": _make_dataset(rows), "reward_funcs": list(job.rewards)}
    held_out_rows = [example.row for example in job.held_out]
    return {
        "train_dataset": _make_dataset([examples[number].row for number in order]),
        "eval_dataset": _make_dataset(held_out_rows) if held_out_rows else None,
    }


def _make_dataset(rows: list[Any]) -> Dataset:
    # As JSON where they differ: tools' arguments would get each other's names as keys.
    return Dataset.from_list(rows, on_mixed_types="use_json")


@dataclass(frozen=True, slots=True)
class RowCollator:
    """Turns ``[{"example": number}, …]`` into padded rows.

    A reply that is not there (`rolellm.training.schedule.EMPTY`) becomes the first token of a prompt, which is not
    trained, since a row of padding alone has no numbers.

    Attributes:
        examples: What is trained and evaluated on.
        pad_id: The token that rows are padded with; it is never seen and never trained.
    """

    examples: Sequence[Example]
    pad_id: int

    def __call__(self, rows: Sequence[Mapping[str, int]]) -> dict[str, torch.Tensor]:
        """Give ``input_ids``, ``attention_mask`` and ``labels``, each ``(rows, longest)``."""
        ids, labels = [], []
        for row in rows:
            number = row["example"]
            example = self.examples[number]
            length = 1 if number == EMPTY else example.length
            ids.append(torch.tensor(example.input_ids[:length]))
            labels.append(torch.tensor(example.labels[:length]))
        return {
            "input_ids": pad_sequence(ids, batch_first=True, padding_value=self.pad_id),
            "attention_mask": pad_sequence([torch.ones_like(row) for row in ids], batch_first=True),
            "labels": pad_sequence(labels, batch_first=True, padding_value=IGNORED),
        }


def check_trainer_settings(job: Fit) -> None:
    """Check the settings of a training as far as that goes without a model.

    Raises:
        RecipeError: When a library refuses one; says why.
    """
    from transformers import get_scheduler
    from transformers.integrations import get_reporting_integration_callbacks

    if job.training.extra.get("activation_offloading") and job.training.on_cpu:
        raise RecipeError("training.activation_offloading: there is no GPU to offload from")
    check_kernels(job.training)
    with _raise_recipe_errors():
        schedule = Schedule(np.zeros(1, np.int64), 1, 1)
        arguments = _build_arguments(job, schedule)
        weight = torch.nn.Parameter(torch.zeros(1))
        optimizer = torch.optim.SGD([weight])
        options = arguments.lr_scheduler_kwargs
        get_scheduler(arguments.lr_scheduler_type, optimizer, 0, 1, scheduler_specific_kwargs=options)
        for tracker in get_reporting_integration_callbacks(arguments.report_to):
            tracker()
    if getattr(arguments, "use_vllm", False):
        _check_vllm(arguments, on_cpu=job.training.on_cpu)


def _check_vllm(arguments: Any, *, on_cpu: bool) -> None:
    """Check that vLLM can sample the replies of GRPO, in this process or at its server.

    Raises:
        RecipeError: When it is not installed, TRL does not take its version, or there is no GPU or server for it.
    """
    off = "or leave training.use_vllm out"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            is_installed = is_vllm_available()
        except UserWarning as error:
            raise RecipeError(f"training.use_vllm: {error} Install one that TRL takes, {off}") from None
    if not is_installed:
        raise RecipeError(
            "training.use_vllm: TRL needs vLLM in this environment, in either mode, and it is not installed; install "
            f'it with: pip install "trl[vllm]" (another torch comes with it), {off}'
        )
    if arguments.vllm_mode == "server":
        url = arguments.vllm_server_base_url
        if url is None:
            url = f"http://{arguments.vllm_server_host}:{arguments.vllm_server_port}"
        try:
            urllib.request.urlopen(f"{url}/health", timeout=5).close()
        except (OSError, ValueError) as error:
            raise RecipeError(
                f"training.vllm_mode: no vLLM server answers at {url} ({error}); start it on a card of its own: "
                'VLLM_SERVER_DEV_MODE=1 vllm serve BASE --weight-transfer-config \'{"backend": "nccl"}\' '
                f"--logprobs-mode processed_logprobs --max-logprobs -1, {off}"
            ) from error
    if on_cpu:
        raise RecipeError(f"training.use_vllm: TRL's vLLM needs a GPU, and training is on a CPU; use one, {off}")
    sys.stderr.write("vLLM samples the replies: a resumed run is not exactly one that was never interrupted\n")


@contextmanager
def _raise_recipe_errors() -> Iterator[None]:
    """Say in one sentence what a library finds wrong with the settings."""
    try:
        yield
    except (torch.OutOfMemoryError, RecipeError):
        raise
    except (ValueError, TypeError, ImportError, RuntimeError, KeyError, ZeroDivisionError) as error:
        raise RecipeError(f"training and method do not fit this model or machine: {error}") from error


def _find_start(job: Fit, facts: Mapping[str, Any]) -> Path | None:
    """Find where all processes go on from, as the first one sees it; what lies beyond is cleared away."""
    checkpoint: list[Path | None] = [None]
    if join_processes(job.training).is_main_process:
        checkpoint = [run_folder.find_checkpoint(job.folder, facts)]
        folders = run_folder.list_checkpoints(job.folder)
        newer = takewhile(lambda folder: folder != checkpoint[0], folders)
        run_folder.remove_checkpoints(newer)
    return broadcast_object_list(checkpoint)[0]  # type: ignore[no-any-return]  # accelerate ships no types


def _build_arguments(job: Fit, schedule: Schedule) -> Any:
    """The configuration of a trainer; values that its class has no field for are left out."""
    training = job.training
    kind = getattr(trl, f"{training.trainer.upper()}Config")
    fields = {field.name for field in dataclasses.fields(kind)}
    # Its name since transformers 5.23, and before.
    names = ("activation_checkpointing", "gradient_checkpointing")
    checkpointing = next(name for name in names if name in fields)
    is_evaluated = bool(job.held_out) and training.eval_strategy != "no"
    eval_steps = training.eval_steps if training.eval_strategy == "steps" else schedule.steps_per_epoch
    same = ("learning_rate", "lr_scheduler_type", "warmup_steps", "weight_decay", "max_grad_norm", "seed")
    share = PassPlan.of(training, join_processes(training).num_processes).share
    values: dict[str, Any] = {
        **{name: getattr(training, name) for name in same},
        # A batch is a step: it is split in passes later.
        "per_device_train_batch_size": share,
        "gradient_accumulation_steps": 1,
        # The loss is a mean over batches, which must not depend on the passes.
        "per_device_eval_batch_size": min(share, get_default_pass(training)),
        checkpointing: training.gradient_checkpointing is True,
        "output_dir": str(job.folder),
        # All epochs lie one after the other in the schedule, so the loop sees one, in order.
        "num_train_epochs": 1,
        "train_sampling_strategy": "sequential",
        "bf16": training.half_precision,
        "use_cpu": training.on_cpu,
        "data_seed": training.seed,
        "save_strategy": "steps" if job.writes_checkpoints else "no",
        "save_steps": training.save_steps or schedule.steps_per_epoch,
        "eval_strategy": "steps" if is_evaluated else "no",
        "eval_steps": eval_steps,
        # Early stopping goes by it; its count has to survive a resumed run.
        "metric_for_best_model": "eval_loss" if is_evaluated else None,
        "restore_callback_states_from_checkpoint": training.early_stopping_patience is not None,
        "logging_steps": 1,
        # The filter would put the mean of earlier losses in a NaN's place.
        "logging_nan_inf_filter": False,
        "disable_tqdm": True,
        "report_to": training.report_to if job.writes_checkpoints else "none",
        # Rows were cut and checked: TRL drops those whose prompt fills max_length.
        "max_length": None,
        "dataloader_pin_memory": not training.on_cpu,
        # A pass uses all that is trained: looking for what it leaves out costs time.
        "ddp_find_unused_parameters": False,
    }
    if training.trainer == "sft":
        values |= {"remove_unused_columns": False, "dataset_kwargs": {"skip_prepare_dataset": True}}
    if training.trainer == "grpo":
        values |= {"num_train_epochs": training.num_train_epochs, "max_steps": training.max_steps}
        values |= {"shuffle_dataset": False}
    known = {name: value for name, value in values.items() if name in fields}
    arguments = kind(**known | training.extra)
    # A process takes one GPU; left alone, transformers would spread each pass over all that it sees (DataParallel).
    arguments._n_gpu = min(arguments.n_gpu, 1)
    return arguments


def join_processes(training: TrainingRecipe) -> Any:
    """The processes that train together, as accelerate's `PartialState`; one when nothing launched several.

    ``accelerate launch --cpu`` starts one process whatever ``--num_processes`` says. All that shows of the number is an
    address to meet at, which it sets for several (``accelerate.utils.launch.prepare_simple_launcher_cmd_env``).

    Raises:
        RecipeError: When the launcher was asked for more.
    """
    from accelerate import PartialState

    # The first process hashes large files while the others wait; their own patience ends after ten minutes.
    state = PartialState(cpu=training.on_cpu, timeout=timedelta(hours=6))
    processes: int = state.num_processes
    requested = int(os.environ.get("WORLD_SIZE", "1"))
    on_cpu = os.environ.get("ACCELERATE_USE_CPU", "false").lower() == "true"
    is_single = on_cpu and "MASTER_PORT" in os.environ and "WORLD_SIZE" not in os.environ
    if processes < requested or (is_single and processes == 1):
        raise RecipeError(
            f"the launcher was asked for {'several' if is_single else requested} processes but started {processes}; "
            "on a CPU, use accelerate launch --config_file recipes/accelerate/cpu-ddp.yaml, on GPUs ddp.yaml. If you "
            "asked for one, unset MASTER_ADDR, MASTER_PORT and WORLD_SIZE"
        )
    return state
