"""The order of replies in a run, settled before its first step: it resumes exactly, and neighbors share prefixes."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise

import numpy as np
import numpy.typing as npt

from rolellm.core.fingerprint import hash_bytes
from rolellm.training.examples import Example
from rolellm.training.recipe import TrainingRecipe

Index = npt.NDArray[np.int64]
#: Stands for a reply in an epoch's last step where there is none left.
EMPTY = -1
# Batches in a pool: enough to find like lengths, few enough that what a batch holds stays near to chance (our choice).
_POOL = 20
# TRL's default.
_GENERATIONS = 8


@dataclass(frozen=True, slots=True, eq=False)  # Arrays do not compare as one.
class Schedule:
    """The replies of a run, one step after the other.

    Attributes:
        order: ``(steps * step_size,)``: numbers of examples, or `EMPTY`.
        step_size: Replies in an optimizer step, over all processes.
        steps_per_epoch: Steps in which every example is seen once.
    """

    order: Index
    step_size: int
    steps_per_epoch: int

    @property
    def hash(self) -> str:
        """SHA-256 in hex over all of it."""
        return hash_bytes(self.order.tobytes() + self.step_size.to_bytes(8, "big"))

    def count_tokens(self, lengths: Index, *, empty: int = 0) -> Index:
        """Count tokens up to each step.

        Args:
            lengths: ``(examples,)``: tokens of each example.
            empty: Tokens of a reply that is not there.

        Returns:
            ``(steps + 1,)``.
        """
        tokens = np.append(lengths, empty)[self.order]
        return np.concatenate([[0], np.cumsum(tokens)])[:: self.step_size]


def schedule_replies(examples: Sequence[Example], training: TrainingRecipe, processes: int = 1) -> Schedule:
    """Settle the order of a run.

    With shared prefixes, replies of one role are neighbors: a role's prompts are shuffled and cut into groups of a
    step's replies divided by ``roles_per_step``, and the groups are shuffled. Without, batches hold replies of similar
    length. Steps of an epoch have ``step_size`` replies; its last one may have fewer. Where replies are sampled (GRPO),
    prompts stand for them, each of ``num_generations`` replies, and each step comes ``num_iterations`` times.

    Args:
        examples: What is trained on.
        training: How.
        processes: Processes that train together.
    """
    size = training.replies_per_step * processes
    batches, repeats = math.ceil(len(examples) / size), 1
    if training.trainer == "grpo":
        size = max(1, size // training.extra.get("num_generations", _GENERATIONS))
        # TRL samples for whole steps only.
        batches = max(1, len(examples) // size)
        repeats = training.extra.get("num_iterations", 1)
    per_epoch = batches * repeats
    # Rounded, because 0.1 epochs of 30 steps are 3 steps and not 3.0000000000000004.
    steps = max(1, math.ceil(round(per_epoch * training.num_train_epochs, 6)))
    if training.max_steps > 0:
        steps = training.max_steps
    padding = np.full(max(0, batches * size - len(examples)), EMPTY)
    shuffle = _group_by_prefix if training.shared_prefix else _group_by_length
    epochs = []
    for number in range(math.ceil(steps / per_epoch)):
        epoch = np.concatenate([shuffle(examples, training, number, size), padding])
        steps_of_epoch = epoch[: batches * size].reshape(batches, size)
        epochs.append(np.repeat(steps_of_epoch, repeats, axis=0).reshape(-1))
    return Schedule(np.concatenate(epochs)[: steps * size], size, per_epoch)


def group_by_length(lengths: Sequence[int], batch_size: int, seed: int, epoch: int = 0) -> list[int]:
    """Order examples so that batches hold similar lengths, in random order.

    The stock length-grouped sampler also puts the *batches* in order of length. In role data a length gives the role
    away (each role has its own system instruction), so training there swings from role to role and learns worse.

    Args:
        lengths: Tokens of each example.
        batch_size: Examples per batch; a short batch comes last.
        seed: With the epoch, it decides the order.
        epoch: The epoch, counted from 0.
    """
    chance = random.Random(f"{seed}-{epoch}")
    indices = list(range(len(lengths)))
    chance.shuffle(indices)
    batches: list[list[int]] = []
    pool = _POOL * batch_size
    for start in range(0, len(indices), pool):
        similar = sorted(indices[start : start + pool], key=lengths.__getitem__)
        batches += [similar[at : at + batch_size] for at in range(0, len(similar), batch_size)]
    short: list[int] = []
    if batches and len(batches[-1]) < batch_size:
        short = batches.pop()
    chance.shuffle(batches)
    return [*chain.from_iterable(batches), *short]


def _group_by_length(examples: Sequence[Example], training: TrainingRecipe, epoch: int, _step_size: int) -> Index:
    if not training.group_by_length:
        return np.random.default_rng([training.seed, epoch]).permutation(len(examples))
    lengths = [example.length for example in examples]
    order = group_by_length(lengths, training.per_device_train_batch_size, training.seed, epoch)
    return np.asarray(order, np.int64)


def _group_by_prefix(examples: Sequence[Example], training: TrainingRecipe, epoch: int, step_size: int) -> Index:
    """Groups of one role's replies, all replies to a prompt next to each other."""
    chance = np.random.default_rng([training.seed, epoch])
    # A row's replies follow each other; TRL's other trainers take each of a row's prompts by itself.
    is_new = [0]
    for before, after in pairwise(examples):
        is_new.append(after.row is not None or _get_prompt(before) != _get_prompt(after))
    prompts = np.cumsum(is_new)
    families = _assign_numbers(example.family for example in examples)
    shuffled = chance.permutation(prompts[-1] + 1)
    ranks = np.empty_like(shuffled)
    ranks[shuffled] = np.arange(len(shuffled))
    order = np.lexsort([ranks[prompts], families])
    size = max(1, step_size // training.roles_per_step)
    edges = np.flatnonzero(np.diff(families[order], prepend=-1, append=-1))
    groups: list[Index] = []
    remainders: list[Index] = []
    for start, stop in pairwise(edges):
        whole, remainder = _cut_groups(order[start:stop], size)
        groups += whole
        remainders.append(remainder)
    # What is left of the roles fills groups of its own, so that the others stay aligned with forward passes.
    shuffled_remainders = [remainders[number] for number in chance.permutation(len(remainders))]
    whole, last = _cut_groups(np.concatenate(shuffled_remainders), size)
    groups += whole
    shuffled_groups = [groups[number] for number in chance.permutation(len(groups))]
    return np.concatenate([*shuffled_groups, last])


def _cut_groups(indices: Index, size: int) -> tuple[list[Index], Index]:
    """Cut an array into groups of a size, and what is left."""
    whole, left = np.split(indices, [len(indices) - len(indices) % size])
    return list(whole.reshape(-1, size)), left


def _get_prompt(example: Example) -> tuple[str, str, Sequence[int]]:
    return example.row_id, example.family, example.prompt_ids


def _assign_numbers(texts: Iterable[str]) -> Index:
    """Number texts in the order in which they first come."""
    numbers: dict[str, int] = {}
    return np.asarray([numbers.setdefault(text, len(numbers)) for text in texts], np.int64)
