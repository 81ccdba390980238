"""A finished run becomes a repository: adapter or model, tokenizer, manifest, recipe and card, in one commit."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rolellm.errors import ModelError, RecipeError
from rolellm.extras import require
from rolellm.files import whole_file
from rolellm.fingerprint import hash_file
from rolellm.hub import Pushed, PushOptions, check_login, check_push, check_repo, push_folder
from rolellm.progress import counted
from rolellm.prompts.encode import end_token_id
from rolellm.rocit.manifest import MANIFEST
from rolellm.rocit.model_card import CardFacts, Form, render_model_card
from rolellm.rocit.model_scores import read_scores
from rolellm.rocit.recipe import OutputRecipe, Recipe
from rolellm.rocit.staging import ADAPTER, FinishedRun, stage_manifest, stage_recipe, stage_tokenizer, stage_weights
from rolellm.rocit.values import build, laid_over, typed
from rolellm.seen import read_manifest

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

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
# As the Hub spells them; which of them it knows, it says itself.
_LICENCE = re.compile(r"[a-z0-9][a-z0-9.+-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishOptions:
    """How to publish a run.

    Attributes:
        licence: Of the model, as the Hub spells it; by default the recipe's ``output.license``.
        merge: Publish the adapter merged into its base.
        base_model: The base on the Hub, ``OWNER/NAME``, where the run had it in a folder.
        scores: Files that ``rolellm score --json`` printed.
        push: Where to, and the rest.
    """

    licence: str | None = None
    merge: bool = False
    base_model: str | None = None
    scores: tuple[Path, ...] = ()
    push: PushOptions = field(default_factory=PushOptions)

    @classmethod
    def of(cls, output: OutputRecipe) -> PublishOptions:
        """What a recipe's ``output`` section asks for."""
        return cls(licence=output.license, merge=output.merge, push=PushOptions(private=output.private))


def publish_run(run: Path, repo: str, options: PublishOptions | None = None) -> Pushed:
    """Publish a finished run as one commit.

    Args:
        run: Its folder.
        repo: ``OWNER/NAME``; made where it is not there.
        options: How.

    Raises:
        RecipeError: For a name, a licence or a choice that will not do; says what would.
        ModelError: When there is no finished run, or its files are not those that training wrote.
        DataError: For a file of scores that is none.
        HubError: As `rolellm.hub.push_folder` does.
    """
    chosen = options or PublishOptions()
    require("transformers", extra="train")
    check_push(repo, chosen.push)
    found = _find(run, chosen)
    asked = found.manifest["recipe"].get("output", {}).get("license")
    licence = _licence(asked if chosen.licence is None else chosen.licence)
    scores = tuple(read_scores(path) for path in chosen.scores)
    # In the run's folder, where there is room for a model and files need not be copied, unless it is read-only.
    place = run if os.access(run, os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=place, prefix=".publish-") as scratch:
        staged = Path(scratch)
        tokenizer = stage_tokenizer(found, staged)
        end = end_token_id(tokenizer)
        systems = stage_recipe(found, staged)
        stage_weights(found, staged, end)
        manifest = stage_manifest(found, staged)
        facts = CardFacts(
            repo=repo,
            form=found.form,
            base=found.base,
            base_revision=found.base_revision,
            licence=licence,
            manifest=manifest,
            prompt=_prompt(tokenizer),
            end=(str(tokenizer.convert_ids_to_tokens(end)), end),
            systems=systems,
            scores=scores,
        )
        with whole_file(staged / "README.md") as stream:
            stream.write(render_model_card(facts))
        return push_folder(staged, repo, chosen.push)


def check_publishing(recipe: Recipe) -> None:
    """Check, before any work, that a recipe with ``output.push_to_hub`` ends in something that can be published.

    Raises:
        RecipeError: When it does not; names the keys.
        HubLoginError: When there is no token to publish with.
    """
    if not recipe.output.push_to_hub:
        return
    check_repo(recipe.output.hub_repo or "")
    _licence(recipe.output.license)
    adapter = recipe.method.name != "full"
    if recipe.output.merge and not adapter:
        raise RecipeError("output.merge: method.name: full tunes the whole model, so there is nothing to merge")
    if adapter and not recipe.output.merge and recipe.base.model is None:
        raise RecipeError(
            "output.push_to_hub: nobody else has the adapter's base; set output.merge, or tune a base.model"
        )
    check_login()


def _find(run: Path, options: PublishOptions) -> FinishedRun:
    file = run / MANIFEST
    if not file.is_file():
        raise ModelError(f"{run} holds no finished run: it has no {MANIFEST}, which training writes last")
    manifest = _read(file)
    for name, expected in counted(manifest["files"].items(), "checking the run", "files"):
        if not (run / name).is_file() or hash_file(run / name) != expected:
            raise ModelError(f"{run / name} is not as training left it; its hash is in {MANIFEST}")
    adapter = (run / ADAPTER[0]).is_file()
    if options.merge and not adapter:
        raise RecipeError(f"{run} holds a whole model, so there is nothing to merge; leave --merge out")
    form: Form = "full" if not adapter else "merged" if options.merge else "adapter"
    base, revision = manifest["base"].get("model"), manifest["base"].get("revision")
    if options.base_model is not None:
        check_repo(options.base_model)
        base, revision = options.base_model, revision if options.base_model == base else None
    if form == "adapter" and base is None:
        raise RecipeError(
            f"the adapter in {run} was tuned on {manifest['base']['name']}, a folder that nobody else has: publish it "
            "merged into its base (--merge), or name the same base on the Hub (--base-model OWNER/NAME)"
        )
    return FinishedRun(run, manifest, form, base, revision)


def _read(file: Path) -> dict[str, Any]:
    """A manifest that holds all that is published of it, each value of its type."""
    if read_manifest(file) is None:
        raise ModelError(f"{file} is not a manifest of `rolellm train`")
    manifest: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    odd = next(_odd(manifest, _SHAPE), None)
    if odd is not None:
        raise ModelError(f"{file}: {odd} is not what `rolellm train` wrote there; restore the file")
    try:
        recipe = build(Recipe, laid_over({}, typed(manifest["recipe"], Path(), nulls=True)))
    except RecipeError as error:
        raise ModelError(f"{file}: its recipe cannot be read ({error}); restore the file") from error
    return {**manifest, "recipe": recipe.to_dict()}


def _odd(value: Any, shape: Any, dotted: str = "") -> Iterator[str]:
    """The dotted names of values that are missing or of another type."""
    if isinstance(shape, dict) and isinstance(value, dict):
        for key, inner in shape.items():
            yield from _odd(value.get(key), inner, f"{dotted}.{key}" if dotted else key)
    elif isinstance(shape, dict) or isinstance(value, bool) or not isinstance(value, shape):
        yield dotted


def _licence(licence: str | None) -> str:
    if licence is None:
        raise RecipeError(
            "a model is published under a licence, which is never guessed: give --license (such as apache-2.0, llama2 "
            "or other), or output.license in the recipe; the base's licence has to allow it"
        )
    if not _LICENCE.fullmatch(licence):
        raise RecipeError(f"{licence!r} is not a licence as the Hub spells it, such as apache-2.0, llama3.1 or other")
    return licence


def _prompt(tokenizer: PreTrainedTokenizerBase) -> str:
    turns = [{"role": "system", "content": "{system instruction}"}, {"role": "user", "content": "{question}"}]
    return str(tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True))
