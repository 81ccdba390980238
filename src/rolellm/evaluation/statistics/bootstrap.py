"""Confidence intervals that account for one question asked of many roles not being many independent questions.

The paper reports means alone. Our choice: the percentile bootstrap over *questions*. A resample draws as many questions
as there are, with replacement; all rows of a drawn question come along, so rows that share a question rise and fall
together, as they would if the benchmark had been written again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from rolellm.evaluation.settings import Bootstrap as Bootstrap  # part of this module's interface

Floats = npt.NDArray[np.float64]
#: Share of resampled means inside an interval.
LEVEL: Final = 0.95

# Draws held in memory at once: 2**19 numbers of 8 bytes take 4 MB, and are held a few times over.
_BLOCK = 1 << 19
# Rows in another order are summed with other rounding errors: round the ends, so that the interval stays the same.
_DIGITS = 12


class Interval(NamedTuple):
    """A mean and its confidence interval.

    Attributes:
        mean: Over all values.
        low: Lower end; ``None`` where the values come from fewer than two clusters, which say nothing about spread.
        high: Upper end, or ``None``.
        n: Number of values; 0 where it is not known.
        clusters: Number of distinct clusters among them; 0 where it is not known.
    """

    mean: float
    low: float | None = None
    high: float | None = None
    n: int = 0
    clusters: int = 0

    @property
    def ends(self) -> tuple[float, float] | None:
        """Both ends of the interval, low first; ``None`` where it is not known."""
        return None if self.low is None or self.high is None else (self.low, self.high)

    def brackets(self, digits: int, times: float = 1.0) -> str:
        """Both ends in brackets, each multiplied and rounded; empty where they are not known."""
        return "" if self.ends is None else f"[{', '.join(f'{end * times:.{digits}f}' for end in self.ends)}]"


@dataclass(frozen=True, slots=True)
class Sample:
    """Values of one metric and the cluster each belongs to, in the same order.

    Attributes:
        values: Shape (n,).
        clusters: Shape (n,); keys that sort among themselves, such as question texts.
    """

    values: Sequence[float]
    clusters: Sequence[Any]


@dataclass(frozen=True, slots=True)
class Stratum:
    """Metrics measured on the same clusters, bootstrapped together.

    Attributes:
        intervals: One per metric.
        means: Shape (metrics, resamples): the mean of each metric in each resample, not a number where a resample drew
            no value of it.
    """

    intervals: tuple[Interval, ...]
    means: Floats


def bootstrap_stratum(samples: Sequence[Sample], settings: Bootstrap, *, key: int = 0) -> Stratum:
    """Bootstrap several metrics with the *same* draws of clusters, as for CUS and RAW, which share questions.

    Args:
        samples: One per metric, each with at least one value; a cluster may be missing from some.
        settings: Resamples and seed; the same give the same interval, in any order of the values.
        key: Strata with different keys draw independently of each other.

    Raises:
        ValueError: On a metric without values, lengths that differ, or a value that is not a finite number.
    """
    # Sorted, so that the draws do not depend on the order of the rows.
    names = sorted({name for sample in samples for name in sample.clusters})
    codes = {name: code for code, name in enumerate(names)}
    tables = [_cluster_sums(sample, codes) for sample in samples]
    means = _resample(tables, settings, key)
    intervals = []
    for sample, (_, counts), drawn in zip(samples, tables, means, strict=True):
        present = int(np.count_nonzero(counts))
        mean = math.fsum(sample.values) / len(sample.values)
        low, high = percentiles(drawn) if present > 1 else (None, None)
        intervals.append(Interval(mean, low, high, len(sample.values), present))
    return Stratum(tuple(intervals), means)


def mean_of_means(strata: Sequence[Stratum]) -> Interval:
    """The plain mean of all metrics of some strata, with the interval that follows from their joint resamples.

    Args:
        strata: Bootstrapped with different keys and the same number of resamples.

    Returns:
        Without counts; the interval is ``None`` when any metric has fewer than two clusters.
    """
    intervals = [interval for stratum in strata for interval in stratum.intervals]
    mean = math.fsum(interval.mean for interval in intervals) / len(intervals)
    low, high = None, None
    if all(interval.low is not None for interval in intervals):
        low, high = percentiles(np.concatenate([stratum.means for stratum in strata]).mean(axis=0))
    return Interval(mean, low, high)


def _cluster_sums(sample: Sample, codes: dict[Any, int]) -> tuple[Floats, Floats]:
    """Sum and number of the values in each cluster, each of shape (clusters,)."""
    same_length({"values": sample.values, "clusters": sample.clusters})
    values = finite("values", sample.values)
    index = np.fromiter((codes[name] for name in sample.clusters), dtype=np.int64, count=len(values))
    sums = np.bincount(index, weights=values, minlength=len(codes))
    counts = np.bincount(index, minlength=len(codes))
    return sums.astype(np.float64), counts.astype(np.float64)


def _resample(tables: list[tuple[Floats, Floats]], settings: Bootstrap, key: int) -> Floats:
    """Means of resampled clusters, shape (metrics, resamples)."""
    columns = np.stack([column for table in tables for column in table], axis=1)
    totals = np.concatenate([drawn @ columns for drawn in resampled_counts(len(columns), settings, key=key)])
    with np.errstate(invalid="ignore", divide="ignore"):
        means: Floats = (totals[:, ::2] / totals[:, 1::2]).T
    return means


def resampled_counts(clusters: int, settings: Bootstrap, *, key: int = 0) -> Iterator[Floats]:
    """How often each cluster is drawn in each resample: the draws of `bootstrap_stratum` for the same settings and key.

    What is linear in the rows is then resampled by a product: counts @ (its sum in each cluster).

    Args:
        clusters: How many there are, at least 1.
        settings: Resamples and seed.
        key: As in `bootstrap_stratum`.

    Yields:
        Blocks of shape (some resamples, clusters), in all ``settings.resamples`` lines; each line sums to ``clusters``.
    """
    random = np.random.default_rng([settings.seed, key])
    step = max(1, _BLOCK // clusters)
    for start in range(0, settings.resamples, step):
        drawn = random.integers(0, clusters, size=(min(step, settings.resamples - start), clusters))
        lines = np.arange(len(drawn))[:, None] * clusters
        counts = np.bincount((drawn + lines).ravel(), minlength=drawn.size)
        yield counts.reshape(drawn.shape).astype(np.float64)


def percentiles(values: Floats) -> tuple[float, float] | tuple[None, None]:
    """The ends between which 95 % of resampled values lie, rounded to 12 digits.

    Args:
        values: Shape (resamples,). A resample in which a value is not defined (not a finite number) is left out.

    Returns:
        Low and high end, or ``None`` twice where no resample defines the value.
    """
    known = values[np.isfinite(values)]
    if not len(known):
        return None, None
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(known, [tail, 1 - tail])
    return round(float(low), _DIGITS), round(float(high), _DIGITS)


Codes = npt.NDArray[np.int64]


def finite(name: str, values: Sequence[float]) -> Floats:
    """Values as numbers, shape (n,).

    Raises:
        ValueError: When one is not a finite number.
    """
    numbers = np.asarray(values, dtype=np.float64)
    if numbers.ndim != 1:
        raise ValueError(f"{name} must be a list of numbers, not of shape {numbers.shape}")
    if not np.isfinite(numbers).all():
        raise ValueError(f"{name}: value {int(np.argmin(np.isfinite(numbers)))} is not a finite number")
    return numbers


def same_length(columns: Mapping[str, Sequence[object] | Floats]) -> int:
    """The length that all columns share.

    Raises:
        ValueError: When they differ, or are empty.
    """
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) != 1:
        raise ValueError("lengths differ: " + ", ".join(f"{count} {name}" for name, count in lengths.items()))
    count = next(iter(lengths.values()))
    if not count:
        raise ValueError(f"empty input: no {' and no '.join(lengths)}")
    return count


def cluster_codes(clusters: Sequence[Any]) -> Codes:
    """A number from 0 for each row's cluster, as the clusters sort, so that the order of rows does not matter."""
    numbers = {name: number for number, name in enumerate(sorted(set(clusters)))}
    return np.fromiter((numbers[name] for name in clusters), dtype=np.int64, count=len(clusters))


def share_ends(interval: Interval) -> Interval:
    """The interval of a mean of values from 0 to 1, with ends that do not claim certainty.

    Where every value is 0, or every value 1, no resample differs, and a bootstrap would give an interval without width
    from three rows as from three thousand. Its ends are then the exact binomial ones (Clopper and Pearson, 1934) with
    one trial a question (our choice). Any other interval comes back as it is.

    Args:
        interval: Of a share, by a bootstrap over questions.

    >>> share_ends(Interval(1.0, 1.0, 1.0, 40, 40)).low.__round__(3)
    0.912
    """
    from scipy.stats import binomtest

    if interval.low is None or 0 < interval.mean < 1:
        return interval
    exact = binomtest(round(interval.mean) * interval.clusters, interval.clusters).proportion_ci(LEVEL)
    return interval._replace(low=round(float(exact.low), 12), high=round(float(exact.high), 12))


def wilson(hits: int, n: int) -> Interval:
    """A share of trials, each a cluster of its own, with Wilson's score interval (1927).

    Args:
        hits: Trials that count, from 0 to `n`.
        n: Trials; at least 1.

    >>> wilson(9, 10).brackets(3)
    '[0.596, 0.982]'
    """
    from scipy.stats import binomtest

    ends = binomtest(hits, n).proportion_ci(LEVEL, method="wilson")
    return Interval(hits / n, round(float(ends.low), _DIGITS), round(float(ends.high), _DIGITS), n, n)
