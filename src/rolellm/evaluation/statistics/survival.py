"""How long something lasts: the Kaplan-Meier curve and its half-life, with bootstrap intervals over subjects.

A subject that was not seen to fail is *censored* at its last turn: it counts as at risk until then, and says nothing
about later turns (Kaplan and Meier, 1958, https://doi.org/10.1080/01621459.1958.10501452).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rolellm.evaluation.statistics.bootstrap import (
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
        ends: Its 95 % interval: the turns at which the ends of the curve's interval reach a half, each ``None`` where
            that is never so; ``None`` for one subject.
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
    lost = ((when[:, None] == watched) & event[:, None]).astype(np.float64)
    one = np.ones((1, len(when)))
    shares = _shares(one, risk, lost)[0]
    drawn = np.concatenate([_shares(counts, risk, lost) for counts in resampled_counts(len(when), settings)])
    steps = []
    for at, turn in enumerate(watched):
        at_risk, count = int(risk[:, at].sum()), int(lost[:, at].sum())
        low, high = percentiles(drawn[:, at]) if len(when) > 1 else (None, None)
        share = share_ends(Interval(float(shares[at]), low, high, at_risk, at_risk))
        steps.append(Step(int(turn), at_risk, count, share))
    found = [step.share for step in steps]
    ends = _half([share.low for share in found]), _half([share.high for share in found])
    return Survival(tuple(steps), _half([share.mean for share in found]), ends if len(when) > 1 else None)


def _shares(counts: Floats, risk: Floats, ends: Floats) -> Floats:
    """The curve of each resample, shape (resamples, turns)."""
    left, lost = counts @ risk, counts @ ends
    # Where none is left to watch, the share stays what it was.
    shares: Floats = np.cumprod(1 - np.divide(lost, left, out=np.zeros_like(lost), where=left > 0), axis=1)
    return shares.round(12)


def _half(shares: Sequence[float | None]) -> int | None:
    """The first turn, from 1, after which at most half are left; of the curve, or of an end of its interval."""
    return next((turn for turn, share in enumerate(shares, start=1) if share is not None and share <= 0.5), None)
