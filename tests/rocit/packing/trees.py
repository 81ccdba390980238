"""Random replies to random prompts over an alphabet so small that prompts overlap in every way; and reading a pack."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from rolellm.core.records import Row
from rolellm.prompts.render import prompt_messages
from rolellm.rocit.packing.examples import Example, Examples
from rolellm.rocit.packing.tree import Packed
from rolellm.rocit.rows import conversations, encode

_tokens = st.integers(1, 3)
_prompts = st.lists(_tokens, min_size=1, max_size=6)
_replies = st.lists(st.lists(_tokens, min_size=1, max_size=4), min_size=1, max_size=4)


@st.composite
def example_lists(draw: st.DrawFn, max_rows: int = 8) -> list[Example]:
    """Rows in order, each with its replies; rows may have equal prompts, and families need not begin alike."""
    rows = draw(st.lists(st.tuples(_prompts, _replies, st.sampled_from("abc")), min_size=1, max_size=max_rows))
    return [
        Example(f"row-{number}", tuple(prompt), tuple(reply), reference, family)
        for number, (prompt, replies, family) in enumerate(rows)
        for reference, reply in enumerate(replies)
    ]


def role_rows(roles: int, questions: int, replies: int, lengths: tuple[int, int, int] = (20, 4, 4)) -> list[Example]:
    """Roles with equally many questions of equally many replies, which differ from their first token on.

    Args:
        roles: How many.
        questions: Questions a role.
        replies: Replies a question.
        lengths: Tokens of a role's beginning, a question and a reply.
    """
    beginning, question, reply = lengths
    return [
        Example(
            f"{role}-{asked}",
            (1, *[100 + role] * (beginning - 1), *[1000 + asked] * question),
            (*[10_000 + answer] * (reply - 1), 2),
            answer,
            f"role {role}",
        )
        for role in range(roles)
        for asked in range(questions)
        for answer in range(replies)
    ]


def sample_examples(rows: Sequence[Row], tokenizer: Any, **options: Any) -> Examples:
    """Rows as they are trained on, one example a reference."""
    return encode(list(conversations(rows, prompt_messages)), tokenizer, **({"max_length": 1024} | options))


def visible(tree: Packed, place: int) -> list[int]:
    """The places that a token of a pack sees, by the words of `Packed.ends` alone."""
    return [other for other in range(len(tree.ids)) if other <= place < tree.ends[other]]


def predictions(tree: Packed) -> Counter[tuple[tuple[int, ...], int]]:
    """What a pack trains: how often each token is to be predicted from each text before it."""
    return Counter(
        (tuple(tree.ids[visible(tree, place)].tolist()), target)
        for place, target in zip(tree.scored.tolist(), tree.targets.tolist(), strict=True)
    )


def predictions_by_row(examples: Sequence[Example]) -> Counter[tuple[tuple[int, ...], int]]:
    """The same of examples trained row by row."""
    return Counter(
        ((*example.prompt_ids, *example.reply_ids[:known]), target)
        for example in examples
        for known, target in enumerate(example.reply_ids)
    )


def trie_size(prompts: Sequence[Sequence[int]]) -> int:
    """Tokens of prompts of which each beginning counts once."""
    return len({tuple(prompt[:length]) for prompt in prompts for length in range(1, len(prompt) + 1)})


def as_list(values: np.ndarray) -> list[int]:  # type: ignore[type-arg]
    """An array's plain numbers."""
    numbers: list[int] = values.tolist()
    return numbers


def dense_mask(ends: Any) -> Any:
    """``(1, 1, length, length)``: which token sees which, over a whole pack at once."""
    import torch

    places = torch.arange(len(ends))
    return ((places[None, :] <= places[:, None]) & (places[:, None] < ends[None, :]))[None, None]
