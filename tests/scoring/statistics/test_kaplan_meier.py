"""The Kaplan-Meier curve: textbook values, censoring, and intervals that do not claim more than was watched."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolellm.scoring.statistics.intervals import estimate_proportion
from rolellm.scoring.statistics.kaplan_meier import estimate_survival, find_half_life


def test_the_published_example() -> None:
    """Remission of leukemia under 6-MP (Freireich and others, 1963), as in textbooks: 0.857, 0.807, … 0.448."""
    weeks = [6, 6, 6, 6, 7, 9, 10, 10, 11, 13, 16, 17, 19, 20, 22, 23, 25, 32, 32, 34, 35]
    failed = [w in (7, 13, 16, 22, 23) or (at in (0, 1, 2, 6)) for at, w in enumerate(weeks)]
    curve = estimate_survival(weeks, failed)
    found = {week: share.mean for week, share in enumerate(curve, start=1)}
    wanted = {6: 0.857, 7: 0.807, 10: 0.753, 13: 0.690, 16: 0.627, 22: 0.538, 23: 0.448}
    assert {week: round(found[week], 3) for week in wanted} == wanted
    assert find_half_life(curve)[0] == 23
    # The ends that other packages print, log-log, for the first and the last of these weeks.
    assert curve[6 - 1].ends == pytest.approx((0.6197, 0.9516), abs=1e-4)
    assert curve[23 - 1].ends == pytest.approx((0.1881, 0.6801), abs=1e-4)


@pytest.mark.parametrize(
    ("turns", "failed", "half"),
    [([3, 3, 3], [True] * 3, 3), ([20, 20], [False] * 2, None), ([1, 20], [True, False], 1), ([4], [True], 4)],
    ids=["together", "never", "half", "one"],
)
def test_half_life(turns: list[int], failed: list[bool], half: int | None) -> None:
    half_life, ends = find_half_life(estimate_survival(turns, failed))
    assert half_life == half
    assert (ends is None) == (len(turns) == 1)


def test_nobody_failed_does_not_mean_that_nobody_will() -> None:
    curve = estimate_survival([10] * 8, [False] * 8)
    assert curve[-1].mean == 1
    assert curve[-1].ends == estimate_proportion(8, 8).ends
    assert find_half_life(curve) == (None, (None, None))
    # Nor does it mean so that everybody has, and a first failure makes nothing surer.
    assert estimate_survival([10] * 8, [True] * 8)[-1].ends == estimate_proportion(0, 8).ends
    low, high = estimate_survival([10] * 8, [True] + [False] * 7)[-1].ends or (0, 0)
    assert low < 0.5 < 0.95 < high < 1


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(1, 12), st.booleans()), min_size=2, max_size=15))
def test_any_sessions(cases: list[tuple[int, bool]]) -> None:
    curve = estimate_survival([turn for turn, _ in cases], [failed for _, failed in cases])
    shares = [share.mean for share in curve]
    assert shares == sorted(shares, reverse=True) and shares[-1] >= 0 and shares[0] <= 1
    assert all(0 <= low <= share.mean <= high <= 1 for share in curve for low, high in [share.ends])
    assert [share.n for share in curve] == [sum(last >= at for last, _ in cases) for at in range(1, len(curve) + 1)]
    if all(failed for _, failed in cases):
        assert shares[-1] == 0 and find_half_life(curve)[0] is not None
