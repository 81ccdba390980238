"""The cluster bootstrap: its means, its coverage by simulation, and what it refuses."""

from __future__ import annotations

import random
from statistics import fmean
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolellm.evaluation.settings import ScoreOptions
from rolellm.evaluation.statistics.bootstrap import (
    Bootstrap,
    Interval,
    Sample,
    bootstrap_stratum,
    mean_of_means,
)
from rolellm.judging.settings import JudgingSettings


def bootstrap_ci(values: list[float], clusters: list[Any], **settings: Any) -> Interval:
    """The interval of one metric."""
    return bootstrap_stratum([Sample(values, clusters)], Bootstrap(**settings)).intervals[0]


def clustered(seed: int, *, clusters: int = 80) -> tuple[list[float], list[int]]:
    """Values with true mean 0.4 that share a question effect; 1 to 8 rows a question."""
    draw = np.random.default_rng(seed)
    sizes = draw.integers(1, 9, size=clusters)
    effects = draw.uniform(-0.2, 0.2, size=clusters).repeat(sizes)
    values = 0.4 + effects + draw.uniform(-0.1, 0.1, size=sizes.sum())
    return values.tolist(), np.arange(clusters).repeat(sizes).tolist()


def covered(interval: Interval, truth: float = 0.4) -> bool:
    assert interval.low is not None
    assert interval.high is not None
    return interval.low <= truth <= interval.high


@pytest.mark.slow
def test_coverage_is_near_95_percent_and_only_because_questions_are_drawn() -> None:
    by_question, by_row, runs = 0, 0, 800
    for seed in range(runs):
        values, questions = clustered(seed)
        by_question += covered(bootstrap_ci(values, questions, resamples=600, seed=seed))
        by_row += covered(bootstrap_ci(values, list(range(len(values))), resamples=600, seed=seed))
    assert 0.93 <= by_question / runs <= 0.97
    assert by_row / runs < 0.85  # what ignoring the clusters would claim to be 95 %


def test_agrees_with_a_bootstrap_written_out_in_full() -> None:
    values, questions = clustered(1, clusters=30)
    groups = [[v for v, q in zip(values, questions, strict=True) if q == name] for name in range(30)]
    draw = random.Random(0)
    means = sorted(fmean(value for group in draw.choices(groups, k=30) for value in group) for _ in range(4000))
    interval = bootstrap_ci(values, questions, resamples=4000)
    assert interval.mean == pytest.approx(fmean(values), abs=1e-15)
    assert interval.low == pytest.approx(means[100], abs=0.004)
    assert interval.high == pytest.approx(means[3900], abs=0.004)


@given(
    pairs=st.lists(st.tuples(st.floats(0, 1), st.sampled_from("abcdef")), min_size=1, max_size=60),
    seed=st.integers(0, 10),
)
def test_order_does_not_matter_and_the_ends_stay_within_the_values(pairs: list[tuple[float, str]], seed: int) -> None:
    values, questions = [value for value, _ in pairs], [question for _, question in pairs]
    interval = bootstrap_ci(values, questions, resamples=50, seed=seed)
    shuffled = sorted(pairs, key=lambda pair: (-pair[0], pair[1]))
    again = bootstrap_ci([v for v, _ in shuffled], [q for _, q in shuffled], resamples=50, seed=seed)
    assert again.mean == interval.mean
    assert (again.n, again.clusters) == (interval.n, interval.clusters) == (len(pairs), len(set(questions)))
    if interval.clusters == 1:
        assert interval.low is None
        assert interval.high is None
    else:
        assert (again.low, again.high) == pytest.approx((interval.low, interval.high), abs=2e-12)
        assert min(values) - 1e-9 <= interval.low <= interval.high <= max(values) + 1e-9  # type: ignore[operator]


def test_same_seed_same_interval_other_seed_another() -> None:
    values, questions = clustered(3)
    assert bootstrap_ci(values, questions) == bootstrap_ci(values, questions)
    assert bootstrap_ci(values, questions, seed=1) != bootstrap_ci(values, questions, seed=2)


def test_one_question_says_nothing_about_spread() -> None:
    assert bootstrap_ci([0.1, 0.9], ["q", "q"]) == Interval(0.5, None, None, 2, 1)


def test_metrics_of_one_stratum_share_their_draws() -> None:
    values, questions = clustered(5)
    stratum = bootstrap_stratum(
        [Sample(values, questions), Sample([1 - value for value in values], questions)], Bootstrap()
    )
    assert stratum.means[0] + stratum.means[1] == pytest.approx(np.ones(2000))
    # Perfectly opposed metrics: their average does not move at all, which independent draws would miss.
    average = mean_of_means([stratum])
    assert (average.low, average.high) == pytest.approx((0.5, 0.5))


def test_strata_with_other_keys_draw_independently() -> None:
    values, questions = clustered(6)
    first, second = (bootstrap_stratum([Sample(values, questions)], Bootstrap(), key=key) for key in (0, 1))
    assert abs(np.corrcoef(first.means[0], second.means[0])[0, 1]) < 0.1
    average = mean_of_means([first, second])
    alone = first.intervals[0]
    assert average.mean == pytest.approx(alone.mean)
    width, single = average.high - average.low, alone.high - alone.low  # type: ignore[operator]
    assert width == pytest.approx(single / 2**0.5, rel=0.1)


def test_a_metric_that_some_questions_lack_keeps_its_own_counts() -> None:
    both = bootstrap_stratum([Sample([0.2, 0.4, 0.6], "abc"), Sample([0.5, 0.7], "ab")], Bootstrap(resamples=200))
    assert [(interval.n, interval.clusters) for interval in both.intervals] == [(3, 3), (2, 2)]
    low, high = both.intervals[1].low, both.intervals[1].high
    assert (low, high) == pytest.approx((0.5, 0.7))  # resamples that drew neither "a" nor "b" are left out


def test_the_average_has_no_interval_where_one_metric_has_none() -> None:
    wide = bootstrap_stratum([Sample([0.2, 0.4], "ab")], Bootstrap(resamples=50))
    single = bootstrap_stratum([Sample([0.6], "a")], Bootstrap(resamples=50), key=1)
    assert mean_of_means([wide, single]) == Interval(pytest.approx(0.45), None, None)


@pytest.mark.parametrize(
    ("values", "clusters", "words"),
    [
        pytest.param([], [], "no values", id="nothing"),
        pytest.param([0.1], ["a", "b"], "1 values, 2 clusters", id="unequal-lengths"),
        pytest.param([0.1, float("nan")], ["a", "b"], "value 1 is not a finite number", id="nan"),
        pytest.param([float("inf"), 0.1], ["a", "b"], "value 0 is not a finite number", id="infinity"),
    ],
)
def test_bad_values_are_refused_in_words(values: list[float], clusters: list[str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        bootstrap_ci(values, clusters)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        pytest.param({"resamples": 0}, "resamples: must be greater than or equal to 1", id="no-resamples"),
        pytest.param({"seed": -1}, "seed: must be greater than or equal to 0", id="negative-seed"),
    ],
)
def test_bad_settings_are_refused_in_words(settings: dict[str, int], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        bootstrap_ci([0.5], ["a"], **settings)


def test_two_thousand_resamples_are_drawn_unless_somebody_says_otherwise():
    assert Bootstrap().resamples == JudgingSettings().resamples == ScoreOptions().resamples == 2000
