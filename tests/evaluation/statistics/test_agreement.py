"""Agreement: textbook numbers, where it is not defined, and its intervals."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from rolellm.evaluation.statistics.agreement import agreement_ci, cohen_kappa, fleiss_kappa, spearman
from rolellm.evaluation.statistics.bootstrap import Bootstrap, Interval

# 14 raters, 10 subjects, 5 categories: the worked example of many a textbook.
WORKED = [
    [0, 0, 0, 0, 14],
    [0, 2, 6, 4, 2],
    [0, 0, 3, 5, 6],
    [0, 3, 9, 2, 0],
    [2, 2, 8, 1, 1],
    [7, 7, 0, 0, 0],
    [3, 2, 6, 3, 0],
    [2, 5, 3, 2, 2],
    [6, 5, 2, 1, 0],
    [0, 2, 2, 3, 7],
]


def test_cohen_by_hand() -> None:
    # 20 both yes, 5 and 10 split, 15 both no: agreement .7, chance .5 * .6 + .5 * .4 = .5.
    first = ["yes"] * 25 + ["no"] * 25
    second = ["yes"] * 20 + ["no"] * 5 + ["yes"] * 10 + ["no"] * 15
    assert cohen_kappa(first, second) == pytest.approx(0.4)


def test_fleiss_by_hand() -> None:
    assert fleiss_kappa(WORKED) == pytest.approx(0.2099, abs=5e-5)
    # Items with 2, 3 and 4 ratings: agreements 1, 1/3 and 1/2 of the pairs; shares 5/9 and 4/9.
    agreed, chance = (1 + 1 / 3 + 1 / 2) / 3, (25 + 16) / 81
    assert fleiss_kappa([[2, 0], [2, 1], [1, 3]]) == pytest.approx((agreed - chance) / (1 - chance))


@pytest.mark.parametrize(
    ("first", "second", "kappa"),
    [
        pytest.param(["a", "b", "c"], ["a", "b", "c"], 1.0, id="same"),
        pytest.param(["a", "b"], ["b", "a"], -1.0, id="opposite"),
        pytest.param(["a", "a", "b", "b"], ["a", "b", "a", "b"], 0.0, id="chance"),
        pytest.param(["a", "a"], ["b", "b"], 0.0, id="never-the-same-label"),
        pytest.param(["a", "a"], ["a", "a"], None, id="one-label-only"),
        pytest.param([1], [1], None, id="one-item"),
        pytest.param([True, False], [1, 0], 1.0, id="labels-that-are-equal"),
        pytest.param([("a", 1), None], [("a", 1), None], 1.0, id="labels-of-any-kind"),
    ],
)
def test_cohen_at_its_edges(first: list, second: list, kappa: float | None) -> None:
    assert cohen_kappa(first, second) == kappa


@pytest.mark.parametrize(
    ("counts", "kappa"),
    [
        pytest.param([[3, 0], [0, 3]], 1.0, id="all-agree"),
        pytest.param([[3, 0], [3, 0]], None, id="one-category"),
        pytest.param([[2], [2]], None, id="only-one-category-there-is"),
        pytest.param([[1, 1], [1, 1]], -1.0, id="all-split"),
    ],
)
def test_fleiss_at_its_edges(counts: list[list[int]], kappa: float | None) -> None:
    assert fleiss_kappa(counts) == kappa


labels = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("abc")), min_size=1, max_size=40)


@given(labels)
def test_kappas_are_symmetric_bounded_and_blind_to_names(pairs: list[tuple[str, str]]) -> None:
    first, second = map(list, zip(*pairs, strict=True))
    kappa = cohen_kappa(first, second)
    assert kappa == cohen_kappa(second, first)
    assert kappa is None or -1 <= kappa <= 1
    renamed = {"a": 7, "b": "x", "c": None}
    assert cohen_kappa([renamed[label] for label in first], [renamed[label] for label in second]) == kappa
    counts = [[(one, other).count(label) for label in "abc"] for one, other in pairs]
    fleiss = fleiss_kappa(counts)
    assert fleiss is None or -1 - 1e-9 <= fleiss <= 1 + 1e-9
    # Two raters: Fleiss' chance is the mean rater's, which is never below Cohen's.
    if fleiss is not None and kappa is not None:
        assert fleiss <= kappa + 1e-9


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=2, max_size=30))
def test_spearman_agrees_with_scipy_ties_and_all(pairs: list[tuple[int, int]]) -> None:
    first, second = map(list, zip(*pairs, strict=True))
    rho = spearman(first, second)
    if len(set(first)) == 1 or len(set(second)) == 1:
        assert rho is None
    else:
        assert rho == pytest.approx(stats.spearmanr(first, second).statistic, abs=1e-12)
        assert -1 <= rho <= 1
        assert spearman([value**3 + 1 for value in first], second) == rho  # ranks alone count
        assert spearman([-value for value in first], second) == -rho


def test_spearman_of_one_pair_is_not_defined() -> None:
    assert spearman([1.0], [2.0]) is None


def test_intervals_shrink_with_questions_not_with_copies() -> None:
    draw = random.Random(0)
    first = [draw.choice("ab") for _ in range(60)]
    second = [label if draw.random() < 0.7 else draw.choice("ab") for label in first]
    once = agreement_ci(cohen_kappa, [first, second], range(60))
    copied = agreement_ci(cohen_kappa, [first * 4, second * 4], list(range(60)) * 4)
    assert once is not None
    assert copied == once._replace(n=240)
    assert once.low < once.mean < once.high  # type: ignore[operator]


@pytest.mark.slow
def test_agrees_with_a_bootstrap_written_out_in_full() -> None:
    draw = np.random.default_rng(2)
    first, second = draw.normal(size=40), draw.normal(size=40)
    second += first
    rhos = [stats.spearmanr(first[rows], second[rows]).statistic for rows in draw.integers(0, 40, size=(1000, 40))]
    interval = agreement_ci(spearman, [first.tolist(), second.tolist()], range(40), Bootstrap(resamples=3000))
    assert interval is not None
    assert interval.mean == pytest.approx(stats.spearmanr(first, second).statistic)
    assert (interval.low, interval.high) == pytest.approx(tuple(np.quantile(rhos, [0.025, 0.975])), abs=0.03)


def test_undefined_resamples_are_left_out_and_undefined_measures_are_none() -> None:
    # One of three items is of another label: many resamples have one label alone.
    interval = agreement_ci(cohen_kappa, [["a", "a", "b"], ["a", "a", "b"]], "xyz", Bootstrap(resamples=200))
    assert interval == Interval(1.0, 1.0, 1.0, 3, 3)
    assert agreement_ci(cohen_kappa, [["a", "a"], ["a", "a"]], "xy") is None
    assert agreement_ci(spearman, [[1, 2, 3], [1, 3, 2]], "qqq") == Interval(0.5, None, None, 3, 1)


def test_fleiss_takes_a_table_as_one_column() -> None:
    listed = agreement_ci(fleiss_kappa, [WORKED], range(10), Bootstrap(resamples=200))
    assert listed == agreement_ci(fleiss_kappa, [np.array(WORKED)], range(10), Bootstrap(resamples=200))
    assert listed is not None
    assert listed.mean == fleiss_kappa(WORKED)


@settings(max_examples=40)
@given(
    rows=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4), st.sampled_from("pqrs")), min_size=1, max_size=25),
    shuffle=st.randoms(use_true_random=False),
)
def test_row_order_changes_no_digit(rows: list[tuple[int, int, str]], shuffle: random.Random) -> None:
    mixed = list(rows)
    shuffle.shuffle(mixed)
    for measure in (cohen_kappa, spearman):
        one, other = (
            agreement_ci(measure, [first, second], questions, Bootstrap(resamples=20))
            for first, second, questions in (map(list, zip(*order, strict=True)) for order in (rows, mixed))
        )
        assert one == other


@pytest.mark.parametrize(
    ("call", "words"),
    [
        pytest.param(lambda: cohen_kappa([], []), "empty input", id="cohen-nothing"),
        pytest.param(lambda: cohen_kappa(["a"], []), "lengths differ", id="cohen-lengths"),
        pytest.param(lambda: cohen_kappa([float("nan")], [1.0]), "not a number", id="cohen-nan"),
        pytest.param(lambda: fleiss_kappa([]), "must have the shape", id="fleiss-nothing"),
        pytest.param(lambda: fleiss_kappa([1, 2]), "must have the shape", id="fleiss-line"),
        pytest.param(lambda: fleiss_kappa([[2, -1]]), "0 or more", id="fleiss-negative"),
        pytest.param(lambda: fleiss_kappa([[1.5, 0.5]]), "whole numbers", id="fleiss-shares"),
        pytest.param(lambda: fleiss_kappa([[2, 0], [1, 0]]), "item 1 has fewer than 2", id="fleiss-one-rating"),
        pytest.param(lambda: spearman([], []), "empty input", id="spearman-nothing"),
        pytest.param(lambda: spearman([1.0], [1.0, 2.0]), "lengths differ", id="spearman-lengths"),
        pytest.param(lambda: spearman([1.0, float("nan")], [1.0, 2.0]), "not a finite number", id="spearman-nan"),
        pytest.param(lambda: agreement_ci(cohen_kappa, [[], []], []), "empty input", id="interval-no-rows"),
        pytest.param(lambda: agreement_ci(cohen_kappa, [[1], [1]], "ab"), "2 clusters", id="interval-lengths"),
    ],
)
def test_bad_inputs_are_refused_in_words(call: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call()  # type: ignore[operator]
