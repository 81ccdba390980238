"""Intervals and tests of means and shares: equal to what they are named after, sure of nothing, covering the truth."""

import math
import random
from statistics import fmean

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.stats import binomtest
from sklearn.metrics import cohen_kappa_score

from rolellm.scoring.statistics.agreement import compute_cohen_kappa, compute_fleiss_kappa, compute_spearman
from rolellm.scoring.statistics.intervals import (
    ClusteredSample,
    adjust_p_values,
    compare_pairs,
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


# --- tests between models


def test_p_is_uniform_under_the_null_and_only_because_questions_are_clusters() -> None:
    p_values, by_row = [], []
    for seed in range(1500):
        draw = np.random.default_rng(seed)
        questions = np.arange(40).repeat(draw.integers(1, 6, size=40))
        # Two models of the same worth; which of them a question suits is luck.
        luck = draw.normal(size=40)[questions] + 0.3 * draw.normal(size=len(questions))
        first, second = 0.5 + 0.05 * luck, 0.5 - 0.05 * luck
        p_values.append(compare_pairs(first.tolist(), second.tolist(), questions.tolist()).p)
        by_row.append(compare_pairs(first.tolist(), second.tolist(), list(range(len(first)))).p)
    # The standard error of the share is 0.006.
    assert 0.035 <= np.mean(np.array(p_values) <= 0.05) <= 0.065
    assert stats.kstest(p_values, "uniform").pvalue > 0.01
    assert np.mean(np.array(by_row) <= 0.05) > 0.12  # what taking rows for independent would claim


@pytest.mark.parametrize("roles", [3, 10])
def test_role_effects_that_differ_are_no_difference_for_new_roles(roles: int) -> None:
    fooled, wrong, runs = 0, 0, 600
    for seed in range(runs):
        draw = np.random.default_rng([seed, roles])
        role, question = np.arange(500) % roles, np.arange(500) // roles
        # Each role suits one of the two models more; of all roles there might be, none is better.
        gain = draw.normal(0, 0.08, roles)[role] + draw.normal(0, 0.05, 500)[question] + draw.normal(0, 0.25, 500)
        test = compare_pairs(gain.tolist(), [0.0] * 500, question.tolist(), role.tolist())
        fooled += test.p < 0.05
        wrong += test.p_new_roles < 0.05
        low, high = test.difference.new_roles or (0, 0)
        assert (test.p_new_roles < 0.05) == (not low <= 0 <= high)
    assert fooled / runs > 0.3
    assert wrong / runs <= 0.065


def test_of_one_row_a_question_it_is_students_paired_test() -> None:
    draw = np.random.default_rng(4)
    first, second = draw.uniform(size=(2, 25))
    rival = stats.ttest_rel(first, second)
    test = compare_pairs(first.tolist(), second.tolist(), range(25))
    assert test.p == pytest.approx(rival.pvalue)
    assert test.difference.ends == pytest.approx(tuple(rival.confidence_interval(0.95)))


def test_the_same_difference_everywhere_has_the_p_of_the_sign_test() -> None:
    test = compare_pairs([0.75] * 8, [0.5] * 8, range(8), [number % 2 for number in range(8)])
    assert test.p == pytest.approx(2 / 2**8)
    assert test.difference.ends and 0 < test.difference.ends[0] < 0.25 < test.difference.ends[1]
    # Of two roles, both say so; that is no more than 1 in 2.
    assert test.p_new_roles == pytest.approx(0.5)
    for rows in (60, 2000):
        # However small one half to this power is.
        many = compare_pairs([1.0] * rows, [0.5] * rows, range(rows), [number % 2 for number in range(rows)])
        assert many.p < 1e-15 and many.p_new_roles == pytest.approx(0.5)
        assert many.difference.ends and 0.4 < many.difference.ends[0] < 0.5
    sure = compare_pairs([1.0] * 9, [0.0] * 9, range(9), [number % 2 for number in range(9)], most=1.0)
    assert sure.difference.high == 1.0 and sure.difference.new_roles == (-1.0, 1.0)
    few = compare_pairs([0.75] * 5, [0.5] * 5, range(5))
    assert few.p == pytest.approx(2 / 2**5) and few.difference.low < 0  # type: ignore[operator]


@pytest.mark.parametrize(
    ("first", "second", "questions"),
    [
        pytest.param([0.3, 0.7, 0.1], [0.3, 0.7, 0.1], ["a", "b", "c"], id="identical-models"),
        pytest.param([1.0, 0.9], [0.0, 0.0], ["a", "a"], id="one-question"),
        pytest.param([1.0, 0.0], [0.0, 1.0], ["a", "a"], id="differences-that-cancel-within-a-question"),
    ],
)
def test_nothing_to_tell_apart_has_p_one(first: list[float], second: list[float], questions: list[str]) -> None:
    assert compare_pairs(first, second, questions).p == 1.0


rows = st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1), st.sampled_from("abcdefgh")), min_size=1, max_size=40)


@given(rows=rows, shuffle=st.randoms(use_true_random=False))
def test_row_order_changes_no_digit_and_swapping_the_models_only_the_sign(rows: list, shuffle: object) -> None:
    test = compare_pairs(*map(list, zip(*rows, strict=True)))  # type: ignore[arg-type]
    mixed = list(rows)
    shuffle.shuffle(mixed)  # type: ignore[attr-defined]
    assert compare_pairs(*map(list, zip(*mixed, strict=True))) == test  # type: ignore[arg-type]
    assert 0 < test.p <= 1
    first, second, questions = map(list, zip(*rows, strict=True))
    swapped = compare_pairs(second, first, questions)
    assert swapped.difference.mean == -test.difference.mean
    assert swapped.p == pytest.approx(test.p)


@pytest.mark.parametrize(
    ("given_values", "adjusted"),
    [
        pytest.param([], [], id="nothing"),
        pytest.param([0.03], [0.03], id="one"),
        pytest.param([0.01, 0.04, 0.03, 0.005], [0.03, 0.06, 0.06, 0.02], id="by-hand-with-a-step-held-up"),
        pytest.param([0.9, 0.6, 0.0], [1.0, 1.0, 0.0], id="never-above-one"),
    ],
)
def test_holm_by_hand(given_values: list[float], adjusted: list[float]) -> None:
    assert adjust_p_values(given_values) == pytest.approx(adjusted)


# --- agreement


def test_fleiss_by_hand() -> None:
    # Items with 2, 3 and 4 ratings: agreements 1, 1/3 and 1/2 of the pairs; shares 5/9 and 4/9.
    agreed, chance = (1 + 1 / 3 + 1 / 2) / 3, (25 + 16) / 81
    kappa = (agreed - chance) / (1 - chance)
    assert compute_fleiss_kappa(["aa", "aab", "abbb"]).value == pytest.approx(kappa)


@pytest.mark.parametrize(
    ("first", "second", "kappa", "fleiss"),
    [
        pytest.param("abc", "abc", 1.0, 1.0, id="same"),
        pytest.param("aa", "bb", 0.0, -1.0, id="never-the-same-label"),
        pytest.param("aa", "aa", None, None, id="one-label-only"),
    ],
)
def test_kappas_at_their_edges(first: str, second: str, kappa: float | None, fleiss: float | None) -> None:
    assert compute_cohen_kappa(first, second).value == kappa
    assert compute_fleiss_kappa(list(zip(first, second, strict=True))).value == fleiss


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=2, max_size=30))
def test_spearman_agrees_with_scipy_ties_and_all(pairs: list[tuple[int, int]]) -> None:
    first, second = map(list, zip(*pairs, strict=True))
    rho = compute_spearman(first, second)
    if len(set(first)) == 1 or len(set(second)) == 1:
        assert rho is None
    else:
        assert rho == pytest.approx(stats.spearmanr(first, second).statistic, abs=1e-12)
        assert -1 <= rho <= 1
        assert compute_spearman([value**3 + 1 for value in first], second) == rho  # ranks alone count
        assert compute_spearman([-value for value in first], second) == -rho


def test_kappa_is_that_of_scikit_learn() -> None:
    first, second = "abcabcabbb" * 6, "abcbbcabca" * 6
    assert compute_cohen_kappa(first, second).value == pytest.approx(cohen_kappa_score([*first], [*second]))


def test_few_items_are_never_sure() -> None:
    found = compute_cohen_kappa("aabbaabb", "aabbaabb")
    interval = found.estimate(range(8))
    # Half of the items agree by chance, and the least that eight of eight may come from is 0.676.
    assert interval and interval.ends == (pytest.approx(2 * estimate_proportion(8, 8).low - 1), 1)
    assert found.value == 1 and (interval.n, interval.clusters) == (8, 8)
    assert found.estimate("q" * 8) == interval._replace(low=None, high=None, clusters=1, method="")
    assert compute_cohen_kappa("aa", "aa").estimate("xy") is None
