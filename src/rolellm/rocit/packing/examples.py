"""Replies to prompts as tokens, held as a few flat arrays: half a million of them fit where Python lists would not."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

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

    @overload
    def __getitem__(self, index: int) -> Example: ...
    @overload
    def __getitem__(self, index: slice) -> list[Example]: ...
    def __getitem__(self, index: int | slice) -> Example | list[Example]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
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
    def of(cls, examples: Sequence[Example] | Examples) -> Examples:
        """The same examples in this form."""
        if isinstance(examples, Examples):
            return examples
        store = Store()
        for example in examples:
            store.prompt(example.row_id, example.prompt_ids, example.family)
            store.reply(example.reply_ids, example.reference)
        return store.examples()


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
    def of(cls, blocks: Iterable[Ids], lengths: Sequence[int]) -> Ragged:
        """Sequences from arrays that hold one or more each, with the length of every sequence."""
        held = list(blocks)
        offsets = np.zeros(len(lengths) + 1, np.int64)
        np.cumsum(np.asarray(lengths, np.int64), out=offsets[1:])
        return cls(np.concatenate(held) if held else np.zeros(0, np.int32), offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> Ids:
        return self.flat[self.offsets[index] : self.offsets[index + 1]]

    @property
    def lengths(self) -> Index:
        """``(sequences,)`` tokens."""
        return np.diff(self.offsets)


@dataclass(slots=True)
class Store:
    """Takes examples in, prompt by prompt; a prompt that repeats right after itself is taken for the same."""

    _prompts: list[Ids] = field(default_factory=list)
    _replies: list[Ids] = field(default_factory=list)
    _prompt_of: list[int] = field(default_factory=list)
    _references: list[int] = field(default_factory=list)
    _row_ids: list[str] = field(default_factory=list)
    _families: list[int] = field(default_factory=list)
    _numbers: dict[str, int] = field(default_factory=dict)
    _last: Any = None

    def prompt(self, row_id: str, ids: Sequence[int], family: str = "") -> None:
        """Begin a prompt; the replies that follow are to it."""
        key = (row_id, family, ids)
        if key == self._last:
            return
        self._last = key
        self._prompts.append(np.asarray(ids, np.int32))
        self._row_ids.append(row_id)
        self._families.append(self._numbers.setdefault(family, len(self._numbers)))

    def reply(self, ids: Sequence[int], reference: int = 0) -> None:
        """A reply to the last prompt."""
        self._replies.append(np.asarray(ids, np.int32))
        self._prompt_of.append(len(self._prompts) - 1)
        self._references.append(reference)

    def examples(self) -> Examples:
        """What was taken in."""
        return Examples(
            Ragged.of(self._prompts, [len(ids) for ids in self._prompts]),
            Ragged.of(self._replies, [len(ids) for ids in self._replies]),
            np.asarray(self._prompt_of, np.int64),
            np.asarray(self._references, np.int64),
            tuple(self._row_ids),
            np.asarray(self._families, np.int64),
        )
