"""The order of replies in a run, settled before its first step: it resumes exactly, and neighbors share prefixes."""

from __future__ import annotations

import math
import random
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

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
# Replies of similar length that are neighbors, at most (our choice).
_ROWS = 8
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


def schedule_replies(examples: Sequence[Example], training: TrainingRecipe) -> Schedule:
    """Settle the order of a run.

    With shared prefixes, replies of one role are neighbors: a role's prompts are shuffled and cut into groups of a
    step's replies divided by ``roles_per_step``, and the groups are shuffled. Without, batches hold replies of similar
    length. Steps of an epoch have ``step_size`` replies; its last one may have fewer. Where replies are sampled (GRPO),
    prompts stand for them, each of ``num_generations`` replies, and each step comes ``num_iterations`` times.

    Args:
        examples: What is trained on.
        training: How.
    """
    size = training.replies_per_step
    batches = math.ceil(len(examples) / size)
    repeats = 1
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
    prefixes = _number_prefixes(examples) if training.shared_prefix else None
    epochs = []
    for number in range(math.ceil(steps / per_epoch)):
        if prefixes is None:
            order = _order_by_length(examples, training, number)
        else:
            order = _order_by_prefix(prefixes, training, number, size)
        epoch = np.concatenate([order, padding])
        steps_of_epoch = epoch[: batches * size].reshape(batches, size)
        epochs.append(np.repeat(steps_of_epoch, repeats, axis=0).reshape(-1))
    return Schedule(np.concatenate(epochs)[: steps * size], size, per_epoch)


def _order_by_length(examples: Sequence[Example], training: TrainingRecipe, epoch: int) -> Index:
    """Order examples so that batches hold similar lengths, in random order; the last one may be short.

    The stock length-grouped sampler also puts the *batches* in order of length. In role data a length gives the role
    away (each role has its own system instruction), so training there swings from role to role and learns worse.
    """
    if not training.group_by_length:
        return np.random.default_rng([training.seed, epoch]).permutation(len(examples))
    lengths = [example.length for example in examples]
    # A part of a step, whatever the passes of a process are: the order goes by what a step covers alone.
    batch_size = math.gcd(training.replies_per_step, _ROWS)
    chance = random.Random(f"{training.seed}-{epoch}")
    indices = list(range(len(lengths)))
    chance.shuffle(indices)
    batches: list[list[int]] = []
    pool = _POOL * batch_size
    for start in range(0, len(indices), pool):
        similar = sorted(indices[start : start + pool], key=lengths.__getitem__)
        for first in range(0, len(similar), batch_size):
            batches.append(similar[first : first + batch_size])
    short: list[int] = []
    if len(batches[-1]) < batch_size:
        short = batches.pop()
    chance.shuffle(batches)
    return np.asarray([*chain.from_iterable(batches), *short], np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class _Prefixes:
    """The beginnings of examples, as numbers: ``(examples,)`` each.

    Attributes:
        families: Of the same role.
        prompts: Of the same prompt.
    """

    families: Index
    prompts: Index


def _number_prefixes(examples: Sequence[Example]) -> _Prefixes:
    """Number what examples begin with, in the order in which it first comes."""
    numbers: dict[str, int] = {}
    families, is_new = array("q"), array("q")
    previous: Example | None = None
    for example in examples:
        families.append(numbers.setdefault(example.family, len(numbers)))
        # A row's replies follow each other; TRL's other trainers take each of a row's prompts by itself.
        is_row = example.row is not None
        is_new.append(is_row or previous is None or _get_prompt(previous) != _get_prompt(example))
        previous = example
    return _Prefixes(np.asarray(families), np.cumsum(is_new) - 1)


def _order_by_prefix(prefixes: _Prefixes, training: TrainingRecipe, epoch: int, step_size: int) -> Index:
    """Order groups of one role's replies, all replies to a prompt next to each other."""
    chance = np.random.default_rng([training.seed, epoch])
    families, prompts = prefixes.families, prefixes.prompts
    prompt_ranks = _draw_ranks(chance, prompts[-1] + 1)
    order = np.lexsort([prompt_ranks[prompts], families])
    size = max(1, step_size // training.roles_per_step)
    family_sizes = np.bincount(families)
    starts = np.cumsum(family_sizes) - family_sizes
    ordered_families = families[order]
    places = np.arange(len(order)) - starts[ordered_families]
    whole_sizes = family_sizes - family_sizes % size
    is_grouped = places < whole_sizes[ordered_families]
    # What is left of the roles fills groups of its own, so that the others stay aligned with forward passes.
    remainders = order[~is_grouped]
    family_ranks = _draw_ranks(chance, len(family_sizes))
    ranks = family_ranks[families[remainders]]
    remainders = remainders[np.argsort(ranks, kind="stable")]
    order = np.concatenate([order[is_grouped], remainders])
    whole = len(order) - len(order) % size
    groups = order[:whole].reshape(-1, size)
    shuffled_groups = groups[chance.permutation(len(groups))]
    return np.concatenate([shuffled_groups.reshape(-1), order[whole:]])


def _draw_ranks(chance: np.random.Generator, count: int) -> Index:
    """Draw the place of each of several things in a random order."""
    ranks = np.empty(count, np.int64)
    ranks[chance.permutation(count)] = np.arange(count)
    return ranks


def _get_prompt(example: Example) -> tuple[str, str, Sequence[int]]:
    return example.row_id, example.family, example.prompt_ids
