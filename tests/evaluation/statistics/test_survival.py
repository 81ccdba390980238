"""The Kaplan-Meier curve: textbook values, censoring, and intervals that do not claim more than was watched."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolellm.evaluation.statistics.bootstrap import Bootstrap
from rolellm.evaluation.statistics.survival import survival

HOW = Bootstrap(resamples=200)


def test_the_published_example() -> None:
    """Remission of leukemia under 6-MP (Freireich and others, 1963), as in textbooks: 0.857, 0.807, … 0.448."""
    weeks = [6, 6, 6, 6, 7, 9, 10, 10, 11, 13, 16, 17, 19, 20, 22, 23, 25, 32, 32, 34, 35]
    failed = [w in (7, 13, 16, 22, 23) or (at in (0, 1, 2, 6)) for at, w in enumerate(weeks)]
    found = {step.turn: step.share.mean for step in survival(weeks, failed, HOW).steps}
    wanted = {6: 0.857, 7: 0.807, 10: 0.753, 13: 0.690, 16: 0.627, 22: 0.538, 23: 0.448}
    assert {week: round(found[week], 3) for week in wanted} == wanted
    assert survival(weeks, failed, HOW).half_life == 23


@pytest.mark.parametrize(
    ("turns", "failed", "half"),
    [([3, 3, 3], [True] * 3, 3), ([20, 20], [False] * 2, None), ([1, 20], [True, False], 1), ([4], [True], 4)],
    ids=["together", "never", "half", "one"],
)
def test_half_life(turns: list[int], failed: list[bool], half: int | None) -> None:
    found = survival(turns, failed, HOW)
    assert found.half_life == half
    assert (found.ends is None) == (len(turns) == 1)


def test_nobody_failed_does_not_mean_that_nobody_will() -> None:
    found = survival([10] * 8, [False] * 8, HOW)
    assert found.steps[-1].share.mean == 1
    low = found.steps[-1].share.low
    assert low is not None and 0.5 < low < 0.7
    assert found.ends == (None, None)


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(1, 12), st.booleans()), min_size=2, max_size=15))
def test_any_sessions(cases: list[tuple[int, bool]]) -> None:
    found = survival([turn for turn, _ in cases], [failed for _, failed in cases], Bootstrap(resamples=50))
    shares = [step.share.mean for step in found.steps]
    assert shares == sorted(shares, reverse=True) and shares[-1] >= 0 and shares[0] <= 1
    assert sum(step.failed for step in found.steps) == sum(failed for _, failed in cases)
    if all(failed for _, failed in cases):
        assert shares[-1] == 0 and found.half_life is not None


def test_what_cannot_be() -> None:
    for turns, failed in (([], []), ([1], []), ([0], [True])):
        with pytest.raises(ValueError, match="expected turns"):
            survival(turns, failed, HOW)
