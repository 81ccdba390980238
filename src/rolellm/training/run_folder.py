"""A training run's folder: what a run leaves there, what is cleared away, and where a run can be resumed.

Checkpoints are the trainer's; one that has no mark, which is written last of all, does not count.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from rolellm.core.errors import RecipeError, StoppedShortError
from rolellm.core.files import is_disk_full, write_json
from rolellm.core.fingerprint import hash_file
from rolellm.core.jsonl import read_json
from rolellm.core.settings import describe_changes
from rolellm.models.find import sort_names
from rolellm.models.training_record import MANIFEST
from rolellm.training.recipe import Recipe, select_decisive
from rolellm.version import __version__

Start = Literal["new", "overwrite", "resume"]
RECIPE = "recipe.json"
METRICS = "metrics.jsonl"
MARK = "checkpoint.json"
# Next to a recipe's sections, the commit that a base on the Hub was at when the run began.
_COMMIT = "base_commit"
ADAPTER = ("adapter_config.json", "adapter_model.safetensors")
FULL = ("config.json", "generation_config.json", "model*.safetensors", "model.safetensors.index.json")
# What a run writes into its folder besides checkpoints and metrics; nothing else there is ever removed.
_MODEL = (*FULL, *ADAPTER, "tokenizer*", "special_tokens_map.json", "chat_template.jinja")
# What a model or adapter is known by.
_HASHED = (
    *("*.safetensors", "pytorch_model*.bin", "adapter_config.json"),
    *("config.json", "tokenizer.json", "chat_template.jinja"),
)


_NAME = re.compile(r"checkpoint-([0-9]+)")


def list_versions() -> dict[str, str]:
    """The versions that a result depends on, by package."""
    packages = ("torch", "transformers", "trl", "peft", "accelerate", "datasets", "tokenizers")
    own = {"rolellm": __version__, "python": platform.python_version()}
    return own | {package: version(package) for package in packages}


def hash_model_files(folder: Path) -> dict[str, str]:
    """SHA-256 in hex of the files that make up the model or adapter in a folder, by name."""
    paths = sorted(set(_list_files(folder, _HASHED)))
    return {path.name: hash_file(path) for path in paths}


def name_base(folder: Path, base: str | None, revision: str | None) -> None:
    """Name an adapter's base; one in the run's own folder by its place there, so that the folder can be moved.

    The settings are written so that equal runs leave equal files.
    """
    file = folder / "adapter_config.json"
    if not file.is_file():
        return
    config = sort_names(read_json(file))
    base_folder = Path(config["base_model_name_or_path"] or "").resolve()
    if base is not None:
        config |= {"base_model_name_or_path": base, "revision": revision}
    elif base_folder.is_relative_to(folder.resolve()):
        config["base_model_name_or_path"] = base_folder.relative_to(folder.resolve()).as_posix()
    write_json(file, config)


def remove_foreign_files(folder: Path) -> None:
    """Remove what transformers and TRL write next to a model or into a checkpoint, and nobody should load."""
    # A pickle of our own settings, which recipe and manifest hold; unpickling a stranger's runs code.
    (folder / "training_args.bin").unlink(missing_ok=True)
    # The adapter that preferences are measured against is the one that training began with. transformers 5.20 would
    # load it in the place of the tuned one.
    shutil.rmtree(folder / "ref", ignore_errors=True)


def check_training_folder(run: Path, recipe: Recipe, start: Start) -> None:
    """Refuse a folder that holds something that the run would destroy, or nothing that it can continue.

    Raises:
        RecipeError: When it holds a run and ``start`` is ``new``, no run, a finished one or one of another recipe and
            ``start`` is ``resume``, a model or checkpoints that no run of ours left, the recipe's own base, or when it
            is a file.
    """
    if run.exists() and not run.is_dir():
        raise RecipeError(f"{run} is a file; a run needs a folder")
    own_folders = [folder.resolve() for folder in (run, *list_checkpoints(run))]
    for key, base in (("path", recipe.base.path), ("adapter", recipe.base.adapter)):
        if base is not None and base.resolve() in own_folders:
            raise RecipeError(
                f"{run} is the run folder, and base.{key} ({base}) is inside it; choose another folder with --out"
            )
    # No run writes *.bin, but they belong to a model, which a run would be mixed up with.
    leftovers = _list_files(run, (*_MODEL, "*.bin", "*.bin.index.json"))
    leftovers += list_checkpoints(run)
    is_finished = (run / MANIFEST).is_file()
    if leftovers and not is_finished and not (run / RECIPE).is_file():
        raise RecipeError(
            f"{run} holds {leftovers[0].name}, but no run of this command; choose another folder with --out"
        )
    if start == "overwrite":
        return
    if is_finished:
        raise RecipeError(f"{run} holds a finished run; choose another folder with --out, or --overwrite it")
    if start == "resume":
        _check_recipe(run / RECIPE, recipe)
    elif leftovers:
        raise RecipeError(
            f"{run} holds an unfinished run; continue it (--resume), choose another folder (--out), or --overwrite it"
        )


def recall_start(run: Path, recipe: Recipe) -> tuple[Recipe, str | None]:
    """Recall what a run is resumed with: its recipe, and the commit of the Hub that its base was read at.

    A base without a revision, or with a branch, may have changed on the Hub since. A recipe that names the recorded
    commit counts as the same recipe.

    Returns:
        The recipe as given and ``None``, where the folder records no commit for this base.
    """
    with suppress(OSError, ValueError, KeyError, TypeError):  # `check_training_folder` says what is wrong.
        content = json.loads((run / RECIPE).read_text(encoding="utf-8"))
        commit, base = content[_COMMIT], content["base"]
        if base["model"] == recipe.base.model and recipe.base.revision in (base["revision"], commit):
            return replace(recipe, base=replace(recipe.base, revision=base["revision"])), commit
    return recipe, None


def claim_folder(run: Path, recipe: Recipe, start: Start, commit: str | None = None) -> None:
    """Clear away what an earlier run wrote here, and nothing else; leave the recipe. A resumed run keeps all.

    Args:
        run: The run's folder.
        recipe: The recipe.
        start: How the run begins.
        commit: Of a base on the Hub; kept for `recall_start`.
    """
    run.mkdir(parents=True, exist_ok=True)
    if start != "resume":
        # From then on the folder holds no finished run.
        (run / MANIFEST).unlink(missing_ok=True)
        remove_checkpoints(list_checkpoints(run))
        for file in _list_files(run, (METRICS, *_MODEL)):
            file.unlink()
    # Last: until then, the old one says whose the rest is.
    sections = recipe.to_dict()
    if commit is not None:
        sections[_COMMIT] = commit
    write_json(run / RECIPE, sections)


def _list_files(folder: Path, patterns: Iterable[str]) -> list[Path]:
    paths: list[Path] = []
    for pattern in patterns:
        paths += sorted(filter(Path.is_file, folder.glob(pattern)))
    return paths


def _check_recipe(file: Path, recipe: Recipe) -> None:
    if not file.is_file():
        raise RecipeError(f"{file.parent} holds no run to resume; run it without --resume to start one")
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        content.pop(_COMMIT, None)
        began = select_decisive(content)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RecipeError(f"{file} cannot be read ({error}); choose another folder, or --overwrite it") from error
    differences = describe_changes(began, select_decisive(recipe.to_dict()))
    if differences:
        raise RecipeError(
            f"{file.parent} holds a run of another recipe: {differences}; resume with the original recipe, choose "
            "another folder, or --overwrite it"
        )


@contextmanager
def explain_stop(run: Path, *, again: str, resume: str) -> Iterator[None]:
    """Turn an interrupt or a full disk within the block into an error that says what is kept and how to go on.

    Args:
        run: The run's folder.
        again: The command that begins as this one did, for as long as nothing was done.
        resume: The command that continues.

    Raises:
        StoppedShortError: On KeyboardInterrupt, and on a write that found no room.
    """
    before = _get_start_time(run)
    try:
        yield
    except (KeyboardInterrupt, Exception) as error:
        is_new = _get_start_time(run) == before
        if isinstance(error, StoppedShortError):  # of a call within, which says how to continue in Python
            problem = str(error).partition("\nResume with: ")[0]
        elif is_disk_full(error):
            room = f"the disk is full; everything so far is saved in {run}; free some space, then resume: "
            problem = room + _describe_progress(run, is_new)
        elif isinstance(error, KeyboardInterrupt):
            problem = _describe_progress(run, is_new)
        else:
            raise
        raise StoppedShortError(problem, resume=again if is_new else resume) from None


def _describe_progress(run: Path, is_new: bool) -> str:
    if is_new:
        return "nothing was done yet"
    step = find_last_step(run)
    if step:
        return f"step {step} is the last checkpoint in {run}"
    return f"{run} has no checkpoint yet, so it starts over"


def _get_start_time(run: Path) -> int:
    """Tells one beginning of a run, resumed ones included, from another."""
    recipe = run / RECIPE
    return recipe.stat().st_mtime_ns if recipe.is_file() else 0


def list_checkpoints(run: Path) -> list[Path]:
    """The checkpoints of a run, complete or not, those of most steps first; no other folder, whatever its name."""
    folders = filter(Path.is_dir, run.glob("checkpoint-*"))
    named = [folder for folder in folders if _NAME.fullmatch(folder.name)]
    return sorted(named, key=_get_step, reverse=True)


def _get_step(folder: Path) -> int:
    """Optimizer steps done at a checkpoint."""
    return int(folder.name.rpartition("-")[2])


def mark_complete(folder: Path, facts: Mapping[str, Any]) -> None:
    """Declare a checkpoint complete.

    Args:
        folder: The checkpoint; all its other files are written.
        facts: What a run has to have in common with this one to go on from here.
    """
    # After a power cut, there must be no mark on files that never reached the disk.
    os.sync()
    write_json(folder / MARK, dict(facts))


def find_checkpoint(run: Path, facts: Mapping[str, Any]) -> Path | None:
    """Find the newest complete checkpoint of a run.

    Args:
        run: The run's folder.
        facts: As they were given to `mark_complete`.

    Raises:
        RecipeError: When it was made under other facts; names them.
    """
    folder = next(_list_complete(run), None)
    if folder is None:
        return None
    marked = read_json(folder / MARK)
    differing = []
    for key, value in facts.items():
        before = marked.get(key)
        if before == value:
            continue
        if isinstance(value, int):
            differing.append(f"{key} ({before}, now {value})")
        else:
            # Hashes tell a reader nothing.
            differing.append(key)
    if differing:
        raise RecipeError(
            f"{folder} belongs to a run that differs in {', '.join(differing)}, so going on from it would not give "
            "that run's result; restore what it was, choose another folder, or --overwrite it"
        )
    return folder


def find_last_step(run: Path) -> int:
    """Return the steps of the newest complete checkpoint, or 0."""
    return next(map(_get_step, _list_complete(run)), 0)


def remove_checkpoints(folders: Iterable[Path]) -> None:
    """Remove checkpoints so that a kill within leaves no mark on half of the files."""
    for folder in folders:
        (folder / MARK).unlink(missing_ok=True)
        shutil.rmtree(folder)


def _list_complete(run: Path) -> Iterator[Path]:
    return (folder for folder in list_checkpoints(run) if (folder / MARK).is_file())
