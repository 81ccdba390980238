"""What of a run is published, put together in a folder: the model, its tokenizer, the recipe and the manifest.

Checkpoints, optimiser states, the base and whatever else lies in the run's folder stay there, and no path of this
machine goes along.
"""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import TYPE_CHECKING, Any

import yaml

from rolellm.errors import ModelError, RecipeError
from rolellm.files import whole_file, write_json
from rolellm.fingerprint import hash_file
from rolellm.prompts.render import system_template
from rolellm.prompts.retrieval import retrieval_template
from rolellm.records import Language
from rolellm.rocit.loading import fetch, open_tokenizer
from rolellm.rocit.manifest import MANIFEST, file_hashes
from rolellm.rocit.model_card import Form, languages_of
from rolellm.seen import Seen, read_manifest

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ADAPTER = ("adapter_config.json", "adapter_model.safetensors")
_FULL = ("config.json", "generation_config.json", "model*.safetensors", "model.safetensors.index.json")
_TOKENIZER = (
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "vocab*",
    "merges.txt",
    "*.model",
)
RECIPE = "recipe.yaml"


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """A finished run, and as what it is published.

    Attributes:
        folder: Where it is.
        manifest: What it says of itself.
        form: What of it is published.
        base: The base on the Hub; ``None`` where it is not there.
        base_revision: Its commit, where that is known.
    """

    folder: Path
    manifest: Mapping[str, Any]
    form: Form
    base: str | None
    base_revision: str | None


def stage_tokenizer(run: FinishedRun, staged: Path) -> PreTrainedTokenizerBase:
    """Put the tokenizer with its chat template into a folder, and load it from there."""
    for pattern in _TOKENIZER:
        for file in run.folder.glob(pattern):
            if file.is_file() and not (staged / file.name).exists():
                _take(file, staged / file.name)
    return open_tokenizer(staged)


def stage_weights(run: FinishedRun, staged: Path, end: int) -> None:
    """Put the adapter, the merged model or the whole model into a folder.

    Args:
        run: The run.
        staged: The folder.
        end: The token that ends a reply.

    Raises:
        ModelError: When the base to merge with is not there, or is not the one that was tuned.
    """
    if run.form == "merged":
        from rolellm.rocit.merge import merge_adapter

        merge_adapter(_base_folder(run), run.folder, staged, end)
        return
    for pattern in ADAPTER if run.form == "adapter" else _FULL:
        for file in run.folder.glob(pattern):
            _take(file, staged / file.name)
    if run.form == "adapter":
        file = staged / ADAPTER[0]
        config = json.loads(file.read_text(encoding="utf-8"))
        write_json(file, {**config, "base_model_name_or_path": run.base, "revision": run.base_revision})


def _base_folder(run: FinishedRun) -> Path:
    """Where the base lies that the run was tuned on; fetched where it is on the Hub."""
    known = run.manifest["base"]
    if known.get("model"):
        return fetch(known["model"], known.get("revision"), weights=True)
    config = json.loads((run.folder / ADAPTER[0]).read_text(encoding="utf-8"))
    named = Path(config["base_model_name_or_path"])
    folder = run.folder / named if (run.folder / named).is_dir() else named
    if not folder.is_dir():
        raise ModelError(f"the base of {run.folder} was in {named}, and is not there now; put it back to merge with it")
    kept = {name: folder / name for name in known["files"]}
    changed = [name for name, file in kept.items() if not file.is_file() or hash_file(file) != known["files"][name]]
    if changed:
        raise ModelError(f"{folder} is not the base that was tuned: {', '.join(changed)} changed since")
    return folder


def stage_recipe(run: FinishedRun, staged: Path) -> dict[Language, str]:
    """Write the recipe without places of this machine; return the system instruction's template by language.

    A template of the user's own is published beside it, so that the recipe can be carried out elsewhere.
    """
    recipe = _public_recipe(run.manifest["recipe"])
    own = run.manifest["recipe"]["prompt"].get("system_template")
    made = retrieval_template if recipe["prompt"].get("profile") == "retrieval" else system_template
    hashes = run.manifest["prompt"]["system_templates"]
    systems: dict[Language, str] = {}
    for language in languages_of(run.manifest):
        try:
            template = made(language, own)
        except RecipeError:
            continue  # The user's file is gone; its hash in the manifest is what is left.
        if template.hash == hashes.get(language) and template.text not in systems.values():
            systems[language] = template.text
    if own is not None and systems:
        shutil.copyfile(own, staged / Path(own).name)
    with whole_file(staged / RECIPE) as stream:
        stream.write("# What this model was tuned by; `rolellm train recipe.yaml` does it again.\n")
        yaml.safe_dump(recipe, stream, allow_unicode=True, sort_keys=False)
    return systems


def stage_manifest(run: FinishedRun, staged: Path) -> dict[str, Any]:
    """Write the manifest for readers elsewhere, which names what is published and no places; last of all.

    ``trained_on`` stays, because a score has to be able to tell test rows that were trained on.
    """
    kept = {key: value for key, value in run.manifest.items() if key not in ("recipe", "trained_on", "files")}
    seen = Seen.from_dict(run.manifest["trained_on"])
    if run.form != "adapter":
        seen |= _seen_by_base(run)
    manifest = {
        **_without_places(kept),
        "recipe": _public_recipe(run.manifest["recipe"]),
        "trained_on": seen.to_dict(),
        "published": {"form": run.form, "base_model": run.base, "adapter": run.manifest["files"].get(ADAPTER[1])},
        "files": file_hashes(staged),
    }
    write_json(staged / MANIFEST, manifest)
    return manifest


def _seen_by_base(run: FinishedRun) -> Seen:
    """What the base says that it was tuned on before, where it is at hand and a model of ours."""
    base, path = run.manifest["base"], run.manifest["recipe"]["base"].get("path")
    if base.get("model"):
        try:
            path = fetch(base["model"], base.get("revision"), weights=False)
        except ModelError:
            return Seen()
    file = Path(path or run.folder / base["name"]) / MANIFEST
    record = read_manifest(file) if file.is_file() else None
    return record.seen if record else Seen()


def _public_recipe(recipe: Mapping[str, Any]) -> dict[str, Any]:
    kept = {section: copy.deepcopy(values) for section, values in recipe.items() if section != "output"}
    kept["data"].pop("data_dir", None)
    public: dict[str, Any] = _without_places(kept)
    return public


def _without_places(value: Any) -> Any:
    """A JSON value whose absolute paths are cut down to their last part."""
    if isinstance(value, dict):
        return {key: _without_places(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_places(item) for item in value]
    if isinstance(value, str) and (PurePosixPath(value).is_absolute() or PureWindowsPath(value).is_absolute()):
        return PureWindowsPath(value).name
    return value


def _take(source: Path, target: Path) -> None:
    """Put a file where it is published from, without copying it where that can be."""
    try:
        target.hardlink_to(source)
    except OSError:
        shutil.copyfile(source, target)
