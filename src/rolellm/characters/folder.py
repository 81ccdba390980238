"""The folder that holds a character.

A character's folder has ``profile.json`` (everything but the dialogue), ``dialogue.jsonl`` (its turns, as
``rolellm role parse`` writes them), and what later stages put there: ``build/``, ``instruct/`` and ``respond/``, each a
run with its journal; ``card.json`` of an imported character card.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from rolellm.characters.scripts.turns import read_turns, write_turns
from rolellm.core.errors import DataError, SettingsError
from rolellm.core.files import write_json
from rolellm.core.jsonl import read_json
from rolellm.core.records import Profile
from rolellm.core.text import find_surrogate
from rolellm.core.typed_json import read_as

PROFILE = "profile.json"
DIALOGUE = "dialogue.jsonl"
CARD = "card.json"


def write_character(character: Profile, folder: str | Path) -> Path:
    """Write ``profile.json`` and ``dialogue.jsonl`` into a folder, each complete or not at all; return the folder."""
    target = Path(folder)
    write_turns(target / DIALOGUE, character.turns, character.role)
    write_json(target / PROFILE, dump_fields(character))
    return target


def dump_fields(character: Profile) -> dict[str, Any]:
    """A character's fields but for its turns, as JSON has them."""
    values = asdict(replace(character, turns=()))
    return {item.name: values[item.name] for item in fields(Profile) if item.name != "turns"}


def read_character(folder: str | Path) -> Profile:
    """Read a character's folder; ``dialogue.jsonl`` may be absent where the profile was not made from one.

    Raises:
        DataError: When ``profile.json`` is missing or invalid, or the dialogue is missing; says what was expected.
    """
    path = Path(folder) / PROFILE
    if not path.is_file():
        raise DataError(f"no {PROFILE} here; make one with `rolellm role build` or `rolellm role card`", path=folder)
    value = read_json(path)
    if problem := find_surrogate(json.dumps(value, ensure_ascii=False)):
        raise DataError(problem, path=path)
    value = {name: item for name, item in value.items() if item is not None and name != "turns"}
    character = read_as(Profile, value, "the profile", path=path)
    if not character.role.strip():
        raise DataError("the profile is not valid at role: it has no name", path=path)
    dialogue = Path(folder) / DIALOGUE
    if character.made.get("source") and not dialogue.is_file():
        raise DataError(
            f"{DIALOGUE} is missing; restore it, or make the role again with `rolellm role build`", path=folder
        )
    return replace(character, turns=tuple(read_turns(dialogue, character.role))) if dialogue.is_file() else character


def check_free(folder: Path, overwrite: bool, marks: Sequence[str] = (PROFILE,)) -> None:
    """Refuse a folder for a character that holds other files, or a character that may not be replaced.

    Args:
        folder: Need not be there.
        overwrite: Whether a character may be replaced.
        marks: Files by which a character is known.

    Raises:
        SettingsError: Says what the folder holds.
    """
    if folder.exists() and not folder.is_dir():
        raise SettingsError(f"{folder} is a file; a character needs a folder")
    if not folder.exists() or all(path.name.endswith(".lock") for path in folder.iterdir()):
        return
    if not any((folder / name).is_file() for name in marks):
        raise SettingsError(f"{folder} holds other files; choose a new folder")
    if not overwrite:
        raise SettingsError(
            f"{folder} holds a character already; choose another folder, or overwrite it (--overwrite, or "
            "overwrite=True in Python)"
        )


def is_outdated(run: str | Path, character: Profile) -> bool:
    """Tell whether a stage's run was made from another profile than the character's present one."""
    file = Path(run) / "manifest.json"
    made_from = read_json(file).get("character") if file.is_file() else None
    return made_from not in (None, character.fingerprint)
