"""Intervals by simulation: of 100 that say 95 %, 93 to 97 hold the truth. All seeded."""

import numpy as np
import numpy.typing as npt
import pytest
from scipy.stats import norm

from rolellm.scoring.statistics.agreement import compute_cohen_kappa
from rolellm.scoring.statistics.intervals import ClusteredSample, Interval, estimate_share
from rolellm.scoring.statistics.logistic_fits import fit_length_control

pytestmark = pytest.mark.slow

Numbers = npt.NDArray[np.float64]

# With so many runs the standard error of a coverage near 0.95 is 0.006.
RUNS = 1500
DATA = 9
THETA, PHI, LONGER = -0.4, 1.0, 0.5
# In eighths of a deviation: few distinct differences, so that each fit is quick.
GRID = np.arange(-24, 33) / 8
MASS = norm.cdf(GRID + 1 / 16, LONGER, 1) - norm.cdf(GRID - 1 / 16, LONGER, 1)
MASS /= MASS.sum()


def sigmoid(values: Numbers | float) -> Numbers:
    return 1 / (1 + np.exp(-np.asarray(values)))


def holds(interval: Interval | None, truth: float) -> bool:
    return interval.low <= truth <= interval.high


def judged(seed: int, questions: int) -> tuple[Numbers, Numbers, Numbers, list[int]]:
    """Rows of a judge that likes length; up to 3 a question, which share their luck (correlation 0.4)."""
    draw = np.random.default_rng([seed, DATA])
    names = np.arange(questions).repeat(draw.integers(1, 4, size=questions))
    luck = 0.4**0.5 * draw.normal(size=questions)[names] + 0.6**0.5 * draw.normal(size=len(names))
    differences = draw.choice(GRID, p=MASS, size=len(names))
    outcomes = (norm.cdf(luck) < sigmoid(THETA + PHI * np.tanh(differences))).astype(float)
    baseline = np.full(len(names), 1000.0)
    return outcomes, baseline + 100 * differences, baseline, names.tolist()


def test_win_rate_and_controlled_rate() -> None:
    raw = float(MASS @ sigmoid(THETA + PHI * np.tanh(GRID)))
    truth = np.array([raw, float(sigmoid(THETA))])
    held, fooled = np.zeros(2), 0
    for seed in range(RUNS):
        outcomes, own, other, questions = judged(seed, 200)
        fit = fit_length_control(outcomes, own, other, questions)
        raw_rate = estimate_share(ClusteredSample(outcomes.tolist(), questions))
        held += [holds(one, value) for one, value in zip((raw_rate, fit.rate), truth, strict=True)]
        fooled += not holds(raw_rate, truth[1])
    assert ((held / RUNS >= 0.93) & (held / RUNS <= 0.97)).all(), held / RUNS
    assert fooled / RUNS > 0.5  # the raw rate is not the rate at equal length


@pytest.mark.parametrize("items", [20, 100])
@pytest.mark.parametrize("labels", [(1 / 3, 1 / 3, 1 / 3), (0.1, 0.2, 0.7)], ids=["even", "uneven"])
@pytest.mark.parametrize("kappa", [0.4, 0.9])
def test_kappa(kappa: float, labels: tuple[float, ...], items: int) -> None:
    held, runs = 0, 600
    for seed in range(runs):
        draw = np.random.default_rng([seed, DATA])
        first, guess = draw.choice(3, p=labels, size=(2, items))
        # Some copy, the rest guess: the share of the first is kappa.
        second = np.where(draw.uniform(size=items) < kappa, first, guess)
        held += holds(compute_cohen_kappa(first.tolist(), second.tolist()).estimate(range(items)), kappa)
    assert held / runs >= 0.92
