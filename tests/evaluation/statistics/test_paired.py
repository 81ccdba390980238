"""Tests between models: exact values, a uniform p under the null, and what is refused."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from rolellm.evaluation.statistics.bootstrap import Bootstrap, Sample, bootstrap_stratum
from rolellm.evaluation.statistics.paired import holm, paired_test, sign_test


def test_p_is_uniform_under_the_null_and_only_because_questions_are_flipped_whole() -> None:
    p_values, by_row = [], []
    for seed in range(1500):
        draw = np.random.default_rng(seed)
        questions = np.arange(40).repeat(draw.integers(1, 6, size=40))
        # Two models of the same worth; which of them a question suits is luck.
        luck = draw.normal(size=40)[questions] + 0.3 * draw.normal(size=len(questions))
        first, second = 0.5 + 0.05 * luck, 0.5 - 0.05 * luck
        setting = Bootstrap(resamples=300, seed=seed)
        p_values.append(paired_test(first.tolist(), second.tolist(), questions.tolist(), setting).p)
        if seed < 300:
            by_row.append(paired_test(first.tolist(), second.tolist(), list(range(len(first))), setting).p)
    # The standard error of the share is 0.006.
    assert 0.035 <= np.mean(np.array(p_values) <= 0.05) <= 0.065
    assert stats.kstest(p_values, "uniform").pvalue > 0.01
    assert np.mean(np.array(by_row) <= 0.05) > 0.12  # what taking rows for independent would claim


def test_p_is_that_of_all_flips_written_out() -> None:
    differences = [0.4, -0.1, 0.3, 0.25, -0.05, 0.6, 0.2, 0.1]
    questions = ["a", "a", "b", "c", "d", "e", "f", "f"]
    sums = [0.3, 0.3, 0.25, -0.05, 0.6, 0.3]
    flips = [
        abs(sum(s * v for s, v in zip(signs, sums, strict=True))) for signs in itertools.product([1, -1], repeat=6)
    ]
    exact = np.mean(np.array(flips) >= sum(sums) - 1e-9)
    settings = Bootstrap(resamples=20_000)
    test = paired_test(differences, [0.0] * 8, questions, settings)
    assert test.p == pytest.approx(exact, abs=0.006)
    assert test.difference == bootstrap_stratum([Sample(differences, questions)], settings).intervals[0]


def test_a_real_difference_is_found_and_p_is_never_zero() -> None:
    draw = np.random.default_rng(0)
    base = draw.uniform(size=200)
    better = base + 0.1 + 0.1 * draw.normal(size=200)
    test = paired_test(better.tolist(), base.tolist(), list(range(200)))
    assert test.p == 1 / 2001
    assert test.difference.low is not None
    assert 0.05 < test.difference.low < 0.1 < test.difference.high < 0.15  # type: ignore[operator]


@pytest.mark.parametrize(
    ("first", "second", "questions"),
    [
        pytest.param([0.3, 0.7, 0.1], [0.3, 0.7, 0.1], ["a", "b", "c"], id="identical-models"),
        pytest.param([1.0, 0.9], [0.0, 0.0], ["a", "a"], id="one-question"),
        pytest.param([1.0, 0.0], [0.0, 1.0], ["a", "a"], id="differences-that-cancel-within-a-question"),
    ],
)
def test_nothing_to_tell_apart_has_p_one(first: list[float], second: list[float], questions: list[str]) -> None:
    assert paired_test(first, second, questions).p == 1.0


rows = st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1), st.sampled_from("abcdefgh")), min_size=1, max_size=40)


@given(rows=rows, shuffle=st.randoms(use_true_random=False))
def test_row_order_changes_no_digit_and_swapping_the_models_only_the_sign(rows: list, shuffle: object) -> None:
    setting = Bootstrap(resamples=60)
    test = paired_test(*map(list, zip(*rows, strict=True)), setting)  # type: ignore[misc]
    mixed = list(rows)
    shuffle.shuffle(mixed)  # type: ignore[attr-defined]
    assert paired_test(*map(list, zip(*mixed, strict=True)), setting) == test  # type: ignore[misc]
    assert 0 < test.p <= 1
    first, second, questions = map(list, zip(*rows, strict=True))
    swapped = paired_test(second, first, questions, setting)
    assert swapped.difference.mean == -test.difference.mean
    assert swapped.p == test.p


@pytest.mark.parametrize(
    ("first", "second", "questions", "words"),
    [
        pytest.param([], [], [], "empty input", id="nothing"),
        pytest.param([1.0], [1.0, 2.0], ["a"], "lengths differ: 1 first values, 2 second values", id="models"),
        pytest.param([1.0], [1.0], ["a", "b"], "lengths differ", id="clusters"),
        pytest.param([1.0, float("nan")], [1.0, 2.0], ["a", "b"], "first values: value 1", id="nan"),
        pytest.param([1.0, 1.0], [float("inf"), 2.0], ["a", "b"], "second values: value 0", id="infinity"),
        pytest.param([[1.0]], [[1.0]], ["a"], "must be a list of numbers", id="table"),
    ],
)
def test_bad_rows_are_refused_in_words(first: list, second: list, questions: list, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        paired_test(first, second, questions)


@pytest.mark.parametrize(
    ("given_values", "adjusted"),
    [
        pytest.param([], [], id="nothing"),
        pytest.param([0.03], [0.03], id="one"),
        pytest.param([0.01, 0.04, 0.03, 0.005], [0.03, 0.06, 0.06, 0.02], id="by-hand-with-a-step-held-up"),
        pytest.param([0.02, 0.02, 0.02], [0.06, 0.06, 0.06], id="ties"),
        pytest.param([0.9, 0.6, 0.0], [1.0, 1.0, 0.0], id="never-above-one"),
    ],
)
def test_holm_by_hand(given_values: list[float], adjusted: list[float]) -> None:
    assert holm(given_values) == pytest.approx(adjusted)


@given(st.lists(st.floats(0, 1), max_size=20))
def test_holm_keeps_the_order_and_lies_between_p_and_bonferroni(p_values: list[float]) -> None:
    adjusted = holm(p_values)
    for p, q in zip(p_values, adjusted, strict=True):
        assert p <= q <= min(1.0, p * len(p_values))
    order = np.argsort(p_values, kind="stable")
    assert (np.diff(np.array(adjusted)[order]) >= 0).all()


def test_holm_keeps_the_error_of_the_family() -> None:
    draw = np.random.default_rng(1)
    wrong = [min(holm(line.tolist())) <= 0.05 for line in draw.uniform(size=(4000, 10))]
    assert 0.035 <= np.mean(wrong) <= 0.065


@pytest.mark.parametrize(
    ("wins", "losses", "p"),
    [
        pytest.param(0, 0, 1.0, id="nothing"),
        pytest.param(1, 0, 1.0, id="one"),
        pytest.param(6, 0, 2 / 64, id="six-of-six"),
        pytest.param(8, 2, 2 * (45 + 10 + 1) / 1024, id="eight-of-ten"),
        pytest.param(5, 5, 1.0, id="even"),
    ],
)
def test_sign_test_by_hand(wins: int, losses: int, p: float) -> None:
    assert sign_test(wins, losses) == pytest.approx(p)
    assert sign_test(losses, wins) == pytest.approx(p)
