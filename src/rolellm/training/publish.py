"""A finished run becomes a repository: adapter or model, tokenizer, manifest, recipe and card, in one commit."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import yaml

from rolellm.core.errors import ModelError, RecipeError, SettingsError, require
from rolellm.core.files import open_atomic, write_json
from rolellm.core.fingerprint import hash_file
from rolellm.core.progress import track_progress
from rolellm.core.records import Language
from rolellm.core.settings import read
from rolellm.core.typed_json import strip_folders
from rolellm.data.hub import Pushed, PushOptions, check_login, check_push, check_repo, push_folder
from rolellm.models.find import hash_model
from rolellm.models.load import fetch, merge_adapter, open_tokenizer
from rolellm.models.prompts.encode import find_end_token
from rolellm.models.prompts.render import load_system_template
from rolellm.models.training_record import MANIFEST, TrainedOn, read_manifest
from rolellm.runs import find_runs
from rolellm.training.model_card import FinishedRun, Form, Scores, read_scores, render_model_card
from rolellm.training.recipe import Recipe, read_recipe
from rolellm.training.run_folder import ADAPTER, FULL, hash_model_files, name_base

_TOKENIZER = (
    *("tokenizer*", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja"),
    *("vocab*", "merges.txt", "*.model"),
)
# What the card and the staging read of a manifest, besides its recipe and `trained_on`.
_SHAPE: Final = {
    "recipe": dict,
    "recipe_hash": str,
    "method": str,
    "processes": int,
    "files": dict,
    "versions": {"rolellm": str},
    "base": {"kind": str, "name": str, "model": str | None, "revision": str | None, "files": dict},
    "prompt": {"profile": str | None, "system_templates": dict},
    "data": dict.fromkeys(("config", "split", "fingerprint"), str)
    | dict.fromkeys(("rows", "examples", "tokens_trained"), int),
    "result": {"steps": int, "first_loss": float | int, "last_loss": float | int},
    "seconds": {"training": float | int},
}


def push(
    run: Any,
    repo: str,
    *,
    license: str | None = None,
    merge: bool = False,
    base_model: str | None = None,
    scores: Sequence[str | Path] = (),
    safety: str | Path | None = None,
    **options: Any,
) -> Pushed:
    """Publish a finished training run on the Hub as one commit: model, tokenizer with its chat template, and card.

    Args:
        run: The run's folder, or what `rolellm.train` returned.
        repo: ``OWNER/NAME``; created if missing.
        license: As the Hub spells it; by default the recipe's ``output.license``.
        merge: Publish the adapter merged into its base.
        base_model: The base on the Hub, ``OWNER/NAME``, if the run used a local folder.
        scores: Files that ``rolellm score --json`` printed.
        safety: Folder of a run of ``rolellm check safety``; by default one in the run's folder.
        options: Fields of `rolellm.data.hub.PushOptions`, such as ``private``, ``branch``, ``message`` or ``dry_run``.

    Raises:
        SettingsError: For an unknown option, a bad name, a missing license, or a choice that does not fit the run.
        ModelError: When the folder holds no finished run, or its files were changed.
        DataError: For a file that holds no scores.
        HubError: When publishing fails; what was on the Hub before is unchanged.
    """
    require("transformers", extra="train")
    chosen, folder = read(PushOptions, options), Path(getattr(run, "out", run))
    check_push(repo, chosen)
    finished = _read_finished_run(folder, merge, base_model)
    named = _check_license(finished.manifest["recipe"].get("output", {}).get("license") if license is None else license)
    finished = replace(finished, safety=_find_safety(folder, safety))
    measured = [read_scores(Path(path)) for path in scores]
    # In the run's folder, where there is room for a model and files need not be copied, unless it is read-only.
    parent = folder if os.access(folder, os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=parent, prefix=".publish-") as scratch:
        staged = Path(scratch)
        _link_files(folder, _TOKENIZER, staged)
        tokenizer = open_tokenizer(staged)
        systems = _write_recipe(finished, staged)
        _copy_weights(finished, staged, find_end_token(tokenizer))
        published = replace(finished, manifest=_write_manifest(finished, staged))
        with open_atomic(staged / "README.md") as stream:
            stream.write(render_model_card(published, repo, named, tokenizer, systems, measured))
        _write_results(measured, staged)
        return push_folder(staged, repo, chosen)


def _find_safety(run: Path, folder: str | Path | None) -> Mapping[str, Any] | None:
    """Find the manifest of a safety check of the run; ``None`` where none was named, and none is in its folder."""
    checks = find_runs(run if folder is None else folder, "safety")
    if not checks:
        if folder is not None:
            raise SettingsError(f"{folder} holds no finished run of `rolellm check safety`")
        return None
    manifest = checks[-1].manifest
    tuned = manifest["models"]["endpoints"][0]
    measured = tuned.get("adapter_hash") or tuned.get("model_hash")
    if measured is not None and measured != hash_model(str(run)):
        raise SettingsError(f"{checks[-1].folder} was measured on other weights than those of {run}; check it again")
    return manifest


def _write_results(measured: Sequence[Scores], staged: Path) -> None:
    """Write the scores where the Hub reads them for the model's page and the dataset's leaderboard."""
    from huggingface_hub import eval_result_entries_to_yaml

    entries = eval_result_entries_to_yaml([entry for scores in measured for entry in scores.to_hub_results()])
    if entries:
        path = staged / ".eval_results" / "rolebench.yaml"
        path.parent.mkdir()
        with open_atomic(path) as stream:
            yaml.safe_dump(entries, stream, allow_unicode=True, sort_keys=False)


def check_publishing(recipe: Recipe) -> None:
    """Check, before any work, that a recipe with ``output.push_to_hub`` ends in something that can be published.

    Raises:
        RecipeError: When it does not; names the keys.
        HubLoginError: When there is no token to publish with.
    """
    if not recipe.output.push_to_hub:
        return
    check_repo(recipe.output.hub_repo or "")
    _check_license(recipe.output.license)
    adapter = recipe.method.name != "full"
    if recipe.output.merge and not adapter:
        raise RecipeError("output.merge: method.name: full tunes the whole model, so there is nothing to merge")
    if adapter and not recipe.output.merge and recipe.base.model is None:
        raise RecipeError(
            "output.push_to_hub: nobody else has the adapter's base; set output.merge, or tune a base.model"
        )
    check_login()


def _copy_weights(run: FinishedRun, staged: Path, end: int) -> None:
    """Put the adapter, the merged model or the whole model into a folder; ``end`` is the token that ends a reply."""
    if run.form == "merged":
        merge_adapter(_find_base_folder(run), run.folder, staged, end)
        return
    _link_files(run.folder, ADAPTER if run.form == "adapter" else FULL, staged)
    name_base(staged, run.base, run.base_revision)


def _find_base_folder(run: FinishedRun) -> Path:
    """Find the folder of the base that the run was tuned on; fetched where it is on the Hub."""
    base = run.manifest["base"]
    if base.get("model"):
        return fetch(base["model"], base.get("revision"), weights=True)
    config = json.loads((run.folder / ADAPTER[0]).read_text(encoding="utf-8"))
    named = Path(config["base_model_name_or_path"])
    folder = run.folder / named if (run.folder / named).is_dir() else named
    if not folder.is_dir():
        raise ModelError(f"the base of {run.folder} was in {named}, and is not there now; put it back to merge with it")
    hashes = hash_model_files(folder)
    if changed := [name for name, expected in base["files"].items() if hashes.get(name) != expected]:
        raise ModelError(f"{folder} is not the base that was tuned: {', '.join(changed)} changed since")
    return folder


def _write_recipe(run: FinishedRun, staged: Path) -> dict[Language, str]:
    """Write the recipe without places of this machine; return the system instruction's template by language.

    A template of the user's own is published next to it, so that the recipe can be carried out elsewhere.
    """
    recipe = _strip_recipe(run.manifest["recipe"])
    own = run.manifest["recipe"]["prompt"].get("system_template")
    retrieval = recipe["prompt"].get("profile") == "retrieval"
    hashes = run.manifest["prompt"]["system_templates"]
    systems: dict[Language, str] = {}
    for language in run.languages:
        try:
            template = load_system_template(language, own, retrieval=retrieval)
        except SettingsError:
            continue  # The user's file is gone; its hash in the manifest is what is left.
        if template.hash == hashes.get(language) and template.text not in systems.values():
            systems[language] = template.text
    if own is not None and systems:
        shutil.copyfile(own, staged / Path(own).name)
    with open_atomic(staged / "recipe.yaml") as stream:
        stream.write("# What this model was tuned by; `rolellm train recipe.yaml` does it again.\n")
        yaml.safe_dump(recipe, stream, allow_unicode=True, sort_keys=False)
    return systems


def _write_manifest(run: FinishedRun, staged: Path) -> dict[str, Any]:
    """Write the manifest for readers elsewhere, which names what is published and no places; last of all.

    ``trained_on`` stays, because a score has to be able to tell test rows that were trained on.
    """
    values = {key: value for key, value in run.manifest.items() if key not in ("recipe", "trained_on", "files")}
    trained_on = TrainedOn.from_dict(run.manifest["trained_on"])
    if run.form != "adapter":
        trained_on |= _read_trained_on_of_base(run)
    manifest = {
        **strip_folders(values),
        "recipe": _strip_recipe(run.manifest["recipe"]),
        "trained_on": trained_on.to_dict(),
        "published": {"form": run.form, "base_model": run.base, "adapter": run.manifest["files"].get(ADAPTER[1])},
        "files": hash_model_files(staged),
    }
    write_json(staged / MANIFEST, manifest)
    return manifest


def _read_trained_on_of_base(run: FinishedRun) -> TrainedOn:
    """Read what the base says that it was tuned on before, where it is at hand and a model of ours."""
    base, path = run.manifest["base"], run.manifest["recipe"]["base"].get("path")
    if base.get("model"):
        try:
            path = fetch(base["model"], base.get("revision"), weights=False)
        except ModelError:
            return TrainedOn()
    file = Path(path or run.folder / base["name"]) / MANIFEST
    record = read_manifest(file) if file.is_file() else None
    return record.trained_on if record else TrainedOn()


def _strip_recipe(recipe: Mapping[str, Any]) -> Any:
    data = {key: value for key, value in recipe["data"].items() if key != "data_dir"}
    return strip_folders({key: value for key, value in recipe.items() if key != "output"} | {"data": data})


def _link_files(folder: Path, patterns: Iterable[str], staged: Path) -> None:
    """Put files where they are published from, without copying them where that can be."""
    for file in {file for pattern in patterns for file in folder.glob(pattern) if file.is_file()}:
        try:
            (staged / file.name).hardlink_to(file)
        except OSError:
            shutil.copyfile(file, staged / file.name)


def _read_finished_run(run: Path, merge: bool, base_model: str | None) -> FinishedRun:
    file = run / MANIFEST
    if not file.is_file():
        raise ModelError(f"{run} holds no finished run: it has no {MANIFEST}, which training writes last")
    manifest = _read_manifest(file)
    for name, expected in track_progress(manifest["files"].items(), "checking the run", "files"):
        if not (run / name).is_file() or hash_file(run / name) != expected:
            raise ModelError(f"{run / name} is not as training left it; its hash is in {MANIFEST}")
    adapter = (run / ADAPTER[0]).is_file()
    if merge and not adapter:
        raise RecipeError(f"{run} holds a whole model, so there is nothing to merge; leave --merge out")
    form: Form = "full" if not adapter else "merged" if merge else "adapter"
    base, revision = manifest["base"].get("model"), manifest["base"].get("revision")
    if base_model is not None:
        check_repo(base_model)
        base, revision = base_model, revision if base_model == base else None
    if form == "adapter" and base is None:
        raise RecipeError(
            f"the adapter in {run} was tuned on {manifest['base']['name']}, a folder that nobody else has: publish it "
            "merged into its base (--merge), or name the same base on the Hub (--base-model OWNER/NAME)"
        )
    return FinishedRun(run, manifest, form, base, revision)


def _read_manifest(file: Path) -> dict[str, Any]:
    """A manifest that holds all that is published of it, each value of its type."""
    if read_manifest(file) is None:
        raise ModelError(f"{file} is not a manifest of `rolellm train`")
    manifest: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    odd = next(_find_mismatches(manifest, _SHAPE), None)
    if odd is not None:
        raise ModelError(f"{file}: {odd} is not what `rolellm train` wrote there; restore the file")
    try:
        recipe = read_recipe(manifest["recipe"])
    except RecipeError as error:
        raise ModelError(f"{file}: its recipe cannot be read ({error}); restore the file") from error
    return {**manifest, "recipe": recipe.to_dict()}


def _find_mismatches(value: Any, shape: Any, dotted: str = "") -> Iterator[str]:
    """The dotted names of values that are missing or of another type."""
    if isinstance(shape, dict) and isinstance(value, dict):
        for key, inner in shape.items():
            yield from _find_mismatches(value.get(key), inner, f"{dotted}.{key}" if dotted else key)
    elif isinstance(shape, dict) or isinstance(value, bool) or not isinstance(value, shape):
        yield dotted


def _check_license(name: str | None) -> str:
    if name is None:
        raise RecipeError(
            "a model is published under a license, which is never guessed: give --license (such as apache-2.0, llama2 "
            "or other), or output.license in the recipe; the base's license has to allow it"
        )
    # Which of them the Hub knows, it says itself.
    if not re.fullmatch(r"[a-z0-9][a-z0-9.+-]*", name):
        raise RecipeError(f"{name!r} is not a license as the Hub spells it, such as apache-2.0, llama3.1 or other")
    return name
