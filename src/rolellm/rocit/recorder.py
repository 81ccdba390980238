"""What is seen of a training while it runs: losses, ``metrics.jsonl``, a progress bar, and a stop when numbers end.

This module imports transformers at its head, because it subclasses its callback; import it inside functions.
"""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from transformers import TrainerCallback

from rolellm.errors import RoleLLMError
from rolellm.jsonl import JsonlAppender


class DivergedError(RoleLLMError):
    """Training stopped because its loss or its gradient is no number any more."""


class Recorder(TrainerCallback):  # type: ignore[misc]  # transformers ships no types
    """Keeps the losses, writes them to ``metrics.jsonl``, and shows a progress bar on standard error.

    Args:
        label: Shown beside the bar.
        metrics: The file, or ``None`` to write none.

    Attributes:
        losses: The loss of each optimiser step so far, in nats a trained token.
    """

    def __init__(self, label: str, metrics: Path | None) -> None:
        self.losses: list[float] = []
        self._file = metrics
        self._metrics: JsonlAppender | None = None
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("loss {task.fields[loss]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        )
        self._task = self._progress.add_task(label, total=None, loss="–")
        self._start = 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Start the clock, the bar and the file."""
        self._start = time.monotonic()
        if not state.is_world_process_zero:
            return
        if self._file is not None:
            self._metrics = JsonlAppender(self._file)
        self._progress.update(self._task, total=state.max_steps)
        self._progress.start()

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        """Take down a step.

        Raises:
            DivergedError: When its gradient is NaN or infinite.
        """
        if not logs or "loss" not in logs:
            return
        loss = float(logs["loss"])
        self.losses.append(loss)
        if state.is_world_process_zero:
            self._progress.update(self._task, completed=state.global_step, loss=f"{loss:.4f}")
        if self._metrics is not None:
            kept: dict[str, Any] = {key: logs[key] for key in ("learning_rate", "grad_norm", "epoch") if key in logs}
            seconds = round(time.monotonic() - self._start, 3)
            self._metrics.append([{"step": state.global_step, "loss": loss, **kept, "seconds": seconds}])
        if "grad_norm" in logs:
            check_finite("gradient", float(logs["grad_norm"]), state.global_step, args.learning_rate)

    def close(self) -> None:
        """Take the bar away and close the file, whether training ended well or not."""
        self._progress.stop()
        if self._metrics is not None:
            self._metrics.close()


def check_finite(name: str, value: float, step: int, learning_rate: float) -> None:
    """Stop when a number of a step is none.

    Raises:
        DivergedError: When ``value`` is NaN or infinite.
    """
    if not math.isfinite(value):
        raise DivergedError(
            f"the {name} is {value} at step {step}, so training stopped; checkpoints and metrics up to there are kept. "
            f"Lower training.learning_rate (it is {learning_rate:g}), or train in precision: fp32"
        )
