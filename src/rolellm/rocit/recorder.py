"""What is seen of a training while it runs: losses, ``metrics.jsonl``, and its progress.

This module imports transformers at its head, because it subclasses its callback; import it inside functions.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from rolellm.jsonl import JsonlAppender, write_jsonl
from rolellm.progress import Progress
from rolellm.rocit.examples import Index

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
