"""Strengths from who beat whom: Bradley-Terry, with intervals over questions."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rolellm.scoring.settings import Bootstrap
from rolellm.scoring.statistics.intervals import Floats, Interval, compute_percentiles, draw_counts

#: Weight of the ridge: log-likelihood - RIDGE / 2 * sum of squared strengths, as a normal prior of deviation 10 would.
RIDGE = 0.01
_STEPS = 200
# In log-odds; Newton's steps shrink quadratically, so what is left after one this small is rounding.
_CLOSE = 1e-9
# Two models with equal results differ by rounding alone, which this many digits hide.
_DIGITS = 10


def fit_bradley_terry(
    tables: npt.ArrayLike,
    settings: Bootstrap = Bootstrap(),
    *,
    against: int | None = None,
) -> list[Interval]:
    """Bradley-Terry log-strengths of k models, with cluster-bootstrap percentile intervals.

    P(i beats j) = sigmoid(strength i - strength j) (Bradley & Terry, 1952). A tie is half a win for each (our choice,
    as in Arena-Hard). The likelihood is maximized with a small ridge on the strengths (``RIDGE``, a normal prior of
    deviation 10; our choice), so that a model that never lost, or never won, stays finite: its number then means "far
    above" or "far below" and grows with the number of rows. Where every model won and lost something, over a few dozen
    rows or more, the ridge shows in the third digit at most.

    A model that never lost, or never won, has a strength that only the ridge keeps finite. Resamples cannot
    show how far off it might be, so it gets no interval: with ``against``, every model without a chain of wins to that
    model and one back from it; without, every model outside the largest group within which such chains run.

    Args:
        tables: Shape (clusters, k, k), k at least 2: how often the model of the line beat that of the column,
            within each question.
        settings: Resamples and seed.
        against: Number of the model relative to which strengths are given, which itself gets 0; without it they are
            relative to the mean of all.

    Returns:
        One per model, in natural log-odds; ``n`` counts its comparisons (rounded), ``clusters`` the questions
        they come from.

    Raises:
        ValueError: On models that no chain of comparisons connects, so that nothing says which of them is stronger.

    >>> [round(one.mean, 2) for one in fit_bradley_terry([[[0, 3], [1, 0]]])]  # log(3) = 1.10 apart, less the ridge
    [0.55, -0.55]
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    wins = np.asarray(tables, dtype=np.float64)
    groups, group = connected_components(wins.sum(axis=0) > 0, directed=False)
    if groups > 1:
        apart = np.flatnonzero(group != group[0]).tolist()
        raise ValueError(f"models {apart} were never compared with model 0, not even through other models")
    clusters, k, _ = wins.shape
    flat = wins.reshape(clusters, k * k)
    # In one order, whatever order the clusters came in.
    flat = flat[np.lexsort(flat.T)]
    sparse = csr_array(flat)  # most cells of a question are 0
    sums = [flat.sum(axis=0)[None], *(counts @ sparse for counts in draw_counts(clusters, settings))]
    strengths = _fit(np.concatenate(sums).reshape(-1, k, k))
    if against is not None:
        strengths = strengths - strengths[:, [against]]
    strengths = strengths.round(_DIGITS)
    # Those whose strengths the results bound on both sides (Ford, 1957).
    _, group = connected_components(wins.sum(axis=0) > 0, directed=True, connection="strong")
    firm = group == (np.argmax(np.bincount(group)) if against is None else group[against])
    games = (wins + wins.transpose(0, 2, 1)).sum(axis=2)
    intervals = []
    for model in range(k):
        present = int(np.count_nonzero(games[:, model]))
        low, high = compute_percentiles(strengths[1:, model]) if firm[model] and present > 1 else (None, None)
        intervals.append(Interval(float(strengths[0, model]), low, high, round(games[:, model].sum()), present))
    return intervals


def _fit(wins: Floats) -> Floats:
    """Strengths of shape (tables, k) by Newton's method for all tables at once.

    Each step is shortened to log(1 + d) / d of itself, d the most that it moves any log-odds: with the logistic's
    curvature that always climbs (Sun & Tran-Dinh, 2019), and near the top it is a full step.
    """
    games = wins + wins.transpose(0, 2, 1)
    won, k = wins.sum(axis=2), wins.shape[-1]
    strengths = np.zeros(won.shape)
    for _ in range(_STEPS):
        chance = 1 / (1 + np.exp(strengths[:, None, :] - strengths[:, :, None]))
        slope = won - (games * chance).sum(axis=2) - RIDGE * strengths
        weight = games * chance * (1 - chance)
        curve = np.eye(k) * (weight.sum(axis=2) + RIDGE)[:, :, None] - weight
        step = np.linalg.solve(curve, slope[:, :, None])[:, :, 0]
        reach = np.ptp(step, axis=1, keepdims=True)
        strengths += step * np.where(reach > 0, np.log1p(reach) / np.where(reach > 0, reach, 1), 1)
        if reach.max() < _CLOSE:
            break
    # A resample without any comparison of a model says nothing about it.
    strengths = strengths - strengths.mean(axis=1, keepdims=True)
    return np.where(games.sum(axis=2) > 0, strengths, np.nan)
