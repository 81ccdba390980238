"""A finished run becomes a repository: adapter or model, tokenizer, manifest, recipe and card, in one commit.

The card has front matter that the Hub reads, and prose that says only what the run and its scores say.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib import resources
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import yaml

from rolellm.core.errors import DataError, ModelError, RecipeError, SettingsError, require
from rolellm.core.files import open_atomic, write_json
from rolellm.core.fingerprint import hash_file
from rolellm.core.jsonl import read_json
from rolellm.core.progress import track_progress
from rolellm.core.records import Language
from rolellm.core.sanitize import Markdown, make_markdown_environment, show_on_line
from rolellm.core.settings import iterate_leaves, read, suggest_keywords
from rolellm.core.table import Table, TableRow
from rolellm.core.text import format_count
from rolellm.core.typed_json import map_strings, strip_folders
from rolellm.data.hub import Pushed, PushOptions, check_push, check_repo, push_folder
from rolellm.data.rolebench.schema import ANONYMOUS, CONFIGS, REPO_ID, SAMPLE, get_config
from rolellm.models.find import hash_model, read_trained_on
from rolellm.models.load import fetch, merge_adapter, open_tokenizer
from rolellm.models.prompts.encode import find_end_token
from rolellm.models.prompts.render import load_system_template
from rolellm.models.training_record import MANIFEST, TrainedOn, read_manifest
from rolellm.runs import find_runs
from rolellm.scoring.predictions import describe_decoding
from rolellm.scoring.score_report import COLUMNS, ScoreReport
from rolellm.training.recipe import Recipe
from rolellm.training.run_folder import ADAPTER, FULL, hash_model_files, name_base

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Form = Literal["adapter", "merged", "full"]
_TOKENIZER = (
    *("tokenizer*", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja"),
    *("vocab*", "merges.txt", "*.model"),
)


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """A finished run, and as what it is published.

    Attributes:
        folder: The run's folder.
        manifest: Its manifest.
        form: An adapter, one merged into its base, or a model tuned in all its weights.
        base: The base on the Hub; ``None`` if it is not there.
        base_revision: The base's commit, if known.
        safety: The manifest of its safety check, if there was one.
    """

    folder: Path
    manifest: Mapping[str, Any]
    form: Form
    base: str | None
    base_revision: str | None
    safety: Mapping[str, Any] | None = None

    @property
    def on_rolebench(self) -> bool:
        """True if it was trained on rows of RoleBench, not of the sample, a release of one's own or another dataset."""
        data = self.manifest["data"]
        if data.get("own"):
            return False
        return data["config"] not in (SAMPLE, SAMPLE + ANONYMOUS, "dataset")

    @property
    def languages(self) -> list[Language]:
        """The languages of the training rows, as far as the recipe says."""
        data = self.manifest["recipe"]["data"]
        return list(data.get("languages") or get_config(data["config"]).languages)


@suggest_keywords(PushOptions)
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
        license: As the Hub spells it; never guessed.
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
    chosen = read(PushOptions, options)
    folder = Path(getattr(run, "out", run))
    check_push(repo, chosen)
    finished = _settle_form(folder, merge, base_model)
    license_id = _check_license(license)
    finished = replace(finished, safety=_find_safety(folder, safety))
    reports = [read_scores(Path(path)) for path in scores]
    # In the run's folder, where there is room for a model and files need not be copied, unless it is read-only.
    parent = folder if os.access(folder, os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=parent, prefix=".publish-") as scratch:
        staged = Path(scratch)
        link_files(folder, _TOKENIZER, staged)
        tokenizer = open_tokenizer(staged)
        systems = _write_recipe(finished, staged)
        _copy_weights(finished, staged, find_end_token(tokenizer))
        published = replace(finished, manifest=_write_manifest(finished, staged))
        with open_atomic(staged / "README.md") as stream:
            stream.write(render_model_card(published, repo, license_id, tokenizer, systems, reports))
        _write_hub_results(reports, staged)
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


def _choose_form(subject: object, is_adapter: bool, merge: bool, base: str | None) -> Form:
    """Choose what is published.

    Raises:
        RecipeError: For a merge without an adapter, and an adapter whose base is not on the Hub.
    """
    if merge and not is_adapter:
        raise RecipeError(f"{subject}: all weights are tuned, so there is nothing to merge; leave --merge out")
    if is_adapter and not merge and base is None:
        raise RecipeError(
            f"{subject}: the adapter's base is a folder that nobody else has: merge the adapter into it (--merge), "
            "or name the same base on the Hub (--set base_model=OWNER/NAME), or tune a base.model"
        )
    if not is_adapter:
        return "full"
    return "merged" if merge else "adapter"


def _copy_weights(run: FinishedRun, staged: Path, end: int) -> None:
    """Put the adapter, the merged model or the whole model into a folder; ``end`` is the token that ends a reply."""
    if run.form == "merged":
        merge_adapter(_find_base_folder(run, weights=True), run.folder, staged, end)
        return
    link_files(run.folder, ADAPTER if run.form == "adapter" else FULL, staged)
    name_base(staged, run.base, run.base_revision)


def _find_base_folder(run: FinishedRun, *, weights: bool) -> Path:
    """Find the folder of the base that the run was tuned on; fetched from the Hub, or with its weights checked."""
    base = run.manifest["base"]
    if base.get("model"):
        return fetch(base["model"], base.get("revision"), weights=weights)
    path = run.manifest["recipe"]["base"].get("path")
    folder = Path(path or run.folder / base["name"])
    if not folder.is_dir():
        raise ModelError(
            f"the base of {run.folder} was in {folder}, and is not there now; put it back to merge with it"
        )
    if weights:
        check_base(folder, run.manifest)
    return folder


def check_base(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Check that a folder holds the base that a run tuned, where its manifest has hashes of that.

    Raises:
        ModelError: When it holds another one, or files of it were changed.
    """
    expected = manifest["base"].get("files") or {}
    changed = sorted(expected.items() - hash_model_files(folder).items())
    if changed:
        names = ", ".join(name for name, _ in changed)
        raise ModelError(f"{folder} is not the base that was tuned: {names} changed since")


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
    trained_on = TrainedOn.from_dict(run.manifest["trained_on"])
    if run.form != "adapter":
        # What the base was tuned on before, where it is at hand and a model of ours.
        with suppress(ModelError):
            trained_on |= read_trained_on(str(_find_base_folder(run, weights=False)))
    adapter = run.manifest["files"].get(ADAPTER[1])
    values = dict(run.manifest)
    recipe = _strip_recipe(values.pop("recipe"))
    del values["trained_on"], values["files"]
    manifest: dict[str, Any] = strip_folders(values)
    manifest["recipe"] = recipe
    manifest["trained_on"] = trained_on.to_dict()
    manifest["published"] = {"form": run.form, "base_model": run.base, "adapter": adapter}
    manifest["files"] = hash_model_files(staged)
    write_json(staged / MANIFEST, manifest)
    return manifest


def _strip_recipe(recipe: Mapping[str, Any]) -> Any:
    sections = {**recipe, "data": {**recipe["data"]}}
    del sections["output"], sections["data"]["data_dir"]
    return strip_folders(sections)


def link_files(folder: Path, patterns: Iterable[str], staged: Path) -> None:
    """Put the files of a folder that match patterns into another, without copying them where that can be."""
    for file in set(chain.from_iterable(map(folder.glob, patterns))):
        if not file.is_file():
            continue
        try:
            (staged / file.name).hardlink_to(file)
        except OSError:
            shutil.copyfile(file, staged / file.name)


def read_finished_run(run: Path) -> dict[str, Any]:
    """Read the manifest of a finished run whose files are as training left them.

    Raises:
        ModelError: When it is not finished, or a file was changed.
    """
    file = run / MANIFEST
    if not file.is_file():
        raise ModelError(f"{run} holds no finished run: it has no {MANIFEST}, which training writes last")
    manifest = _read_manifest(file)
    for name, expected in track_progress(manifest.get("files", {}).items(), "checking the run", "files"):
        path = run / name
        if not path.is_file() or hash_file(path) != expected:
            raise ModelError(f"{path} is not as training left it; its hash is in {MANIFEST}")
    return manifest


def _settle_form(run: Path, merge: bool, base_model: str | None) -> FinishedRun:
    manifest = read_finished_run(run)
    base = manifest["base"].get("model")
    revision = manifest["base"].get("revision")
    if base_model is not None and base_model != base:
        check_repo(base_model)
        base, revision = base_model, None
    is_adapter = (run / ADAPTER[0]).is_file()
    form = _choose_form(run, is_adapter, merge, base)
    return FinishedRun(run, manifest, form, base, revision)


def _read_manifest(file: Path) -> dict[str, Any]:
    """A manifest with its recipe as it is read today."""
    if read_manifest(file) is None:
        raise ModelError(f"{file} is not a manifest of `rolellm train`")
    manifest = read_json(file)
    try:
        recipe = read(Recipe, manifest["recipe"])
    except (SettingsError, KeyError) as error:
        raise ModelError(f"{file}: its recipe cannot be read ({error}); restore the file") from error
    manifest["recipe"] = recipe.to_dict()
    return manifest


def _check_license(name: str | None) -> str:
    if name is None:
        raise RecipeError(
            "a model is published under a license, which is never guessed: give --license (such as apache-2.0, llama2 "
            "or other); the base's license has to allow it"
        )
    # Which of them the Hub knows, it says itself.
    if not re.fullmatch(r"[a-z0-9][a-z0-9.+-]*", name):
        raise RecipeError(f"{name!r} is not a license as the Hub spells it, such as apache-2.0, llama3.1 or other")
    return name


def read_scores(path: Path) -> ScoreReport:
    """Read what ``rolellm score --json`` printed into a file, each text in it on one line and visible.

    Raises:
        DataError: When it is something else; names the file.
    """
    try:
        report = ScoreReport.from_dict(map_strings(read_json(path), show_on_line))
        _list_notes(report)  # A fingerprint may be any object; here one that cannot be told in words is refused.
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise DataError(f"holds no scores: {error}", path=path) from error
    return report


def _list_notes(report: ScoreReport) -> list[str]:
    """Notes for a reader who compares the scores with others."""
    notes = [report.recipe]
    for file in report.fingerprint["predictions"]:
        notes.append(_describe_answers(file["generation"]))
    unanswered = report.unmatched.get("rows")
    if unanswered:
        notes.append(f"{unanswered} rows without an answer are left out")
    if report.contamination is None:
        notes.append("whether its rows were trained on was not recorded")
    elif report.contamination.get("contaminated"):
        notes.append("{contaminated} of {rows} rows were trained on".format(**report.contamination))
    # Not their text: some of them name files, which mean nothing elsewhere.
    if report.warnings:
        notes.append(f"scoring gave {format_count(len(report.warnings), 'warning')}")
    return list(dict.fromkeys(notes))


def _describe_answers(generation: Mapping[str, Any] | None) -> str:
    """Describe how answers were made, and by which model, as far as the file next to them says."""
    if not generation or not generation.get("decoding"):
        return "how the answers were made was not recorded"
    model = generation.get("adapter_hash") or generation.get("model_hash")
    described = f"answers of the model with content hash {str(model)[:12]}, {describe_decoding(generation)}"
    prompt = generation.get("prompt") or {}
    if "form" in prompt:
        described += f", prompt form {prompt['form']}"
    return described


def _write_hub_results(reports: Sequence[ScoreReport], staged: Path) -> None:
    """Write the scores where the Hub reads them for the model's page and the dataset's leaderboard.

    None for the sample, fame-free twins, and configs and releases of others: the dataset on the Hub lacks them.
    """
    from huggingface_hub import EvalResultEntry, eval_result_entries_to_yaml

    entries = []
    for report in reports:
        config = report.options.config
        if report.is_own or config not in CONFIGS or config == SAMPLE or get_config(config).anonymous:
            continue
        notes = "; ".join(_list_notes(report))
        for name, score in report.metrics.items():
            if score:
                task = f"{config}_{name.lower()}"
                entries.append(EvalResultEntry(dataset_id=REPO_ID, task_id=task, value=score.mean, notes=notes))
    if entries:
        path = staged / ".eval_results" / "rolebench.yaml"
        path.parent.mkdir()
        with open_atomic(path) as stream:
            yaml.safe_dump(eval_result_entries_to_yaml(entries), stream, allow_unicode=True, sort_keys=False)


def render_model_card(
    run: FinishedRun,
    repo: str,
    license_id: str,
    tokenizer: PreTrainedTokenizerBase,
    systems: Mapping[Language, str],
    scores: Sequence[ScoreReport],
) -> str:
    """The card's text: YAML front matter, then Markdown.

    Args:
        run: The run, with its manifest as it is published.
        repo: ``OWNER/NAME``.
        license_id: The license that the model is published under.
        tokenizer: The tokenizer as it is published.
        systems: The system instruction's template, by language, as far as it is at hand.
        scores: What was measured.
    """
    environment = make_markdown_environment()
    # As a string of Python; what cannot be seen is written as its escape.
    environment.filters["quoted"] = lambda text: Markdown(repr(text))
    environment.filters["json"] = partial(json.dumps, ensure_ascii=False)
    environment.filters["percent"] = lambda share: f"{100 * share:.1f}"
    file = resources.files("rolellm.training").joinpath("model_card.md.jinja")
    template = environment.from_string(file.read_text(encoding="utf-8"))
    turns = [{"role": "system", "content": "{system instruction}"}, {"role": "user", "content": "{question}"}]
    end = find_end_token(tokenizer)
    language = next(iter(systems), run.languages[0])
    prompt = str(tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True))
    end_token = str(tokenizer.convert_ids_to_tokens(end))
    table = _build_score_table(scores)
    body = template.render(
        run=run,
        repo=repo,
        license_id=license_id,
        prompt=prompt,
        end=end,
        end_token=end_token,
        systems=systems,
        language=language,
        system=systems.get(language, "{role}\n{description}"),
        recipe=dict(iterate_leaves(run.manifest["recipe"])),
        scores=scores,
        score_table=Markdown(table.to_markdown()),
        list_notes=_list_notes,
    )
    return f"---\n{_render_front_matter(run, license_id)}\n---\n\n{body}"


def _build_score_table(reports: Iterable[ScoreReport]) -> Table:
    """Build a table of each report's scores, with the intervals that its config asks for."""
    rows = []
    for report in reports:
        marks = [f"protocol {report.options.protocol}"]
        if report.is_own:
            marks.append("a release of one's own")
        scores = tuple(map(report.leading.metrics.get, COLUMNS))
        rows.append(TableRow((report.options.where,), scores, tuple(marks)))
    return Table("Rouge-L", ("Data",), COLUMNS, tuple(rows))


def _render_front_matter(run: FinishedRun, license_id: str) -> str:
    from huggingface_hub import ModelCardData

    relation, library = "finetune", "transformers"
    if run.form == "adapter":
        relation, library = "adapter", "peft"
    tags = ["rolellm", "role-playing"]
    if run.manifest["method"] != "full":
        tags.append(run.manifest["method"])
    data = ModelCardData(
        language=list(map(str, run.languages)),
        license=license_id,
        library_name=library,
        pipeline_tag="text-generation",
        base_model=run.base,
        datasets=[REPO_ID] if run.on_rolebench else None,
        tags=tags,
        base_model_relation=relation if run.base else None,
    )
    return str(data.to_yaml(line_break="\n"))
