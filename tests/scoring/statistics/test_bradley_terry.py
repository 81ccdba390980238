"""Bradley-Terry: true strengths, a rival optimiser, its intervals, and what is refused."""

from __future__ import annotations

import math
import random

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq, minimize

from rolellm.scoring.settings import Bootstrap
from rolellm.scoring.statistics.logistic_fits import fit_bradley_terry

STRENGTHS = np.array([0.9, 0.2, -0.3, -0.8])


def listed(seed: int, questions: int) -> npt.NDArray[np.float64]:
    """Tables of wins from one ranking of four models a question, by the strengths above."""
    draw = np.random.default_rng(seed)
    luck = STRENGTHS + draw.gumbel(size=(questions, 4))
    return (luck[:, :, None] > luck[:, None, :]).astype(np.float64)


def bradley_terry(wins: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """The strengths alone, from one table of wins."""
    return np.array([one.mean for one in fit_bradley_terry([wins], Bootstrap(resamples=1))])


@settings(max_examples=40)
@given(st.lists(st.integers(0, 30), min_size=6, max_size=6), st.lists(st.integers(0, 30), min_size=6, max_size=6))
def test_agrees_with_a_direct_optimum(won: list[int], lost: list[int]) -> None:
    wins = np.zeros((4, 4))
    wins[np.triu_indices(4, 1)], wins.T[np.triu_indices(4, 1)] = won, lost
    wins += 0.5 * (np.ones((4, 4)) - np.eye(4))  # a tie between any two

    def loss(strengths: npt.NDArray[np.float64]) -> float:
        gaps = strengths[:, None] - strengths[None, :]
        return float((wins * np.logaddexp(0, -gaps)).sum() + 0.005 * (strengths**2).sum())

    best = minimize(loss, np.zeros(4), method="BFGS", options={"gtol": 1e-7})
    strengths = bradley_terry(wins)
    assert strengths == pytest.approx(best.x, abs=1e-4)
    assert loss(strengths) <= best.fun + 1e-9
    assert strengths.sum() == pytest.approx(0, abs=1e-9)
    # Turned round, every strength changes its sign.
    assert bradley_terry(wins.T) == pytest.approx(-strengths, abs=1e-9)


def test_two_models_are_a_logit_and_half_a_win_each_is_a_tie() -> None:
    gap = np.ptp(bradley_terry([[0, 300], [100, 0]]))
    assert gap == pytest.approx(math.log(3), abs=2e-4)
    assert bradley_terry([[0, 0.5], [0.5, 0]]).tolist() == [0, 0]
    assert np.ptp(bradley_terry([[0, 310], [110, 0]])) == pytest.approx(math.log(31 / 11), abs=2e-4)


@pytest.mark.parametrize("games", [pytest.param(1, id="one"), pytest.param(100, id="100"), pytest.param(1e6, id="1e6")])
def test_an_unbeaten_model_stays_finite_as_the_ridge_says(games: float) -> None:
    strengths = bradley_terry([[0, games], [0, 0]])
    # Where the pull of the wins equals that of the ridge.
    half = brentq(lambda s: games / (1 + math.exp(2 * s)) - 0.01 * s, 0, 50)
    assert strengths == pytest.approx([half, -half], abs=1e-6)


def test_agrees_with_a_bootstrap_written_out_in_full() -> None:
    tables = listed(2, 60)
    draw = np.random.default_rng(5)
    drawn = np.array([bradley_terry(tables[draw.integers(0, 60, 60)].sum(axis=0)) for _ in range(1000)])
    for model, interval in enumerate(fit_bradley_terry(tables)):
        ends = np.quantile(drawn[:, model], [0.025, 0.975])
        assert (interval.low, interval.high) == pytest.approx(tuple(ends), abs=0.04)


@settings(max_examples=30)
@given(seed=st.integers(0, 50), shuffle=st.randoms(use_true_random=False))
def test_the_order_of_questions_changes_no_digit(seed: int, shuffle: random.Random) -> None:
    tables = listed(seed, 20)
    order = list(range(20))
    shuffle.shuffle(order)
    assert fit_bradley_terry(tables[order], Bootstrap(resamples=40)) == fit_bradley_terry(
        tables, Bootstrap(resamples=40)
    )


def test_who_never_lost_or_never_won_has_no_interval() -> None:
    tables = listed(4, 50)
    tables[:, 3, :], tables[:, :, 3] = 0, 1
    tables[:, 3, 3] = 0
    free = fit_bradley_terry(tables)
    assert [one.low is None for one in free] == [False, False, False, True]
    assert free[3].high is None
    assert free[3].mean < -3
    assert [one.low is None for one in fit_bradley_terry(tables, against=3)] == [True, True, True, False]


def test_a_model_compared_within_one_question_has_no_interval() -> None:
    tables = listed(5, 30)
    tables[1:, 3, :] = tables[1:, :, 3] = 0
    tables[0, :3, 3] = tables[0, 3, :3] = 0.5
    interval = fit_bradley_terry(tables)[3]
    assert (interval.low, interval.high, interval.n, interval.clusters) == (None, None, 3, 1)


@pytest.mark.parametrize(
    ("wins", "words"),
    [
        pytest.param([[0, 0], [0, 0]], r"models \[1\] were never compared", id="no-games"),
        pytest.param(
            [[0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 2], [0, 0, 1, 0]], r"models \[2, 3\] were never", id="two-islands"
        ),
    ],
)
def test_models_that_no_chain_connects_are_refused(wins: list, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        bradley_terry(wins)
    with pytest.raises(ValueError, match=words):
        fit_bradley_terry(np.array([wins]))
