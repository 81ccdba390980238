"""How long something lasts: the Kaplan-Meier curve and its half-life, with log-log intervals.

A subject that was not seen to fail is *censored* at its last turn: it counts as at risk until then, and says nothing
about later turns (Kaplan and Meier, 1958, https://doi.org/10.1080/01621459.1958.10501452). Intervals are those of the
curve's log(-log), with Greenwood's variance (Kalbfleisch and Prentice, 1980), which stay between 0 and 1. They are not
defined where nobody or everybody has failed: Wilson's interval of those at risk is then in its place.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from rolellm.scoring.statistics.intervals import Interval, add_ends, compute_t_quantile, estimate_proportion

_METHOD = "Kaplan and Meier's (log-log) by session"


def estimate_survival(turns: Sequence[int], failed: Sequence[bool]) -> list[Interval]:
    """The Kaplan-Meier curve.

    Args:
        turns: Shape (n,): the turn, from 1, at which a subject failed, or else the last at which it was watched.
        failed: Shape (n,): whether it failed then.

    Returns:
        For each turn up to the last that was watched, the share that lasts beyond it; its `n` are the subjects at risk,
        which had not failed before and were watched then.

    >>> [share.mean for share in estimate_survival([1, 2, 2, 3], [True, True, False, False])]
    [0.75, 0.5, 0.5]
    """
    curve: list[Interval] = []
    survival, greenwood, highest = 1.0, 0.0, 1.0
    for turn in range(1, max(turns) + 1):
        at_risk = sum(last >= turn for last in turns)
        lost = sum(last == turn and mark for last, mark in zip(turns, failed, strict=True))
        survival *= 1 - lost / at_risk
        greenwood += lost / (at_risk * (at_risk - lost)) if lost < at_risk else 0
        share = Interval(round(survival, 12), n=at_risk, clusters=at_risk)
        if len(turns) > 1:
            low, high = _compute_ends(survival, greenwood, at_risk, highest)
            share, highest = add_ends(share, [(low, high)], _METHOD), high
        curve.append(share)
    return curve


def _compute_ends(survival: float, greenwood: float, at_risk: int, highest: float) -> tuple[float, float]:
    if not survival:
        return 0.0, highest * (estimate_proportion(0, at_risk).high or 1.0)
    if survival == 1:
        return estimate_proportion(at_risk, at_risk).ends or (0.0, 1.0)
    reach = compute_t_quantile(math.inf) * math.sqrt(greenwood) / math.log(survival)
    return survival ** math.exp(-reach), survival ** math.exp(reach)


def find_half_life(curve: Sequence[Interval]) -> tuple[int | None, tuple[int | None, int | None] | None]:
    """Find the first turn, from 1, after which at most half are left, and its 95 % interval.

    The interval's ends are the turns at which those of the curve's interval reach a half. Each of the three is ``None``
    where that is never so, and the interval for one subject.
    """
    half_life, *ends = (
        next((turn for turn, share in enumerate(shares, start=1) if share is not None and share <= 0.5), None)
        for shares in zip(*((share.mean, share.low, share.high) for share in curve), strict=True)
    )
    return half_life, (ends[0], ends[1]) if curve[0].ends else None
