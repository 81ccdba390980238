"""What a run says about itself: ``manifest.json``, written last, so that a folder with one holds a finished run."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from rolellm.files import write_json
from rolellm.fingerprint import hash_bytes, hash_file
from rolellm.records import Row
from rolellm.text import fold
from rolellm.version import __version__

MANIFEST = "manifest.json"
_PACKAGES = ("torch", "transformers", "trl", "peft", "accelerate", "datasets", "tokenizers")
_WEIGHTS = ("*.safetensors", "adapter_config.json", "config.json", "tokenizer.json", "chat_template.jinja")


def trained_on(rows: Iterable[Row]) -> dict[str, list[str]]:
    """What a model has seen, so that a later score can say whether a test row was among it.

    Args:
        rows: The training rows.

    Returns:
        ``roles``, by name, and ``instructions``, as `instruction_hash`, both sorted and without repeats.
    """
    seen = list(rows)
    return {
        "roles": sorted({row.role for row in seen}),
        "instructions": sorted({instruction_hash(row.question) for row in seen}),
    }


def instruction_hash(question: str) -> str:
    """16 hex digits for an instruction, white space and case folded; enough for millions without a clash."""
    return hash_bytes(fold(question).encode("utf-8"))[:16]


def versions() -> dict[str, str]:
    """The versions that a result depends on, by package."""
    found = {"rolellm": __version__, "python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def file_hashes(folder: Path) -> dict[str, str]:
    """SHA-256 in hex of the files that make up the model or adapter in a folder, by name."""
    files = {path for pattern in _WEIGHTS for path in folder.glob(pattern)}
    return {path.name: hash_file(path) for path in sorted(files)}


def write_manifest(folder: Path, content: Mapping[str, Any]) -> None:
    """Write ``manifest.json`` into a folder, complete or not at all."""
    write_json(folder / MANIFEST, content)


def loss_summary(losses: Sequence[float]) -> dict[str, float]:
    """The first loss and the mean of the last tenth of the steps (at least one), in nats a trained token."""
    tail = losses[-max(1, len(losses) // 10) :]
    return {"first": losses[0], "last": sum(tail) / len(tail)}
