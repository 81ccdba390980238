"""How long something lasts: the Kaplan-Meier curve and its half-life, with bootstrap intervals over subjects.

A subject that was not seen to fail is *censored* at its last turn: it counts as at risk until then, and says nothing
about later turns (Kaplan and Meier, 1958, https://doi.org/10.1080/01621459.1958.10501452).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rolellm.evaluation.statistics.bootstrap import (
    LEVEL,
    Bootstrap,
    Floats,
    Interval,
    percentiles,
    resampled_counts,
    share_ends,
)


@dataclass(frozen=True, slots=True)
class Step:
    """The curve at a turn.

    Attributes:
        turn: From 1.
        at_risk: Subjects that had not failed before it, and were watched then.
        failed: Those of them that failed at it.
        share: The share that lasts beyond it.
    """

    turn: int
    at_risk: int
    failed: int
    share: Interval


@dataclass(frozen=True, slots=True)
class Survival:
    """A curve, a step for each turn up to the last that was watched.

    Attributes:
        steps: By turn.
        half_life: The first turn after which at most half are left; ``None`` where that is never so.
        ends: Its 95 % interval, each end ``None`` where it lies beyond what was watched; ``None`` for one subject.
    """

    steps: tuple[Step, ...]
    half_life: int | None
    ends: tuple[int | None, int | None] | None


def survival(turns: Sequence[int], failed: Sequence[bool], settings: Bootstrap) -> Survival:
    """The Kaplan-Meier curve.

    Args:
        turns: Shape (n,): the turn, from 1, at which a subject failed, or else the last at which it was watched.
        failed: Shape (n,): whether it failed then.
        settings: Resamples, of subjects, and their seed.

    Raises:
        ValueError: For no subject, lengths that differ, or a turn below 1.

    >>> [step.share.mean for step in survival([1, 2, 2, 3], [True, True, False, False], Bootstrap()).steps]
    [0.75, 0.5, 0.5]
    """
    if not turns or len(turns) != len(failed) or min(turns) < 1:
        raise ValueError(f"expected turns from 1 and as many marks, not {len(turns)} turns and {len(failed)} marks")
    when, event = np.asarray(turns), np.asarray(failed, dtype=bool)
    watched = np.arange(1, when.max() + 1)
    risk = (when[:, None] >= watched).astype(np.float64)
    ends = ((when[:, None] == watched) & event[:, None]).astype(np.float64)
    one = np.ones((1, len(when)))
    shares = _shares(one, risk, ends)[0]
    drawn = np.concatenate([_shares(counts, risk, ends) for counts in resampled_counts(len(when), settings)])
    steps = []
    for at, turn in enumerate(watched):
        at_risk, count = int(risk[:, at].sum()), int(ends[:, at].sum())
        low, high = percentiles(drawn[:, at]) if len(when) > 1 else (None, None)
        share = share_ends(Interval(float(shares[at]), low, high, at_risk, at_risk))
        steps.append(Step(int(turn), at_risk, count, share))
    middle = _half(shares[None])[0]
    tail = (1 - LEVEL) / 2
    # Turns are whole, and beyond the last is infinite: no mean of two of them.
    lives = np.quantile(_half(drawn), [tail, 1 - tail], method="higher")
    known = [int(life) if np.isfinite(life) else None for life in (middle, *lives)]
    return Survival(tuple(steps), known[0], (known[1], known[2]) if len(when) > 1 else None)


def _shares(counts: Floats, risk: Floats, ends: Floats) -> Floats:
    """The curve of each resample, shape (resamples, turns)."""
    left, lost = counts @ risk, counts @ ends
    # Where none is left to watch, the share stays what it was.
    shares: Floats = np.cumprod(1 - np.divide(lost, left, out=np.zeros_like(lost), where=left > 0), axis=1)
    return shares.round(12)


def _half(shares: Floats) -> Floats:
    """The first turn of each curve at which at most half are left, else infinity; shape (resamples,)."""
    under = shares <= 0.5
    return np.where(under.any(axis=1), under.argmax(axis=1) + 1.0, np.inf)
