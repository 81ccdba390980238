"""A recipe that trains in seconds, what its run left, and what ends it."""

import json
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from rolellm.core.jsonl import read_jsonl
from rolellm.training.recipe import Recipe
from rolellm.training.recipe_files import load_recipe

MINI: dict[str, Any] = {
    "data": {"config": "sample", "max_rows": 12},
    "base": {
        "build": "tiny-llama",
        "tiny": {"hidden_size": 16, "intermediate_size": 32, "layers": 1, "heads": 2, "vocab_size": 700},
        "warm": {"alone": 1, "in_role": 1},
    },
    "method": {"name": "full"},
    "training": {
        "max_steps": 3,
        "learning_rate": 1e-3,
        "replies_per_step": 4,
        "max_length": 512,
        "use_cpu": True,
        "save_steps": 2,
    },
    "output": {},
}


def make_recipe(folder: Path, **changes: Any) -> Recipe:
    """The mini recipe with a run in a folder; changes set keys (`training__max_steps=5`) or whole sections."""
    sections: dict[str, Any] = {section: dict(values) for section, values in MINI.items()}
    sections["output"] = {"dir": str(folder / "run")}
    for key, value in changes.items():
        section, _, name = key.partition("__")
        if name:
            sections[section][name] = value
        else:
            sections[section] = value
    return load_recipe(sections)


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
