"""The order in which examples are trained on."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

# Batches a pool: enough to find like lengths, few enough that what a batch holds stays near to chance (our choice).
_POOL = 20


class GroupedOrder:
    """A sampler whose batches hold examples of like length, in random order.

    The stock length-grouped sampler also puts the *batches* in order of length. In role data a length gives the role
    away (each role has its own system instruction), so training there swings from role to role and learns worse.

    Args:
        lengths: Tokens of each example.
        batch_size: Examples a batch; a short batch comes last.
        seed: With the epoch, it decides the order.
    """

    def __init__(self, lengths: Sequence[int], batch_size: int, seed: int) -> None:
        self._lengths = lengths
        self._batch_size = batch_size
        self._seed = seed
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch, counted from 0."""
        self._epoch = epoch

    def __len__(self) -> int:
        return len(self._lengths)

    def __iter__(self) -> Iterator[int]:
        chance = random.Random(f"{self._seed}-{self._epoch}")
        indices = list(range(len(self._lengths)))
        chance.shuffle(indices)
        batches: list[list[int]] = []
        pool = _POOL * self._batch_size
        for start in range(0, len(indices), pool):
            grouped = sorted(indices[start : start + pool], key=self._lengths.__getitem__)
            batches += [grouped[at : at + self._batch_size] for at in range(0, len(grouped), self._batch_size)]
        short = [batches.pop()] if batches and len(batches[-1]) < self._batch_size else []
        chance.shuffle(batches)
        return (index for batch in batches + short for index in batch)
