"""Tests between models: exact values, a uniform p under the null, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from rolellm.scoring.statistics.intervals import adjust_p_values, compare_pairs


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


@pytest.mark.parametrize("kind", ["scores", "verdicts"])
def test_of_30_questions_one_in_20_is_called_different_by_interval_and_p_alike(kind: str) -> None:
    wrong, runs = 0, 2000
    for seed in range(runs):
        draw = np.random.default_rng(seed)
        if kind == "scores":
            first, second = draw.beta(2, 6, size=(2, 30))
        else:
            first, second = draw.choice([0.0, 0.5, 1.0], p=[0.3, 0.2, 0.5], size=(2, 30))
        test = compare_pairs(first.tolist(), second.tolist(), range(30))
        low, high = test.difference.ends or (0, 0)
        assert (test.p < 0.05) == (not low <= 0 <= high)
        wrong += test.p < 0.05
    assert 0.038 <= wrong / runs <= 0.062


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
    assert test.p_new_roles is not None and test.p_new_roles > 0.05
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
