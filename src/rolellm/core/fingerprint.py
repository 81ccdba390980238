"""Content hashes, so that a number can say exactly which data, prompt and settings it came from."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any


def hash_bytes(data: bytes) -> str:
    """SHA-256 of bytes, in hex."""
    return hashlib.sha256(data).hexdigest()


def hash_json(value: Any) -> str:
    """SHA-256 of a JSON value in canonical form (sorted keys, no spaces, UTF-8), in hex."""
    return hash_bytes(
        json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
    )


def hash_file(path: str | Path) -> str:
    """SHA-256 of a file's content, in hex."""
    with Path(path).open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
