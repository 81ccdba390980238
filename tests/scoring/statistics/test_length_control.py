"""Length control: a rival fit, a planted bias undone, what is refused, and what no order of rows may change."""

import random
import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from rolellm.scoring.statistics.logistic_fits import LengthControl, fit_length_control

Numbers = npt.NDArray[np.float64]


def sigmoid(values: Numbers | float) -> Numbers:
    return 1 / (1 + np.exp(-np.asarray(values)))


def judged(seed: int, rows: int, *, theta: float, phi: float, longer: float = 0.0) -> tuple[Numbers, Numbers, Numbers]:
    """Outcomes of a judge that likes length: wins by P = sigmoid(theta + phi * tanh(difference / 200))."""
    draw = np.random.default_rng(seed)
    differences = np.round(200 * draw.normal(longer, 1, size=rows))
    baseline = np.round(draw.uniform(2000, 3000, size=rows))
    outcomes = (draw.uniform(size=rows) < sigmoid(theta + phi * np.tanh(differences / 200))).astype(float)
    return outcomes, baseline + differences, baseline


def rival(outcomes: Numbers, terms: Numbers) -> Numbers:
    """theta and phi by scipy, of the same likelihood."""

    def loss(point: Numbers) -> tuple[float, Numbers]:
        logits = point[0] + point[1] * terms
        value = (np.logaddexp(0, logits) - outcomes * logits).sum() + 0.005 * point[1] ** 2
        left = sigmoid(logits) - outcomes
        return float(value), np.array([left.sum(), left @ terms + 0.01 * point[1]])

    best: Numbers = minimize(loss, np.zeros(2), jac=True, method="BFGS", options={"gtol": 1e-6}).x
    return best


@pytest.mark.parametrize(("theta", "phi"), [(0.0, 0.0), (-0.4, 1.0), (1.5, -2.0), (-2.0, 4.0)])
@pytest.mark.parametrize("steps", [pytest.param(1, id="won-or-lost"), pytest.param(4, id="quarters")])
def test_agrees_with_a_direct_optimum(theta: float, phi: float, steps: int) -> None:
    outcomes, own, other = judged(1, 400, theta=theta, phi=phi)
    # Quarters: what means over orders and judges look like.
    outcomes = np.round((outcomes + np.random.default_rng(0).uniform(size=400)) / 2 * steps) / steps
    best = rival(outcomes, np.tanh((own - other) / (own - other).std(ddof=1)))
    fit = fit_length_control(outcomes.tolist(), own.tolist(), other.tolist(), range(400))
    assert fit.problem is None
    assert fit.rate.mean == pytest.approx(float(sigmoid(best[0])), abs=1e-6)


def test_rows_of_one_question_count_together() -> None:
    outcomes, own, other = judged(6, 100, theta=0.3, phi=0.8)
    once = fit_length_control(outcomes, own, other, range(100))
    # The same rows four times over tell nothing new; taken for new questions they would seem to.
    fourfold = [np.tile(part, 4) for part in (outcomes, own, other)]
    copied, claimed = (fit_length_control(*fourfold, ids) for ids in (np.tile(np.arange(100), 4).tolist(), range(400)))
    width, again, less = (fit.rate.high - fit.rate.low for fit in (once, copied, claimed))  # type: ignore[union-attr, operator]
    assert again == pytest.approx(width, rel=0.02)
    assert less < 0.6 * width


def test_new_roles_are_less_sure_where_roles_differ() -> None:
    truth, held = float(sigmoid(0.0)), np.zeros(2)
    for seed in range(60):
        draw = np.random.default_rng(seed)
        parts = [judged(100 * seed + role, 40, theta=draw.normal(0, 1), phi=1.0) for role in range(3)]
        outcomes, own, other = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        rate = fit_length_control(outcomes, own, other, [*range(40)] * 3, np.arange(3).repeat(40).tolist()).rate
        assert rate is not None and rate.ends is not None and rate.new_roles is not None
        held += [low <= truth <= high for low, high in (rate.ends, rate.new_roles)]
    assert held[0] < 40 and held[1] >= 54, held


long, short = [200.0] * 20 + [100.0] * 20, [100.0] * 20 + [200.0] * 20
won = [1.0, 0.0] * 20


@pytest.mark.parametrize(
    ("outcomes", "own", "other", "words"),
    [
        pytest.param(won[:20], long[10:30], short[10:30], "20 questions; .* at least 30", id="few-questions"),
        pytest.param([1.0] * 40, long, short, "every outcome is 1,", id="all-won"),
        pytest.param(won, short, short, "every length difference is 0,", id="equal-lengths"),
        pytest.param(won, [x + 200 for x in long], short, "every answer is longer", id="always-longer"),
        pytest.param([1.0] * 20 + [0.0] * 20, long, short, "without overlap", id="longer-always-wins"),
        pytest.param(won[:20] + [0.0] * 20, long, short, "without overlap", id="touching-at-one-difference"),
    ],
)
def test_what_cannot_be_controlled_is_said_in_words(
    outcomes: list[float], own: list[float], other: list[float], words: str
) -> None:
    fit = fit_length_control(outcomes, own, other, range(len(outcomes)))
    assert fit.rate is None
    assert re.search(words, fit.problem)


row = st.tuples(st.sampled_from([0.0, 0.25, 0.5, 1.0]), st.integers(0, 9), st.integers(0, 9))


@settings(max_examples=80)
@given(rows=st.lists(row, min_size=30, max_size=45), shuffle=st.randoms(use_true_random=False))
def test_any_rows_give_finite_ends_or_a_problem_and_no_order_changes_a_digit(
    rows: list[tuple[float, int, int]], shuffle: random.Random
) -> None:
    def control(numbered: Sequence[tuple[int, tuple[float, int, int]]]) -> LengthControl:
        outcomes, own, other = map(list, zip(*(one for _, one in numbered), strict=True))
        return fit_length_control(outcomes, own, other, [number for number, _ in numbered])

    numbered = list(enumerate(rows))
    fit = control(numbered)
    shuffle.shuffle(numbered)
    assert control(numbered) == fit
    assert (fit.rate is None) == (fit.problem is not None)
    if fit.rate is not None:
        assert 0 <= fit.rate.low <= fit.rate.high <= 1  # type: ignore[operator]
        assert 0 < fit.rate.mean < 1
