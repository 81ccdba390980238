"""What a command did, reduced to what does not vary: its exit code, its JSON, and what is in the files it left.

The recordings are in ``recorded/``, one file a group, one entry a case. After a change that is meant::

    ROLELLM_UPDATE_GOLDEN=1 python -m pytest tests/golden

writes them anew; read the difference before you commit it.
"""

from __future__ import annotations

import csv
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
        """What is in a file: keys, columns, headings, counts, and with `exact` the hash of its bytes."""
        found = self._summary(path)
        if exact:
            found["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
        return found

    def _summary(self, path: Path) -> dict[str, Any]:
        kind = path.suffix
        if kind == ".jsonl":
            lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
            return {"rows": len(lines), "keys": sorted({key for line in lines for key in line})}
        if path.name == "tokenizer.json":
            # Its shape is its vocabulary.
            return {"keys": sorted(json.loads(path.read_text(encoding="utf-8")))}
        if kind == ".json":
            return {"shape": _shape(self.json(json.loads(path.read_text(encoding="utf-8"))))}
        if kind == ".yaml":
            return {"shape": _shape(self.json(yaml.safe_load(path.read_text(encoding="utf-8"))))}
        if kind == ".parquet":
            from pyarrow import parquet

            table = parquet.read_table(path)
            columns = {field.name: str(field.type) for field in table.schema}
            return {"rows": table.num_rows, "columns": columns}
        if kind == ".csv":
            rows = list(csv.reader(path.read_text(encoding="utf-8-sig").splitlines()))
            return {"rows": len(rows), "columns": len(rows[0])}
        if kind == ".safetensors":
            content = path.read_bytes()
            head = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
            head.pop("__metadata__", None)
            return {"tensors": {name: f"{item['dtype']} {item['shape']}" for name, item in sorted(head.items())}}
        if path.name == "README.md":
            return card(path.read_text(encoding="utf-8"))
        if kind == ".md":
            return {"table_rows": sum(line.startswith("|") for line in path.read_text(encoding="utf-8").splitlines())}
        if kind == ".html":
            ids = re.findall(r'\bid="([^"]+)"', path.read_text(encoding="utf-8"))
            return {"ids": sorted({re.sub(r"\d+", "N", one) for one in ids})}
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
    return {"metadata": _shape(yaml.safe_load(front)), "headings": headings}


def _kind(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return "<number>" if isinstance(value, int | float) else f"<{type(value).__name__}>"


def _shape(value: Any) -> Any:
    """The keys of a JSON value, at every depth, with the kinds of what is under them."""
    if isinstance(value, dict):
        return {key: _shape(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_merged([_shape(item) for item in value])] if value else []
    return "null" if value is None else type(value).__name__


def _merged(shapes: list[Any]) -> Any:
    """One shape for all items of a list; that one of them may be null is told of plain values only."""
    known = [shape for shape in shapes if shape != "null"]
    if known and len(known) < len(shapes) and not all(isinstance(shape, str) for shape in known):
        return _merged(known)
    if all(isinstance(shape, dict) for shape in shapes):
        keys = dict.fromkeys(key for shape in shapes for key in shape)
        return {key: _merged([shape[key] for shape in shapes if key in shape]) for key in keys}
    if all(isinstance(shape, list) for shape in shapes):
        inner = [item for shape in shapes for item in shape]
        return [_merged(inner)] if inner else []
    return " | ".join(sorted({shape if isinstance(shape, str) else json.dumps(shape) for shape in shapes}))


def differences(recorded: Any, found: Any) -> list[str]:
    """What differs, one line a key; numbers may differ in their seventh digit."""
    before, after = dict(_leaves(recorded)), dict(_leaves(found))
    lines = []
    for key in dict.fromkeys([*before, *after]):
        if key not in after:
            lines.append(f"gone:    {key} (was {before[key]!r:.80})")
        elif key not in before:
            lines.append(f"new:     {key} = {after[key]!r:.80}")
        elif not _same(before[key], after[key]):
            lines.append(f"changed: {key}: {before[key]!r:.80} -> {after[key]!r:.80}")
    return lines


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict | list) and value:
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            yield from _leaves(item, f"{path} › {key}" if path else str(key))
    else:
        yield path, value


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-6, abs_tol=1e-9)
    return type(one) is type(other) and bool(one == other)


def check(group: str, name: str, found: Any) -> None:
    """Compare with the recording, or with ``ROLELLM_UPDATE_GOLDEN=1`` make it.

    Raises:
        AssertionError: Where they differ, key by key.
    """
    found = json.loads(json.dumps(found))
    recorded = recordings(group)
    if UPDATE:
        recorded[name] = found
        RECORDED.mkdir(exist_ok=True)
        text = _dump(dict(sorted(recorded.items()))) + "\n"
        (RECORDED / f"{group}.json").write_text(text, encoding="utf-8")
        return
    assert name in recorded, f"{name} is not recorded; run once with ROLELLM_UPDATE_GOLDEN=1"
    lines = differences(recorded[name], found)
    assert not lines, "\n".join([f"{group}.json, {name}:", *lines[:60], f"({len(lines)} differences)"])


def recordings(group: str) -> dict[str, Any]:
    """What is recorded of a group, by case."""
    file = RECORDED / f"{group}.json"
    return dict(json.loads(file.read_text(encoding="utf-8"))) if file.exists() else {}


def _dump(value: Any, indent: int = 0) -> str:
    """JSON with whatever fits on a line on one line, for short files and readable differences."""
    line = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, dict | list) or (len(line) + indent <= 118 and "{" not in line[1:]):
        return line
    begin, end = "{}" if isinstance(value, dict) else "[]"
    items = (
        [f"{json.dumps(key, ensure_ascii=False)}: {_dump(item, indent + 1)}" for key, item in value.items()]
        if isinstance(value, dict)
        else [_dump(item, indent + 1) for item in value]
    )
    pad = " " * (indent + 1)
    return begin + "\n" + ",\n".join(pad + item for item in items) + "\n" + " " * indent + end
