"""A logistic model of who wins: wins at equal length, with intervals over questions.

What a win rate would be at equal length: judges like long answers, and a win by length is not a win by quality. The
model is P(win) = sigmoid(theta + phi * tanh(difference / s)): the difference in length, the model's less the
baseline's, over s, its standard deviation. The controlled rate is sigmoid(theta). Outcomes may be fractions (ties,
means of two orders or several judges): the fit is quasi-binomial. Intervals refit it on resampled questions, s kept.

This is the length term of AlpacaEval 2 (Dubois et al. 2024, arXiv 2404.04475; ``metrics/glm_winrate.py`` of its code).
AlpacaEval 2 has more: a difficulty of each of its 805 instructions, estimated from many models, with a coefficient for
each model; a pull towards the baseline (added rows of truncated answers, weighing 0.2) against gain by cutting answers
short; and an L1 penalty whose strength is cross-validated. Ours has none of them but a ridge on phi (`RIDGE`), so that
resamples without overlap stay finite. Our numbers are not theirs.

It assumes that the log-odds are linear in the tanh term, that length has the same effect on every question, and that
preferring length is only a bias of the judge. Where longer answers are longer because they say more, the control takes
merit away; where a model is long only on the questions that it would win anyway, the coefficient blames length.

The coefficient is marginal: an average over questions, judges and orders that the model does not tell apart. Whatever
else decides verdicts, such as a strong liking for the first answer, draws it towards 0. A planted effect of 1.0 reads
as little as 0.56 where the place decides most verdicts. Compare it with 0, and not with another judge's.

By simulation (up to 3 rows a question) the intervals of rate and coefficient that say 95 % hold the truth in 93 to 94 %
of cases with 50 to 200 questions, and 92 % with 30. Where the controlled rate is one in ten, or nine in ten, it is 87 %
with 50 questions, 91 % with 100 and 92 to 93 % with 200. Where nine answers in ten or more are on one side of the
baseline's length, it is about 90 %, and what the model says of equal length depends on its shape.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rolellm.scoring.settings import Bootstrap
from rolellm.scoring.statistics.intervals import (
    Codes,
    Floats,
    Interval,
    compute_percentiles,
    draw_counts,
    number_clusters,
)

if TYPE_CHECKING:
    from scipy.sparse import csr_array

#: Weight of the ridge on the coefficient of length: log-likelihood - RIDGE / 2 * its square, as a normal prior of
#: deviation 10 would.
RIDGE = 0.01
_STEPS = 200
# In log-odds; Newton's steps shrink quadratically, so what is left after one this small is rounding.
_CLOSE = 1e-9
_DIGITS = 12
#: Fewer questions than this get no controlled rate: their intervals would be too narrow by far.
MIN_QUESTIONS = 30
# Points that stand for the length terms of all rows in the resamples; 257 move an end of the rate by less than 0.0001.
_POINTS = 257


def _climb(values: Floats, find_step: Callable[[Floats], tuple[Floats, Floats]]) -> Floats:
    """Maximize the likelihoods of logistic models by Newton's method, for all fits at once.

    Each step is shortened to log(1 + d) / d of itself, d the most that it moves any log-odds: with the logistic's
    curvature that always climbs (Sun & Tran-Dinh, 2019), and near the top it is a full step.

    Args:
        values: Shape (fits, parameters): where to start.
        find_step: Newton's step from values, in their shape, and d of each fit.
    """
    for _ in range(_STEPS):
        step, reach = find_step(values)
        damped = np.where(reach > 0, np.log1p(reach) / np.where(reach > 0, reach, 1), 1)
        values = values + damped[:, None] * step
        if not len(reach) or reach.max() < _CLOSE:
            break
    return values


class LengthControl(NamedTuple):
    """A win rate as it would be at equal length.

    Attributes:
        rate: The length-controlled win rate, from 0 to 1; ``None`` where it cannot be estimated.
        coefficient: The effect of length: log-odds of a win per unit of tanh(length difference / its standard
            deviation), above 0 where the longer answer is preferred; ``None`` where it cannot be estimated.
        problem: Why there is none, in words; ``None`` where there is one.
    """

    rate: Interval | None
    coefficient: Interval | None
    problem: str | None


class LengthData(NamedTuple):
    """Rows in one order, whatever order they came in; the length term of each lies between -1 and 1."""

    outcomes: Floats
    terms: Floats
    codes: Codes


def fit_length_control(
    outcomes: Sequence[float],
    lengths: Sequence[float],
    baseline_lengths: Sequence[float],
    clusters: Sequence[Hashable],
    settings: Bootstrap = Bootstrap(),
) -> LengthControl:
    """The win rate against a baseline that a logistic model predicts for answers of equal length.

    The head of this module says what the model is and what it assumes. Intervals refit it on resampled questions.
    There is no controlled rate, and ``problem`` says why, with fewer than ``MIN_QUESTIONS`` questions; with all
    outcomes the same; with all length differences the same; where equal length lies outside the differences seen (the
    model always longer, or always shorter), so that the rate would be guessed from the shape of a curve; and where the
    difference separates wins from losses without overlap, so that the fit has no end.

    Args:
        outcomes: Shape (n,), n at least 1: 1 win, 0 loss, or anything between.
        lengths: Shape (n,): of the model's answers, in characters or any other unit, 0 or more.
        baseline_lengths: Shape (n,): of the baseline's, in the same unit.
        clusters: Shape (n,): the question of each row.
        settings: Resamples and seed.
    """
    data, differences = _read_columns(outcomes, lengths, baseline_lengths, clusters)
    questions = int(data.codes[-1]) + 1
    problem = _find_problem(data, differences, questions)
    if problem is not None:
        return LengthControl(None, None, problem)
    rates, coefficients = _resample_fits(data, settings)
    won, tilted = data.outcomes.sum(keepdims=True), (data.outcomes @ data.terms)[None]
    (theta,), (phi,) = _fit_length(data.terms, np.ones((1, len(data.terms))), won, tilted)
    rate, coefficient = (
        Interval(round(float(mean), _DIGITS), *compute_percentiles(values), len(data.terms), questions)
        for mean, values in ((_compute_sigmoid(theta), rates), (phi, coefficients))
    )
    return LengthControl(rate, coefficient, None)


def _read_columns(
    outcomes: Sequence[float], lengths: Sequence[float], baseline_lengths: Sequence[float], clusters: Sequence[Hashable]
) -> tuple[LengthData, Floats]:
    won, own, baseline = (np.asarray(column, float) for column in (outcomes, lengths, baseline_lengths))
    codes, differences = number_clusters(clusters), own - baseline
    order = np.lexsort((differences, won, codes))
    differences = differences[order]
    # Rows in another order are summed with other rounding errors; these are in one order.
    spread = float(differences.std(ddof=1)) if len(differences) > 1 else 0.0
    terms = np.tanh(differences / spread) if spread > 0 else np.zeros_like(differences)
    return LengthData(won[order], terms, codes[order]), differences


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


def _resample_fits(data: LengthData, settings: Bootstrap) -> tuple[Floats, Floats]:
    """Controlled rate and coefficient in each resample; not a number where the resample does not define it."""
    points, table = _bin_terms(data)
    columns = np.stack([data.outcomes, data.outcomes * data.terms], axis=1)
    sums = np.stack([np.bincount(data.codes, weights=column) for column in columns.T], axis=1)
    parts = [(counts @ table, counts @ sums) for counts in draw_counts(len(sums), settings)]
    weights, (wins, tilted) = np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts]).T
    total = weights.sum(axis=1)
    # All won: theta has no end, and the rate is 1 whatever the length; the same with all lost.
    rates, coefficients = wins / total, np.full(len(total), np.nan)
    mixed = (wins > 0) & (wins < total * (1 - 1e-12))
    theta, phi = _fit_length(points, weights[mixed], wins[mixed], tilted[mixed])
    rates[mixed], coefficients[mixed] = _compute_sigmoid(theta), phi
    return rates, coefficients


def _bin_terms(data: LengthData) -> tuple[Floats, csr_array]:
    """Points between -1 and 1, and how many rows of each question lie at each, shape (questions, points).

    With many distinct terms, a row between two points is shared among them so that its own term is their mean.
    """
    from scipy.sparse import csr_array

    points = np.unique(data.terms)
    if len(points) > _POINTS:
        points = np.linspace(points[0], points[-1], _POINTS)
    lower = np.clip(np.searchsorted(points, data.terms, side="right") - 1, 0, len(points) - 2)
    share = (data.terms - points[lower]) / (points[lower + 1] - points[lower])
    shape = (int(data.codes[-1]) + 1, len(points))
    values, columns = np.concatenate([1 - share, share]), np.concatenate([lower, lower + 1])
    return points, csr_array((values, (np.tile(data.codes, 2), columns)), shape=shape)


def _fit_length(points: Floats, weights: Floats, wins: Floats, tilted: Floats) -> Floats:
    """Fit theta and phi, shape (2, fits).

    Args:
        points: Shape (p,): length terms.
        weights: Shape (fits, p): how many rows are at each.
        wins: Shape (fits,): sum of the outcomes.
        tilted: Shape (fits,): sum of outcome times length term.
    """
    powers = np.stack([np.ones_like(points), points, points**2], axis=1)

    def find_step(values: Floats) -> tuple[Floats, Floats]:
        theta, phi = values.T
        chance = _compute_sigmoid(theta[:, None] + phi[:, None] * points)
        expected = (weights * chance) @ powers[:, :2]
        flat, slant, steep = ((weights * chance * (1 - chance)) @ powers).T
        steep = steep + RIDGE
        up, along = wins - expected[:, 0], tilted - expected[:, 1] - RIDGE * phi
        area = flat * steep - slant**2
        step = np.stack([(steep * up - slant * along) / area, (flat * along - slant * up) / area], axis=1)
        return step, np.abs(step).sum(axis=1)

    return np.ascontiguousarray(_climb(np.zeros((len(weights), 2)), find_step).T)


def _compute_sigmoid(values: Floats) -> Floats:
    return 0.5 * (1 + np.tanh(values / 2))
