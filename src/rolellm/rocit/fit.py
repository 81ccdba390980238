"""Setting the training loop up and running it: from examples and a recipe's training section to a tuned model.

This module imports torch, transformers and trl at its head; import it inside functions.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import broadcast_object_list
from datasets import Dataset
from peft import LoraConfig
from transformers.trainer_callback import EarlyStoppingCallback, PrinterCallback
from trl import SFTConfig

from rolellm.core.errors import RecipeError, quiet_peft
from rolellm.core.files import write_json
from rolellm.core.settings import dump
from rolellm.models.load import stop_at
from rolellm.prompts.encode import end_token_id
from rolellm.rocit import checkpoints
from rolellm.rocit.callbacks import Recorder, Sealer, heeding
from rolellm.rocit.packing.attention import attend
from rolellm.rocit.packing.examples import Example, Examples
from rolellm.rocit.packing.layout import Layout
from rolellm.rocit.packing.plan import Plan, plan
from rolellm.rocit.recipe import MethodRecipe, TrainingRecipe
from rolellm.rocit.run_folder import METRICS
from rolellm.rocit.trainer import RocitTrainer


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """What `fit` is to do.

    Attributes:
        training: How to train.
        method: All weights, or an adapter.
        folder: Where checkpoints and ``metrics.jsonl`` go.
        label: Shown beside the progress bar.
        kept: Write checkpoints and metrics.
        resume: Go on from the newest complete checkpoint in ``folder``, if there is one.
        facts: What a checkpoint must have in common with this run, besides its examples and their order.
        held_out: What `training.eval_strategy` computes the loss of.
        callbacks: Further callbacks of transformers.
    """

    training: TrainingRecipe
    method: MethodRecipe
    folder: Path
    label: str
    kept: bool = False
    resume: bool = False
    facts: Mapping[str, Any] = field(default_factory=dict)
    held_out: Examples | None = None
    callbacks: Sequence[Any] = ()


@dataclass(frozen=True, slots=True)
class Fitted:
    """A model that was trained.

    Attributes:
        trainer: The trainer that holds the model.
        losses: The loss of each optimizer step, in order, those of an earlier part of the run included.
        seconds: Wall time of training alone, as `Recorder` has it.
    """

    trainer: RocitTrainer
    losses: tuple[float, ...]
    seconds: float

    def save(self, folder: Path, *, base: str | None = None, revision: str | None = None) -> None:
        """Write the model or adapter, and the tokenizer with its chat template, into a folder.

        Args:
            folder: Where to.
            base: What an adapter is to call its base, where that is not the folder it was loaded from.
            revision: That base's commit.
        """
        card = folder / "README.md"
        had_card = card.exists()
        if self.trainer.is_fsdp_enabled:
            # Under sharded dictionaries transformers writes no model.
            self.trainer.accelerator.state.fsdp_plugin.set_state_dict_type("FULL_STATE_DICT")
        self.trainer.save_model(str(folder))
        if not self.trainer.is_world_process_zero():
            return
        _name_base(folder, base, revision)
        if not had_card:
            card.unlink(missing_ok=True)  # peft's blank form; a card of ours comes with publishing
        # A pickle of our own settings: they are in the manifest, and unpickling a stranger's runs code.
        (folder / "training_args.bin").unlink(missing_ok=True)


def fit(model: Any, tokenizer: Any, examples: Examples | Sequence[Example], job: Fit) -> Fitted:
    """Train a model on examples.

    Args:
        model: A causal language model; with LoRA it is wrapped.
        tokenizer: Its tokenizer, which is saved with it.
        examples: What to train on.
        job: How, and where to.

    Raises:
        DivergedError: When the loss or the gradient is not finite; names the rows.
        ModelError: With ``shared_prefix``, for a type of model that it is not known to be exact for.
        RecipeError: When it is to go on from a checkpoint of another run.
        KeyboardInterrupt: When it was asked to stop; the step was finished, and a checkpoint is written.
    """
    training = job.training
    here = world(training)
    if training.threads is not None:
        torch.set_num_threads(training.threads)
    held = Examples.of(examples)
    passes = plan(held, training, here.num_processes)
    facts = {**job.facts, "data": held.hash, "passes": passes.hash, "processes": here.num_processes}
    start = _start(job, facts) if job.resume else None
    recorder = Recorder(
        job.label,
        job.folder / METRICS if job.kept else None,
        steps_per_epoch=passes.steps_per_epoch,
        trained=passes.trained(held),
    )
    trainer = _trainer(model, tokenizer, held, passes, job)
    for callback in (recorder, *job.callbacks):
        trainer.add_callback(callback)
    if training.early_stopping_patience is not None:
        trainer.add_callback(EarlyStoppingCallback(training.early_stopping_patience))
    # It prints every step's numbers to standard output, which belongs to the command's own result.
    trainer.remove_callback(PrinterCallback)
    with closing(recorder):
        if not job.kept:
            trainer.train()
        else:
            with heeding(alone=trainer.args.world_size == 1) as request:
                sealer = Sealer(trainer.accelerator, training.save_total_limit, facts, request)
                trainer.add_callback(sealer)
                trainer.train(resume_from_checkpoint=None if start is None else str(start))
            if sealer.stopped and trainer.state.global_step < trainer.state.max_steps:
                raise KeyboardInterrupt
    losses = tuple(float(entry["loss"]) for entry in trainer.state.log_history if "loss" in entry)
    return Fitted(trainer, losses, recorder.seconds)


def _trainer(model: Any, tokenizer: Any, examples: Examples, passes: Plan, job: Fit) -> RocitTrainer:
    training = job.training
    flex = training.shared_prefix and not training.on_cpu
    if training.shared_prefix:
        attend(
            model,
            flex=flex,
            longest=max(int(held.lengths.max()) for held in (examples, job.held_out) if held is not None),
        )

    def layout(held: Examples, order: Plan) -> Layout:
        pad_to = training.pack_tokens if flex else None
        return Layout(held, order, packed=training.shared_prefix, pad_id=tokenizer.pad_token_id or 0, pad_to=pad_to)

    held_out = None if job.held_out is None else layout(job.held_out, _held_out_plan(job.held_out, training, passes))
    stop_at(model.generation_config, end_token_id(tokenizer))
    with quiet_peft():
        return RocitTrainer(
            model=model,
            args=_arguments(job, passes.passes, passes.steps_per_epoch),
            train_dataset=Dataset.from_dict({"pass": range(len(passes))}),
            processing_class=tokenizer,
            peft_config=None
            if job.method.name == "full"
            else LoraConfig(task_type="CAUSAL_LM", **dump(job.method.lora)),
            eval_dataset=None if held_out is None else Dataset.from_dict({"pass": range(len(held_out.plan))}),
            layout=layout(examples, passes),
            held_out=held_out,
            measured=job.kept,
        )


def _start(job: Fit, facts: Mapping[str, Any]) -> Path | None:
    """Where all processes go on from, as the first one finds it; what lies beyond is cleared away."""
    found: list[Path | None] = [None]
    if world(job.training).is_main_process:
        found = [checkpoints.newest(job.folder, facts)]
        checkpoints.forget_after(job.folder, 0 if found[0] is None else checkpoints.step_of(found[0]))
    return broadcast_object_list(found)[0]  # type: ignore[no-any-return]  # accelerate ships no types


def _held_out_plan(held: Examples, training: TrainingRecipe, passes: Plan) -> Plan:
    """One pass over the held-out replies, as trees or rows like the trained ones."""
    size = training.others.get("per_device_eval_batch_size", training.per_device_train_batch_size)
    once = replace(
        training,
        num_train_epochs=1.0,
        max_steps=-1,
        per_device_train_batch_size=size,
        # As few passes as pack_tokens allows: no update waits for them.
        gradient_accumulation_steps=math.ceil(len(held) / (size * passes.processes)),
        roles_per_step=1,
    )
    return plan(held, once, passes.processes)


def _name_base(folder: Path, base: str | None, revision: str | None) -> None:
    """Name an adapter's base; one in the run's own folder by its place there, so that the folder can be moved."""
    file = folder / "adapter_config.json"
    if not file.is_file():
        return
    config = json.loads(file.read_text(encoding="utf-8"))
    place = Path(config["base_model_name_or_path"] or "").resolve()
    if base is not None:
        write_json(file, config | {"base_model_name_or_path": base, "revision": revision})
    elif place.is_relative_to(folder.resolve()):
        write_json(file, config | {"base_model_name_or_path": place.relative_to(folder.resolve()).as_posix()})


def _arguments(job: Fit, passes: int, steps_per_epoch: int) -> SFTConfig:
    training = job.training
    evaluated = training.eval_strategy if job.held_out is not None else "no"
    same = ("learning_rate", "lr_scheduler_type", "warmup_steps", "weight_decay", "max_grad_norm", "bf16", "seed")
    values: dict[str, Any] = {
        **{name: getattr(training, name) for name in same},
        "output_dir": str(job.folder),
        # All epochs lie one after the other in the passes, so the loop sees one.
        "num_train_epochs": 1,
        "per_device_train_batch_size": 1,
        "gradient_accumulation_steps": passes,
        "activation_checkpointing": training.gradient_checkpointing,
        "use_cpu": training.on_cpu,
        "data_seed": training.seed,
        "save_strategy": "steps" if job.kept else "no",
        "save_steps": training.save_steps or steps_per_epoch,
        "eval_strategy": "no" if evaluated == "no" else "steps",
        "eval_steps": training.eval_steps if evaluated == "steps" else steps_per_epoch,
        # Early stopping goes by it; its count has to survive a resumed run.
        "metric_for_best_model": None if evaluated == "no" else "eval_loss",
        "restore_callback_states_from_checkpoint": training.early_stopping_patience is not None,
        "logging_steps": 1,
        # The filter would put the mean of earlier losses in a NaN's place.
        "logging_nan_inf_filter": False,
        "disable_tqdm": True,
        "report_to": training.trackers if job.kept else "none",
        "remove_unused_columns": False,
        # Rows are tokens, cut and checked: TRL's own preparation drops rows whose prompt fills max_length.
        "max_length": None,
        "dataset_kwargs": {"skip_prepare_dataset": True},
        "dataloader_pin_memory": not training.on_cpu,
        # A pass uses all that is trained, one without replies too: looking for what it leaves out costs time.
        "ddp_find_unused_parameters": False,
    }
    arguments = SFTConfig(**values | training.others)
    # A process takes one GPU; left alone, transformers would spread each pass over all that it sees (DataParallel).
    arguments._n_gpu = min(arguments.n_gpu, 1)
    return arguments


def world(training: TrainingRecipe) -> Any:
    """The processes that train together, as accelerate's `PartialState`; one when nothing launched several.

    Raises:
        RecipeError: When the launcher was asked for more.
    """
    from accelerate import PartialState

    # The first process hashes large files while the others wait; their own patience ends after ten minutes.
    here = PartialState(cpu=training.on_cpu, timeout=timedelta(hours=6))
    _check_launched(here.num_processes)
    return here


def _check_launched(processes: int) -> None:
    """Refuse to train in fewer processes than the launcher was asked for.

    ``accelerate launch --cpu`` starts one process whatever ``--num_processes`` says. All that shows of the number is an
    address to meet at, which it sets for several (``accelerate.utils.launch.prepare_simple_launcher_cmd_env``).
    """
    asked = int(os.environ.get("WORLD_SIZE", "1"))
    alone = "ACCELERATE_USE_CPU" in os.environ and "MASTER_PORT" in os.environ and "WORLD_SIZE" not in os.environ
    if processes < asked or (alone and processes == 1):
        raise RecipeError(
            f"the launcher was asked for {'several' if alone else asked} processes but started {processes}; on a CPU, "
            "use accelerate launch --config_file recipes/accelerate/cpu-ddp.yaml, on GPUs ddp.yaml. If you asked for "
            "one, unset MASTER_ADDR, MASTER_PORT and WORLD_SIZE"
        )
