"""A logistic model of who wins: wins at equal length, with intervals for these roles and for new ones.

What a win rate would be at equal length: judges like long answers, and a win by length is not a win by quality. The
model is P(win) = sigmoid(theta + phi * tanh(difference / s)): the difference in length, the model's less the
baseline's, over s, its standard deviation. The controlled rate is sigmoid(theta). Outcomes may be fractions (ties,
means of two orders or several judges): the fit is quasi-binomial. Its errors are those of a mean: of how far each row
moves the estimate (its influence), by questions, and by roles and questions.

This is the length term of AlpacaEval 2 (Dubois et al. 2024, arXiv 2404.04475; ``metrics/glm_winrate.py`` of its code).
AlpacaEval 2 has more: a difficulty of each of its 805 instructions, estimated from many models, with a coefficient for
each model; a pull towards the baseline (added rows of truncated answers, weighing 0.2) against gain by cutting answers
short; and an L1 penalty whose strength is cross-validated. Ours has none of them but a ridge on phi (`RIDGE`), so that
rows with little overlap give a finite coefficient. Our numbers are not theirs.

It assumes that the log-odds are linear in the tanh term, that length has the same effect on every question, and that
preferring length is only a bias of the judge. Where longer answers are longer because they say more, the control takes
merit away; where a model is long only on the questions that it would win anyway, the coefficient blames length.

By simulation (up to 3 rows a question) the intervals of the rate that say 95 % hold the truth in 94 to 97 % of cases
with 30 to 200 questions, also where the controlled rate is one in ten. For new roles, those of the rate hold it in 97 %
of cases or more with 3 and with 10 roles. Where nine answers in ten or more are on one side of the baseline's length,
what the model says of equal length depends on its shape.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np

from rolellm.scoring.statistics.intervals import (
    ClusteredSample,
    Floats,
    Interval,
    add_ends,
    compute_spreads,
    number_clusters,
)

#: Weight of the ridge on the coefficient of length: log-likelihood - RIDGE / 2 * its square, as a normal prior of
#: deviation 10 would.
RIDGE = 0.01
_STEPS = 200
# In log-odds; Newton's steps shrink quadratically, so what is left after one this small is rounding.
_CLOSE = 1e-9
_DIGITS = 12
#: Fewer questions than this get no controlled rate: their intervals would be too narrow by far.
MIN_QUESTIONS = 30
_METHOD = "Student's t of the logistic fit by question"


class LengthControl(NamedTuple):
    """A win rate as it would be at equal length.

    Attributes:
        rate: The length-controlled win rate, from 0 to 1; ``None`` where it cannot be estimated.
        problem: Why there is none, in words; ``None`` where there is one.
    """

    rate: Interval | None
    problem: str | None


class LengthData(NamedTuple):
    """Rows in one order, whatever order they came in; the length term of each lies between -1 and 1."""

    outcomes: Floats
    terms: Floats
    clusters: list[int]
    roles: list[Any]


def fit_length_control(
    outcomes: Sequence[float],
    lengths: Sequence[float],
    baseline_lengths: Sequence[float],
    clusters: Sequence[Hashable],
    roles: Sequence[Hashable] = (),
) -> LengthControl:
    """The win rate against a baseline that a logistic model predicts for answers of equal length.

    The head of this module says what the model is and what it assumes.
    There is no controlled rate, and ``problem`` says why, with fewer than ``MIN_QUESTIONS`` questions; with all
    outcomes the same; with all length differences the same; where equal length lies outside the differences seen (the
    model always longer, or always shorter), so that the rate would be guessed from the shape of a curve; and where the
    difference separates wins from losses without overlap, so that the fit has no end.

    Args:
        outcomes: Shape (n,), n at least 1: 1 win, 0 loss, or anything between.
        lengths: Shape (n,): of the model's answers, in characters or any other unit, 0 or more.
        baseline_lengths: Shape (n,): of the baseline's, in the same unit.
        clusters: Shape (n,): the question of each row.
        roles: Shape (n,): the role of each, or empty where roles do not matter.
    """
    from scipy.special import expit

    data, differences = _read_columns(outcomes, lengths, baseline_lengths, clusters, roles)
    questions = len(set(data.clusters))
    problem = _find_problem(data, differences, questions)
    if problem is not None:
        return LengthControl(None, problem)
    values, influences = _fit_length(data)
    theta = _estimate(values[0], influences[0], data)
    rate = theta._replace(mean=float(expit(theta.mean)))
    ends = [(expit(low), expit(high)) for low, high in filter(None, (theta.ends, theta.new_roles))]
    return LengthControl(add_ends(rate, ends, _METHOD), None)


def _estimate(fitted: Any, influence: Floats, data: LengthData) -> Interval:
    """An estimate whose error is that of the mean of how far each row moves it."""
    value = float(fitted)
    sample = ClusteredSample(influence.tolist(), data.clusters, data.roles)
    ends = []
    for spread in compute_spreads([sample]):
        reach = spread.compute_reach()
        ends.append((value - reach, value + reach))
    interval = Interval(round(value, _DIGITS), n=len(influence), clusters=len(set(data.clusters)))
    return add_ends(interval, ends, _METHOD)


def _read_columns(
    outcomes: Sequence[float],
    lengths: Sequence[float],
    baseline_lengths: Sequence[float],
    clusters: Sequence[Hashable],
    roles: Sequence[Hashable],
) -> tuple[LengthData, Floats]:
    values = np.asarray(outcomes, float)
    codes = number_clusters(clusters)
    differences = np.asarray(lengths, float) - np.asarray(baseline_lengths, float)
    order = np.lexsort((differences, values, codes))
    differences = differences[order]
    # Rows in another order are summed with other rounding errors; these are in one order.
    terms = np.zeros_like(differences)
    if np.ptp(differences) > 0:
        terms = np.tanh(differences / float(differences.std(ddof=1)))
    ordered_roles = [roles[row] for row in order] if roles else []
    return LengthData(values[order], terms, codes[order].tolist(), ordered_roles), differences


def _find_problem(data: LengthData, differences: Floats, questions: int) -> str | None:
    shortest, longest = differences.min(), differences.max()
    if questions < MIN_QUESTIONS:
        return f"only {questions} questions; a length-controlled rate needs at least {MIN_QUESTIONS}"
    if data.outcomes.min() == data.outcomes.max():
        return f"every outcome is {data.outcomes[0]:g}, so length explains nothing"
    if shortest == longest:
        return f"every length difference is {shortest:g}, so the effect of length cannot be told from quality"
    if shortest > 0 or longest < 0:
        comparison = "longer" if shortest > 0 else "shorter"
        return f"every answer is {comparison} than the baseline's, so equal length was never observed"
    winning, losing = data.terms[data.outcomes > 0], data.terms[data.outcomes < 1]
    if winning.min() >= losing.max() or winning.max() <= losing.min():
        return "the length difference separates wins from losses without overlap, so the fit diverges"
    return None


def _fit_length(data: LengthData) -> tuple[Floats, Floats]:
    """Fit theta and phi, shape (2,), and how far each row moves them times the rows, shape (2, rows).

    Newton's method, each step shortened to log(1 + d) / d of itself, d the most that it moves any log-odds: with the
    logistic's curvature that always climbs (Sun & Tran-Dinh, 2019), and near the top it is a full step.
    """
    from scipy.special import expit

    columns = np.stack([np.ones_like(data.terms), data.terms])
    ridge = np.array([0.0, RIDGE])
    values = np.zeros(2)
    for _ in range(_STEPS):
        chance = expit(values @ columns)
        weights = chance * (1 - chance)
        curve = (columns * weights) @ columns.T + np.diag(ridge)
        slopes = columns * (data.outcomes - chance)
        step = np.linalg.solve(curve, slopes.sum(axis=1) - ridge * values)
        reach = float(np.abs(step).sum())
        if reach < _CLOSE:
            break
        values = values + np.log1p(reach) / reach * step
    return values, len(data.terms) * np.linalg.solve(curve, slopes)
