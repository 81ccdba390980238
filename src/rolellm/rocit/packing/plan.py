"""Which replies each forward pass takes: the order of a whole run, settled before it starts.

An optimizer step is on ``per_device_train_batch_size x gradient_accumulation_steps x
processes`` replies, whether they are laid out row by row or
as trees, and its loss is the mean over its trained tokens; so a step means the same in both. All is decided by the
examples, the recipe and the number of processes: a run that is taken up again goes on in the same order.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from rolellm.core.fingerprint import hash_bytes
from rolellm.rocit.packing.examples import Examples, Index
from rolellm.rocit.packing.tree import shared
from rolellm.rocit.recipe import TrainingRecipe

# Batches a pool: enough to find like lengths, few enough that what a batch holds stays near to chance (our choice).
_POOL = 20


def grouped(lengths: Sequence[int], batch_size: int, seed: int, epoch: int = 0) -> list[int]:
    """An order whose batches hold examples of similar length, in random order.

    The stock length-grouped sampler also puts the *batches* in order of length. In role data a length gives the role
    away (each role has its own system instruction), so training there swings from role to role and learns worse.

    Args:
        lengths: Tokens of each example.
        batch_size: Examples a batch; a short batch comes last.
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
    short = [batches.pop()] if batches and len(batches[-1]) < batch_size else []
    chance.shuffle(batches)
    return [index for batch in batches + short for index in batch]


@dataclass(frozen=True, slots=True, eq=False)  # Arrays do not compare as one.
class Plan:
    """The forward passes of a run, in the order step, pass, process.

    Attributes:
        order: ``(replies,)``: places of examples, over all epochs.
        bounds: ``(steps * passes * processes + 1,)``: where each forward pass begins in ``order``; some take nothing.
        steps: Optimizer steps.
        passes: Forward passes a step and process.
        processes: Processes that train together.
        steps_per_epoch: Optimizer steps in which every example is seen once.
    """

    order: Index
    bounds: Index
    steps: int
    passes: int
    processes: int
    steps_per_epoch: int

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def __getitem__(self, number: int) -> Index:
        """The places of the examples of a forward pass."""
        return self.order[self.bounds[number] : self.bounds[number + 1]]

    def idle(self, number: int) -> bool:
        """Whether no process has a reply in the pass to which this forward pass belongs."""
        first = number - number % self.processes
        return bool(self.bounds[first] == self.bounds[first + self.processes])

    def trained(self, examples: Examples) -> Index:
        """``(steps + 1,)``: trained tokens up to each optimizer step, over all its passes and processes."""
        return self._up_to(examples.replies.lengths)

    def read(self, examples: Examples) -> Index:
        """``(steps + 1,)``: tokens of prompts and replies, counted row by row, up to each optimizer step."""
        return self._up_to(examples.lengths)

    def _up_to(self, lengths: Index) -> Index:
        tokens = np.concatenate([[0], np.cumsum(lengths[self.order])])
        return tokens[self.bounds[:: self.passes * self.processes]]

    @property
    def hash(self) -> str:
        """SHA-256 in hex over all of it."""
        return hash_bytes(self.order.tobytes() + self.bounds.tobytes())


def plan(examples: Examples, training: TrainingRecipe, processes: int = 1) -> Plan:
    """Settle the forward passes of a run.

    Args:
        examples: What is trained on.
        training: Its ``shared_prefix`` decides between trees and rows; see there for the rest.
        processes: Processes that train together; their shares of a step are about equal in tokens.
    """
    step = training.replies_per_step * processes
    per_epoch = math.ceil(len(examples) / step)
    # Rounded, because 0.1 epochs of 30 steps are 3 steps and not 3.0000000000000004.
    steps = max(1, math.ceil(round(per_epoch * training.num_train_epochs, 6)))
    if training.max_steps > 0:
        steps = training.max_steps
    planner = _Trees(examples, training, step, processes) if training.shared_prefix else _Rows(examples, training, step)
    epochs = [planner.epoch(number) for number in range(math.ceil(steps / per_epoch))]
    cuts = [cut for _, cuts in epochs for cut in cuts][:steps]
    passes = max(math.ceil(len(cut) / processes) for cut in cuts)
    bounds = [0]
    for cut in cuts:
        begin = bounds[-1]
        # Those that take nothing come first: processes exchange gradients in a step's last pass.
        bounds += [begin] * (passes * processes - len(cut))
        bounds += [begin + end for end in cut]
    order = np.concatenate([order for order, _ in epochs])[: bounds[-1]]
    return Plan(order, np.asarray(bounds), steps, passes, processes, per_epoch)


class _Rows:
    """Rows: batches of ``per_device_train_batch_size``, of similar length where the recipe groups them."""

    def __init__(self, examples: Examples, training: TrainingRecipe, step: int) -> None:
        self._lengths = examples.lengths.tolist()
        self._training = training
        self._replies = step

    def epoch(self, number: int) -> tuple[Index, list[list[int]]]:
        """The order of an epoch, and where the forward passes of each step end, counted from the step's beginning."""
        training, count, size = self._training, len(self._lengths), self._training.per_device_train_batch_size
        if training.group_by_length:
            order = np.asarray(grouped(self._lengths, size, training.seed, number), np.int64)
        else:
            order = np.random.default_rng([training.seed, number]).permutation(count)
        sizes = [min(self._replies, count - start) for start in range(0, count, self._replies)]
        return order, [[min(end, whole) for end in range(size, whole + size, size)] for whole in sizes]


class _Trees:
    """Trees: each family's prompts in random order, in groups, cut into packs of at most ``pack_tokens``."""

    def __init__(self, examples: Examples, training: TrainingRecipe, step: int, processes: int) -> None:
        self._training = training
        self._processes = processes
        self._replies = step
        self._examples = examples
        self._beginnings = _beginnings(examples)
        self._by_prompt = np.argsort(examples.prompt_of, kind="stable")
        prompts = np.arange(len(examples.prompts) + 1)
        self._starts = np.searchsorted(examples.prompt_of[self._by_prompt], prompts)

    def epoch(self, number: int) -> tuple[Index, list[list[int]]]:
        """The order of an epoch, and where the forward passes of each step end, counted from the step's beginning."""
        chance = np.random.default_rng([self._training.seed, number])
        prompts = chance.permutation(len(self._examples.prompts))
        prompts = prompts[np.argsort(self._examples.families[prompts], kind="stable")]
        order = np.concatenate([self._by_prompt[self._starts[p] : self._starts[p + 1]] for p in prompts])
        groups = list(self._groups(order))
        order = np.concatenate([groups[place] for place in chance.permutation(len(groups))])
        costs = _Costs(self._examples, self._beginnings, order)
        starts = range(0, len(order), self._replies)
        return order, [self._cut(costs, start, min(start + self._replies, len(order))) for start in starts]

    def _groups(self, order: Index) -> Iterator[Index]:
        """Runs of one family each, as long as a pack and the mix of roles in a step allow."""
        most = max(1, self._replies // self._training.roles_per_step)
        families = self._examples.families[self._examples.prompt_of[order]]
        costs = _Costs(self._examples, self._beginnings, order)
        start = 0
        for end in [*(np.flatnonzero(np.diff(families)) + 1).tolist(), len(order)]:
            while start < end:
                stop = min(costs.reach(start, self._training.pack_tokens), start + most, end)
                yield order[start:stop]
                start = stop

    def _cut(self, costs: _Costs, start: int, stop: int) -> list[int]:
        """Cut a step into as few packs as its processes and the budget allow, as equal in tokens as they can be."""
        fewest = len(costs.cut(start, stop, self._training.pack_tokens))
        packs = min(math.ceil(fewest / self._processes) * self._processes, stop - start)
        low, high = 1, self._training.pack_tokens
        while low < high:
            middle = (low + high) // 2
            ends = costs.cut(start, stop, middle)
            fits = len(ends) <= packs and costs.longest(start, ends) <= middle
            low, high = (low, middle) if fits else (middle + 1, high)
        return [end - start for end in costs.cut(start, stop, low)]


def _beginnings(examples: Examples) -> Index:
    """``(families,)``: how many tokens all prompts of a family begin with in common."""
    first: dict[int, int] = {}
    found: list[int] = []
    for prompt, family in enumerate(examples.families.tolist()):
        ids = examples.prompts[prompt]
        if family not in first:
            first[family] = prompt
            found.append(len(ids))
        # Compared no further than what is in common so far.
        found[family] = shared(examples.prompts[first[family]][: found[family]], ids)
    return np.asarray(found, np.int64)


class _Costs:
    """Tokens of any run of an order of replies, laid out as a tree."""

    def __init__(self, examples: Examples, beginnings: Index, order: Index) -> None:
        prompts = examples.prompt_of[order]
        families = examples.families[prompts]
        whole = examples.prompts.lengths[prompts]
        # How much of each reply's prompt is there already, from the reply before it.
        known = np.zeros(len(order), np.int64)
        akin = families[1:] == families[:-1]
        known[1:][akin] = beginnings[families[1:][akin]]
        same = prompts[1:] == prompts[:-1]
        known[1:][same] = whole[1:][same]
        self._known = known
        self._sums = np.concatenate([[0], np.cumsum(whole - known + examples.replies.lengths[order])])

    def reach(self, start: int, limit: int) -> int:
        """Where a run from ``start`` has to end to keep within ``limit`` tokens; it takes one reply at least."""
        allowed = self._sums[start] + limit - self._known[start]
        return max(start + 1, int(np.searchsorted(self._sums, allowed, side="right")) - 1)

    def cut(self, start: int, stop: int, limit: int) -> list[int]:
        """The ends of the longest runs within a limit, one after the other."""
        ends = []
        while start < stop:
            start = min(self.reach(start, limit), stop)
            ends.append(start)
        return ends

    def longest(self, start: int, ends: list[int]) -> int:
        """Tokens of the longest of these runs."""
        begins = [start, *ends[:-1]]
        return int((self._sums[ends] - self._sums[begins] + self._known[begins]).max())
