"""The training loop: TRL's `SFTTrainer` on rows that are tokens already, stopped in words when the loss is no number.

This module imports torch, transformers and trl at its head, because it subclasses them; import it inside functions.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers.trainer_callback import PrinterCallback, ProgressCallback
from trl import SFTConfig, SFTTrainer

from rolellm.files import write_json
from rolellm.prompts.encode import end_token_id
from rolellm.rocit.order import GroupedOrder
from rolellm.rocit.recipe import Lora, MethodRecipe, OutputRecipe, TrainingRecipe
from rolellm.rocit.recorder import Recorder, check_finite
from rolellm.rocit.rows import IGNORED, Example

METRICS = "metrics.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """What `fit` is to do.

    Attributes:
        training: How to train.
        method: All weights, or an adapter.
        folder: Where checkpoints and ``metrics.jsonl`` go.
        label: Shown beside the progress bar.
        output: When to write checkpoints; without it there are neither checkpoints nor metrics.
    """

    training: TrainingRecipe
    method: MethodRecipe
    folder: Path
    label: str
    output: OutputRecipe | None = None


@dataclass(frozen=True, slots=True)
class Fitted:
    """A model that was trained.

    Attributes:
        trainer: The trainer that holds the model.
        losses: The loss of each optimiser step, in order.
        seconds: Wall time of training alone.
    """

    trainer: RocitTrainer
    losses: tuple[float, ...]
    seconds: float

    def save(self, folder: Path) -> None:
        """Write the model or adapter, and the tokenizer with its chat template, into a folder."""
        card = folder / "README.md"
        had_card = card.exists()
        self.trainer.save_model(str(folder))
        if not self.trainer.is_world_process_zero():
            return
        _keep_movable(folder)
        if not had_card:
            card.unlink(missing_ok=True)  # peft's blank form; a card of ours comes with publishing
        # A pickle of our own settings: they are in the manifest, and unpickling a stranger's runs code.
        (folder / "training_args.bin").unlink(missing_ok=True)


class RocitTrainer(SFTTrainer):  # type: ignore[misc]  # transformers and trl ship no types
    """`SFTTrainer` that stops at the first loss that is no number, and is quicker on a CPU."""

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """One forward and backward pass.

        Raises:
            DivergedError: When its loss is NaN or infinite; the weights have not taken the step.
        """
        loss = super().training_step(*args, **kwargs)
        check_finite("loss", float(loss), self.state.global_step + 1, self.args.learning_rate)
        return loss

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """The mean negative log-likelihood of the trained tokens.

        On a CPU, TRL scores every position of the vocabulary and then masks; prompts are most of our tokens, so here
        only positions before a trained token are scored. The loss is the same.
        """
        if self.args.device.type != "cpu" or return_outputs or self.aux_loss_enabled:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        labels = inputs["labels"][:, 1:]
        scored = (labels != IGNORED).any(dim=0).nonzero().flatten()
        others = {key: value for key, value in inputs.items() if key != "labels"}
        logits = model(**others, use_cache=False, logits_to_keep=scored).logits
        total = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1).float(), labels[:, scored].flatten(), ignore_index=IGNORED, reduction="sum"
        )
        if num_items_in_batch is None:
            return total / (labels != IGNORED).sum().clamp(min=1)
        # The count covers every rank, and DDP takes the mean of the ranks' gradients.
        shares = self.accelerator.num_processes if self.args.average_tokens_across_devices else 1
        return total / num_items_in_batch * shares

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        if self.args.train_sampling_strategy != "group_by_length":
            return super()._get_train_sampler(train_dataset)
        lengths = [len(ids) for ids in self.train_dataset["input_ids"]]
        return GroupedOrder(lengths, self.args.per_device_train_batch_size, self.args.seed)

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Write no card: TRL's would name neither the data nor the recipe."""


def fit(model: Any, tokenizer: Any, examples: Sequence[Example], job: Fit) -> Fitted:
    """Train a model on examples.

    Args:
        model: A causal language model; with LoRA it is wrapped.
        tokenizer: Its tokenizer, which is saved with it.
        examples: What to train on.
        job: How, and where to.

    Raises:
        DivergedError: When the loss or the gradient is no number.
    """
    data = Dataset.from_dict(
        {"input_ids": [example.input_ids for example in examples], "labels": [example.labels for example in examples]}
    )
    model.generation_config.eos_token_id = _with_end(model.generation_config.eos_token_id, end_token_id(tokenizer))
    recorder = Recorder(job.label, None if job.output is None else job.folder / METRICS)
    trainer = RocitTrainer(
        model=model,
        args=_arguments(job),
        train_dataset=data,
        processing_class=tokenizer,
        peft_config=_lora(job.method.lora) if job.method.name == "lora" else None,
        callbacks=[recorder],
    )
    # They print every step's numbers to standard output, which belongs to the command's own result.
    trainer.remove_callback(PrinterCallback)
    trainer.remove_callback(ProgressCallback)
    start = time.monotonic()
    try:
        trainer.train()
    finally:
        recorder.close()
    return Fitted(trainer, tuple(recorder.losses), time.monotonic() - start)


def _with_end(known: int | list[int] | None, end: int) -> int | list[int]:
    """The tokens that end generation, with the one that training puts after each reply among them."""
    several = [known] if isinstance(known, int) else list(known or [])
    merged = [end, *(token for token in several if token != end)]
    return merged if len(merged) > 1 else end


def _lora(lora: Lora) -> Any:
    from peft import LoraConfig

    targets: str | list[str] = "all-linear" if lora.targets == ("all-linear",) else list(lora.targets)
    return LoraConfig(
        r=lora.r, lora_alpha=lora.alpha, lora_dropout=lora.dropout, target_modules=targets, task_type="CAUSAL_LM"
    )


def _keep_movable(folder: Path) -> None:
    """Name a base that lies in the run's own folder by its place there, so that the folder can be moved."""
    file = folder / "adapter_config.json"
    if not file.is_file():
        return
    config = json.loads(file.read_text(encoding="utf-8"))
    base = Path(config["base_model_name_or_path"] or "").resolve()
    if base.is_relative_to(folder.resolve()):
        config["base_model_name_or_path"] = base.relative_to(folder.resolve()).as_posix()
        write_json(file, config)


def _arguments(job: Fit) -> SFTConfig:
    training, output = job.training, job.output
    every = None if output is None else output.checkpoint_every
    strategy = "no" if output is None else "epoch" if every is None else "steps"
    return SFTConfig(
        output_dir=str(job.folder),
        num_train_epochs=training.epochs,
        max_steps=-1 if training.max_steps is None else training.max_steps,
        learning_rate=training.learning_rate,
        lr_scheduler_type=training.schedule,
        warmup_steps=training.warmup,
        weight_decay=training.weight_decay,
        max_grad_norm=training.max_grad_norm,
        per_device_train_batch_size=training.batch_size,
        gradient_accumulation_steps=training.grad_accumulation,
        activation_checkpointing=training.gradient_checkpointing,
        train_sampling_strategy="group_by_length" if training.group_by_length else "random",
        bf16=training.precision == "bf16",
        use_cpu=on_cpu(training),
        seed=training.seed,
        data_seed=training.seed,
        save_strategy=strategy,
        save_steps=every or 500,
        save_total_limit=None if output is None else output.keep_checkpoints,
        logging_steps=1,
        # The filter would put the mean of earlier losses in a NaN's place.
        logging_nan_inf_filter=False,
        disable_tqdm=True,
        report_to="none",
        # Rows are tokens, cut and checked: TRL's own preparation drops rows whose prompt fills max_length.
        max_length=None,
        dataset_kwargs={"skip_prepare_dataset": True},
        dataloader_pin_memory=not on_cpu(training),
    )


def _checkpointing_option() -> str:
    """What this transformers calls gradient checkpointing; the older name warns where the newer is known."""
    known = {field.name for field in fields(SFTConfig)}
    return "activation_checkpointing" if "activation_checkpointing" in known else "gradient_checkpointing"


def world(training: TrainingRecipe) -> Any:
    """The processes that train together, as accelerate's `PartialState`; one when nothing launched several."""
    from accelerate import PartialState

    return PartialState(cpu=True) if on_cpu(training) else PartialState()


def on_cpu(training: TrainingRecipe) -> bool:
    """Whether a recipe trains on the CPU: because it says so, or because there is no GPU."""
    return training.device == "cpu" or not torch.cuda.is_available()
