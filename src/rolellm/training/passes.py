"""How a step's replies go through the model: a stock trainer that takes whole steps, in passes that fit into memory.

A step's gradient is that of all its replies together, so what a pass holds changes nothing but rounding. A pass that
runs out of memory is halved, and its step begins again.

This module imports torch and transformers at its head; import it inside functions.
"""

from __future__ import annotations

import copy
import gc
import math
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from accelerate import DistributedType, PartialState
from accelerate.utils import gather_object
from accelerate.utils.memory import clear_device_cache
from torch.nn.utils.rnn import pad_sequence
from transformers import Trainer

from rolellm.core.errors import RecipeError, note_out_of_memory
from rolellm.core.text import format_count
from rolellm.models.prefix_sharing import FoldedRows, count_folded, fold_batch
from rolellm.models.tree_attention import send
from rolellm.training.examples import IGNORED
from rolellm.training.recipe import TrainingRecipe

# Replies in a pass where none is tried, with shared prefixes and without (measured on a CPU: dev/performance.md).
_REPLIES, _ROWS = 32, 8
# Losses of TRL that compare the replies of a pass with each other.
_WHOLE = frozenset({"bnpo", "bco_pair", "aot", "aot_unpaired"})
# Those of GRPO that are sums over the tokens of a step.
_SUMS = frozenset({"cispo", "dapo", "vespo"})
# Steps in which a heaviest pass is looked for: to fold every pass of an epoch again for each size takes minutes.
_HEAVIEST = 16
# What GRPO's rows are made of.
_SAMPLED = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask")


@dataclass(slots=True)
class PassPlan:
    """How a process's share of a step goes through the model.

    Attributes:
        share: Replies in a step of each process.
        replies_per_pass: Of these, in a forward pass.
        gradient_checkpointing: Whether activations are computed again.
        may_checkpoint: Whether checkpointing may still be turned on.
    """

    share: int
    replies_per_pass: int
    gradient_checkpointing: bool
    may_checkpoint: bool = False

    @classmethod
    def of(cls, training: TrainingRecipe, processes: int, *, is_sharded: bool = False) -> PassPlan:
        """The plan that a training begins with.

        Raises:
            RecipeError: When the processes cannot share a step evenly.
        """
        share, rest = divmod(training.replies_per_step, processes)
        if rest:
            raise RecipeError(
                f"training.replies_per_step: {processes} processes cannot share {training.replies_per_step} evenly; "
                f"make it a multiple of {processes}, or start another number of processes"
            )
        size = share
        if training.replies_per_pass != "auto":
            size = training.replies_per_pass
        elif training.on_cpu or is_sharded:
            size = get_default_pass(training)
        if not splits_steps(training):
            size = share
        is_auto = training.gradient_checkpointing == "auto"
        checkpoints = is_sharded if is_auto else bool(training.gradient_checkpointing)
        return cls(share, min(size, share), checkpoints, is_auto and not checkpoints)

    @property
    def passes(self) -> int:
        """Forward passes of each process in a step."""
        return math.ceil(self.share / self.replies_per_pass)

    def __str__(self) -> str:
        passes = format_count(self.passes, "pass", "passes")
        text = f"{self.replies_per_pass} replies a pass, {passes} a step"
        if self.gradient_checkpointing:
            text += ", with gradient checkpointing"
        return text

    def to_dict(self) -> dict[str, Any]:
        """What the manifest keeps."""
        return {"replies_per_pass": self.replies_per_pass, "gradient_checkpointing": self.gradient_checkpointing}

    def shrink(self, training: TrainingRecipe) -> bool:
        """Halve the pass, or compute activations again where it holds a single reply; false where nothing is left."""
        if self.replies_per_pass > 1 and splits_steps(training):
            self.replies_per_pass = math.ceil(self.replies_per_pass / 2)
            return True
        if self.may_checkpoint:
            self.gradient_checkpointing = True
            self.may_checkpoint = False
            self.replies_per_pass = self.share
            return True
        return False


def get_default_pass(training: TrainingRecipe) -> int:
    """The replies of a pass where none is tried."""
    return _REPLIES if training.shared_prefix else _ROWS


def splits_steps(training: TrainingRecipe) -> bool:
    """Tell whether the gradient of a step is the sum of those of its passes."""
    options = training.extra
    if training.trainer == "kto" or options.get("entropy_coef") or options.get("use_adaptive_entropy"):
        return False
    # Which tokens are trained is decided among those of a pass.
    if options.get("top_entropy_quantile", 1.0) < 1:
        return False
    losses = options.get("loss_type") or ()
    if isinstance(losses, str):
        losses = [losses]
    return _WHOLE.isdisjoint(losses)


class StepTrainer(Trainer):  # type: ignore[misc]  # transformers ships no types
    """What is between a trainer of TRL and that of transformers: batches are whole steps, split into passes."""

    plan: PassPlan
    training: TrainingRecipe
    steps_per_epoch: int
    kernels: tuple[str, ...] = ()
    step_seconds = 0.0
    heaviest_steps: Sequence[range] = ()
    _metrics: Any
    _total_train_tokens: Any
    is_in_pass = False
    folded_rows: FoldedRows | None = None

    def get_train_dataloader(self) -> Any:
        """Leave batches on the host, where they are split and folded."""
        loader = super().get_train_dataloader()
        loader.device = None
        return loader

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        if state_dict is not None:
            # Gathered from shards, tied weights are copies, which transformers does not see.
            tied = self.accelerator.unwrap_model(self.model).all_tied_weights_keys
            state_dict = {name: weight for name, weight in state_dict.items() if name not in tied}
        super()._save(output_dir, state_dict)

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        """Take the gradient of a whole step; begun again in smaller passes where one runs out of memory.

        Raises:
            RecipeError: When not even one reply fits, or several processes would have to agree.
        """
        model.train()
        if hasattr(self.args, "steps_per_generation"):
            sampled = None
            while sampled is None:
                sampled = self._try_sampling(inputs)
            # Once a step, so that no pass waits for the device to fold its rows.
            inputs = sampled | {name: sampled[name].cpu() for name in _SAMPLED}
        loss = None
        while loss is None:
            loss = self._try_passes(model, inputs, num_items_in_batch)
        return loss

    def _try_sampling(self, inputs: Any) -> Any:
        """Sample GRPO's replies and score them; none where that runs out of memory."""
        # Samples are scored in passes of this size, too.
        self.args.per_device_train_batch_size = self.plan.replies_per_pass
        before = copy.deepcopy(self._metrics)
        problems: list[str] = []
        with note_out_of_memory(problems):
            return self._prepare_inputs(inputs)
        self._metrics = before
        self._free_memory()
        self._shrink_passes(problems[0])
        return None

    def _try_passes(self, model: Any, inputs: Any, num_items_in_batch: Any) -> torch.Tensor | None:
        """Take a step's passes; none where one runs out of memory, with all that they left behind undone."""
        before = copy.deepcopy(self._metrics)
        tokens = self._total_train_tokens
        problems: list[str] = []
        # Where only pieces of memory were left, the pass fits once they are one; alone, a process cannot try again.
        attempts = 2 if self.accelerator.num_processes == 1 else 1
        for _ in range(attempts):
            with note_out_of_memory(problems):
                return self._take_passes(model, inputs, num_items_in_batch)
            self._metrics, self._total_train_tokens = copy.deepcopy(before), tokens
            self._free_memory()
        self._shrink_passes(problems[0])
        return None

    def _shrink_passes(self, problem: str) -> None:
        if self.accelerator.num_processes > 1:
            smaller = max(1, self.plan.replies_per_pass // 2)
            raise RecipeError(
                f"out of memory with {self.plan} on one of several processes, which cannot change that alone "
                f"({problem}); resume with --set training.replies_per_pass={smaller}"
            )
        failed = str(self.plan)
        if not self.plan.shrink(self.training):
            raise RecipeError(explain_too_small(problem, self.plan.replies_per_pass))
        set_checkpointing(self)
        sys.stderr.write(f"out of memory with {failed}; going on with {self.plan}\n")

    def _take_passes(self, model: Any, inputs: Any, num_items_in_batch: Any) -> torch.Tensor:
        losses = []
        parts = list(split_step(inputs, self.plan.replies_per_pass, pairs=self.training.trainer == "dpo"))
        is_alone = self.is_fsdp_enabled or self.is_deepspeed_enabled
        for number, part in enumerate(parts, start=1):
            is_last = number == len(parts)
            self.accelerator.gradient_state._set_sync_gradients(is_last)
            gathers = is_last or is_alone
            with nullcontext() if gathers else self.accelerator.no_sync(model):
                losses.append(self.take_pass(model, inputs, part, num_items_in_batch))
        return torch.stack(losses).sum()

    def take_pass(self, model: Any, inputs: Any, part: Any, num_items_in_batch: Any) -> torch.Tensor:
        """Add the gradient of a part of a step, and give its part of the loss."""
        share = count_rows(part) / count_rows(inputs)
        # The number that a trainer divides the mean over a pass by.
        self.current_gradient_accumulation_steps = 1 / share
        if getattr(self, "loss_type", None) in _SUMS:
            self.current_gradient_accumulation_steps = 1
        weights = getattr(self, "loss_weights", None)
        if weights is not None:
            self.loss_weights = self._weigh_losses(weights, inputs, part, share)
        self.is_in_pass = True
        self.folded_rows = None
        if self.training.shared_prefix and count_rows(part) > 1:
            self.folded_rows = fold_part(part, self.training.trainer)
        try:
            placed = {}
            for name, value in part.items():
                placed[name] = value
                if torch.is_tensor(value):
                    placed[name] = send(value, self.args.device)
            if self.folded_rows is not None and "input_ids" in part:
                placed["folded_rows"] = self.folded_rows
            loss: torch.Tensor = super().training_step(model, placed, num_items_in_batch)
        finally:
            self.is_in_pass = False
            self.current_gradient_accumulation_steps = 1
            if weights is not None:
                self.loss_weights = weights
        return loss

    def evaluate_halves(self, model: Any, inputs: Any, problem: str, *args: Any, **options: Any) -> Any:
        """Compute the loss of a batch that runs out of memory from those of its halves.

        Raises:
            RecipeError: When it is not their mean, is a single reply's, or several processes would have to agree.
        """
        self._free_memory()
        rows = count_rows(inputs)
        is_pairs = self.training.trainer == "dpo"
        replies = rows // 2 if is_pairs else rows
        if replies == 1 or not splits_steps(self.training) or self.accelerator.num_processes > 1:
            raise RecipeError(
                f"out of memory evaluating {replies} replies at a time ({problem}); resume with --set "
                f"training.per_device_eval_batch_size={max(1, replies // 2)}"
            )
        loss = torch.zeros((), device=self.args.device)
        for part in split_step(inputs, math.ceil(replies / 2), pairs=is_pairs):
            part_loss, _, _ = self.prediction_step(model, part, *args, **options)
            share = count_rows(part) / rows
            if not is_pairs:
                share = count_labels(part) / count_labels(inputs)
            loss += part_loss * share
        return loss, None, None

    def _weigh_losses(self, weights: Sequence[float], inputs: Any, part: Any, share: float) -> list[float]:
        """Weights of DPO's losses in a pass: that of ``sft`` is a mean over the tokens of what is chosen."""
        weighed = list(weights)
        if "sft" in self.loss_types:
            chosen: float = count_chosen(inputs)
            if self.accelerator.num_processes > 1:
                # They take the mean of their gradients.
                count = torch.tensor(float(chosen), device=self.args.device)
                chosen = float(self.accelerator.reduce(count, reduction="mean"))
            index = self.loss_types.index("sft")
            weighed[index] *= count_chosen(part) / chosen / share
        return weighed

    def _free_memory(self) -> None:
        self.model.zero_grad()
        gc.collect()
        clear_device_cache()


def make_step_trainer(trainer_class: Any) -> Any:
    """The class of a stock trainer that takes a step in passes."""

    class Stepping(trainer_class, StepTrainer):  # type: ignore[misc]  # made at run time
        def prediction_step(self, model: Any, inputs: Any, *args: Any, **options: Any) -> Any:
            problems: list[str] = []
            with note_out_of_memory(problems):
                return super().prediction_step(model, inputs, *args, **options)
            return self.evaluate_halves(model, inputs, problems[0], *args, **options)

        def _prepare_inputs(self, inputs: Any) -> Any:
            # What GRPO would sample anew is here already.
            return inputs if self.is_in_pass else super()._prepare_inputs(inputs)

        def _get_per_token_logps_and_entropies(self, model: Any, *args: Any, **options: Any) -> Any:
            # GRPO's, which hands on only what it knows.
            if self.is_in_pass and self.folded_rows is not None:
                model = partial(model, folded_rows=self.folded_rows)
            return super()._get_per_token_logps_and_entropies(model, *args, **options)

    return Stepping


def split_sampling(model: Any) -> None:
    """Let a model sample fewer replies at a time once all that it is asked for run out of memory."""
    generate = model.generate
    limit = sys.maxsize

    def generate_parts(**inputs: Any) -> torch.Tensor:
        nonlocal limit
        count = len(inputs["input_ids"])
        problems: list[str] = []
        with note_out_of_memory(problems):
            if count <= limit:
                return generate(**inputs)  # type: ignore[no-any-return]  # transformers ships no types
        if problems:
            if count == 1:
                raise RecipeError(explain_too_small(problems[0]))
            limit = math.ceil(count / 2)
            sys.stderr.write(f"out of memory sampling {count} replies at a time; going on with {limit}\n")
        gc.collect()
        clear_device_cache()
        parts: list[torch.Tensor] = []
        size = limit
        for start in range(0, count, size):
            part = {}
            for name, value in inputs.items():
                part[name] = value
                if torch.is_tensor(value):
                    part[name] = value[start : start + size]
            # Again in parts, where the limit went down meanwhile.
            parts += generate_parts(**part)
        pad_id = inputs["generation_config"].pad_token_id
        return pad_sequence(parts, batch_first=True, padding_value=pad_id)

    model.generate = generate_parts


def fold_part(part: Any, trainer: str) -> FoldedRows | None:
    """Fold a pass's rows on the host, with the labels that a trainer gives them; none for one that is not split."""
    if trainer == "sft":
        return fold_batch(part)
    if trainer == "dpo":
        ids, mask = part["input_ids"], part["attention_mask"]
        is_scored = part["completion_mask"] != 0
    elif trainer == "grpo":
        ids = torch.cat([part["prompt_ids"], part["completion_ids"]], dim=1)
        mask = torch.cat([part["prompt_mask"], part["completion_mask"]], dim=1)
        is_scored = mask.bool()
        is_scored[:, : -part["completion_ids"].shape[1]] = False
    else:
        return None
    labels = ids.masked_fill(~is_scored, -100)
    return fold_batch({"input_ids": ids, "attention_mask": mask, "labels": labels})


def count_rows(inputs: Any) -> int:
    """Rows of a batch as a trainer of TRL collates it."""
    ids = inputs["input_ids"] if "input_ids" in inputs else inputs["prompt_ids"]
    return len(ids)


def count_labels(inputs: Any) -> int:
    """Tokens of a batch of rows that are trained."""
    is_label = inputs["labels"][:, 1:] != IGNORED
    return int(is_label.sum())


def count_chosen(inputs: Any) -> int:
    """Tokens of what is chosen in a batch of pairs."""
    chosen, _ = inputs["completion_mask"][:, 1:].chunk(2)
    return int(chosen.sum())


def split_step(inputs: Any, size: int, *, pairs: bool = False) -> Iterator[Any]:
    """Split a step's batch into passes of whole replies, without the columns in which all is padding.

    Args:
        inputs: Tensors and lists by name, with a row for each reply.
        size: Replies in a pass; the last one may have fewer.
        pairs: The rows are first all that is chosen, then all that is rejected.
    """
    rows = count_rows(inputs)
    groups = 2 if pairs else 1
    replies = rows // groups
    for start in range(0, replies, size):
        chosen = torch.arange(start, min(start + size, replies))
        both = torch.cat([chosen + group * replies for group in range(groups)])
        part = {}
        for name, value in inputs.items():
            part[name] = value
            if isinstance(value, list):
                part[name] = value[start : start + size]
            elif torch.is_tensor(value) and value.ndim:
                index = both if len(value) == rows else chosen
                part[name] = value[index.to(value.device)]
        if "attention_mask" in part:
            _trim(part)
        yield part


def _trim(part: dict[str, Any]) -> None:
    """Cut columns off in which all rows are padding, on the right."""
    width = int(part["attention_mask"].sum(1).max())
    for name, value in part.items():
        if torch.is_tensor(value) and value.ndim == 2:
            part[name] = value[:, :width]


def set_checkpointing(trainer: Any) -> None:
    """Let the trainer's model compute activations again in the backward pass, or keep them, as the plan says."""
    is_on = trainer.plan.gradient_checkpointing
    # Their names since transformers 5.23, and before.
    for name in ("activation_checkpointing", "gradient_checkpointing"):
        if hasattr(trainer.model, f"{name}_enable"):
            # Trainer.train would turn it on.
            setattr(trainer.args, name, is_on)
            getattr(trainer.model, f"{name}_enable" if is_on else f"{name}_disable")()
            return


def explain_too_small(problem: str, replies: int = 1) -> str:
    """Say that not even a single reply fits into memory, or all that a loss has to see together."""
    advice = "method.name: qlora, a smaller training.max_length, a smaller base or a larger device"
    if replies > 1:
        advice = f"a smaller training.replies_per_step, {advice}"
    amount = format_count(replies, "reply", "replies")
    return f"this device has too little memory for {amount} at a time ({problem}); use {advice}"


def choose_plan(trainer: Any) -> None:
    """Try the heaviest pass of the first epoch forward and backward, and choose the plan with the fastest step.

    Without checkpointing first; passes are halved until they fit. Where a whole step fits, it is taken.

    Args:
        trainer: A trainer whose data are rows; its plan is where to begin, and becomes what was chosen.

    Raises:
        RecipeError: When one reply does not fit.
    """
    first = trainer.plan
    # What went before, such as a mix of refusals, may have left a model behind.
    trainer._free_memory()
    options = [first.gradient_checkpointing]
    if first.may_checkpoint:
        options.append(True)
    trials: list[tuple[float, PassPlan]] = []
    problem = ""
    for is_on in options:
        size = first.replies_per_pass
        while size:
            plan = PassPlan(first.share, size, is_on, first.may_checkpoint and not is_on)
            seconds, failure = _try_plan(trainer, plan)
            if not failure:
                trials.append((seconds, plan))
                break
            problem = failure
            size = size // 2 if splits_steps(trainer.training) else 0
        if size == first.replies_per_pass:
            break
    if not trials:
        raise RecipeError(explain_too_small(problem, trainer.plan.replies_per_pass))
    trainer.step_seconds, trainer.plan = min(trials, key=lambda trial: trial[0])
    set_checkpointing(trainer)


def _try_plan(trainer: Any, plan: PassPlan) -> tuple[float, str]:
    """Time a step of a plan's heaviest passes; with the reason where it runs out of memory.

    Of several processes, each tries it by itself, so that none waits for one that fails; then all take the worst.
    """
    trainer.plan = plan
    set_checkpointing(trainer)
    part = _find_heaviest(trainer)
    before = copy.deepcopy(trainer._metrics)
    tokens = trainer._total_train_tokens
    problems: list[str] = []
    seconds = math.inf
    with note_out_of_memory(problems):
        seconds = _time_passes(trainer, part)
    trainer._metrics, trainer._total_train_tokens = before, tokens
    trainer._free_memory()
    problem = "".join(problems)
    seconds, problem = max(gather_object([(seconds, problem)]))
    return seconds * plan.passes, problem


def _time_passes(trainer: Any, part: Any) -> float:
    """Time the second of two passes, next to room for what the optimizer and DDP keep; the first one compiles."""
    device = trainer.args.device
    devices = [device] if device.type == "cuda" else []
    trained = [weight for weight in trainer.model.parameters() if weight.requires_grad]
    weight_bytes = _count_kept_bytes(trainer.args.optim.value)
    if trainer.accelerator.num_processes > 1:
        # DDP's copy of the gradient.
        weight_bytes += 4
    room_bytes = weight_bytes * sum(weight.numel() for weight in trained)
    room = torch.empty(room_bytes, dtype=torch.uint8, device=device)
    with torch.random.fork_rng(devices), trainer.accelerator.autocast(), _leave_processes():
        _time_pass(trainer, part)
        seconds = _time_pass(trainer, part)
    del room
    return seconds


def _count_kept_bytes(optimizer: str) -> int:
    """Count the bytes on the device that an optimizer keeps for each weight; none where that is not known."""
    if "paged" in optimizer or "adam" not in optimizer:
        return 0
    if "8bit" in optimizer:
        return 2
    return 8


@contextmanager
def _leave_processes() -> Iterator[None]:
    """Let accelerate take this process for the only one: what a trainer gathers is its own."""
    state = PartialState()
    kind = state.distributed_type
    state.distributed_type = DistributedType.NO
    try:
        yield
    finally:
        state.distributed_type = kind


def _time_pass(trainer: Any, part: Any) -> float:
    trainer.model.train()
    is_cuda = trainer.args.device.type == "cuda"
    began = time.perf_counter()
    trainer.take_pass(trainer.model, part, part, None)
    if is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - began


def _find_heaviest(trainer: Any) -> Any:
    """Find the pass of most tokens in the heaviest steps of the first epoch, after folding."""
    plan, training = trainer.plan, trainer.training
    if not trainer.heaviest_steps:
        rows = trainer.train_dataset
        epoch = min(len(rows), trainer.steps_per_epoch * plan.share * trainer.accelerator.num_processes)
        tokens = {}
        for start in range(0, epoch, plan.share):
            numbers = range(start, min(start + plan.share, epoch))
            tokens[numbers] = _count_tokens(_collate(trainer, numbers), training)
        trainer.heaviest_steps = sorted(tokens, key=tokens.__getitem__, reverse=True)[:_HEAVIEST]
    parts: list[Any] = []
    for numbers in trainer.heaviest_steps:
        batch = _collate(trainer, numbers)
        parts += split_step(batch, plan.replies_per_pass, pairs=training.trainer == "dpo")
    return max(parts, key=partial(_count_tokens, training=training))


def _collate(trainer: Any, numbers: Sequence[int]) -> Any:
    rows = trainer.train_dataset.__getitems__(list(numbers))
    return trainer.data_collator(rows)


def _count_tokens(part: Any, training: TrainingRecipe) -> int:
    if training.shared_prefix:
        return count_folded(part["input_ids"], part["attention_mask"])
    tokens: int = part["input_ids"].numel()
    return tokens
