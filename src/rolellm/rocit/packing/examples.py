"""Replies to prompts as tokens, held as a few flat arrays: half a million of them fit where Python lists would not."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt

IGNORED = -100
Ids = npt.NDArray[np.int32]
Index = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Example:
    """One reply to one prompt, as tokens.

    Attributes:
        row_id: The row it comes from.
        prompt_ids: Exactly what inference sends; read, not trained on. One token at least.
        reply_ids: What is trained on: the reply and its end token (which a truncated reply lacks). One token at least.
        reference: Which of the row's references the reply is, counted from 0.
        family: What its prompt begins with, such as a role's system instruction; equal text, equal beginning.
    """

    row_id: str
    prompt_ids: tuple[int, ...]
    reply_ids: tuple[int, ...]
    reference: int = 0
    family: str = ""

    @property
    def input_ids(self) -> list[int]:
        """Prompt and reply, ``(prompt + reply)`` ids."""
        return [*self.prompt_ids, *self.reply_ids]

    @property
    def labels(self) -> list[int]:
        """Per token: its own id where it is trained, ``-100`` where it is not."""
        return [IGNORED] * len(self.prompt_ids) + list(self.reply_ids)


@dataclass(frozen=True, slots=True, eq=False)  # Arrays do not compare as one.
class Examples(Sequence[Example]):
    """Examples in order; a prompt that several replies share is held once.

    Attributes:
        prompts: The distinct prompts.
        replies: One a (row, reference), in order.
        prompt_of: ``(replies,)``: the prompt of each reply.
        references: ``(replies,)``: which of its row's references a reply is.
        row_ids: The row of each prompt.
        families: ``(prompts,)``: prompts of one number begin alike.
    """

    prompts: Ragged
    replies: Ragged
    prompt_of: Index
    references: Index
    row_ids: tuple[str, ...]
    families: Index

    def __len__(self) -> int:
        return len(self.replies)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[place] for place in range(len(self))[index]]
        place = range(len(self))[index]
        prompt = int(self.prompt_of[place])
        return Example(
            self.row_ids[prompt],
            tuple(self.prompts[prompt].tolist()),
            tuple(self.replies[place].tolist()),
            int(self.references[place]),
            str(self.families[prompt]),
        )

    def __iter__(self) -> Iterator[Example]:
        return (self[place] for place in range(len(self)))

    @property
    def lengths(self) -> Index:
        """``(replies,)``: tokens of prompt and reply together."""
        return self.prompts.lengths[self.prompt_of] + self.replies.lengths

    @property
    def hash(self) -> str:
        """SHA-256 in hex over all tokens, and which reply is to which prompt."""
        digest = hashlib.sha256()
        for part in (self.prompts, self.replies):
            digest.update(part.flat.data)
            digest.update(part.offsets.data)
        digest.update(self.prompt_of.data)
        return digest.hexdigest()

    @classmethod
    def of(cls, examples: Iterable[Example]) -> Examples:
        """The same examples in this form; a prompt that repeats right after itself is held once."""
        if isinstance(examples, Examples):
            return examples
        prompts: list[Ids] = []
        replies: list[Ids] = []
        places: list[tuple[int, int]] = []
        row_ids: list[str] = []
        families: list[int] = []
        numbers: dict[str, int] = {}
        grouped = groupby(examples, key=lambda example: (example.row_id, example.family, example.prompt_ids))
        for (row_id, family, ids), group in grouped:
            for example in group:
                replies.append(np.asarray(example.reply_ids, np.int32))
                places.append((len(prompts), example.reference))
            prompts.append(np.asarray(ids, np.int32))
            row_ids.append(row_id)
            families.append(numbers.setdefault(family, len(numbers)))
        prompt_of, references = np.asarray(places, np.int64).reshape(-1, 2).T.copy()
        return cls(
            Ragged.of(prompts),
            Ragged.of(replies),
            prompt_of,
            references,
            tuple(row_ids),
            np.asarray(families, np.int64),
        )


class Ragged:
    """Sequences of token ids of unequal lengths, end to end in one array.

    Args:
        flat: ``(tokens,)`` ids.
        offsets: ``(sequences + 1,)``: where each begins, and where the last ends.
    """

    __slots__ = ("flat", "offsets")

    def __init__(self, flat: Ids, offsets: Index) -> None:
        self.flat = flat
        self.offsets = offsets

    @classmethod
    def of(cls, sequences: Sequence[Ids]) -> Ragged:
        """These sequences."""
        offsets = np.cumsum([0, *map(len, sequences)], dtype=np.int64)
        return cls(np.concatenate([np.zeros(0, np.int32), *sequences]), offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> Ids:
        return self.flat[self.offsets[index] : self.offsets[index + 1]]

    @property
    def lengths(self) -> Index:
        """``(sequences,)`` tokens."""
        return np.diff(self.offsets)
