"""Whether the difference between two models is more than luck: paired tests, and the correction for many of them."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np

from rolellm.scoring.statistics.intervals import (
    ClusteredSample,
    Interval,
    Spread,
    add_ends,
    compute_spreads,
    estimate_mean,
)


class PairedTest(NamedTuple):
    """Two models on the same rows.

    Attributes:
        difference: Mean of first minus second, with its intervals.
        p: Two-sided, of no difference for these roles: below .05 exactly if 0 lies outside the interval.
        p_new_roles: The same for new roles; ``None`` with fewer than two roles.
    """

    difference: Interval
    p: float
    p_new_roles: float | None = None


def compare_pairs(
    first: Sequence[float],
    second: Sequence[float],
    clusters: Sequence[Hashable],
    roles: Sequence[Hashable] = (),
) -> PairedTest:
    """Compare two models row by row: a paired t test over questions, and one over roles and questions.

    Where the difference is the same in every row, no spread tells how sure it is. The test is then the sign test over
    questions, and the interval the one that belongs to it.

    Args:
        first: Shape (n,), n at least 1: one model's values.
        second: Shape (n,): the other's, of the same rows.
        clusters: Shape (n,): the question of each row.
        roles: Shape (n,), or empty where roles do not matter.

    >>> round(compare_pairs([1, 1, 0], [0, 0, 0], ["a", "b", "c"]).p, 4)
    0.1835
    """
    differences = (np.asarray(first, float) - np.asarray(second, float)).tolist()
    sample = ClusteredSample(differences, clusters, roles)
    interval, errors = estimate_mean([sample]), compute_spreads([sample])
    if interval.ends is None and errors and interval.mean:
        error = abs(interval.mean) / Spread(1.0, interval.clusters - 1).compute_reach(0.5**interval.clusters)
        errors = [spread._replace(error=error) for spread in errors]
        interval = add_ends(
            interval,
            [(interval.mean - spread.compute_reach(), interval.mean + spread.compute_reach()) for spread in errors],
        )
    chances = [_compute_p_value(interval.mean, spread) for spread in errors]
    return PairedTest(interval, chances[0] if chances else 1.0, chances[1] if chances[1:] else None)


def _compute_p_value(mean: float, spread: Spread) -> float:
    from scipy.special import stdtr

    return float(2 * stdtr(spread.freedom, -abs(mean) / spread.error)) if spread.error else 1.0


def adjust_p_values(p_values: Sequence[float]) -> list[float]:
    """p-values adjusted for how many there are, by Holm (1979): all below .05 hold together with error below 5 %.

    The smallest is multiplied by m, the next by m - 1, and so on; none is less than one before it, none above 1. It
    holds whatever the dependence among the tests, as between pairs of the same models.

    Args:
        p_values: Shape (m,), each from 0 to 1; m may be 0.

    Returns:
        Shape (m,), in the order given.

    >>> adjust_p_values([0.03, 0.01, 0.02])
    [0.04, 0.03, 0.04]
    """
    numbers = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(numbers, kind="stable")
    steps = np.minimum(numbers[order] * np.arange(len(numbers), 0, -1), 1.0)
    return list(np.maximum.accumulate(steps)[np.argsort(order)].tolist())
