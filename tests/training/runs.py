"""What a run of training left, and what ends it."""

import json
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from rolellm.core.jsonl import read_jsonl


def read_lines(run: Path) -> list[dict[str, Any]]:
    """The lines of a run's metrics, one for each step."""
    return [line for _, line in read_jsonl(run / "metrics.jsonl")]


def read_object(run: Path, name: str = "manifest.json") -> dict[str, Any]:
    """The manifest of a run, or another of its JSON files."""
    content: dict[str, Any] = json.loads((run / name).read_text(encoding="utf-8"))
    return content


class Interrupt(TrainerCallback):  # type: ignore[misc]  # transformers ships no types
    """Ctrl-C at the end of a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == self.step:
            raise KeyboardInterrupt
