"""How much judges agree beyond chance: Cohen's and Fleiss' kappa, Spearman's rank correlation."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from operator import eq
from typing import Any

import numpy as np
import numpy.typing as npt

from rolellm.evaluation.statistics.bootstrap import (
    Bootstrap,
    Interval,
    cluster_codes,
    finite,
    percentiles,
    resampled_counts,
    same_length,
)

#: A measure of agreement: takes columns of the same length, returns a number, or ``None`` where it is undefined.
Agreement = Callable[..., float | None]


def cohen_kappa(first: Sequence[Hashable], second: Sequence[Hashable]) -> float | None:
    """Cohen's kappa (1960) of two raters: (agreement - chance) / (1 - chance); labels are names, without order.

    Args:
        first: Shape (n,), n at least 1: one rater's label of each item.
        second: Shape (n,): the other's, of the same items.

    Returns:
        1 for full agreement, 0 for the agreement of chance, never below -1; ``None`` where both give everything one
        and the same label, so that chance alone always agrees.

    Raises:
        ValueError: On no labels, lengths that differ, or a label that is not a number (nan).

    >>> cohen_kappa(["a", "a", "b", "b"], ["a", "b", "b", "b"])
    0.5
    """
    n = same_length({"first labels": first, "second labels": second})
    counts, others = Counter(first), Counter(second)
    if any(label != label for label in (*counts, *others)):
        raise ValueError("a label is not a number (nan): leave such items out")
    agreed = int(sum(map(eq, first, second)))
    # In whole numbers, so that "chance is 1" is exact and no order of items changes a digit.
    chance = sum(count * others[label] for label, count in counts.items())
    if chance == n * n:
        return None
    return (agreed * n - chance) / (n * n - chance)


def fleiss_kappa(counts: npt.ArrayLike) -> float | None:
    """Fleiss' kappa (1971) of many raters, who need not be the same ones for each item.

    Items may have different numbers of ratings (Fleiss asks for equal ones; our choice): each item's agreement is then
    the share of its pairs of ratings that agree, all items count alike, and chance follows from all ratings.

    Args:
        counts: Shape (items, categories): how many raters put the item there; at least 2 ratings an item.

    Returns:
        1 where all agree on each item; ``None`` where all ratings are of one category.

    Raises:
        ValueError: On no items, a negative or broken count, or an item with fewer than 2 ratings.

    >>> fleiss_kappa([[2, 0], [0, 2]])
    1.0
    """
    table = np.asarray(counts, dtype=np.float64)
    if table.ndim != 2 or not table.size:
        raise ValueError(f"counts must have the shape (items, categories), not {table.shape}")
    if not (np.isfinite(table).all() and table.min() >= 0 and (table == np.floor(table)).all()):
        raise ValueError("counts must be whole numbers of 0 or more")
    # Products, not sums along a short axis, which numpy is slow at and resamples ask for by the thousand.
    ratings = table @ np.ones(table.shape[1])
    if (ratings < 2).any():
        raise ValueError(f"item {int(np.argmax(ratings < 2))} has fewer than 2 ratings; agreement needs at least 2")
    totals = np.ones(len(table)) @ table
    if np.count_nonzero(totals) == 1:
        return None
    agreed = ((np.einsum("ij,ij->i", table, table) - ratings) / (ratings * (ratings - 1))).mean()
    chance = ((totals / totals.sum()) ** 2).sum()
    return float((agreed - chance) / (1 - chance))


def spearman(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Spearman's rank correlation; values that tie share the mean of their ranks.

    Args:
        first: Shape (n,), n at least 1.
        second: Shape (n,).

    Returns:
        From -1 to 1; ``None`` where one side is all the same, as a single pair is.

    Raises:
        ValueError: On no values, lengths that differ, or a value that is not a finite number.

    >>> spearman([1, 2, 3], [10, 20, 15])
    0.5
    """
    from scipy.stats import rankdata

    same_length({"first values": first, "second values": second})
    # Twice a rank is a whole number, and so are the sums below: no order of the pairs changes a digit.
    ranks = [
        2 * rankdata(finite(name, values)) for name, values in (("first values", first), ("second values", second))
    ]
    one, other = (rank - (len(rank) + 1) for rank in ranks)
    spread = float(one @ one) * float(other @ other)
    return None if spread == 0 else max(-1.0, min(1.0, float(one @ other) / math.sqrt(spread)))


def agreement_ci(
    function: Agreement,
    columns: Sequence[Sequence[Any]],
    clusters: Sequence[Hashable],
    settings: Bootstrap = Bootstrap(),
) -> Interval | None:
    """A measure of agreement with its cluster-bootstrap percentile interval.

    Resamples in which the measure is undefined are left out; where most of them are, the interval says little.

    Args:
        function: Such as `cohen_kappa` of two columns of labels, or `fleiss_kappa` of one column of counts.
        columns: What the function takes, each of shape (n,) or (n, …), with n at least 1.
        clusters: Shape (n,): the question of each item.
        settings: Resamples and seed.

    Returns:
        ``None`` where the measure is not defined; the ends are ``None`` with fewer than two clusters.

    Raises:
        ValueError: On no items, lengths that differ, or what the function refuses.

    >>> agreement_ci(cohen_kappa, [["a", "b"], ["a", "b"]], ["q1", "q2"]).mean
    1.0
    """
    n = same_length({f"in column {number}": column for number, column in enumerate(columns)} | {"clusters": clusters})
    codes = cluster_codes(clusters)
    # In one order, whatever order the rows came in: sums then agree to the last digit.
    order = sorted(range(n), key=lambda item: (codes[item], [repr(column[item]) for column in columns]))
    codes, ordered = codes[order], [_take(column, order) for column in columns]
    value, groups = function(*ordered), int(codes[-1]) + 1
    if value is None:
        return None
    if groups < 2:
        return Interval(value, None, None, n, groups)
    drawn = []
    for block in resampled_counts(groups, settings):
        for counts in block:
            rows = np.repeat(np.arange(n), counts[codes].astype(np.int64))
            drawn.append(function(*(_take(column, rows) for column in ordered)))
    known = np.array([math.nan if one is None else one for one in drawn])
    low, high = percentiles(known)
    return Interval(value, low, high, n, groups)


def _take(column: Any, rows: Sequence[int] | npt.NDArray[np.int64]) -> Any:
    return column[rows] if isinstance(column, np.ndarray) else [column[row] for row in rows]
