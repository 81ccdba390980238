"""What a run says about itself: ``manifest.json``, written last, so that a folder with one holds a finished run."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from rolellm.files import write_json
from rolellm.fingerprint import hash_file
from rolellm.seen import MANIFEST
from rolellm.version import __version__

__all__ = ["MANIFEST", "file_hashes", "loss_summary", "versions", "write_manifest"]

_PACKAGES = ("torch", "transformers", "trl", "peft", "accelerate", "datasets", "tokenizers")
_WEIGHTS = (
    "*.safetensors",
    "pytorch_model*.bin",
    "adapter_config.json",
    "config.json",
    "tokenizer.json",
    "chat_template.jinja",
)


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
