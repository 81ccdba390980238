"""What is seen of a training while it runs: losses, ``metrics.jsonl``, its progress, and numbers that are not finite.

This module imports torch and transformers at its head, because it subclasses a callback; import it inside functions.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import TrainerCallback

from rolellm.core.errors import DivergedError, RoleLLMError
from rolellm.core.jsonl import JsonlAppender, write_jsonl
from rolellm.core.progress import open_bar
from rolellm.core.text import join_names
from rolellm.training.examples import Example
from rolellm.training.rows import NAMED
from rolellm.training.run_folder import list_checkpoints, mark_complete, remove_checkpoints, remove_foreign_files
from rolellm.training.schedule import EMPTY, Schedule


class Recorder(TrainerCallback):  # type: ignore[misc]  # transformers ships no types
    """Writes what is logged to ``metrics.jsonl``, and shows progress on standard error.

    Args:
        label: What is being trained, for people.
        metrics: The file, or ``None`` to write none.
        steps_per_epoch: Optimizer steps per epoch.
    """

    def __init__(self, label: str, metrics: Path | None, *, steps_per_epoch: int) -> None:
        self._label, self._file, self._steps_per_epoch = label, metrics, steps_per_epoch
        self._metrics: JsonlAppender | None = None
        self._bar: Any = None
        # Of this call, and of the whole run: an earlier part of it counts for the second.
        self._begun = self._start = 0.0
        self._read = self._written = 0

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Start the clock, the progress and the file; steps of an earlier part are as their checkpoint has them."""
        steps = [entry for entry in state.log_history if "loss" in entry]
        last: dict[str, Any] = {}
        if steps:
            last = steps[-1]
        self._begun = time.monotonic()
        self._start = self._begun - last.get("seconds", 0.0)
        self._read = last.get("num_tokens", 0)
        if not state.is_world_process_zero:
            return
        if self._file is not None:
            write_jsonl(self._file, self._take_lines(state))
            self._metrics = JsonlAppender(self._file)
        self._bar = open_bar(self._label, state.max_steps, done=state.global_step, unit="steps")

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        """Note the time of a step, and show it."""
        if not logs or "loss" not in logs:
            return
        entry = state.log_history[-1]
        # Checkpoints keep it there, so that the file can be written again from any of them.
        entry["seconds"] = round(self.seconds, 3)
        if self._bar is not None:
            tokens = entry.get("num_tokens", 0) - self._read
            speed = tokens / (time.monotonic() - self._begun)
            epoch = state.global_step / self._steps_per_epoch
            loss, rate = entry["loss"], entry.get("learning_rate", 0.0)
            figures = f"loss {loss:.3f}, lr {rate:.1e}, epoch {epoch:.2f}, {speed:.0f} tokens/s"
            self._bar.set_postfix_str(figures, refresh=False)
            self._bar.update(state.global_step - self._bar.n)

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Write the step before this one, which is evaluated by now."""
        if self._metrics is not None:
            self._metrics.append(self._take_lines(state))

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Write the last step."""
        self.on_step_begin(args, state, control)

    @property
    def seconds(self) -> float:
        """Wall time of training so far, that of an earlier part included."""
        return time.monotonic() - self._start

    def close(self) -> None:
        """End the progress and close the file, whether training ended well or not."""
        if self._bar is not None:
            self._bar.close()
        if self._metrics is not None:
            self._metrics.close()

    def _take_lines(self, state: Any) -> list[dict[str, Any]]:
        """Make the lines of steps that were logged since the last call, each with its evaluation."""
        entries = state.log_history[self._written :]
        self._written = len(state.log_history)
        lines: dict[int, dict[str, Any]] = {}
        for entry in entries:
            step = entry["step"]
            if "loss" in entry:
                epoch = round(step / self._steps_per_epoch, 4)
                lines[step] = {"step": step, **entry, "epoch": epoch}
            elif "eval_loss" in entry and step in lines:
                lines[step] = {**entry, **lines[step]}
        return list(lines.values())


class StepCheck(TrainerCallback):  # type: ignore[misc]  # transformers ships no types
    """Stops training at the first step whose loss or gradient is not finite, and names the rows.

    It also compares the trainer's count of tokens with the schedule's, so that an order of rows that is not the
    schedule's ends the run.

    Args:
        trainer: The trainer.
        examples: What is trained on.
        schedule: Its order.
    """

    def __init__(self, trainer: Any, examples: Sequence[Example], schedule: Schedule) -> None:
        self._trainer, self._examples, self._schedule = trainer, examples, schedule
        lengths = np.asarray([example.length for example in examples])
        self._read = schedule.count_tokens(lengths, empty=1)
        # Trainers of pairs and of sampled replies count otherwise.
        self._has_rows = examples[0].row is None
        self._first = 0

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Note where this call begins: the trainer counts from there."""
        self._first = state.global_step

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Check the gradient before the weights are updated; DeepSpeed has none to show then.

        Raises:
            DivergedError: On every process, when it is not finite on any.
        """
        weights = self._trainer.model.parameters()
        gradients = [_get_local_part(weight.grad) for weight in weights if weight.grad is not None]
        norm = torch.zeros((), device=args.device)
        if gradients:
            norm = torch.nn.utils.get_total_norm(gradients)
        norms = self._trainer.accelerator.gather(norm.reshape(1))
        if not all(map(math.isfinite, norms.tolist())):
            raise self._describe_divergence("gradient", float(norm), state.global_step + 1)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        """Check the loss and the norm of the gradient, and the count of tokens.

        Raises:
            DivergedError: When one is not finite.
            RoleLLMError: When the count differs.
        """
        if not logs or "loss" not in logs:
            return
        for name, value in (("loss", logs["loss"]), ("gradient", logs.get("grad_norm"))):
            if value is not None and not math.isfinite(value):
                raise self._describe_divergence(name, float(value), state.global_step)
        if self._has_rows and "num_tokens" in logs:
            read = int(self._read[state.global_step])
            expected = read - self._read[self._first]
            if round(logs["num_tokens"]) != expected:
                raise RoleLLMError(
                    f"step {state.global_step} of transformers {version('transformers')} with trl {version('trl')} did "
                    "not train the rows of the schedule. Training stopped; install versions that rolellm is tested "
                    'with: pip install "rolellm[train]"'
                )
            # From the beginning of the run, whatever it was resumed from.
            logs["num_tokens"] = state.log_history[-1]["num_tokens"] = read

    def _describe_divergence(self, name: str, value: float, step: int) -> DivergedError:
        size = self._schedule.step_size
        end = step * size
        replies = self._schedule.order[end - size : end]
        numbers = replies[replies != EMPTY].tolist()
        guilty = self._find_guilty(numbers)
        losses = [loss for loss in guilty.values() if not math.isfinite(loss)]
        if losses:
            name, value = "loss", losses[0]
        row_ids = [self._examples[number].row_id for number in guilty or numbers]
        rows = join_names(row_ids, NAMED)
        # DeepSpeed updates at the end of the backward pass.
        when = "after" if self._trainer.is_deepspeed_enabled else "before"
        rate = self._trainer.args.learning_rate
        return DivergedError(
            f"the {name} is {value} at step {step}, on rows {rows}; training stopped {when} the weights were updated, "
            f"and checkpoints and metrics up to there are kept. Lower training.learning_rate (it is {rate:g}), set "
            "training.bf16: false, or look at these rows"
        )

    def _find_guilty(self, numbers: list[int]) -> dict[int, float]:
        """The examples whose own loss or gradient is not finite, with the loss; the model's gradients are lost.

        Every process looks at all of a step's, so that they need not tell each other.
        """
        trainer = self._trainer
        # Under sharding a pass needs all processes; a pair or a group of samples is no row of its own.
        if trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled or not self._has_rows:
            return {}
        guilty = {}
        for number in numbers:
            trainer.model.zero_grad()
            batch = trainer.data_collator([{"example": number}])
            for name, tensor in batch.items():
                batch[name] = tensor.to(trainer.args.device)
            with trainer.compute_loss_context_manager():
                loss = trainer.compute_loss(trainer.model, batch)
            torch.autograd.backward(loss)
            weights = trainer.model.parameters()
            gradients = [weight.grad for weight in weights if weight.grad is not None]
            norm = torch.nn.utils.get_total_norm(gradients)
            value = float(loss.detach())
            if not math.isfinite(value) or not math.isfinite(norm):
                guilty[number] = value
        return guilty


def _get_local_part(gradient: torch.Tensor) -> torch.Tensor:
    """This process's part of a gradient that several hold together."""
    return gradient.to_local() if hasattr(gradient, "to_local") else gradient


class CheckpointMarker(TrainerCallback):  # type: ignore[misc]  # transformers ships no types
    """Marks each checkpoint as complete once all processes have written their part, removes old ones; stops on request.

    GRPO trains several steps on the same sampled replies, which TRL keeps out of checkpoints. A checkpoint or a stop
    that falls between such steps waits for the last of them.

    Args:
        trainer: The trainer.
        limit: Number of checkpoints to keep.
        facts: As for `rolellm.training.run_folder.mark_complete`.
        request: Looked at after each step; what one process was asked, all do.
    """

    def __init__(self, trainer: Any, limit: int, facts: Mapping[str, Any], request: threading.Event) -> None:
        self._trainer, self._accelerator = trainer, trainer.accelerator
        self.stopped = False
        self._is_due = False
        self._limit = limit
        self._facts = facts
        self._request = request

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Go by this run's schedule: the state of a checkpoint brings the one that it was written under."""
        state.save_steps, state.eval_steps = args.save_steps, args.eval_steps

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Save where a checkpoint is due, and end the run if any process was asked to."""
        if self._request.is_set():
            self._accelerator.set_trigger()
        is_stop = self._accelerator.check_trigger()
        self._is_due = self._is_due or control.should_save or is_stop
        control.should_save = False
        if self._is_due and self._has_used_samples(args):
            self._is_due = False
            control.should_save = True
            if is_stop:
                self.stopped = control.should_training_stop = True

    def _has_used_samples(self, args: Any) -> bool:
        """Tell whether the next step samples anew; always so where nothing is sampled."""
        if not hasattr(args, "steps_per_generation"):
            return True
        steps = args.steps_per_generation * args.num_iterations
        return bool(self._trainer._step % steps == 0)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Mark the checkpoint that was just written."""
        self._accelerator.wait_for_everyone()
        if state.is_world_process_zero:
            run = Path(args.output_dir)
            folder = run / f"checkpoint-{state.global_step}"
            remove_foreign_files(folder)
            mark_complete(folder, self._facts)
            # Not by the trainer, which removes an old one before the new one is complete.
            remove_checkpoints(list_checkpoints(run)[self._limit :])
        self._accelerator.wait_for_everyone()
