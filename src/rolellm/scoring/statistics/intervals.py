"""Means and their 95 % intervals, which account for rows that share a question or a role.

Two questions can be asked of a mean over several roles, and each has its interval:

- *For these roles*: what would it be on other questions? Rows of one question are one cluster, and the variance is the
  cluster jackknife's. Means have Student's interval with one degree of freedom fewer than questions. Shares and ranks
  have Wilson's (1927) with an effective number of rows, as in surveys (Korn and Graubard, 1998): they may all be alike.
- *For new roles*: what would it be for other roles of this kind? Rows of one role are a cluster too: the variance is
  that of two-way clusters (Cameron, Gelbach and Miller, 2011), with one degree of freedom fewer than roles. It is never
  less than the first.

`benchmarks/intervals.py` measures how often each of them holds the truth.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from statistics import fmean
from typing import Annotated, Any, Final, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
from pydantic import PlainSerializer, PlainValidator

from rolellm.core.table import Ends as Ends
from rolellm.core.table import Interval as Interval
from rolellm.scoring.settings import has_held_out_roles

_Value = TypeVar("_Value")
Floats = npt.NDArray[np.float64]
Codes = npt.NDArray[np.int64]
#: Share of intervals that hold the truth.
LEVEL: Final = 0.95
#: A difference is decided below this p, after Holm's correction.
DECIDED: Final = 0.05
#: Limits of a share, and of what has none.
SHARE: Final = (0.0, 1.0)
NONE: Final = (-math.inf, math.inf)

# Unseen questions with all rows at the upper bound, and as many at the lower, with which the effect of shared questions
# is estimated: with fewer, the first event among many rows can narrow an interval.
_UNSEEN: Final = 2
# Rows in another order are summed with other rounding errors: round the ends, so that the interval stays the same.
_DIGITS: Final = 12
_WIDE: Final = "_new_roles"
# What intervals for these roles are computed by; those for new roles are by role, too.
_STUDENT: Final = "Student's t by question"
_WILSON: Final = "Wilson's by question"
# A spread below this share of the values is a rounding error.
_ROUNDING: Final = 1e-12
# Of the sign test: smaller powers of one half are 0 as numbers.
_LEAST_TAIL: Final = 1e-300


@dataclass(frozen=True, slots=True)
class ClusteredSample:
    """Values of one metric and the cluster each belongs to, in the same order.

    Attributes:
        values: Shape (n,).
        clusters: Shape (n,); keys that sort among themselves, such as question texts.
        roles: Shape (n,); keys that sort among themselves, or empty where roles do not matter.
    """

    values: Sequence[float]
    clusters: Sequence[Any]
    roles: Sequence[Any] = ()


class Spread(NamedTuple):
    """The standard error of an estimate.

    Attributes:
        error: Its standard error.
        freedom: The degrees of freedom of that error.
    """

    error: float
    freedom: int

    def compute_reach(self) -> float:
        """Half the width of Student's interval."""
        return self.error * compute_t_quantile(self.freedom)


def estimate_share(sample: ClusteredSample, bounds: Ends = SHARE) -> Interval:
    """The mean of values between two bounds, with Wilson's interval, which stays inside and never has zero width.

    Where each row has a question of its own and lies on a bound, this is Wilson's interval exactly. Otherwise rows are
    counted by what they are worth: the variance of such a share over that of the mean by clusters, with two unseen
    questions at either bound among them.

    Args:
        sample: At least one value.
        bounds: The lowest and the highest value that there can be.

    >>> estimate_share(ClusteredSample([1.0] * 9 + [0.0], range(10))).format_ends(3)
    '[0.596, 0.982]'
    """
    lowest = bounds[0]
    width = bounds[1] - lowest
    values = (np.asarray(sample.values, float) - lowest) / width
    codes = number_clusters(sample.clusters)
    n = len(values)
    counts = np.bincount(codes)
    clusters = len(counts)
    interval = Interval(fmean(sample.values), n=n, clusters=clusters)
    if clusters < 2:
        return interval
    total = math.fsum(values)
    # Rows of a typical row's question: those of the unseen ones.
    size = float(counts @ counts) / n
    unseen = 2 * _UNSEEN
    rows = n + unseen * size
    center = (total + _UNSEEN * size) / rows
    sums = np.bincount(codes, values) - center * counts
    unseen_scatter = _UNSEEN * size**2 * ((1 - center) ** 2 + center**2)
    variance = (float(sums @ sums) + unseen_scatter) / rows**2
    worth = center * (1 - center) / variance * clusters / (clusters + unseen)
    share = min(max(total / n, 0.0), 1.0)
    ends: list[Ends] = []
    for spread in compute_spreads([replace(sample, values=values.tolist())]):
        # The first is for these roles; new ones can only make rows worth less.
        error_worth = worth * spread.error**2
        if ends and share * (1 - share) < error_worth:
            worth = share * (1 - share) / spread.error**2
        widening = compute_t_quantile(n - 1) / compute_t_quantile(spread.freedom)
        low, high = _compute_wilson_ends(share, worth * widening**2)
        ends.append((lowest + width * low, lowest + width * high))
    return add_ends(interval, ends, _WILSON)


def estimate_mean(
    samples: Sequence[ClusteredSample], weights: Sequence[float] = (1.0,), bounds: Ends = NONE
) -> Interval:
    """A weighted sum of means, with Student's interval.

    Args:
        samples: One per mean, each with at least one value.
        weights: One per sample.
        bounds: The lowest and the highest mean that there can be.

    Returns:
        Without ends where a sample has fewer than two clusters. Where no value differs from another, the interval is
        that of a share; there is none without bounds, and none of several samples. Counts are those of a single sample.

    >>> estimate_mean([ClusteredSample([1.0, 2.0, 3.0], "abc")]).format_ends(2)
    '[-0.48, 4.48]'
    """
    mean = math.fsum(weight * fmean(sample.values) for sample, weight in zip(samples, weights, strict=True))
    interval = Interval(mean)
    first = samples[0]
    if len(samples) == 1:
        interval = Interval(mean, n=len(first.values), clusters=len(set(first.clusters)))
    ends = []
    for spread in compute_spreads(samples, weights):
        reach = spread.compute_reach()
        low = max(mean - reach, bounds[0])
        high = min(mean + reach, bounds[1])
        ends.append((low, high))
        if not reach:
            # No value differs from another.
            has_bounds = math.isfinite(bounds[1])
            return estimate_share(first, bounds) if interval.n and has_bounds else interval
    return add_ends(interval, ends, _STUDENT)


def compute_spreads(samples: Sequence[ClusteredSample], weights: Sequence[float] = (1.0,)) -> list[Spread]:
    """Compute the errors of a weighted sum of means: for these roles and, with two roles or more, for new ones.

    Args:
        samples: One per mean.
        weights: One per sample.

    Returns:
        None at all where a sample has fewer than two clusters.
    """
    clusters = min(len(set(sample.clusters)) for sample in samples)
    if clusters < 2:
        return []
    questions = _number_names([sample.clusters for sample in samples])
    question_variance = _compute_variance(samples, questions, weights)
    spreads = [Spread(math.sqrt(question_variance), clusters - 1)]
    role_count = min(len(set(sample.roles)) for sample in samples)
    if role_count < 2:
        return spreads
    roles = _number_names([sample.roles for sample in samples])
    pairs = []
    for role_codes, question_codes in zip(roles, questions, strict=True):
        pairs.append(((role_codes << 32) + question_codes).tolist())
    role_variance = _compute_variance(samples, roles, weights)
    pair_variance = _compute_variance(samples, _number_names(pairs), weights)
    variance = max(role_variance, question_variance, role_variance + question_variance - pair_variance)
    spreads.append(Spread(math.sqrt(variance), min(role_count, clusters) - 1))
    return spreads


def _compute_variance(samples: Sequence[ClusteredSample], codes: Sequence[Codes], weights: Sequence[float]) -> float:
    """The jackknife variance of a weighted sum of means: how far it moves when each cluster in turn is left out.

    A cluster moves a mean by the sum of its deviations over the number of rows of the others.
    """
    size = 1 + max(int(numbers.max()) for numbers in codes)
    shifts = np.zeros(size)
    for sample, numbers, weight in zip(samples, codes, weights, strict=True):
        # In one order, whatever order the rows came in: sums then agree to the last digit.
        values = np.asarray(sample.values, float)
        order = np.lexsort((values, numbers))
        values, numbers = values[order], numbers[order]
        deviations = values - fmean(sample.values)
        # A spread that is rounding is none.
        deviations[np.abs(deviations) <= _ROUNDING * np.abs(values)] = 0
        rows_of_others = len(values) - np.bincount(numbers, minlength=size)
        shifts += weight * np.bincount(numbers, deviations, size) / rows_of_others
    return float((size - 1) / size * (shifts @ shifts))


def _number_names(columns: Sequence[Sequence[Any]]) -> list[Codes]:
    """The number of each name among all names of the columns, as they sort."""
    names = sorted(set().union(*columns))
    numbers = dict(zip(names, range(len(names)), strict=True))
    return [np.fromiter(map(numbers.__getitem__, column), np.int64, len(column)) for column in columns]


def add_ends(interval: Interval, ends: Sequence[Ends], method: str) -> Interval:
    """The interval with its ends for these roles, and for new ones where they are known; the second hold the first.

    Without any ends, it stays as it is.
    """
    if not ends:
        return interval
    rounded = [(round(float(low), _DIGITS), round(float(high), _DIGITS)) for low, high in ends]
    low, high = rounded[0]
    new_roles = rounded[1] if len(rounded) > 1 else None
    return interval._replace(low=low, high=high, new_roles=new_roles, method=method)


def take_new_roles(interval: Interval) -> Interval | None:
    """The interval with the ends for new roles as the only ones; ``None`` where they are not known."""
    if interval.new_roles is None:
        return None
    low, high = interval.new_roles
    method = interval.method.replace(" by question", " by role and question")
    return interval._replace(low=low, high=high, new_roles=None, method=method)


def estimate_proportion(hits: int, n: int) -> Interval:
    """A share of trials, each a cluster of its own, with Wilson's score interval (1927).

    Args:
        hits: Trials that count, from 0 to `n`.
        n: Trials; at least 1.

    >>> estimate_proportion(9, 10).format_ends(3)
    '[0.596, 0.982]'
    """
    ends = [_compute_wilson_ends(hits / n, n)]
    return add_ends(Interval(hits / n, n=n, clusters=n), ends, "Wilson's")


def _compute_wilson_ends(share: float, n: float) -> Ends:
    z = compute_t_quantile(math.inf)
    middle = share + z**2 / (2 * n)
    variance = share * (1 - share) / n + (z / (2 * n)) ** 2
    reach = z * math.sqrt(variance)
    scale = 1 + z**2 / n
    low = (middle - reach) / scale if share > 0 else 0.0
    high = (middle + reach) / scale if share < 1 else 1.0
    return low, high


def compute_t_quantile(freedom: float, tail: float = (1 - LEVEL) / 2) -> float:
    """Compute the value that Student's t exceeds with one tail's chance; the normal's for infinite freedom."""
    from scipy.special import stdtrit

    # Not of 1 - tail, which is 1 for a small tail.
    return -float(stdtrit(freedom, tail))


def number_clusters(clusters: Sequence[Any]) -> Codes:
    """A number from 0 for each row's cluster, as the clusters sort, so that the order of rows does not matter."""
    return _number_names([clusters])[0]


def encode_interval(interval: Interval | None) -> dict[str, Any] | None:
    """One metric as the contract's JSON object; ``ci95`` is null where one question alone cannot tell."""
    if interval is None:
        return None
    ends = interval.ends and list(interval.ends)
    value: dict[str, Any] = {"mean": interval.mean, "ci95": ends}
    if interval.new_roles is not None:
        value["ci95_new_roles"] = list(interval.new_roles)
    if interval.n:
        value |= {"n": interval.n, "questions": interval.clusters}
    if interval.method:
        value["method"] = interval.method
    return value


def read_interval(value: Any) -> Interval | None:
    """Read what `encode_interval` wrote.

    Raises:
        ValueError: When the value has another shape.
    """
    if value is None or isinstance(value, Interval):
        return value
    try:
        mean = float(value["mean"])
        ends = _read_ends(value.get("ci95"))
        new_roles = _read_ends(value.get("ci95_new_roles"))
        n = int(value.get("n") or 0)
        clusters = int(value.get("questions") or 0)
        method = str(value.get("method") or "")
    except (AttributeError, LookupError, TypeError, ValueError, OverflowError) as error:
        raise ValueError('expected {"mean", "ci95", "n"} or null') from error
    low, high = ends or (None, None)
    return Interval(mean, low, high, n, clusters, new_roles, method)


def _read_ends(value: Any) -> Ends | None:
    if value is None:
        return None
    low, high = map(float, value)
    return low, high


#: An interval that JSON may hold as null.
Measured = Annotated[Interval | None, PlainValidator(read_interval), PlainSerializer(encode_interval)]


def estimate_interval(sample: ClusteredSample, bounds: Ends = NONE) -> Interval | None:
    """Estimate a sample's mean; ``None`` where it has no value.

    Args:
        sample: May be empty.
        bounds: The lowest and the highest value that there can be, for shares and ranks; see `estimate_share`.
    """
    if not len(sample.values):
        return None
    return estimate_mean([sample]) if bounds == NONE else estimate_share(sample, bounds)


def select_intervals(value: _Value, config: str | None) -> _Value:
    """Choose the intervals that tables show: where the config asks about new roles, those for new roles.

    Args:
        value: Intervals in dataclasses, mappings and lists. A field that ends in ``_new_roles`` takes the place of the
            one without, unless it is ``None``.
        config: The rows' config.
    """
    return _map_intervals(value, _prefer_new_roles) if has_held_out_roles(config) else value


def name_clusters(value: _Value, noun: str) -> _Value:
    """Name the clusters of all intervals in a value, as `select_intervals` finds them, instead of questions."""

    def name(interval: Interval) -> Interval:
        return interval._replace(method=interval.method.replace("by question", f"by {noun}"))

    named: _Value = _map_intervals(value, name)
    return named


def _prefer_new_roles(interval: Interval) -> Interval:
    return take_new_roles(interval) or interval


def _map_intervals(value: Any, convert: Callable[[Interval], Interval]) -> Any:
    if isinstance(value, Interval):
        return convert(value)
    if isinstance(value, Mapping):
        return {key: _map_intervals(item, convert) for key, item in value.items()}
    # A named tuple is one value.
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return type(value)(_map_intervals(item, convert) for item in value)
    if not is_dataclass(value) or isinstance(value, type):
        return value
    converted = {}
    for item in fields(value):
        if item.init:
            converted[item.name] = _map_intervals(getattr(value, item.name), convert)
    if convert is _prefer_new_roles:
        for name in converted:
            wide = converted.get(f"{name}{_WIDE}")
            if wide is not None:
                converted[name] = wide
    return replace(value, **converted)


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
    most: float = math.inf,
) -> PairedTest:
    """Compare two models row by row: a paired t test over questions, and one over roles and questions.

    Where the difference is the same in every row, no spread tells how sure it is. The test is then the sign test over
    questions, and over roles, and the interval the one that belongs to it.

    Args:
        first: Shape (n,), n at least 1: one model's values.
        second: Shape (n,): the other's, of the same rows.
        clusters: Shape (n,): the question of each row.
        roles: Shape (n,), or empty where roles do not matter.
        most: The largest difference that there can be.

    >>> round(compare_pairs([1, 1, 0], [0, 0, 0], ["a", "b", "c"]).p, 4)
    0.1835
    """
    differences = np.asarray(first, float) - np.asarray(second, float)
    sample = ClusteredSample(differences.tolist(), clusters, roles)
    interval = estimate_mean([sample])
    mean = interval.mean
    spreads = compute_spreads([sample])
    if interval.ends is None and spreads and mean:
        ends = []
        for number, spread in enumerate(spreads):
            tail = max(0.5 ** (spread.freedom + 1), _LEAST_TAIL)
            error = abs(mean) / compute_t_quantile(spread.freedom, tail)
            spreads[number] = spread._replace(error=error)
            reach = spreads[number].compute_reach()
            ends.append((mean - reach, mean + reach))
        interval = add_ends(interval, ends, "the sign test by question")
    ends = [(max(low, -most), min(high, most)) for low, high in filter(None, (interval.ends, interval.new_roles))]
    interval = add_ends(interval, ends, interval.method)
    p_values = [_compute_p_value(mean, spread) for spread in spreads] or [1.0]
    p_new_roles = p_values[1] if len(p_values) > 1 else None
    return PairedTest(interval, p_values[0], p_new_roles)


def _compute_p_value(mean: float, spread: Spread) -> float:
    from scipy.special import stdtr

    if not spread.error:
        return 1.0
    return float(2 * stdtr(spread.freedom, -abs(mean) / spread.error))


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
    factors = np.arange(len(numbers), 0, -1)
    steps = np.minimum(numbers[order] * factors, 1.0)
    adjusted = np.maximum.accumulate(steps)
    in_given_order: list[float] = adjusted[np.argsort(order)].tolist()
    return in_given_order
