"""A run's folder: who may write there, what is cleared away, and whether a run can be taken up again."""

from __future__ import annotations

import json
import platform
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from rolellm.core.errors import RecipeError, RoleLLMError, StoppedShortError
from rolellm.core.files import NO_ROOM, write_json
from rolellm.core.fingerprint import hash_file
from rolellm.models.training_record import MANIFEST
from rolellm.rocit import checkpoints
from rolellm.rocit.recipe import Recipe
from rolellm.runtime import locks
from rolellm.version import __version__

# --- What a run says about itself: ``manifest.json``, written last, so that a folder with one holds a finished run


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


# --- A run's folder: who may write there, what is cleared away, and whether a run can be taken up again


Start = Literal["new", "overwrite", "resume"]
RECIPE = "recipe.json"
METRICS = "metrics.jsonl"
# Beside a recipe's sections, the commit that a base on the Hub was at when the run began.
_COMMIT = "base_commit"
_MODEL = (
    "model*.safetensors",
    "model.safetensors.index.json",
    "adapter_model.safetensors",
    "adapter_config.json",
    "config.json",
    "generation_config.json",
    "tokenizer*",
    "special_tokens_map.json",
    "chat_template.jinja",
)
# What a run writes into its folder besides checkpoints; nothing else there is ever removed.
_OWN_FILES = (METRICS, *_MODEL)
# No run writes these, but they belong to a model, which a run would be mixed up with.
_STRANGE = ("*.bin", "*.bin.index.json")


def check_free(run: Path, recipe: Recipe, start: Start) -> None:
    """Refuse a folder that holds something that the run would destroy, or cannot go on from.

    Raises:
        RecipeError: When it holds a run and ``start`` is ``new``, a finished run or one of another recipe and ``start``
            is ``resume``, a model or checkpoints that no run of ours left, the recipe's own base, or when it is a file.
    """
    if run.exists() and not run.is_dir():
        raise RecipeError(f"{run} is a file; a run needs a folder")
    _check_base_apart(run, recipe.base.path)
    left = [*_files(run, (*_MODEL, *_STRANGE)), *checkpoints.folders(run)]
    if left and not (run / RECIPE).is_file() and not (run / MANIFEST).is_file():
        raise RecipeError(f"{run} holds {left[0].name}, but no run of this command; choose another folder with --out")
    if start == "overwrite":
        return
    if (run / MANIFEST).is_file():
        raise RecipeError(f"{run} holds a finished run; choose another folder with --out, or --overwrite it")
    if start == "resume":
        _check_recipe(run, recipe)
    elif left:
        raise RecipeError(
            f"{run} holds an unfinished run; go on with it (--resume), choose another folder (--out), or --overwrite it"
        )


def begun(run: Path, recipe: Recipe) -> tuple[Recipe, str | None]:
    """What a run is resumed with: its recipe, and the commit of the Hub that its base was read at.

    A base without a revision, or with a branch, may have changed on the Hub since. A recipe that names the recorded
    commit counts as the same recipe.

    Returns:
        The recipe as given and ``None``, where the folder records no commit for this base.
    """
    file = run / RECIPE
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        commit, base = content[_COMMIT], content["base"]
        if base["model"] != recipe.base.model or recipe.base.revision not in (base["revision"], commit):
            return recipe, None
        return replace(recipe, base=replace(recipe.base, revision=base["revision"])), commit
    except (OSError, ValueError, KeyError, TypeError):
        return recipe, None  # `check_free` says what is wrong with it.


def claim(run: Path, recipe: Recipe, start: Start, commit: str | None = None) -> None:
    """Clear away what an earlier run wrote here, and nothing else; leave the recipe. A resumed run keeps all.

    Args:
        run: The run's folder.
        recipe: The recipe.
        start: How the run begins.
        commit: Of a base on the Hub; kept for `begun`.
    """
    run.mkdir(parents=True, exist_ok=True)
    if start != "resume":
        # From then on the folder is no finished run.
        (run / MANIFEST).unlink(missing_ok=True)
        for checkpoint in checkpoints.folders(run):
            shutil.rmtree(checkpoint)
        for file in _files(run, _OWN_FILES):
            file.unlink()
    # Last: until then, the old one says whose the rest is.
    write_json(run / RECIPE, recipe.to_dict() | ({} if commit is None else {_COMMIT: commit}))


def _files(run: Path, patterns: Iterable[str]) -> list[Path]:
    return [path for pattern in patterns for path in sorted(run.glob(pattern)) if path.is_file()]


def _check_base_apart(run: Path, base: Path | None) -> None:
    """A run may read its base from anywhere but from what it clears away or writes over."""
    if base is None:
        return
    inside = [run, *checkpoints.folders(run)]
    if base.resolve() in [folder.resolve() for folder in inside]:
        raise RecipeError(
            f"{run} is to hold the run, and base.path ({base}) is there; choose another folder with --out"
        )


def _check_recipe(run: Path, recipe: Recipe) -> None:
    file = run / RECIPE
    if not file.is_file():
        return
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        began = dict(_leaves(recipe.decisive({key: value for key, value in content.items() if key != _COMMIT})))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RecipeError(f"{file} cannot be read ({error}); choose another folder, or --overwrite it") from error
    now = dict(_leaves(recipe.decisive()))
    other = [
        f"{key} (was {began.get(key, 'not there')}, is now {now.get(key, 'not there')})"
        for key in sorted({*began, *now})
        if began.get(key) != now.get(key)
    ]
    if other:
        raise RecipeError(
            f"{run} was begun with another recipe, which differs in {'; '.join(other)}; give it the same again to "
            "--resume, choose another folder, or --overwrite it"
        )


def _leaves(value: Any, dotted: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(item, f"{dotted}.{key}" if dotted else key)
    else:
        yield dotted, json.dumps(value, ensure_ascii=False)


# How libraries in C++ and Rust say that a write failed: torch gives no reason, safetensors the system's number.
_TORCH = re.compile(r"PytorchStreamWriter|unexpected pos")
_NUMBER = re.compile(r"os error ([0-9]+)")


@contextmanager
def stopped_short(run: Path, *, again: str, resume: str) -> Iterator[None]:
    """Turn an interrupt or a full disk within the block into an error that says what is kept and how to go on.

    Args:
        run: The run's folder.
        again: The command that begins as this one did, for as long as nothing was done.
        resume: The command that goes on.

    Raises:
        StoppedShortError: On KeyboardInterrupt, and on a write that found no room.
    """
    before = _begun(run)
    try:
        yield
    except StoppedShortError as stop:  # of a call within, which says how to continue in Python
        problem = str(stop).partition("\nResume with: ")[0]
        raise StoppedShortError(problem, resume=again if _begun(run) == before else resume) from None
    except (KeyboardInterrupt, Exception) as error:
        full = _found_no_room(error)
        if not (full or isinstance(error, KeyboardInterrupt)):
            raise
        room = f"no room left on the disk of {run}; free some, then resume: " if full else ""
        if _begun(run) == before:
            raise StoppedShortError(f"{room}nothing was done yet", resume=again) from None
        step = checkpoints.last_step(run)
        kept = (
            f"step {step} is the last that {run} keeps" if step else f"{run} has no checkpoint yet, so it begins anew"
        )
        raise StoppedShortError(f"{room}{kept}", resume=resume) from None


def _found_no_room(error: BaseException) -> bool:
    """Whether an error, or one that it came from, says that a file could not be written for want of room."""
    if isinstance(error, RoleLLMError):
        return False  # It has its own words.
    number = error.errno if isinstance(error, OSError) else None
    if numbered := _NUMBER.search(str(error)):
        number = int(numbered[1])
    if number in NO_ROOM or _TORCH.search(str(error)):
        return True
    cause = error.__cause__ or error.__context__
    return cause is not None and _found_no_room(cause)


def _begun(run: Path) -> int:
    """Tells one beginning of a run, resumed ones included, from another."""
    recipe = run / RECIPE
    return recipe.stat().st_mtime_ns if recipe.is_file() else 0


# --- The lock of a training run's folder, see `rolellm.locks`


LOCK = ".rocit.lock"


def locked(run: Path) -> AbstractContextManager[None]:
    """Hold a run's folder.

    Raises:
        RunInUseError: When another process holds it; names that one.
    """
    return locks.locked(run, LOCK)


def check_unlocked(run: Path) -> None:
    """Refuse a folder in use at once, without writing there where nobody has.

    Raises:
        RunInUseError: When another process holds it; names that one.
    """
    locks.check_unlocked(run, LOCK)
