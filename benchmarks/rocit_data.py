"""What the training benchmarks train on: real English general rows as tokens, and steps of them drawn by seed."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from rolellm.core.records import Row
from rolellm.data.rolebench import load_rolebench
from rolellm.models.prompts.render import make_messages
from rolellm.training.bases import build_tokenizer
from rolellm.training.examples import Example, encode
from rolellm.training.recipe import BaseRecipe, Recipe, Tiny, TrainingRecipe
from rolellm.training.rows import make_conversations

CONFIG, SPLIT = "role-generalization-eng", "test"
MAX_LENGTH = 2048
# 3.9 characters a token on these texts, about what LLaMA's own tokenizer gives on English; and 6.8 million weights.
SIZES = Tiny(hidden_size=256, intermediate_size=688, layers=6, heads=4, vocab_size=8000, initializer_range=0.02)
SMALLEST = Tiny(hidden_size=16, intermediate_size=32, layers=1, heads=2, vocab_size=600)


@dataclass(frozen=True)
class Corpus:
    """Rows, and what turns them into tokens.

    Attributes:
        source: The config and split, for people.
        rows: The English general rows.
        recipe: With the sizes of the model that is trained on a CPU.
        tokenizer: Trained on the distinct texts of the rows.
    """

    source: str
    rows: tuple[Row, ...]
    recipe: Recipe
    tokenizer: Any

    @cached_property
    def examples(self) -> list[Example]:
        """One a (row, reference)."""
        chats = list(make_conversations(self.rows, make_messages))
        return encode(chats, self.tokenizer, max_length=MAX_LENGTH)

    @property
    def training(self) -> TrainingRecipe:
        """The recipe's."""
        return self.recipe.training


def load_corpus(data_dir: Path | None, sizes: Tiny = SIZES) -> Corpus:
    """Read the English general rows, with a tokenizer made for them.

    Args:
        data_dir: A copy of the release, whose held-out roles have the general rows that are taken; ``None`` takes the
            embedded sample.
        sizes: Of the model and its vocabulary.
    """
    config, split = ("sample", "train") if data_dir is None else (CONFIG, SPLIT)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # A partial release says what it lacks; these rows are all there.
        columns = load_rolebench(config, data_dir=data_dir)[split]
    rows = tuple(row for row in map(Row.from_columns, columns) if (row.language, row.subset) == ("en", "general"))
    training = TrainingRecipe(
        num_train_epochs=1.0, max_length=MAX_LENGTH, use_cpu=True, lr_scheduler_type="constant", warmup_steps=0
    )
    recipe = Recipe(base=BaseRecipe(build="tiny-llama", tiny=sizes), training=training)
    tokenizer = build_tokenizer(recipe, list(_once(rows)))
    return Corpus(f"{config}/{split}", rows, recipe, tokenizer)


def _once(rows: Sequence[Row]) -> Iterator[Row]:
    """Each description once: as often as it comes up in the rows, the tokenizer would learn it by heart."""
    known = set()
    for row in rows:
        yield replace(row, role_description=None) if row.role in known else row
        known.add(row.role)


def draw(examples: list[Example], groups: int, replies: int, seed: int) -> list[Example]:
    """Replies to train on: groups of one role each, the roles in turn.

    Args:
        examples: What to draw from.
        groups: How many groups.
        replies: Replies a group: all of one question, then of the next, in an order drawn by seed.
        seed: For the order of roles and questions.

    Raises:
        ValueError: When the rows of a role do not suffice.
    """
    chance = random.Random(seed)
    places: dict[str, dict[str, list[int]]] = {}
    for place, example in enumerate(examples):
        places.setdefault(example.family, {}).setdefault(example.row_id, []).append(place)
    roles = list(places)
    chance.shuffle(roles)
    queues = {role: _shuffled(places[role], chance) for role in roles}
    chosen: list[int] = []
    for group in range(groups):
        queue = queues[roles[group % len(roles)]]
        if len(queue) < replies:
            raise ValueError(f"{groups} groups of {replies} replies of one role each are more than the rows have")
        chosen += queue[:replies]
        del queue[:replies]
    return [examples[place] for place in chosen]


def _shuffled(questions: dict[str, list[int]], chance: random.Random) -> list[int]:
    order = list(questions)
    chance.shuffle(order)
    return [place for question in order for place in questions[question]]
