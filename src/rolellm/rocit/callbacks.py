"""What is seen of a training while it runs: losses, ``metrics.jsonl``, and its progress.

This module imports transformers at its head, because it subclasses its callback; import it inside functions.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from transformers import TrainerCallback

from rolellm.core.jsonl import JsonlAppender, write_jsonl
from rolellm.rocit import checkpoints
from rolellm.rocit.packing.examples import Index
from rolellm.runtime.interrupts import handling
from rolellm.runtime.progress import Progress

# Of what the loop logs a step.
_EVALUATED = ("eval_loss", "eval_mean_token_accuracy", "eval_entropy")
_KEPT = (
    *("step", "loss", "learning_rate", "grad_norm", "mean_token_accuracy", "entropy", "num_tokens", "epoch", "seconds"),
    *_EVALUATED,
)


class Recorder(TrainerCallback):  # type: ignore[misc]  # transformers ships no types
    """Writes what is logged to ``metrics.jsonl``, and shows progress on standard error.

    Args:
        label: What is being trained, for people.
        metrics: The file, or ``None`` to write none.
        steps_per_epoch: Optimizer steps per epoch.
        trained: ``(steps + 1,)``: trained tokens up to each optimizer step.
    """

    def __init__(self, label: str, metrics: Path | None, *, steps_per_epoch: int, trained: Index) -> None:
        self._file = metrics
        self._metrics: JsonlAppender | None = None
        self._steps_per_epoch = steps_per_epoch
        self._trained = trained
        self._progress = Progress(label, len(trained) - 1)
        # Of this call, and of the whole run: an earlier part of it counts for the second.
        self._begun = self._start = 0.0
        self._first = 0
        # A step that is evaluated is written with its evaluation.
        self._waiting: dict[str, Any] | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Start the clock, the progress and the file; steps of an earlier part are as their checkpoint has them."""
        done = [entry for entry in state.log_history if "loss" in entry]
        self._begun = time.monotonic()
        self._start = self._begun - (done[-1].get("seconds", 0.0) if done else 0.0)
        self._first = state.global_step
        if not state.is_world_process_zero:
            return
        if self._file is not None:
            evaluated = {entry["step"]: entry for entry in state.log_history if "eval_loss" in entry}
            write_jsonl(self._file, (self._line(entry, evaluated.get(entry["step"])) for entry in done))
            self._metrics = JsonlAppender(self._file)
        self._progress.update(done=state.global_step)
        self._progress.start()

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        """Take down a step."""
        if logs and "eval_loss" in logs:
            self._append(self._waiting, logs)
        if not logs or "loss" not in logs:
            return
        entry = state.log_history[-1]
        # Checkpoints keep it there, so that the file can be written again from any of them.
        entry["seconds"] = round(self.seconds, 3)
        if control.should_evaluate:
            self._waiting = entry
        else:
            self._append(entry)
        speed = (self._trained[state.global_step] - self._trained[self._first]) / (time.monotonic() - self._begun)
        self._progress.update(
            done=state.global_step,
            state=f"loss {entry['loss']:.3f}, lr {entry.get('learning_rate', 0.0):.1e}, "
            f"epoch {state.global_step / self._steps_per_epoch:.2f}, {speed:.0f} tokens/s",
        )

    @property
    def seconds(self) -> float:
        """Wall time of training so far, that of an earlier part included."""
        return time.monotonic() - self._start

    def close(self) -> None:
        """End the progress and close the file, whether training ended well or not."""
        self._progress.stop()
        self._append(self._waiting)
        if self._metrics is not None:
            self._metrics.close()

    def _append(self, entry: dict[str, Any] | None, evaluated: dict[str, Any] | None = None) -> None:
        self._waiting = None
        if self._metrics is not None and entry is not None:
            self._metrics.append([self._line(entry, evaluated)])

    def _line(self, entry: dict[str, Any], evaluated: dict[str, Any] | None = None) -> dict[str, Any]:
        known = {key: value for key, value in (evaluated or {}).items() if key in _EVALUATED} | entry
        line = {key: known[key] for key in _KEPT if key in known}
        return line | {"epoch": round(entry["step"] / self._steps_per_epoch, 4)}


_HEARD = b"\nstopping after this step, with a checkpoint%b\n"


@contextmanager
def heeding(*, alone: bool) -> Iterator[threading.Event]:
    """Within the block, a request to stop (Ctrl-C, SIGTERM) is noted and interrupts nothing.

    Args:
        alone: A second request interrupts at once. Not so where several processes train together: a launcher passes
            on what the terminal has sent already, and one that leaves early keeps the others waiting.

    Yields:
        Where the request is noted. Outside the main thread, which alone hears signals, none ever is.
    """
    request = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return

    def note(_number: int, _frame: FrameType | None) -> None:
        if request.is_set() and alone:
            raise KeyboardInterrupt
        if not request.is_set():
            # Not print: a signal may come in the middle of another one.
            os.write(2, _HEARD % (b"; once more stops at once" if alone else b""))
        request.set()

    with handling(note):
        yield request


class Sealer(TrainerCallback):  # type: ignore[misc]  # transformers ships no types
    """Seals each checkpoint once all processes have written their part, then lets old ones go; stops on request.

    Args:
        accelerator: That of the trainer.
        limit: Number of checkpoints to keep.
        facts: As for `rolellm.rocit.checkpoints.seal`.
        request: Looked at after each step; what one process was asked, all do.
    """

    def __init__(self, accelerator: Any, limit: int, facts: Mapping[str, Any], request: threading.Event) -> None:
        self._accelerator = accelerator
        self.stopped = False
        self._limit = limit
        self._facts = facts
        self._request = request

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Go by this run's schedule: the state of a checkpoint brings the one that it was written under."""
        state.save_steps, state.eval_steps = args.save_steps, args.eval_steps

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """End the run here with a checkpoint, if any process was asked to."""
        if self._request.is_set():
            self._accelerator.set_trigger()
        if self._accelerator.check_trigger():
            self.stopped = control.should_save = control.should_training_stop = True

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Seal the checkpoint that was just written."""
        self._accelerator.wait_for_everyone()
        if state.is_world_process_zero:
            run = Path(args.output_dir)
            folder = run / f"checkpoint-{state.global_step}"
            # A pickle of our own settings, which the recipe holds; unpickling a stranger's runs code.
            (folder / "training_args.bin").unlink(missing_ok=True)
            checkpoints.seal(folder, state.global_step, self._facts)
            checkpoints.keep(run, self._limit)
        self._accelerator.wait_for_everyone()
