"""What a prompt says of the role: its description, or lines of its script; as asked for, else as the model was tuned.

Training and inference have to send the same prompt. A run of ``rolellm train`` says in its manifest which form it saw.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from rolellm.errors import RecipeError
from rolellm.llm.model_source import ModelSource, manifest_paths
from rolellm.prompts.render import prompt_messages, system_template
from rolellm.prompts.retrieval import RETRIEVED, RetrievalPrompts
from rolellm.records import Language, Row

ProfileKind = Literal["description", "retrieval"]


@dataclass(frozen=True, slots=True)
class ProfileForm:
    """What a prompt says of the role.

    Attributes:
        kind: ``description``, or ``retrieval``: exchanges of its script that BM25 finds for the question.
        retrieved: With ``retrieval``, the most exchanges.
    """

    kind: ProfileKind = "description"
    retrieved: int = RETRIEVED


@dataclass(frozen=True, slots=True)
class Asking:
    """How rows are asked.

    Attributes:
        messages: Makes a row's chat messages.
        record: What decides them, for the sidecar: ``template_hash`` by language, and with retrieval ``profile``,
            ``retrieved`` and ``profiles``, the hash of the dialogue files.
    """

    messages: Callable[[Row], list[dict[str, str]]]
    record: dict[str, Any]


def choose_form(source: ModelSource, kind: ProfileKind | None = None, retrieved: int | None = None) -> ProfileForm:
    """The form to ask a model in.

    Args:
        source: The model; where ``kind`` is not given, its manifest decides, and without one it is the description.
        kind: What the user asks for.
        retrieved: The same; by default what the model was tuned with, else as many as in the paper.

    Raises:
        RecipeError: When ``retrieved`` is given and there is nothing to retrieve.
    """
    tuned = _tuned_form(source)
    chosen = kind or tuned.kind
    if chosen == "description" and retrieved is not None:
        raise RecipeError("a number of retrieved exchanges goes with --profile retrieval only")
    return ProfileForm(chosen, tuned.retrieved if retrieved is None else retrieved)


def _tuned_form(source: ModelSource) -> ProfileForm:
    for name in (source.adapter, source.base):
        for path in manifest_paths(name) if name is not None else ():
            form = _read_form(path)
            if form is not None:
                return form
    return ProfileForm()


def _read_form(path: Path) -> ProfileForm | None:
    """The form in a manifest of ours; ``None`` for any other file."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(content, dict) or content.get("kind") != "rocit":
        return None
    recipe = content.get("recipe")
    prompt = recipe.get("prompt") if isinstance(recipe, dict) else None
    # Manifests from before there was a choice do not name it.
    if not isinstance(prompt, dict) or prompt.get("profile") != "retrieval":
        return ProfileForm()
    return ProfileForm("retrieval", int(prompt.get("retrieved", RETRIEVED)))


def asking(
    form: ProfileForm,
    rows: Iterable[Row],
    *,
    config: str | None = None,
    data_dir: str | Path | None = None,
    template: Path | None = None,
) -> Asking:
    """Settle how rows are asked.

    Args:
        form: What a prompt says of the role.
        rows: The rows to ask; with retrieval, their roles' scripts are read.
        config: The data set's config, in whose languages scripts are looked for.
        data_dir: Where the release is.
        template: A system instruction of the user's own; with retrieval it needs the slot ``{examples}``.

    Raises:
        RecipeError: For a template that will not do.
        ReleaseNotFoundError: With retrieval, when no role has a script.
        MissingExtraError: With retrieval, without ``bm25s``.

    Warns:
        MissingFilesWarning: With retrieval, for roles without a script: they are asked without any lines.
    """
    if form.kind == "description":
        # Both languages, whichever the rows are in, so that a run over more of the rows has the same settings.
        languages: tuple[Language, ...] = ("en", "zh")
        hashes = {language: system_template(language, template).hash for language in languages}
        own = None if template is None else system_template("en", template)
        return Asking(partial(prompt_messages, template=own), {"template_hash": hashes})
    from rolellm.rolebench.profiles import load_profiles, profiles_fingerprint

    profiles = load_profiles(config, data_dir, roles=(row.role for row in rows))
    messages = RetrievalPrompts(profiles, count=form.retrieved, path=template)
    record = {
        "template_hash": messages.hashes,
        "profile": form.kind,
        "retrieved": form.retrieved,
        "profiles": profiles_fingerprint(config, data_dir),
    }
    return Asking(messages, record)
