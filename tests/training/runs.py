"""What a run of training left."""

import json
from pathlib import Path
from typing import Any

from rolellm.core.jsonl import read_jsonl


def read_lines(run: Path) -> list[dict[str, Any]]:
    """The lines of a run's metrics, one for each step."""
    return [line for _, line in read_jsonl(run / "metrics.jsonl")]


def read_object(run: Path, name: str = "manifest.json") -> dict[str, Any]:
    """The manifest of a run, or another of its JSON files."""
    content: dict[str, Any] = json.loads((run / name).read_text(encoding="utf-8"))
    return content
