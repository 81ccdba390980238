"""Ours and TRL's trainers on the same examples, and one meter for both: torch's own hook at the end of optimizer steps.

What is timed is whole steps: from the end of one optimizer step to the end of the next, so loading and collating data,
forward, backward, clipping and the update. The first step of a run warms up and is left out.
"""

from __future__ import annotations

import gc
import math
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch
from datasets import Dataset
from peft.helpers import disable_input_dtype_casting
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from transformers.trainer_callback import PrinterCallback, ProgressCallback, TrainerCallback
from trl import SFTConfig, SFTTrainer

from rolellm.training.examples import Example
from rolellm.training.fit import Fit, fit
from rolellm.training.kernels import use_kernels
from rolellm.training.passes import PassPlan
from rolellm.training.recipe import MethodRecipe, TrainingRecipe


@dataclass(frozen=True, slots=True)
class Job:
    """What every rival is given alike.

    Attributes:
        model: Makes the model, the same each time.
        tokenizer: Its tokenizer.
        examples: What is trained on, once.
        training: Optimizer, precision, device and the replies of an optimizer step.
        method: All weights, or an adapter.
    """

    model: Callable[[], Any]
    tokenizer: Any
    examples: list[Example]
    training: TrainingRecipe
    method: MethodRecipe = field(default_factory=lambda: MethodRecipe(name="full"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """How TRL lays replies out.

    Attributes:
        rows: Replies a forward pass, row by row; of like length where ``grouped``.
        pack: Tokens of a packed row, one a forward pass; ``None`` trains row by row.
        attention: The attention of transformers.
        checkpoints: Compute activations again.
    """

    rows: int = 1
    pack: int | None = None
    grouped: bool = True
    attention: str = "sdpa"
    checkpoints: bool = False

    def __str__(self) -> str:
        kind = f"{self.rows} rows{' of like length' if self.grouped else ''}"
        if self.pack is not None:
            kind = f"bfd packs of {self.pack}"
        return f"{kind}, {self.attention}{', checkpointing' if self.checkpoints else ''}"


@dataclass(frozen=True, slots=True)
class Speed:
    """How fast a run went.

    Attributes:
        rates: Replies a second of each optimizer step but the first.
        tokens: Tokens a reply that went through the model, padding included.
        peak: Most bytes of GPU memory at a time; ``None`` on a CPU.
        plan: How steps went through the model, where ours were measured.
    """

    rates: tuple[float, ...]
    tokens: float
    peak: int | None
    plan: PassPlan | None = None

    @property
    def rate(self) -> float:
        """The median rate."""
        return median(self.rates)

    def and_also(self, other: Speed) -> Speed:
        """Both runs' steps."""
        return replace(self, rates=self.rates + other.rates)


@dataclass(slots=True)
class _Meter:
    """What goes through a model between the ends of optimizer steps."""

    replies_of: Callable[[torch.Tensor, Any], int]
    replies: list[int] = field(default_factory=lambda: [0])
    tokens: int = 0
    ends: list[float] = field(default_factory=list)

    def passed(self, _module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Count a forward pass."""
        ids = kwargs["input_ids"] if "input_ids" in kwargs else args[0]
        self.replies[-1] += self.replies_of(ids, kwargs.get("position_ids"))
        self.tokens += ids.numel()

    def ended(self, *_: Any) -> None:
        """Note the end of an optimizer step."""
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.ends.append(time.perf_counter())
        self.replies.append(0)

    def speed(self) -> Speed:
        """What was measured; the last entry of ``replies`` is a step that did not come."""
        lasted = [end - begin for begin, end in zip(self.ends, self.ends[1:], strict=False)]
        rates = tuple(count / seconds for count, seconds in zip(self.replies[1:-1], lasted, strict=True))
        peak = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else None
        return Speed(rates, self.tokens / sum(self.replies), peak)


@contextmanager
def _metered(model: Any, replies_of: Callable[[torch.Tensor, Any], int]) -> Iterator[_Meter]:
    meter = _Meter(replies_of)
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    # The model below its output layer: called once a pass by every trainer, whatever wraps it.
    handles = [
        model.base_model.register_forward_pre_hook(meter.passed, with_kwargs=True),
        register_optimizer_step_post_hook(meter.ended),
    ]
    try:
        yield meter
    finally:
        for handle in handles:
            handle.remove()


def measure_ours(job: Job, callbacks: Sequence[Any] = ()) -> Speed:
    """Train as ``rolellm train`` does and measure it."""
    model = job.model()
    # A tree does not show how many replies it holds; all steps have the same number.
    with _metered(model, lambda _ids, _positions: 0) as meter:
        start = _Start(meter)
        plan = train_ours(job, model, [start, *callbacks])
    meter.replies = [job.training.replies_per_step] * len(meter.ends) + [0]
    return replace(meter.speed(), plan=plan)


class _Start(TrainerCallback):  # type: ignore[misc]  # transformers ships no types
    """Forgets what was tried before the first step."""

    def __init__(self, meter: _Meter) -> None:
        self._meter = meter

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """Count from here."""
        self._meter.tokens = 0
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()


def train_ours(job: Job, model: Any, callbacks: Sequence[Any] = ()) -> PassPlan:
    """One epoch by `rolellm.training.fit.fit`; gives how steps went through the model."""
    is_open = job.training.replies_per_pass == "auto"
    with tempfile.TemporaryDirectory() as folder:
        wanted = Fit(
            training=job.training,
            method=job.method,
            folder=Path(folder),
            label="ours",
            # What fits is tried only in a run that is kept.
            writes_checkpoints=is_open,
            callbacks=callbacks,
        )
        plan: PassPlan = fit(model, job.tokenizer, job.examples, wanted).trainer.plan
    return plan


def measure_trl(job: Job, setting: Setting) -> Speed:
    """Train with TRL's own trainer and measure it."""
    with trl_trainer(job, setting) as trainer:
        model = trainer.model.get_base_model() if job.method.name != "full" else trainer.model
        casts = disable_input_dtype_casting(trainer.model, active=job.training.half_precision)
        with casts, _metered(model, _replies_in_pack if setting.pack else _replies_in_rows) as meter:
            trainer.train()
        return meter.speed()


def _replies_in_rows(ids: torch.Tensor, _positions: Any) -> int:
    return len(ids)


def _replies_in_pack(_ids: torch.Tensor, positions: Any) -> int:
    return int((positions == 0).sum())


@contextmanager
def trl_trainer(job: Job, setting: Setting) -> Iterator[Any]:
    """TRL's `SFTTrainer` with its own collator and packing, and the kernels that ours has; the prompts are masked."""
    model = job.model()
    model.set_attn_implementation(setting.attention)
    with tempfile.TemporaryDirectory() as folder, use_kernels(model, job.training):
        trainer = SFTTrainer(
            model=model,
            args=_arguments(job, setting, folder),
            train_dataset=as_dataset(job.examples),
            processing_class=job.tokenizer,
            peft_config=_lora(job.method),
        )
        # They would print to standard output.
        trainer.remove_callback(PrinterCallback)
        trainer.remove_callback(ProgressCallback)
        yield trainer


def as_dataset(examples: list[Example]) -> Dataset:
    """Examples as TRL takes rows that are tokens already: the labels of prompts are masked."""
    columns = {"input_ids": [one.input_ids for one in examples], "labels": [one.labels for one in examples]}
    return Dataset.from_dict(columns)


def _arguments(job: Job, setting: Setting, folder: str) -> SFTConfig:
    training = job.training
    a_pass = (
        setting.rows
        if setting.pack is None
        else max(1.0, setting.pack / fmean(example.length for example in job.examples))
    )
    step = training.replies_per_step
    return SFTConfig(
        output_dir=folder,
        num_train_epochs=1,
        per_device_train_batch_size=setting.rows,
        gradient_accumulation_steps=max(1, round(step / a_pass)),
        packing=setting.pack is not None,
        packing_strategy="bfd",
        max_length=setting.pack,
        train_sampling_strategy="group_by_length" if setting.grouped and setting.pack is None else "random",
        learning_rate=training.learning_rate,
        lr_scheduler_type=training.lr_scheduler_type,
        warmup_steps=math.floor(training.warmup_steps),
        weight_decay=training.weight_decay,
        max_grad_norm=training.max_grad_norm,
        activation_checkpointing=setting.checkpoints,
        bf16=training.half_precision,
        use_cpu=training.use_cpu,
        seed=training.seed,
        save_strategy="no",
        disable_tqdm=True,
        report_to="none",
        dataloader_pin_memory=not training.use_cpu,
    )


def _lora(method: MethodRecipe) -> Any:
    if method.name == "full":
        return None
    from peft import LoraConfig

    lora = method.lora
    return LoraConfig(
        r=lora.r,
        lora_alpha=lora.lora_alpha,
        lora_dropout=lora.lora_dropout,
        target_modules=lora.target_modules,
        task_type="CAUSAL_LM",
    )


@contextmanager
def first_gradient(model: Any) -> Iterator[dict[str, torch.Tensor]]:
    """The gradient by parameter that the first optimizer step inside the block is given."""
    caught: dict[str, torch.Tensor] = {}

    def catch(*_: Any) -> None:
        if not caught:
            for name, weight in model.named_parameters():
                if weight.grad is not None:
                    caught[name] = weight.grad.float().to("cpu", copy=True)

    handle = register_optimizer_step_pre_hook(catch)
    try:
        yield caught
    finally:
        handle.remove()
