"""Shares and differences corrected for a decider that errs (Rogan and Gladen, 1978, Am. J. Epidemiol. 107).

A decider calls a share a of the rows positive. Where it finds r of the true ones (its recall) and f of the others (its
false alarms), the true share is (a - f) / (r - f), and a difference of shares is divided by r - f alone. Intervals are
percentiles of draws: recall and false alarms from Jeffreys' posteriors, the share likewise by what its clustered rows
are worth, the difference from Student's t of its paired test. They hold as far as the rows that the decider was
measured on are like those that it decided.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from rolellm.scoring.statistics.intervals import (
    ClusteredSample,
    Floats,
    Interval,
    add_ends,
    compute_percentiles,
    compute_spreads,
    compute_t_quantile,
    estimate_proportion,
    estimate_share,
)

_DRAWS: Final = 4000


@dataclass(frozen=True, slots=True)
class Accuracy:
    """How a decider did on rows whose truth is known.

    Attributes:
        hits: Positive rows that it calls positive.
        positives: All positive rows; at least 1.
        alarms: Negative rows that it calls positive.
        negatives: All negative rows; at least 1.
    """

    hits: int
    positives: int
    alarms: int
    negatives: int

    @property
    def recall(self) -> Interval:
        """The share of positive rows that it finds, with Wilson's interval."""
        return estimate_proportion(self.hits, self.positives)

    @property
    def false_alarms(self) -> Interval:
        """The share of negative rows that it calls positive, with Wilson's interval."""
        return estimate_proportion(self.alarms, self.negatives)

    @property
    def is_informative(self) -> bool:
        """Whether it is better than chance: r - f is above 0 in 97.5 % of draws."""
        return float(np.quantile(self._draw(np.random.default_rng(0))[1], 0.025)) > 0

    def _draw(self, random: np.random.Generator) -> tuple[Floats, Floats]:
        """Draw false alarms, and recall minus false alarms."""
        recall = _draw_share(random, self.hits, self.positives)
        alarms = _draw_share(random, self.alarms, self.negatives)
        return alarms, recall - alarms

    @property
    def _mean(self) -> tuple[float, float]:
        alarms = self.alarms / self.negatives
        return alarms, self.hits / self.positives - alarms

    def correct_share(self, sample: ClusteredSample) -> Interval | None:
        """The true share of rows of which some were called positive; ``None`` for a decider no better than chance.

        Args:
            sample: 1 for each row that was called positive, else 0; at least one row.
        """
        share, spreads = estimate_share(sample), compute_spreads([sample])
        if not self.is_informative or not spreads:
            return None
        variance = spreads[0].error ** 2
        worth = share.mean * (1 - share.mean) / variance if variance else share.clusters
        random = np.random.default_rng(0)
        draws, (alarms, gain) = _draw_share(random, share.mean * worth, worth), self._draw(random)
        mean = min(max((share.mean - self._mean[0]) / self._mean[1], 0.0), 1.0)
        return _make_interval(share._replace(mean=mean), np.clip((draws - alarms) / gain, 0, 1))

    def correct_difference(self, difference: Interval) -> Interval | None:
        """The true difference between two shares of the same rows; ``None`` as for `correct_share`.

        Args:
            difference: Of the shares that were called positive, as `compare_pairs` gives it.
        """
        if not self.is_informative or difference.low is None or difference.high is None:
            return None
        random, freedom = np.random.default_rng(0), difference.clusters - 1
        error = (difference.high - difference.low) / 2 / compute_t_quantile(freedom)
        draws = difference.mean + error * random.standard_t(freedom, _DRAWS)
        mean = min(max(difference.mean / self._mean[1], -1.0), 1.0)
        return _make_interval(difference._replace(mean=mean), np.clip(draws / self._draw(random)[1], -1, 1))


def _draw_share(random: np.random.Generator, hits: float, n: float) -> Floats:
    return random.beta(hits + 0.5, n - hits + 0.5, _DRAWS)


def _make_interval(interval: Interval, draws: Floats) -> Interval:
    low, high = compute_percentiles(draws)
    ends = [] if low is None or high is None else [(min(low, interval.mean), max(high, interval.mean))]
    return add_ends(interval, ends, "percentiles of draws") if ends else interval
