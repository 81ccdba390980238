"""Everything that is settled before training: which rows or lines are trained on, and their tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rolellm.core.errors import RecipeError
from rolellm.core.fingerprint import hash_json
from rolellm.core.records import Language, Row
from rolellm.models.training_record import Seen, instruction_hash
from rolellm.prompts.render import prompt_messages
from rolellm.rocit.bases import base_config, base_tokenizer, check_targets
from rolellm.rocit.loading import on_cpu
from rolellm.rocit.packing.examples import Examples
from rolellm.rocit.recipe import Recipe, check_recipe
from rolellm.rocit.rows import (
    Conversation,
    check_positions,
    conversations,
    encode,
    instruction,
    load_split,
    script_conversations,
    script_profiles,
    select_rows,
    split_off,
    templates,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


Replies = Sequence[Row] | Sequence[Conversation]


@dataclass(frozen=True, slots=True)
class Given:
    """What the caller of a training gives besides a recipe.

    Attributes:
        rows: What to train on, in place of what the recipe's data section names.
        held_out: What to evaluate on; by default split off the training rows, by instruction.
        callbacks: Further callbacks of transformers.
    """

    rows: Replies | None = None
    held_out: Replies | None = None
    callbacks: Sequence[Any] = ()


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a recipe trains on.

    Attributes:
        rows: The rows that a built base is made from.
        tokenizer: The base's tokenizer.
        examples: One for each trained reply: a (row, reference), a line of a script, or an assistant turn.
        seen: The roles and instructions among them.
        system_hashes: The hash of the system instruction's template, by language.
        trained: How many rows, lines or turns are trained on.
        held_out: The replies that `training.eval_strategy` computes the loss of.
        fingerprint: A content hash of a dataset that was given.
    """

    rows: list[Row]
    tokenizer: PreTrainedTokenizerBase
    examples: Examples
    seen: Seen
    system_hashes: dict[str, str]
    trained: int
    held_out: Examples | None = None
    fingerprint: str | None = None


def load_rows(recipe: Recipe) -> list[Row]:
    """The rows that a recipe trains on, from the dataset that it names.

    Raises:
        RecipeError: When the dataset has no such split, or the recipe leaves no row of it.
        ReleaseNotFoundError: When there is no release.
    """
    rows = (Row.from_columns(columns) for columns in load_split(recipe.data))
    return select_rows(rows, recipe.data, recipe.training.seed)


def prepare(recipe: Recipe, out: Path, given: Given | None = None) -> Prepared:
    """Choose what is trained on and turn it into tokens, without building or loading a model.

    Args:
        recipe: The recipe.
        out: The run's folder, which may already hold a built base.
        given: What the recipe is to be carried out on, if not on what it names.

    Raises:
        ModelError: When the base is missing, or packs are not known to be exact for it.
        RecipeError: When a row cannot be trained on, or a target of the adapter is not a layer of the base; names it.
    """
    check_recipe(recipe)
    training, given = recipe.training, given or Given()
    config = base_config(recipe)
    check_positions(training.max_length, getattr(config, "max_position_embeddings", None))
    replies: list[Any] = list(_replies(recipe) if given.rows is None else given.rows)
    held_out = given.held_out
    if training.eval_strategy != "no" and held_out is None:
        replies, held_out = split_off(replies, recipe.data.held_out, training.seed)
    chosen = _for_base(recipe, replies)
    tokenizer = base_tokenizer(recipe, chosen, out)
    check_targets(recipe, config, tokenizer)
    ask, hashes = _asking(recipe, [item for item in [*replies, *(held_out or ())] if isinstance(item, Row)])

    def encoded(items: Replies) -> Examples:
        rows = [item for item in items if isinstance(item, Row)]
        chats = [item for item in items if isinstance(item, Conversation)]
        chats += conversations(rows, ask, first_only=recipe.data.replies == "first")
        return encode(chats, tokenizer, max_length=training.max_length, truncate_replies=training.truncate_replies)

    examples = encoded(replies)
    held = encoded(held_out) if held_out and training.eval_strategy != "no" else None
    if training.shared_prefix and config is not None:
        from rolellm.rocit.packing.attention import check_packing

        longest = max(int(some.lengths.max()) for some in (examples, held) if some is not None)
        check_packing(config, flex=not on_cpu(training), longest=longest)
    return Prepared(
        rows=chosen,
        tokenizer=tokenizer,
        examples=examples,
        seen=_seen(recipe, replies),
        system_hashes=hashes,
        trained=len(replies),
        held_out=held,
        fingerprint=None if given.rows is None else hash_json([asdict(item) for item in replies]),
    )


def _replies(recipe: Recipe) -> Replies:
    """What the recipe's data section names."""
    if recipe.data.source == "dataset":
        raise RecipeError("data.source: dataset is for rolellm.train(recipe, train_dataset=...)")
    if recipe.data.source == "script":
        return script_conversations(script_profiles(recipe.data), templates(recipe.prompt), recipe.data)
    return load_rows(recipe)


def _for_base(recipe: Recipe, replies: Replies) -> list[Row]:
    """The rows that a base is built from: those trained on or, where they have no plain answers, the recipe's."""
    rows = [item for item in replies if isinstance(item, Row)]
    if recipe.base.build is None or recipe.data.source == "rolebench" or any(row.raw_reference for row in rows):
        return rows
    return load_rows(recipe)


def _seen(recipe: Recipe, replies: Replies) -> Seen:
    rows = [item for item in replies if isinstance(item, Row)]
    chats = [item for item in replies if isinstance(item, Conversation)]
    # The lines before a line of a script are not an instruction.
    asked = chats if recipe.data.source != "script" else []
    roles = frozenset(chat.role for chat in chats if chat.role is not None)
    return Seen.of(rows) | Seen(roles, frozenset(instruction_hash(instruction(chat)) for chat in asked))


_Ask = Callable[[Row], list[dict[str, str]]]


def _asking(recipe: Recipe, rows: Sequence[Row]) -> tuple[_Ask, dict[str, str]]:
    """What turns a row into its messages, and the hashes of the templates that it uses."""
    if recipe.prompt.profile == "description":
        template = templates(recipe.prompt)
        languages: tuple[Language, ...] = ("en", "zh")
        hashes: dict[str, str] = {language: template(language).hash for language in languages}
        return lambda row: prompt_messages(row, template(row.language)), hashes
    from rolellm.prompts.retrieval import RetrievalPrompts
    from rolellm.rolebench.profiles import load_profiles

    profiles = load_profiles(recipe.data.config, recipe.data.data_dir, roles=sorted({row.role for row in rows}))
    prompts = RetrievalPrompts(profiles, count=recipe.prompt.retrieved, path=recipe.prompt.system_template)
    return prompts, prompts.hashes
