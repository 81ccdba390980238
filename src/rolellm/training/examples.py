"""Replies to prompts as tokens: encoded together, and refused together by row id, never dropped in silence.

Replies of a whole dialogue are in `rolellm.training.dialogues`.

The loss falls on the reply and its end token only (facts on RoCIT: the role lives in the system instruction, which is
read and not learned to be written).
"""

from __future__ import annotations

import hashlib
import warnings
from array import array
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, islice
from typing import TYPE_CHECKING, Any

from rolellm.core.errors import ModelError, RecipeError
from rolellm.core.fingerprint import hash_json
from rolellm.core.progress import open_bar
from rolellm.core.text import join_names
from rolellm.models.prompts.encode import (
    PromptEncoder,
    TurnEncoder,
    encode_replies,
    find_end_token,
    list_control_tokens,
)
from rolellm.training.rows import NAMED, Conversation

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

IGNORED = -100
_BLOCK = 4096


@dataclass(frozen=True, slots=True)
class Example:
    """One reply to one prompt, as tokens; or a whole dialogue with all its replies.

    Attributes:
        row_id: The row it comes from.
        prompt_ids: Exactly what inference sends; read, not trained on. One token at least. A row's replies share it.
        reply_ids: What is trained on: the reply and its end token (which a truncated reply lacks). One token at least.
            In a dialogue, all from the first reply on.
        reference: Which of the row's references the reply is, counted from 0.
        family: What its prompt begins with, such as a role's system instruction; equal text, equal beginning.
        row: The row as TRL's trainers of preferences and rewards tokenize it themselves; its tokens are then those of
            the longest reply.
        gaps: Where in ``reply_ids`` turns between two replies start and stop; they are read, not trained on.
    """

    row_id: str
    prompt_ids: Sequence[int]
    reply_ids: Sequence[int]
    reference: int = 0
    family: str = ""
    row: Mapping[str, Any] | None = None
    gaps: Sequence[tuple[int, int]] = ()

    @property
    def input_ids(self) -> list[int]:
        """Prompt and reply, ``(prompt + reply)`` ids."""
        return [*self.prompt_ids, *self.reply_ids]

    @property
    def labels(self) -> list[int]:
        """Per token: its own id where it is trained, ``-100`` where it is not."""
        labels = list(self.reply_ids)
        for start, stop in self.gaps:
            labels[start:stop] = [IGNORED] * (stop - start)
        return [IGNORED] * len(self.prompt_ids) + labels

    @property
    def length(self) -> int:
        """Tokens of prompt and reply together."""
        return len(self.prompt_ids) + len(self.reply_ids)

    @property
    def replies(self) -> int:
        """Number of replies that are trained."""
        return len(self.gaps) + 1

    @property
    def trained_tokens(self) -> int:
        """Number of tokens that are trained."""
        read = sum(stop - start for start, stop in self.gaps)
        return len(self.reply_ids) - read


class ExampleChain(Sequence[Example]):
    """Several sequences of examples as one, without a copy.

    Args:
        parts: The sequences, in order.
    """

    def __init__(self, *parts: Sequence[Example]) -> None:
        self._parts = parts
        self._stops = list(accumulate(map(len, parts)))

    def __len__(self) -> int:
        return self._stops[-1]

    def __getitem__(self, number: Any) -> Any:  # Slices are not needed.
        part = bisect_right(self._stops, number)
        start = self._stops[part - 1] if part else 0
        return self._parts[part][number - start]


def hash_examples(examples: Iterable[Example]) -> str:
    """Hash all tokens and rows, and which reply belongs to which prompt: SHA-256 in hex."""
    digest = hashlib.sha256()
    for example in examples:
        sizes = [len(example.prompt_ids), len(example.reply_ids)]
        digest.update(array("q", [*sizes, *chain(*example.gaps)]))
        digest.update(array("i", example.prompt_ids))
        digest.update(array("i", example.reply_ids))
        if example.row is not None:
            digest.update(hash_json(example.row).encode())
    return digest.hexdigest()


def encode(
    chats: Sequence[Conversation],
    tokenizer: PreTrainedTokenizerBase,
    *,
    max_length: int,
    trainer: str = "sft",
    truncate_replies: bool = False,
) -> list[Example]:
    """Turn conversations into tokens, or refuse them all together.

    Args:
        chats: What to encode.
        tokenizer: The base model's tokenizer, with the chat template that inference will use.
        max_length: Tokens of prompt and reply together.
        trainer: As in `rolellm.training.recipe.TrainingRecipe`.
        truncate_replies: With ``sft``, cut a reply that does not fit, end token included, instead of refusing it: a cut
            reply must not teach the model to stop there.

    Returns:
        One example per conversation, in order; fewer where some are left out.

    Raises:
        RecipeError: When a prompt alone fills ``max_length``, or a reply is blank, does not fit, or equals the one that
            it is preferred to; names the rows of each kind. When the chat template would not write all of a row.

    Warns:
        UserWarning: Names the rows that are left out, since TRL would read a special token in their text.
    """
    examples: list[Example] = []
    problems: defaultdict[str, list[str]] = defaultdict(list)
    for chat, prompt, reply in _tokenize(chats, tokenizer):
        room = max_length - len(prompt)
        problem = _find_problem(chat, room, len(reply), f"training.max_length ({max_length})", trainer)
        if problem is None and trainer != "sft" and _has_special(tokenizer, chat):
            problem = _MISREAD
        if problem is None or (truncate_replies and trainer == "sft" and problem.startswith(_TOO_LONG)):
            row = None if trainer == "sft" else chat.to_row()
            family = chat.messages[0]["content"]
            examples.append(Example(chat.row_id, prompt, reply[:room], chat.reference, family, row))
        else:
            problems[problem].append(chat.row_id)
    misread = problems.pop(_MISREAD, []) if examples else []
    if problems:
        raise RecipeError("; ".join(_describe(problem, ids) for problem, ids in sorted(problems.items())))
    if misread:
        warnings.warn(f"{_describe(_MISREAD, misread)}; left out", stacklevel=2)
    return examples


def _tokenize(
    chats: Sequence[Conversation], tokenizer: PreTrainedTokenizerBase
) -> Iterator[tuple[Conversation, array[int], array[int]]]:
    """Yield conversations with the tokens of the prompt and of the longest reply, which ends with the end token.

    A few thousand replies are tokenized together, for speed. Those of a row follow each other and share the prompt.
    """
    end, encode_prompt = find_end_token(tokenizer), PromptEncoder(tokenizer)
    encode_turns = TurnEncoder(tokenizer)
    messages: tuple[dict[str, Any], ...] = ()
    prompt = array("i")
    with open_bar("tokenizing", len(chats), unit="replies") as bar:
        for start in range(0, len(chats), _BLOCK):
            block = chats[start : start + _BLOCK]
            texts = chain.from_iterable(chat.replies.values() for chat in block)
            encoded = iter(encode_replies(tokenizer, list(texts)))
            for chat in block:
                replies = list(islice(encoded, len(chat.replies)))
                if not chat.is_plain:
                    try:
                        prompt_ids, reply_ids = encode_turns(chat.messages, list(chat.turns.values()), chat.options)
                    except ModelError as error:
                        raise RecipeError(f"row {chat.row_id}: {error}") from error
                    yield chat, array("i", prompt_ids), array("i", reply_ids)
                    continue
                if chat.messages != messages or not prompt:
                    messages, prompt = chat.messages, array("i", encode_prompt(chat.messages))
                longest = max(replies, key=len, default=[])
                yield chat, prompt, array("i", [*longest, end])
            bar.update(len(block))


_MISREAD = "a special token of the tokenizer in the text, which TRL would misread"
_TOO_LONG = "a reply that does not fit"


def _find_problem(chat: Conversation, room: int, length: int, limit: str, trainer: str) -> str | None:
    turns = list(chat.turns.values())
    if not all(turn["content"].strip() or "tool_calls" in turn for turn in turns):
        return "a blank reply, so not one token to train on"
    if len(turns) > 1 and turns[0] == turns[1]:
        return "a chosen reply that equals the rejected one"
    if room < 1:
        return f"a prompt that alone fills {limit}; raise it or leave the rows out"
    if length > room:
        remedy = "set training.truncate_replies: true" if trainer == "sft" else "leave the rows out"
        return f"{_TOO_LONG} {limit}; raise it, or {remedy}"
    return None


def _has_special(tokenizer: PreTrainedTokenizerBase, chat: Conversation) -> bool:
    """Tell if text of a row is a special token to TRL, which tokenizes the rows of its other trainers itself.

    A reply may hold marks of thought, which templates write too.
    """
    if list_control_tokens(tokenizer, [chat.messages, chat.options]):
        return True
    tokens = list_control_tokens(tokenizer, list(chat.turns.values()))
    return any(token.special for token in tokens)


def _describe(problem: str, row_ids: Sequence[str]) -> str:
    count, names = len(set(row_ids)), join_names(row_ids, NAMED)
    if count == 1:
        return f"row {names} has {problem}"
    return f"{count} rows have {problem}: {names}"
