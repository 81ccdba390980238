"""What is seen of a training while it runs: losses, ``metrics.jsonl``, and a progress bar.

This module imports transformers at its head, because it subclasses its callback; import it inside functions.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from transformers import TrainerCallback

from rolellm.errors import DataError
from rolellm.jsonl import JsonlAppender, read_jsonl, write_jsonl


class Recorder(TrainerCallback):  # type: ignore[misc]  # transformers ships no types
    """Writes what is logged to ``metrics.jsonl``, and shows a progress bar on standard error.

    Args:
        label: Shown beside the bar.
        metrics: The file, or ``None`` to write none.
        steps_per_epoch: Optimiser steps an epoch.
        done: Steps that an earlier part of the same run did; what the file says of later ones is taken out.
    """

    def __init__(self, label: str, metrics: Path | None, *, steps_per_epoch: int, done: int = 0) -> None:
        self._file = metrics
        self._metrics: JsonlAppender | None = None
        self._steps_per_epoch = steps_per_epoch
        self._done = done
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("loss {task.fields[loss]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True, force_jupyter=False),
        )
        self._task = self._progress.add_task(label, total=None, loss="–")
        self._start = 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Start the clock, the bar and the file.

        Raises:
            DataError: When the file lacks steps that are done.
        """
        self._start = time.monotonic()
        if not state.is_world_process_zero:
            return
        if self._file is not None:
            self._take_up(self._file)
            self._metrics = JsonlAppender(self._file)
        self._progress.update(self._task, total=state.max_steps, completed=self._done)
        self._progress.start()

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        """Take down a step."""
        if not logs or "loss" not in logs:
            return
        loss = float(logs["loss"])
        if state.is_world_process_zero:
            self._progress.update(self._task, completed=state.global_step, loss=f"{loss:.4f}")
        if self._metrics is not None:
            kept: dict[str, Any] = {key: logs[key] for key in ("learning_rate", "grad_norm") if key in logs}
            epoch = round(state.global_step / self._steps_per_epoch, 4)
            item = {"step": state.global_step, "loss": loss, **kept, "epoch": epoch}
            self._metrics.append([{**item, "seconds": round(self.seconds, 3)}])

    @property
    def seconds(self) -> float:
        """Wall time of training so far; on the first process, that of an earlier part included."""
        return time.monotonic() - self._start

    def close(self) -> None:
        """Take the bar away and close the file, whether training ended well or not."""
        self._progress.stop()
        if self._metrics is not None:
            self._metrics.close()

    def _take_up(self, file: Path) -> None:
        """Keep the lines of the steps that are done; the clock goes on from the last."""
        JsonlAppender(file).close()  # It takes a line away that a kill cut off.
        kept = [item for _, item in read_jsonl(file) if item.get("step", 0) <= self._done]
        if [item.get("step") for item in kept] != list(range(1, self._done + 1)):
            raise DataError(
                f"expected steps 1 to {self._done}, one a line, as they are done; bring the file back, or --overwrite",
                path=file,
            )
        write_jsonl(file, kept)
        self._start -= float(kept[-1]["seconds"]) if kept else 0.0
