"""The passport of an exported character: what it is, what it was made of, and what is known of it.

It is ``role.json`` next to the weights, and in the metadata of safetensors and GGUF files, so that it stays with them.
"""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rolellm.characters.folder import CARD, PROFILE
from rolellm.checks.safety import read_safety
from rolellm.core.errors import DataError, require
from rolellm.core.fingerprint import hash_file, hash_json
from rolellm.core.jsonl import read_json
from rolellm.core.result import Result
from rolellm.core.table import Interval
from rolellm.core.typed_json import read_as, strip_folders
from rolellm.models.training_record import MANIFEST
from rolellm.runs import find_runs
from rolellm.version import __version__

PASSPORT: Final = "role.json"
_KEY: Final = "rolellm"
_MAX_HEADER: Final = 100 << 20


@dataclass(frozen=True, slots=True, repr=False)
class Passport(Result):
    """What is known of an exported character.

    Attributes:
        role: The role's name; empty where none is known.
        language: ``en`` or ``zh``; empty likewise.
        card: SHA-256 of the card that it was imported from, in hex.
        base: The base's name, its revision, and the SHA-256 over its files.
        method: How it was tuned, such as ``lora``; empty for a model that was not tuned here.
        data: Config, split and fingerprint of the training rows.
        recipe: SHA-256 of the recipe, in hex.
        scores: Measure to its mean with both ends of its interval, as far as it was evaluated.
        refusals: What tuning did to refusals, as ``rolellm check safety`` says.
        tests: How many of its character tests passed, failed, and were left unscored.
        license: As it was given; empty if nobody did.
        rolellm: The version that exported it.
    """

    role: str = ""
    language: str = ""
    card: str = ""
    base: Mapping[str, Any] = field(default_factory=dict)
    method: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)
    recipe: str = ""
    scores: Mapping[str, Any] = field(default_factory=dict)
    refusals: tuple[str, ...] = ()
    tests: Mapping[str, int] = field(default_factory=dict)
    license: str = ""
    rolellm: str = __version__

    def remarks(self) -> list[str]:
        """Return what is known, a line each."""
        lines = []
        for name, value in self.to_dict().items():
            if isinstance(value, Mapping):
                value = ", ".join(f"{key} {_show(item)}" for key, item in value.items())
            elif isinstance(value, list | tuple):
                value = " ".join(value)
            if value:
                lines.append(f"{name}: {value}")
        return lines


def _show(value: Any) -> str:
    if not isinstance(value, Mapping):
        return str(value)
    interval = Interval(value["mean"], value.get("low"), value.get("high"))
    return f"{interval.mean:.3f} {interval.format_ends(3)}".strip()


def make_passport(model: Path, character: Path | None, role: str, language: str, license: str) -> Passport:
    """Make the passport of a model.

    Args:
        model: The folder of a run, or of a model.
        character: The character's folder, where there is one: what ``rolellm make`` measured is there.
        role: The role's name.
        language: The role's language.
        license: The license that it is given away under.
    """
    manifest: Mapping[str, Any] = {}
    if (model / MANIFEST).is_file():
        manifest = read_json(model / MANIFEST)
    tuned = manifest.get("base") or {}
    base = {key: tuned[key] for key in ("model", "revision", "name") if tuned.get(key)}
    if tuned.get("files"):
        base["files"] = hash_json(tuned["files"])
    rows = manifest.get("data") or {}
    data = {key: rows[key] for key in ("config", "split", "fingerprint") if rows.get(key)}
    recipe = manifest.get("recipe")
    return Passport(
        role=role,
        language=language,
        card=_hash_card(character),
        base=strip_folders(base),
        method=str(manifest.get("method") or ""),
        data=strip_folders(data),
        recipe=hash_json(recipe) if recipe else "",
        scores=_read_scores(character),
        refusals=_read_refusals(model),
        tests=_read_tests(character),
        license=license,
    )


def _hash_card(character: Path | None) -> str:
    for name in (CARD, PROFILE):
        if character is not None and (character / name).is_file():
            return hash_file(character / name)
    return ""


def _read_scores(character: Path | None) -> dict[str, Any]:
    """Read the scores of the adapter that ``rolellm make`` measured."""
    file = None if character is None else character / "eval" / "adapter.score.json"
    if file is None or not file.is_file():
        return {}
    scores: dict[str, Any] = {}
    for name, score in (read_json(file).get("metrics") or {}).items():
        if isinstance(score, dict):
            scores[name] = {key: score.get(key) for key in ("mean", "low", "high", "n")}
    return scores


def _read_refusals(model: Path) -> tuple[str, ...]:
    checks = find_runs(model, "safety")
    if not checks:
        return ()
    return tuple(read_safety(checks[-1]).remarks())


def _read_tests(character: Path | None) -> dict[str, int]:
    checks = [] if character is None else find_runs(character, "character-tests")
    if not checks:
        return {}
    return {name: count for name, count in checks[-1].summary.items() if isinstance(count, int)}


def stamp_safetensors(file: Path, passport: Passport) -> None:
    """Put a passport into the metadata of a safetensors file; the tensors are copied as they are.

    The file begins with the length of its header, eight bytes, little-endian, and the header as JSON
    (https://huggingface.co/docs/safetensors).
    """
    with file.open("rb") as source:
        header = json.loads(source.read(_read_length(source.read(8), file)))
        header["__metadata__"] = {**header.get("__metadata__", {}), _KEY: json.dumps(passport.to_dict())}
        text = json.dumps(header, ensure_ascii=True).encode("utf-8")
        # Tensors are aligned to eight bytes.
        text += b" " * (-len(text) % 8)
        stamped = file.with_suffix(".stamped")
        with stamped.open("wb") as target:
            target.write(struct.pack("<Q", len(text)) + text)
            shutil.copyfileobj(source, target, 1 << 24)
    stamped.replace(file)


def _read_length(head: bytes, file: Path) -> int:
    if len(head) == 8:
        length: int = struct.unpack("<Q", head)[0]
        if length <= _MAX_HEADER:
            return length
    raise DataError("not a safetensors file: its header has no length", path=file)


def read_passport(path: str | Path) -> Passport:
    """Read the passport of an exported character.

    Args:
        path: A folder that `rolellm.export` wrote, or a file in it: ``role.json``, safetensors or GGUF.

    Raises:
        DataError: When there is none.
        MissingExtraError: For a GGUF file, without ``gguf``.
    """
    file = Path(path)
    if file.is_dir():
        file /= PASSPORT
    if not file.is_file():
        raise DataError("no passport here; `rolellm export` writes one", path=file)
    ending = file.suffix.lower()
    if ending == ".safetensors":
        values = _read_safetensors(file)
    elif ending == ".gguf":
        values = _read_gguf(file)
    else:
        values = read_json(file)
    if not isinstance(values, dict) or "rolellm" not in values:
        raise DataError("it has no passport; `rolellm export` writes one", path=file)
    return read_as(Passport, values, "the passport", path=file)


def _read_safetensors(file: Path) -> Any:
    with file.open("rb") as stream:
        header = stream.read(_read_length(stream.read(8), file))
    try:
        return json.loads(json.loads(header).get("__metadata__", {}).get(_KEY, "null"))
    except ValueError as error:
        raise DataError("not a safetensors file: its header is not JSON", path=file) from error


def _read_gguf(file: Path) -> Any:
    require("gguf", extra="export")
    from gguf import GGUFReader

    try:
        field = GGUFReader(file).get_field("general.description")
    except (ValueError, IndexError) as error:
        raise DataError(f"not a GGUF file ({error})", path=file) from error
    if field is None:
        return None
    _, brace, rest = str(field.contents()).partition("{")
    try:
        return json.loads(brace + rest)
    except ValueError:
        return None
