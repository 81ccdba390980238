"""Whether the difference between two models is more than luck: paired tests, and the correction for many of them."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np

from rolellm.evaluation.statistics.bootstrap import (
    Bootstrap,
    Floats,
    Interval,
    Sample,
    bootstrap_stratum,
    cluster_codes,
    finite,
    same_length,
)

# Signs held in memory at once: 4 MB as numbers.
_BLOCK = 1 << 19
# Keeps the signs apart from the draws of a bootstrap with the same seed.
_SIGNS = 0x51675


class PairedTest(NamedTuple):
    """Two models on the same rows.

    Attributes:
        difference: Mean of first minus second, with its clustered bootstrap interval.
        p: Two-sided, of the null hypothesis that exchanging the two models within a question changes nothing but luck.
    """

    difference: Interval
    p: float


def paired_test(
    first: Sequence[float],
    second: Sequence[float],
    clusters: Sequence[Hashable],
    settings: Bootstrap = Bootstrap(),
) -> PairedTest:
    """Compare two models row by row.

    The interval is the cluster bootstrap of the differences. The test flips the sign of all differences of a question
    together, each question by a seeded coin, ``settings.resamples`` times, and counts how often the mean
    comes out at least as far from 0 as it did. p = (1 + count) / (1 + resamples), so it is never 0; with c questions
    that differ at all it is hardly below 2 / 2**c. Our choice: it asks for no distribution, and keeps its level with
    few questions, where a bootstrap interval is too narrow.

    Args:
        first: Shape (n,), n at least 1: one model's values.
        second: Shape (n,): the other's, of the same rows.
        clusters: Shape (n,): the question of each row.
        settings: Resamples (of the bootstrap and of the signs) and seed.

    Raises:
        ValueError: On no values, lengths that differ, or a value that is not a finite number.

    >>> paired_test([1, 1, 0], [0, 0, 0], ["a", "a", "b"]).difference.mean
    0.6666666666666666
    """
    same_length({"first values": first, "second values": second, "clusters": clusters})
    differences = finite("first values", first) - finite("second values", second)
    codes = cluster_codes(clusters)
    # In one order, whatever order the rows came in: sums then agree to the last digit.
    order = np.lexsort((differences, codes))
    differences, codes = differences[order], codes[order]
    interval = bootstrap_stratum([Sample(differences.tolist(), codes.tolist())], settings).intervals[0]
    return PairedTest(interval, _sign_flips(np.bincount(codes, weights=differences).astype(np.float64), settings))


def _sign_flips(sums: Floats, settings: Bootstrap) -> float:
    sums = sums[sums != 0]
    if not len(sums):
        return 1.0
    random = np.random.default_rng([settings.seed, _SIGNS])
    total = sums.sum()
    # A sum that is the same but for its rounding counts as the same.
    bound = abs(total) - 1e-9 * np.abs(sums).sum()
    step = max(1, _BLOCK // len(sums))
    count = 0
    for start in range(0, settings.resamples, step):
        lines = min(step, settings.resamples - start)
        flipped = random.integers(0, 2, size=(lines, len(sums)), dtype=np.int8).astype(np.float64)
        count += int(np.count_nonzero(np.abs(total - 2 * (flipped @ sums)) >= bound))
    return (1 + count) / (1 + settings.resamples)


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values adjusted for how many there are, by Holm (1979): all below .05 hold together with error below 5 %.

    The smallest is multiplied by m, the next by m - 1, and so on; none is less than one before it, none above 1. It
    holds whatever the dependence among the tests, as between pairs of the same models.

    Args:
        p_values: Shape (m,), each from 0 to 1; m may be 0.

    Returns:
        Shape (m,), in the order given.

    >>> holm([0.03, 0.01, 0.02])
    [0.04, 0.03, 0.04]
    """
    numbers = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(numbers, kind="stable")
    steps = np.minimum(numbers[order] * np.arange(len(numbers), 0, -1), 1.0)
    adjusted = np.empty_like(numbers)
    adjusted[order] = np.maximum.accumulate(steps)
    return [float(value) for value in adjusted]


def sign_test(wins: int, losses: int) -> float:
    """Exact two-sided p-value of these wins and losses if both were equally likely; leave ties out first.

    It treats every win and loss as independent, which rows that share a question are not; see `paired_test` for those.

    Args:
        wins: 0 or more.
        losses: 0 or more; with no win and no loss p is 1.

    >>> sign_test(8, 2)
    0.109375
    """
    from scipy.stats import binomtest

    if not wins + losses:
        return 1.0
    return float(binomtest(wins, wins + losses).pvalue)
