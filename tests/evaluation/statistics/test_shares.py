"""Shares that are all 0 or all 1, of which a bootstrap would be sure."""

from __future__ import annotations

import pytest

from rolellm.evaluation.statistics.bootstrap import Interval, share_ends


@pytest.mark.parametrize("questions", [2, 3, 10, 500])
def test_where_all_say_the_same_the_ends_are_the_exact_binomial_ones(questions: int) -> None:
    # Clopper and Pearson in closed form: the least share that brings n of n with a chance of 2.5 %.
    least = 0.025 ** (1 / questions)
    every = share_ends(Interval(1.0, 1.0, 1.0, 3 * questions, questions))
    none = share_ends(Interval(0.0, 0.0, 0.0, 3 * questions, questions))
    assert (every.low, every.high) == (pytest.approx(least), 1)
    assert (none.low, none.high) == (0, pytest.approx(1 - least))
    assert (every.mean, every.n, every.clusters) == (1, 3 * questions, questions)


@pytest.mark.parametrize(
    "interval",
    [
        pytest.param(Interval(0.9, 0.8, 1.0, 10, 10), id="not-all-the-same"),
        pytest.param(Interval(0.5, 0.5, 0.5, 10, 10), id="all-tied"),
        pytest.param(Interval(1.0, None, None, 10, 1), id="one-question"),
    ],
)
def test_any_other_interval_is_left_as_it_is(interval: Interval) -> None:
    assert share_ends(interval) == interval
