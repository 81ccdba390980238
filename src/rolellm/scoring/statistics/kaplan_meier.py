"""How long something lasts: the Kaplan-Meier curve and its half-life, with log-log intervals.

A subject that was not seen to fail is *censored* at its last turn: it counts as at risk until then, and says nothing
about later turns (Kaplan and Meier, 1958, https://doi.org/10.1080/01621459.1958.10501452). Intervals are those of the
curve's log(-log), with Greenwood's variance (Kalbfleisch and Prentice, 1980), which stay between 0 and 1. They are not
defined where nobody or everybody has failed: Wilson's interval of those at risk is then in its place.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rolellm.scoring.statistics.intervals import Interval, add_ends, compute_t_quantile, estimate_proportion


@dataclass(frozen=True, slots=True)
class SurvivalPoint:
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

    steps: tuple[SurvivalPoint, ...]
    half_life: int | None
    ends: tuple[int | None, int | None] | None


def estimate_survival(turns: Sequence[int], failed: Sequence[bool]) -> Survival:
    """The Kaplan-Meier curve.

    Args:
        turns: Shape (n,): the turn, from 1, at which a subject failed, or else the last at which it was watched.
        failed: Shape (n,): whether it failed then.

    >>> [step.share.mean for step in estimate_survival([1, 2, 2, 3], [True, True, False, False]).steps]
    [0.75, 0.5, 0.5]
    """
    steps: list[SurvivalPoint] = []
    survival, greenwood, highest = 1.0, 0.0, 1.0
    for turn in range(1, max(turns) + 1):
        at_risk = sum(last >= turn for last in turns)
        lost = sum(last == turn and mark for last, mark in zip(turns, failed, strict=True))
        survival *= 1 - lost / at_risk
        greenwood += lost / (at_risk * (at_risk - lost)) if lost < at_risk else 0
        share = Interval(round(survival, 12), n=at_risk, clusters=at_risk)
        if len(turns) > 1:
            low, high = _compute_ends(survival, greenwood, at_risk, highest)
            share, highest = add_ends(share, [(low, high)]), high
        steps.append(SurvivalPoint(turn, at_risk, lost, share))
    shares = [step.share for step in steps]
    ends = _find_half_life([share.low for share in shares]), _find_half_life([share.high for share in shares])
    return Survival(tuple(steps), _find_half_life([share.mean for share in shares]), ends if len(turns) > 1 else None)


def _compute_ends(survival: float, greenwood: float, at_risk: int, highest: float) -> tuple[float, float]:
    if not survival:
        return 0.0, highest * (estimate_proportion(0, at_risk).high or 1.0)
    if survival == 1:
        return estimate_proportion(at_risk, at_risk).ends or (0.0, 1.0)
    reach = compute_t_quantile(math.inf) * math.sqrt(greenwood) / math.log(survival)
    return survival ** math.exp(-reach), survival ** math.exp(reach)


def _find_half_life(shares: Sequence[float | None]) -> int | None:
    """The first turn, from 1, after which at most half are left; of the curve, or of an end of its interval."""
    return next((turn for turn, share in enumerate(shares, start=1) if share is not None and share <= 0.5), None)
