"""What a command did, reduced to what does not vary: its exit code, its JSON, and what is in the files it left.

The recordings are in ``recorded/``, one file a group, one entry a case. After a change that is meant::

    ROLELLM_UPDATE_GOLDEN=1 python -m pytest tests/golden

writes them anew; read the difference before you commit it.
"""

import hashlib
import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import yaml

UPDATE = os.environ.get("ROLELLM_UPDATE_GOLDEN", "") not in ("", "0")
RECORDED = Path(__file__).parent / "recorded"
#: Values under these keys depend on the clock, the machine or what is installed.
_VARY = {
    *("seconds", "training_seconds", "tokens_per_second", "versions", "version", "rolellm", "date", "created"),
    *("loss", "first_loss", "last_loss", "grad_norm", "host", "pid", "revision", "sent"),
}
#: So do these where they are numbers: what a tiny model says may differ in the last bit.
_VARY_AS_NUMBERS = {"stop", "length", "empty", "new_tokens"}
#: Values under these are sentences, which may be put better.
_WORDS = {
    *("note", "notes", "warnings", "problems", "problem", "message", "reason", "shortfall", "text", "length_problem"),
    *("why", "messages", "findings"),
}
#: Hashes that name data or prompts. Any other is of files whose bytes may differ, of code, or of versions.
_STABLE_HASHES = {"fingerprint", "dataset_fingerprint", "form_hash", "chat_template"}
#: All hashes in objects under these keys are such.
_STABLE_OBJECTS = {"template_hash", "system_templates", "templates", "prompts"}
_HASH = re.compile(r"[0-9a-f]{16}|[0-9a-f]{40}|[0-9a-f]{64}")
_BASE = re.compile(r"\bbase-[0-9a-f]{12}\b")
_ADDRESS = re.compile(r"\b127\.0\.0\.1:\d+")


class Normal:
    """Makes JSON values comparable.

    Args:
        places: What stands for a folder or an address that differs from run to run, by the text to replace.
    """

    def __init__(self, places: Mapping[str, str]) -> None:
        self._places = dict(sorted(places.items(), key=lambda item: -len(item[0])))

    def text(self, value: str) -> str:
        for place, name in self._places.items():
            value = value.replace(place, name)
        return _ADDRESS.sub("<address>", _BASE.sub("base-<hash>", value))

    def json(self, value: Any, key: str = "", *, keep_hashes: bool = False) -> Any:
        """A value as JSON with what varies replaced by what kind of thing it is."""
        number = isinstance(value, int | float)
        # A judge has a version that is a number, and its own.
        if (key in _VARY and not (key == "version" and number)) or (key in _VARY_AS_NUMBERS and number):
            return sorted(map(self.text, value)) if isinstance(value, dict) else _kind(value)
        if key in _WORDS and value and not isinstance(value, dict | int | float):
            return "<words>" if isinstance(value, str) else f"<words: {len(value)}>"
        keep_hashes = keep_hashes or key in _STABLE_OBJECTS
        if isinstance(value, dict):
            return {self.text(k): self.json(v, k, keep_hashes=keep_hashes) for k, v in value.items()}
        if isinstance(value, list):
            return [self.json(item, "", keep_hashes=keep_hashes) for item in value]
        if isinstance(value, str):
            keep_hashes = keep_hashes or key in _STABLE_HASHES
            return "<hash>" if not keep_hashes and _HASH.fullmatch(value) else self.text(value)
        return value

    def file(self, path: Path, *, exact: bool) -> Any:
        """What is in a file: keys, columns, headings, counts; with `exact` the hash of its bytes."""
        kind = path.suffix
        if exact:
            return {"sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
        if kind == ".jsonl":
            lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
            return {"rows": len(lines), "keys": sorted({key for line in lines for key in line})}
        if kind in (".json", ".yaml"):
            return {"shape": list_paths(self.json(yaml.load(path.read_bytes(), yaml.CSafeLoader)))}
        if kind == ".parquet":
            from pyarrow import parquet

            table = parquet.read_table(path)
            columns = {field.name: str(field.type) for field in table.schema}
            return {"rows": table.num_rows, "columns": columns}
        if path.name == "README.md":
            return card(path.read_text(encoding="utf-8"))
        return {}

    def files(self, root: Path, name: str, exact: tuple[str, ...]) -> dict[str, Any]:
        """What is in a file, or in all files of a folder, by path from `root`."""
        top = root / name
        paths = [top] if top.is_file() else sorted(path for path in top.rglob("*") if path.is_file())
        # Locks come and go.
        named = {path.relative_to(root).as_posix(): path for path in paths if path.suffix != ".lock"}
        return {
            self.text(short): self.file(path, exact=any(fnmatch(short, pattern) for pattern in exact))
            for short, path in named.items()
        }


def card(text: str) -> dict[str, Any]:
    """Headings and metadata of a card on the Hub."""
    _, front, body = re.split(r"^---$", text, maxsplit=2, flags=re.MULTILINE)
    headings = re.findall(r"^#+ .*$", re.sub(r"^```.*?^```", "", body, flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
    return {"metadata": list_paths(yaml.safe_load(front)), "headings": headings}


def _kind(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return "<number>" if isinstance(value, int | float) else f"<{type(value).__name__}>"


def list_paths(value: Any) -> list[str]:
    """Each path to a plain value, with its kind."""
    return sorted({f"{path}: {type(item).__name__}" for path, item in _leaves(value)})


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict | list) and value:
        items = value.items() if isinstance(value, dict) else (("-", item) for item in value)
        for key, item in items:
            yield from _leaves(item, f"{path} › {key}" if path else str(key))
    else:
        yield path, value


def differences(before: Any, after: Any, path: str = "") -> Iterator[str]:
    """What differs, one line a key; numbers may differ in their seventh digit."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in dict.fromkeys([*before, *after]):
            yield from differences(before.get(key, ...), after.get(key, ...), f"{path} › {key}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for index, values in enumerate(zip(before, after, strict=True)):
            yield from differences(*values, f"{path} › {index}")
    elif (
        isinstance(before, float)
        and isinstance(after, float)
        and math.isclose(before, after, rel_tol=1e-6, abs_tol=1e-9)
    ):
        return
    elif type(before) is not type(after) or before != after:
        yield f"{path}: {before!r:.80} -> {after!r:.80}"


def check(group: str, name: str, found: Any) -> None:
    """Compare with the recording, or with ``ROLELLM_UPDATE_GOLDEN=1`` make it.

    Raises:
        AssertionError: Where they differ, key by key.
    """
    found = json.loads(json.dumps(found))
    recorded = recordings(group)
    if UPDATE:
        recorded[name] = found
        with (RECORDED / f"{group}.yaml").open("w", encoding="utf-8") as stream:
            yaml.safe_dump(recorded, stream, default_flow_style=None, allow_unicode=True, width=120)
        return
    assert name in recorded, f"{name} is not recorded; run once with ROLELLM_UPDATE_GOLDEN=1"
    lines = list(differences(recorded[name], found))
    assert not lines, "\n".join([f"{group}.yaml, {name}:", *lines[:60], f"({len(lines)} differences)"])


def recordings(group: str) -> dict[str, Any]:
    """What is recorded of a group, by case."""
    text = (RECORDED / f"{group}.yaml").read_text(encoding="utf-8")
    return dict(yaml.load(text, yaml.CSafeLoader))
