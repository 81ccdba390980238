"""The passport of an exported model: its origin and what was measured, in its folder and in its files' metadata."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shutil import copyfileobj
from typing import Any, BinaryIO, Final

import yaml

from rolellm.characters.roles import Part
from rolellm.checks.character_tests import CheckCharacter
from rolellm.checks.safety import read_safety
from rolellm.core.errors import DataError
from rolellm.core.files import open_atomic_binary
from rolellm.core.fingerprint import hash_bytes
from rolellm.core.jsonl import read_json
from rolellm.core.result import Result
from rolellm.core.typed_json import strip_folders
from rolellm.runs import find_runs
from rolellm.training.publish import read_scores
from rolellm.version import __version__

FILE: Final = "role.json"
#: The key in the metadata of safetensors, and in GGUF's description.
_KEY: Final = "rolellm"
_LARGEST_HEADER: Final = 100 * 2**20
_LARGEST_PASSPORT: Final = 2**20


@dataclass(frozen=True, slots=True, repr=False)
class Passport(Result):
    """The passport of an exported model.

    Attributes:
        content: By subject: ``role``, ``base``, ``recipe``, ``data``, ``scores``, ``safety``, ``tests``, ``license``
            and ``check``; what is not known is missing.
    """

    content: Mapping[str, Any]

    def remarks(self) -> list[str]:
        """Return the content as YAML."""
        return yaml.safe_dump(self.to_dict(), allow_unicode=True, sort_keys=False, width=110).splitlines()

    def to_dict(self) -> dict[str, Any]:
        """Return the content."""
        return dict(self.content)


def make_passport(
    manifest: Mapping[str, Any] | None,
    part: Part | None,
    run: Path,
    scores: Sequence[Path],
    license: str | None,
) -> dict[str, Any]:
    """Collect what is known of a model.

    Args:
        manifest: Its run's; ``None`` for a model of others.
        part: Whom it plays.
        run: The run's folder.
        scores: Files that ``rolellm score --json`` printed.
        license: As the Hub spells it.
    """
    passport: dict[str, Any] = {"rolellm": __version__}
    if part is not None:
        passport["role"] = {"name": part.sheet.role, "profile": part.sheet.fingerprint}
        if part.card is not None:
            passport["role"]["card"] = hash_bytes(part.card.text.encode())
    if manifest is not None:
        base = manifest["base"]
        passport["base"] = {"name": base.get("model") or base["name"]}
        for key in ("revision", "files"):
            if base.get(key):
                passport["base"][key] = base[key]
        passport["recipe"] = {"hash": manifest["recipe_hash"], "method": manifest["method"]}
        passport["data"] = manifest["data"]
    # As `rolellm make` leaves it.
    measured = (run.parent / "eval").glob("tuned.score.json")
    reports = [read_scores(path) for path in (*measured, *scores)]
    passport["scores"] = {report.options.where: report.to_dict()["metrics"] for report in reports}
    safety = find_runs(run, "safety")
    if safety:
        passport["safety"] = list(read_safety(safety[-1]).remarks())
    tests = find_runs(run.parent / "checks", CheckCharacter.kind)
    if tests:
        passport["tests"] = {name: tests[-1].summary[name] for name in ("passed", "failed", "unscored")}
    passport["license"] = license
    stripped = strip_folders(passport)
    return {subject: value for subject, value in stripped.items() if value not in (None, {})}


def stamp_safetensors(file: Path, passport: Mapping[str, Any]) -> None:
    """Put a passport into the metadata of a file of safetensors; its tensors stay as they are."""
    with file.open("rb") as source:
        header = _read_header(source)
        header["__metadata__"] = {**header.get("__metadata__", {}), _KEY: _write_json(passport)}
        content = _write_json(header).encode()
        content += b" " * (-len(content) % 8)
        with open_atomic_binary(file) as out:
            out.write(struct.pack("<Q", len(content)) + content)
            copyfileobj(source, out, 2**20)


def write_model_card(folder: Path, passport: Mapping[str, Any], name: str) -> None:
    """Write the card whose name and description llama.cpp's converters put into the metadata of GGUF."""
    card = {"name": name, "description": _write_json({_KEY: passport})}
    (folder / "README.md").write_text(f"---\n{_write_json(card)}\n---\n", encoding="utf-8")


def show(path: str | Path) -> Passport:
    """Read the passport of an exported model.

    Args:
        path: The folder, its ``role.json``, or a file of safetensors or GGUF.

    Raises:
        DataError: When the file has none.
    """
    file = Path(path)
    if file.is_dir():
        file /= FILE
    if not file.is_file():
        raise DataError(f"no {FILE} here; `rolellm export` writes one", path=path)
    if file.suffix == ".json":
        return Passport(read_json(file))
    try:
        with file.open("rb") as stream:
            if stream.read(4) == b"GGUF":
                content = _find_description(stream.read(_LARGEST_HEADER))
            else:
                stream.seek(0)
                content = json.loads(_read_header(stream)["__metadata__"][_KEY])
    except (ValueError, LookupError, TypeError, struct.error) as error:
        raise DataError("no passport of `rolellm export` in its metadata", path=file) from error
    return Passport(content)


def _read_header(stream: BinaryIO) -> dict[str, Any]:
    (size,) = struct.unpack("<Q", stream.read(8))
    header: dict[str, Any] = json.loads(stream.read(min(size, _LARGEST_HEADER)))
    return header


def _find_description(content: bytes) -> Any:
    """Find the passport in GGUF, which has its JSON as it is."""
    start = content.index(b'{"rolellm": {')
    text = content[start : start + _LARGEST_PASSPORT].decode(errors="replace")
    description, _ = json.JSONDecoder().raw_decode(text)
    return description[_KEY]


def _write_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
