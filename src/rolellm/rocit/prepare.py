"""Everything that is settled before training: which rows or lines are trained on, and their tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rolellm.core.records import Language, Row
from rolellm.models.training_record import Seen
from rolellm.prompts.render import prompt_messages
from rolellm.rocit.bases import base_config, base_tokenizer, check_base, check_targets
from rolellm.rocit.loading import on_cpu
from rolellm.rocit.packing.examples import Examples
from rolellm.rocit.recipe import Recipe, check_recipe
from rolellm.rocit.rows import Conversation, check_positions, conversations, encode, load_split, select_rows, templates

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a recipe trains on.

    Attributes:
        rows: Rows of the data set; with ``data.source: script``, those that a built base is made from, or none.
        tokenizer: The base's tokenizer.
        examples: One a (row, reference), or one a line of a script.
        seen: The roles and instructions among them.
        system_hashes: The hash of the system instruction's template, by language.
    """

    rows: list[Row]
    tokenizer: PreTrainedTokenizerBase
    examples: Examples
    seen: Seen
    system_hashes: dict[str, str]


@dataclass(frozen=True, slots=True)
class _Chats:
    conversations: list[Conversation]
    seen: Seen
    system_hashes: dict[str, str]


def load_rows(recipe: Recipe) -> list[Row]:
    """The rows that a recipe trains on, from the data set that it names.

    Raises:
        RecipeError: When the data set has no such split, or the recipe leaves no row of it.
        ReleaseNotFoundError: When the release is not there.
    """
    rows = (Row.from_columns(columns) for columns in load_split(recipe.data))
    return select_rows(rows, recipe.data, recipe.training.seed)


def prepare(recipe: Recipe, out: Path, rows: Sequence[Row] | None = None) -> Prepared:
    """Choose what is trained on and turn it into tokens, without building or loading a model.

    Args:
        recipe: The recipe.
        out: The run's folder, where a built base may lie already.
        rows: The training rows, where they are at hand.

    Raises:
        ModelError: When the base is not there, or packs are not known to be exact for it.
        RecipeError: When a row cannot be trained on, or a target of the adapter is no layer of the base; names it.
    """
    check_recipe(recipe)
    check_base(recipe)
    training = recipe.training
    config = base_config(recipe)
    check_positions(training.max_length, getattr(config, "max_position_embeddings", None))
    # Script dialogue needs no rows, but a built base is made from them.
    needed = recipe.data.source == "rolebench" or recipe.base.build is not None
    chosen = list(rows) if rows is not None else load_rows(recipe) if needed else []
    tokenizer = base_tokenizer(recipe, chosen, out)
    check_targets(recipe, config, tokenizer)
    chats = _script(recipe) if recipe.data.source == "script" else _questions(recipe, chosen)
    examples = encode(
        chats.conversations, tokenizer, max_length=training.max_length, truncate_replies=training.truncate_replies
    )
    if training.shared_prefix and config is not None:
        from rolellm.rocit.packing.attention import check_packing

        check_packing(config, flex=not on_cpu(training), longest=int(examples.lengths.max()))
    return Prepared(chosen, tokenizer, examples, chats.seen, chats.system_hashes)


def _questions(recipe: Recipe, rows: Sequence[Row]) -> _Chats:
    ask, hashes = _asking(recipe, rows)
    chats = list(conversations(rows, ask, first_only=recipe.data.replies == "first"))
    return _Chats(chats, Seen.of(rows), hashes)


def _asking(recipe: Recipe, rows: Sequence[Row]) -> tuple[Callable[[Row], list[dict[str, str]]], dict[str, str]]:
    """What turns a row into its messages, and the hashes of the templates that it uses."""
    if recipe.prompt.profile == "description":
        template = templates(recipe.prompt)
        return lambda row: prompt_messages(row, template(row.language)), _hashes(recipe)
    from rolellm.prompts.retrieval import RetrievalPrompts
    from rolellm.rolebench.profiles import load_profiles

    profiles = load_profiles(recipe.data.config, recipe.data.data_dir, roles=sorted({row.role for row in rows}))
    prompts = RetrievalPrompts(profiles, count=recipe.prompt.retrieved, path=recipe.prompt.system_template)
    return prompts, prompts.hashes


def _script(recipe: Recipe) -> _Chats:
    from rolellm.rocit.rows import script_conversations, script_profiles, trained_roles

    chats = script_conversations(script_profiles(recipe.data), templates(recipe.prompt), recipe.data)
    return _Chats(chats, Seen(frozenset(trained_roles(chats))), _hashes(recipe))


def _hashes(recipe: Recipe) -> dict[str, str]:
    template = templates(recipe.prompt)
    languages: tuple[Language, ...] = ("en", "zh")
    return {language: template(language).hash for language in languages}
