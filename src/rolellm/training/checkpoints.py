"""Checkpoints that are complete or do not count: each is sealed, last of all, with the hashes of its files."""

from __future__ import annotations

import json
import re
import shutil
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rolellm.core.errors import RecipeError
from rolellm.core.files import write_json
from rolellm.core.fingerprint import hash_file

SEAL = "checkpoint.json"
_NAME = re.compile(r"checkpoint-([0-9]+)")


class TornCheckpointWarning(UserWarning):
    """A checkpoint is incomplete or damaged, and was passed over."""


def list_checkpoints(run: Path) -> list[Path]:
    """The checkpoints of a run, complete or not, those of most steps first; no other folder, whatever its name."""
    named = [path for path in run.glob("checkpoint-*") if _NAME.fullmatch(path.name) and path.is_dir()]
    return sorted(named, key=get_step, reverse=True)


def get_step(folder: Path) -> int:
    """Optimizer steps done at a checkpoint."""
    return int(folder.name.rpartition("-")[2])


def seal_checkpoint(folder: Path, step: int, facts: Mapping[str, Any]) -> None:
    """Declare a checkpoint complete.

    Args:
        folder: The checkpoint; all its other files are written.
        step: Optimizer steps done.
        facts: What a run has to have in common with this one to go on from here.
    """
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != SEAL)
    files = {path.relative_to(folder).as_posix(): hash_file(path) for path in paths}
    write_json(folder / SEAL, {"step": step, "facts": dict(facts), "files": files})


def find_checkpoint(run: Path, facts: Mapping[str, Any]) -> Path | None:
    """The newest complete checkpoint of a run, or ``None``.

    One that is torn (no seal, a file missing or changed) is passed over with a `TornCheckpointWarning`.

    Args:
        run: The run's folder.
        facts: As they were given to `seal`.

    Raises:
        RecipeError: When a complete checkpoint was made under other facts; names them.
    """
    for folder in list_checkpoints(run):
        try:
            sealed = _verify_seal(folder)
        except _TornError as error:
            warnings.warn(f"{folder} is passed over: {error}", TornCheckpointWarning, stacklevel=2)
            continue
        differing = [
            # Hashes tell a reader nothing.
            f"{key} ({sealed.get(key)}, now {value})" if isinstance(value, int) else key
            for key, value in facts.items()
            if sealed.get(key) != value
        ]
        if differing:
            raise RecipeError(
                f"{folder} belongs to a run that differs in {', '.join(differing)}, so going on from it would not give "
                "that run's result; restore what it was, choose another folder, or --overwrite it"
            )
        return folder
    return None


def find_last_step(run: Path) -> int:
    """Steps of the newest checkpoint that has a seal, or 0; its files are not looked at."""
    return next((get_step(folder) for folder in list_checkpoints(run) if (folder / SEAL).is_file()), 0)


def remove_after(run: Path, step: int) -> None:
    """Remove what a run wrote after a step; to be called when it continues from there."""
    for folder in list_checkpoints(run):
        if get_step(folder) > step:
            _remove(folder)


def keep_newest(run: Path, count: int) -> None:
    """Remove all but the newest complete checkpoints; to be called once a new one is sealed.

    What is torn goes too, if it is older than one that stays.
    """
    complete = [folder for folder in list_checkpoints(run) if (folder / SEAL).is_file()]
    if not complete:
        return
    oldest = get_step(complete[:count][-1])
    for folder in list_checkpoints(run):
        if get_step(folder) < oldest:
            _remove(folder)


class _TornError(Exception):
    """A checkpoint's defect."""


def _verify_seal(folder: Path) -> Mapping[str, Any]:
    """The facts that a checkpoint was sealed with, once all its files are found to be as they were."""
    try:
        content = json.loads((folder / SEAL).read_text(encoding="utf-8"))
        step, facts, files = int(content["step"]), dict(content["facts"]), dict(content["files"])
    except FileNotFoundError as error:
        raise _TornError("it has no seal, so it was not finished") from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _TornError("its seal cannot be read") from error
    if step != get_step(folder):
        raise _TornError(f"its seal is that of step {step}")
    for name, digest in files.items():
        file = folder / name
        if not file.is_file():
            raise _TornError(f"{name} is missing")
        if hash_file(file) != digest:
            raise _TornError(f"{name} was changed or cut off")
    return facts


def _remove(folder: Path) -> None:
    # First, so that a kill within leaves no seal on half of the files.
    (folder / SEAL).unlink(missing_ok=True)
    shutil.rmtree(folder)
