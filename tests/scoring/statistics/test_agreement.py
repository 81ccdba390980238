"""Agreement: textbook numbers, where it is not defined, and its intervals."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import cohen_kappa_score

from rolellm.scoring.statistics.agreement import compute_cohen_kappa, compute_fleiss_kappa, compute_spearman
from rolellm.scoring.statistics.intervals import estimate_proportion

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


def listed(table: list[list[int]]) -> list[list[int]]:
    """The ratings behind a table of counts by item and category."""
    return [[category for category, count in enumerate(counts) for _ in range(count)] for counts in table]


def test_fleiss_by_hand() -> None:
    assert compute_fleiss_kappa(listed(WORKED)).value == pytest.approx(0.2099, abs=5e-5)
    # Items with 2, 3 and 4 ratings: agreements 1, 1/3 and 1/2 of the pairs; shares 5/9 and 4/9.
    agreed, chance = (1 + 1 / 3 + 1 / 2) / 3, (25 + 16) / 81
    kappa = (agreed - chance) / (1 - chance)
    assert compute_fleiss_kappa(listed([[2, 0], [2, 1], [1, 3]])).value == pytest.approx(kappa)


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
