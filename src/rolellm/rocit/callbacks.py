"""What is seen of a training while it runs: losses, ``metrics.jsonl``, and its progress.

This module imports transformers at its head, because it subclasses its callback; import it inside functions.
"""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from transformers import TrainerCallback

from rolellm.core.errors import RoleLLMError, StoppedShortError
from rolellm.core.files import NO_ROOM
from rolellm.core.jsonl import JsonlAppender, write_jsonl
from rolellm.rocit import checkpoints
from rolellm.rocit.packing.examples import Index
from rolellm.rocit.recipe import OutputRecipe
from rolellm.rocit.run_folder import RECIPE
from rolellm.runtime.progress import Progress

# Of what the loop logs a step.
_KEPT = ("step", "loss", "learning_rate", "grad_norm", "epoch", "seconds")


class Recorder(TrainerCallback):  # type: ignore[misc]  # transformers ships no types
    """Writes what is logged to ``metrics.jsonl``, and shows progress on standard error.

    Args:
        label: What is being trained, for people.
        metrics: The file, or ``None`` to write none.
        steps_per_epoch: Optimiser steps an epoch.
        trained: ``(steps + 1,)``: trained tokens up to each optimiser step.
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

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Start the clock, the progress and the file; steps of an earlier part are as their checkpoint has them."""
        done = [entry for entry in state.log_history if "loss" in entry]
        self._begun = time.monotonic()
        self._start = self._begun - (done[-1].get("seconds", 0.0) if done else 0.0)
        self._first = state.global_step
        if not state.is_world_process_zero:
            return
        if self._file is not None:
            write_jsonl(self._file, map(self._line, done))
            self._metrics = JsonlAppender(self._file)
        self._progress.update(done=state.global_step)
        self._progress.start()

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        """Take down a step."""
        if not logs or "loss" not in logs:
            return
        entry = state.log_history[-1]
        # Checkpoints keep it there, so that the file can be written again from any of them.
        entry["seconds"] = round(self.seconds, 3)
        if self._metrics is not None:
            self._metrics.append([self._line(entry)])
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
        if self._metrics is not None:
            self._metrics.close()

    def _line(self, entry: dict[str, Any]) -> dict[str, Any]:
        line = {key: entry[key] for key in _KEPT if key in entry}
        return line | {"epoch": round(entry["step"] / self._steps_per_epoch, 4)}


# --- Stopping a run on request: the step is finished, a checkpoint is written, and the way to go on is named


# Ctrl-C, and what clusters send some time before they kill.
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
# How libraries in C++ and Rust say that a write failed: torch gives no reason, safetensors the system's number.
_TORCH = re.compile(r"PytorchStreamWriter|unexpected pos")
_NUMBER = re.compile(r"os error ([0-9]+)")
_HEARD = b"\nstopping after this step, with a checkpoint%b\n"


class StopRequest:
    """Whether this process was asked to stop."""

    def __init__(self) -> None:
        self.made = False


@contextmanager
def heeding(*, alone: bool) -> Iterator[StopRequest]:
    """Within the block, a request to stop (Ctrl-C, SIGTERM) is noted and interrupts nothing.

    Args:
        alone: A second request interrupts at once. Not so where several processes train together: a launcher passes
            on what the terminal has sent already, and one that leaves early keeps the others waiting.

    Yields:
        Where the request is noted. Outside the main thread, which alone hears signals, none ever is.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return

    def note(_number: int, _frame: FrameType | None) -> None:
        if request.made and alone:
            raise KeyboardInterrupt
        if not request.made:
            # Not print: a signal may come in the middle of another one.
            os.write(2, _HEARD % (b"; once more stops at once" if alone else b""))
        request.made = True

    before = {number: signal.signal(number, note) for number in _SIGNALS}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)


@contextmanager
def stopped_short(run: Path, *, again: str, resume: str) -> Iterator[None]:
    """Turn an interrupt or a full disk within the block into an error that says what is kept and how to go on.

    Args:
        run: The run's folder.
        again: The command that begins as this one did, for as long as nothing was done.
        resume: The command that goes on.

    Raises:
        StoppedShortError: On KeyboardInterrupt, and on a write that found no room.
    """
    before = _begun(run)
    try:
        yield
    except (KeyboardInterrupt, Exception) as error:
        full = _found_no_room(error)
        if not (full or isinstance(error, KeyboardInterrupt)):
            raise
        room = f"no room left on the disk of {run}; free some, then resume: " if full else ""
        if _begun(run) == before:
            raise StoppedShortError(f"{room}nothing was done yet", resume=again) from None
        step = checkpoints.last_step(run)
        kept = (
            f"step {step} is the last that {run} keeps" if step else f"{run} has no checkpoint yet, so it begins anew"
        )
        raise StoppedShortError(f"{room}{kept}", resume=resume) from None


def _found_no_room(error: BaseException) -> bool:
    """Whether an error, or one that it came from, says that a file could not be written for want of room."""
    if isinstance(error, RoleLLMError):
        return False  # It has its own words.
    number = error.errno if isinstance(error, OSError) else None
    if numbered := _NUMBER.search(str(error)):
        number = int(numbered[1])
    if number in NO_ROOM or _TORCH.search(str(error)):
        return True
    cause = error.__cause__ or error.__context__
    return cause is not None and _found_no_room(cause)


def _begun(run: Path) -> int:
    """Tells one beginning of a run, resumed ones included, from another."""
    recipe = run / RECIPE
    return recipe.stat().st_mtime_ns if recipe.is_file() else 0


# --- When a checkpoint is written besides the schedule, and when it counts


class Sealer(TrainerCallback):  # type: ignore[misc]  # transformers ships no types
    """Seals each checkpoint once all processes have written their part, then lets old ones go; stops on request.

    Args:
        accelerator: That of the trainer.
        output: How many checkpoints stay.
        facts: As for `rolellm.rocit.checkpoints.seal`.
        request: Looked at after each step; what one process was asked, all do.
    """

    def __init__(self, accelerator: Any, output: OutputRecipe, facts: Mapping[str, Any], request: StopRequest) -> None:
        self._accelerator = accelerator
        self._output = output
        self._facts = facts
        self._request = request

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Go by this run's schedule: the state of a checkpoint brings the one that it was written under."""
        state.save_steps = args.save_steps

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """End the run here with a checkpoint, if any process was asked to."""
        if self._request.made:
            self._accelerator.set_trigger()
        if self._accelerator.check_trigger():
            control.should_save = control.should_training_stop = True

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Seal the checkpoint that was just written."""
        self._accelerator.wait_for_everyone()
        if state.is_world_process_zero:
            run = Path(args.output_dir)
            folder = run / f"checkpoint-{state.global_step}"
            # A pickle of our own settings, which the recipe holds; unpickling a stranger's runs code.
            (folder / "training_args.bin").unlink(missing_ok=True)
            checkpoints.seal(folder, state.global_step, self._facts)
            checkpoints.keep(run, self._output.keep_checkpoints)
        self._accelerator.wait_for_everyone()
