"""Turns of a script, and replies to prompts: random ones over few tokens, so that prompts overlap in every way."""

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from rolellm.core.records import Row, Turn
from rolellm.models.prompts.render import make_messages
from rolellm.training.examples import Example, encode
from rolellm.training.rows import make_conversations


def say(speaker: str, content: str, scene: int = 0) -> Turn:
    """A line of a script."""
    return Turn(speaker, content, "speech", scene)


def tell(content: str, scene: int = 0) -> Turn:
    """Narration of a script."""
    return Turn("narrator", content, "narration", scene)


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


def sample_examples(rows: Sequence[Row], tokenizer: Any, **options: Any) -> list[Example]:
    """Rows as they are trained on, one example a reference."""
    return encode(list(make_conversations(rows, make_messages)), tokenizer, **({"max_length": 1024} | options))
