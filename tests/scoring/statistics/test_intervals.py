"""Intervals of means and shares: equal to what they are named after, sure of nothing, and covering by simulation."""

from __future__ import annotations

import math
import random
from statistics import fmean

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.stats import binomtest

from rolellm.scoring.statistics.intervals import (
    ClusteredSample,
    compute_spreads,
    estimate_mean,
    estimate_proportion,
    estimate_share,
)


def clustered(seed: int, *, clusters: int = 80) -> tuple[list[float], list[int]]:
    """Values with true mean 0.4 that share a question effect; 1 to 8 rows a question."""
    draw = np.random.default_rng(seed)
    sizes = draw.integers(1, 9, size=clusters)
    effects = draw.uniform(-0.2, 0.2, size=clusters).repeat(sizes)
    values = 0.4 + effects + draw.uniform(-0.1, 0.1, size=sizes.sum())
    return values.tolist(), np.arange(clusters).repeat(sizes).tolist()


def by_roles(seed: int, roles: int, rows: int = 500, *, crossed: bool, share: bool) -> ClusteredSample:
    """Rows of roles that are drawn at random (deviation 0.08, mean 0.5), with questions of their own or the same."""
    draw = np.random.default_rng([seed, roles])
    role = np.arange(rows) % roles
    question = np.arange(rows) // roles if crossed else np.arange(rows)
    worth = 0.5 + draw.normal(0, 0.08, roles)[role] + draw.normal(0, 0.1, rows)[question]
    values = draw.uniform(size=rows) < worth if share else worth + draw.normal(0, 0.15, rows)
    return ClusteredSample(values.astype(float).tolist(), question.tolist(), role.tolist())


def holds(ends: tuple[float, float] | None, truth: float) -> bool:
    return ends[0] <= truth <= ends[1]


@pytest.mark.parametrize("share", [False, True], ids=["means", "shares"])
@pytest.mark.parametrize("crossed", [False, True], ids=["questions-of-their-own", "the-same-questions"])
@pytest.mark.parametrize("roles", [3, 10])
def test_of_new_roles_95_percent_hold_the_truth_and_of_these_far_fewer(roles: int, crossed: bool, share: bool) -> None:
    held, runs = np.zeros(2), 250
    for seed in range(runs):
        sample = by_roles(seed, roles, crossed=crossed, share=share)
        interval = estimate_share(sample) if share else estimate_mean([sample])
        held += [holds(interval.ends, 0.5), holds(interval.new_roles, 0.5)]
    assert held[0] / runs < (0.93 if share else 0.75)
    # With so many runs, the standard error of a coverage near 0.95 is 0.014.
    assert held[1] / runs >= 0.92


@pytest.mark.slow
@pytest.mark.parametrize("rate", [0.02, 0.1, 0.5])
@pytest.mark.parametrize("correlation", [0.05, 0.5])
def test_shares_of_clustered_rows_are_covered(rate: float, correlation: float) -> None:
    held, runs = 0, 800
    for seed in range(runs):
        draw = np.random.default_rng(seed)
        sizes = draw.integers(1, 6, size=30)
        scale = (1 - correlation) / correlation
        chances = draw.beta(rate * scale, (1 - rate) * scale, size=30).repeat(sizes)
        hits = (draw.uniform(size=len(chances)) < chances).astype(float)
        held += holds(estimate_share(ClusteredSample(hits.tolist(), np.arange(30).repeat(sizes).tolist())).ends, rate)
    assert held / runs >= 0.935


def test_a_mean_of_independent_rows_has_students_interval() -> None:
    values = np.random.default_rng(0).normal(size=12)
    rival = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    interval = estimate_mean([ClusteredSample(values.tolist(), range(12))])
    assert interval.ends == pytest.approx((rival.low, rival.high))
    assert (interval.mean, interval.n, interval.clusters) == (pytest.approx(values.mean()), 12, 12)


def test_the_error_is_that_of_leaving_each_question_out() -> None:
    values, questions = clustered(1, clusters=30)
    whole = fmean(values)
    left = [fmean(v for v, q in zip(values, questions, strict=True) if q != name) for name in range(30)]
    jackknife = math.sqrt(29 / 30 * sum((one - whole) ** 2 for one in left))
    (spread,) = compute_spreads([ClusteredSample(values, questions)])
    assert spread == (pytest.approx(jackknife), 29)


def test_the_error_for_new_roles_is_that_of_two_ways_of_clustering() -> None:
    sample = by_roles(3, 5, 60, crossed=True, share=False)
    ways = (sample.roles, sample.clusters, list(zip(sample.roles, sample.clusters, strict=True)))
    role, question, cell = (compute_spreads([ClusteredSample(sample.values, keys)])[0].error ** 2 for keys in ways)
    these, new = compute_spreads([sample])
    assert these == (pytest.approx(question**0.5), 11)
    assert new == (pytest.approx(max(role, question, role + question - cell) ** 0.5), 4)


@pytest.mark.parametrize(("hits", "n"), [(0, 1), (0, 100), (1, 100), (5, 20), (20, 20)])
def test_a_share_of_independent_rows_has_wilsons_interval(hits: int, n: int) -> None:
    rival = binomtest(hits, n).proportion_ci(0.95, method="wilson")
    assert estimate_proportion(hits, n).ends == pytest.approx((rival.low, rival.high), abs=1e-9)
    if n > 1:
        share = estimate_share(ClusteredSample([1.0] * hits + [0.0] * (n - hits), range(n)))
        assert share.ends == pytest.approx(estimate_proportion(hits, n).ends)


@settings(max_examples=150)
@given(st.lists(st.integers(1, 6), min_size=2, max_size=40), st.integers(0, 500))
@example([1] * 100, 0)
def test_an_event_never_narrows_an_interval(sizes: list[int], place: int) -> None:
    questions = [question for question, size in enumerate(sizes) for _ in range(size)]
    values = [0.0] * len(questions)
    none = estimate_share(ClusteredSample(values, questions))
    values[place % len(values)] = 1.0
    event = estimate_share(ClusteredSample(values, questions))
    assert event.ends and none.ends
    assert event.ends[1] - event.ends[0] >= none.ends[1] - none.ends[0]
    assert event.ends[1] >= none.ends[1]


@given(
    rows=st.lists(st.tuples(st.sampled_from([0, 0.5, 1]), st.sampled_from("abcd"), st.sampled_from("xyz")), min_size=1),
    bounds=st.sampled_from([(0.0, 1.0), (-1.0, 1.0), (0.0, 5.0)]),
)
def test_shares_stay_inside_their_bounds_are_never_sure_and_wider_for_new_roles(
    rows: list[tuple[float, str, str]], bounds: tuple[float, float]
) -> None:
    values, questions, roles = map(list, zip(*rows, strict=True))
    interval = estimate_share(ClusteredSample(values, questions, roles), bounds)
    assert interval.mean == pytest.approx(fmean(values))
    assert (interval.ends is None) == (len(set(questions)) < 2)
    assert (interval.new_roles is None) == (interval.ends is None or len(set(roles)) < 2)
    for ends in filter(None, (interval.ends, interval.new_roles)):
        assert bounds[0] <= ends[0] < ends[1] <= bounds[1]
        assert ends[0] - 1e-9 <= interval.mean <= ends[1] + 1e-9
    if interval.new_roles and interval.ends:
        assert interval.new_roles[0] <= interval.ends[0] + 1e-9 and interval.ends[1] - 1e-9 <= interval.new_roles[1]


@given(
    rows=st.lists(
        st.tuples(st.floats(0, 1), st.sampled_from("abcdef"), st.sampled_from("xyz")), min_size=1, max_size=60
    ),
    shuffle=st.randoms(use_true_random=False),
)
def test_no_order_of_rows_changes_a_digit(rows: list[tuple[float, str, str]], shuffle: random.Random) -> None:
    mixed = list(rows)
    shuffle.shuffle(mixed)
    one, other = (ClusteredSample(*map(list, zip(*order, strict=True))) for order in (rows, mixed))
    assert estimate_mean([one]) == estimate_mean([other])
    assert compute_spreads([one]) == compute_spreads([other])


def test_values_that_do_not_differ_are_not_certain() -> None:
    sample = ClusteredSample([0.1] * 9, range(9))
    assert estimate_mean([sample]).ends is None
    assert estimate_mean([ClusteredSample([0.0] * 9, range(9))], bounds=(0, 1)).ends == estimate_proportion(0, 9).ends
    low, high = estimate_mean([sample], bounds=(0, 1)).ends or (0, 0)
    assert 0 < low < 0.1 < high < 0.4
    # The average of nine firsts among five is not sure to be 1.
    highest = pytest.approx(1 + 4 * estimate_proportion(0, 9).high)
    assert estimate_share(ClusteredSample([1.0] * 9, range(9)), (1, 5)).ends == (1, highest)


def test_means_of_the_same_questions_move_together() -> None:
    values, questions = clustered(5)
    both = [ClusteredSample(values, questions), ClusteredSample([1 - value for value in values], questions)]
    # Perfectly opposed metrics: their average does not move at all, which independent draws would miss.
    assert compute_spreads(both, [0.5, 0.5])[0].error == pytest.approx(0, abs=1e-12)
    apart = [both[0], ClusteredSample(both[1].values, [question + 1000 for question in questions])]
    roles = [question % 7 for question in questions]
    split = [ClusteredSample([value**power for value in values], questions, roles) for power in (1, 2)]
    joined = ClusteredSample([(value + value**2) / 2 for value in values], questions, roles)
    for one, other in zip(compute_spreads(split, [0.5, 0.5]), compute_spreads([joined]), strict=True):
        assert one == pytest.approx(other)
    average, alone = (
        compute_spreads(samples, weights)[0].error for samples, weights in ((apart, [0.5, 0.5]), (both[:1], [1]))
    )
    assert average == pytest.approx(alone / 2**0.5, rel=0.01)
    assert estimate_mean(both, [0.5, 0.5]).mean == pytest.approx(0.5)


def test_intervals_shrink_with_questions_not_with_copies() -> None:
    values, questions = clustered(7)
    once, copied = (estimate_mean([ClusteredSample(values * times, questions * times)]) for times in (1, 4))
    assert copied.ends == pytest.approx(once.ends, abs=1e-4)
    shares = [float(value > 0.4) for value in values]
    once, copied = (estimate_share(ClusteredSample(shares * times, questions * times)) for times in (1, 4))
    assert copied.ends == pytest.approx(once.ends, abs=0.01)
