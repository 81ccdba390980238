"""The prompts of rows: encoded, checked against the model, and put into batches."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

from rolellm.errors import ModelError
from rolellm.llm.local_model import LocalModel
from rolellm.prompts.encode import PromptEncoder
from rolellm.records import Row

_NAMED = 10


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows that go through the model together.

    Attributes:
        rows: Their places in the list of rows.
        max_new_tokens: The same for all of them, so that no row's limit depends on its neighbours.
    """

    rows: tuple[int, ...]
    max_new_tokens: int


def plan_batches(
    rows: Sequence[Row], lengths: Sequence[int], context: int | None, *, max_new_tokens: int, batch_size: int
) -> list[Batch]:
    """Put rows into batches, longest prompts first, so that running out of memory shows at once.

    A row whose prompt leaves less than ``max_new_tokens`` in the context gets what is left, and shares a batch only
    with rows that get the same.

    Args:
        rows: The rows.
        lengths: Tokens of each row's prompt.
        context: The most tokens that the model takes; ``None`` for no limit.
        max_new_tokens: The most that a reply may have.
        batch_size: The most rows in one batch.

    Raises:
        ModelError: When prompts leave no room for a reply; names the rows.
    """
    room = [max_new_tokens if context is None else min(max_new_tokens, context - length) for length in lengths]
    full = [place for place in range(len(rows)) if room[place] < 1]
    if full:
        raise ModelError(
            f"{len(full)} of {len(rows)} prompts leave no room for a reply in the model's context of {context} tokens: "
            + _name([(rows[place], f"{lengths[place]} tokens") for place in full])
            + ". Use a shorter --system-template or a model with a longer context, or leave these rows out"
        )
    # The longest have the least room, so rows with the same room stand together.
    order = sorted(range(len(rows)), key=lambda place: (-lengths[place], place))
    return [
        Batch(tuple(group[start : start + batch_size]), limit)
        for limit, places in groupby(order, key=lambda place: room[place])
        for group in [list(places)]
        for start in range(0, len(group), batch_size)
    ]


def _name(noted: Sequence[tuple[Row, str]]) -> str:
    named = ", ".join(f"{row.id} ({row.role}, {note})" for row, note in noted[:_NAMED])
    more = len(noted) - _NAMED
    return f"{named} and {more} more" if more > 0 else named


def encode_prompts(
    model: LocalModel,
    rows: Sequence[Row],
    messages: Callable[[Row], list[dict[str, str]]],
    advance: Callable[[int], None],
) -> list[Sequence[int]]:
    """The token ids of each row's prompt.

    Args:
        model: For its tokenizer and text form.
        rows: The rows to ask.
        messages: Makes a row's chat messages.
        advance: Called with 1 after each row.
    """
    encode = PromptEncoder(model.tokenizer)
    prompts: list[Sequence[int]] = []
    for row in rows:
        # Four bytes a token: lists of Python integers would take ten times the memory on a whole split.
        prompts.append(array("i", encode(messages(row))))
        advance(1)
    return prompts


def check_vocabulary(model: LocalModel, rows: Sequence[Row], prompts: Sequence[Sequence[int]]) -> None:
    """Refuse prompts with tokens that the model has no embedding for.

    Raises:
        ModelError: Names the rows.
    """
    known = model.vocabulary
    outside = [(row, f"token {max(prompt)}") for row, prompt in zip(rows, prompts, strict=True) if max(prompt) >= known]
    if outside:
        raise ModelError(
            f"{len(outside)} of {len(rows)} prompts hold tokens that the model does not know (it has {known}): "
            f"{_name(outside)}. Is the tokenizer that of this model?"
        )
