"""What a row comes to: orders, ties, juries, lists, and verdicts that are missing."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolellm.judging.records import Judgement
from rolellm.judging.verdicts import RowOutcome, sort_verdicts, vote_majority

WIN, TIE, LOSS = (1.0, 2.0), (1.5, 1.5), (2.0, 1.0)


def row_outcomes(
    judgements: Iterable[Judgement], baseline: str | None, canaries: Collection[str] = ()
) -> dict[str, dict[str, RowOutcome]]:
    return sort_verdicts(judgements, baseline, canaries).outcomes


def pair(first: Any, second: Any, judge: str = "j", name: str = "a", row: str = "r", **more: Any) -> list[Judgement]:
    """A pair from the system's side: `first` with its answer shown first, `second` with it shown second."""
    orders = [((name, "base"), first), (("base", name), second and second[::-1])]
    return [Judgement(row, judge, "pairwise", order, ranks, **more) for order, ranks in orders]


@pytest.mark.parametrize(
    ("first", "second", "win"),
    [
        pytest.param(WIN, WIN, 1.0, id="wins in both orders"),
        pytest.param(WIN, LOSS, 0.5, id="the place decides: a tie"),
        pytest.param(TIE, TIE, 0.5, id="a tie stays a tie"),
        pytest.param(WIN, None, None, id="one order alone counts in nothing"),
        pytest.param(None, None, None, id="no verdict at all is no 0"),
    ],
)
def test_a_pair_is_the_mean_of_both_orders(first: Any, second: Any, win: float | None) -> None:
    judgements = pair(first, second)
    assert row_outcomes(judgements, "base")["r"]["a"].win == win


@pytest.mark.parametrize(
    ("votes", "win"),
    [
        pytest.param([(WIN, WIN), (WIN, WIN), (LOSS, LOSS)], 1.0, id="two of three"),
        pytest.param([(WIN, WIN), (LOSS, LOSS)], 0.5, id="one each"),
        pytest.param([(WIN, LOSS), (WIN, TIE), (TIE, TIE)], 1.0, id="a tie is a vote for nobody"),
        pytest.param([(WIN, TIE), (None, None)], 1.0, id="one of two votes: still a vote, no mean"),
    ],
)
def test_several_judges_vote(votes: list[Any], win: float | None) -> None:
    judgements = [one for number, vote in enumerate(votes) for one in pair(*vote, judge=f"j{number}")]
    assert row_outcomes(judgements, "base")["r"]["a"].win == win


@given(st.lists(st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0]), min_size=1, max_size=7))
def test_a_majority_is_turned_round_with_the_votes(means: list[float]) -> None:
    assert vote_majority([1 - mean for mean in means], jury=True) == 1 - vote_majority(means, jury=True)
    assert vote_majority(means, jury=True) in (0.0, 0.5, 1.0)
    assert min(means) <= vote_majority(means, jury=False) <= max(means)


def listed(order: str, ranks: tuple[float, ...] | None, judge: str = "j") -> Judgement:
    return Judgement("r", judge, "listwise", tuple(order), ranks, tuple(f"{judge} of {name}" for name in order))


def test_ranks_are_means_over_rotations_then_over_judges() -> None:
    judgements = [
        listed("abc", (1, 2, 3)),
        listed("cab", (1, 2, 3)),
        listed("bca", None),
        listed("abc", (1.5, 1.5, 3), judge="k"),
    ]
    found = row_outcomes(judgements, "c")["r"]
    # a: first judge (1 + 2) / 2, second 1.5; b: (2 + 3) / 2 and 1.5; c: (3 + 1) / 2 and 3.
    assert {name: one.rank for name, one in found.items()} == {"a": 1.5, "b": 2.0, "c": 2.5}
    assert (found["a"].above, found["b"].above, found["c"].above) == (0.75, 0.75, None)
    assert row_outcomes(judgements, None)["r"]["a"].above is None


def test_a_canary_above_them_moves_no_model() -> None:
    lists = [listed("xaby", (1, 2, 3, 4)), listed("xaby", (4, 2, 1, 3))]
    found = row_outcomes(lists, "b", canaries=("x", "y"))["r"]
    assert {name: one.rank for name, one in found.items()} == {"a": 1.5, "b": 1.5, "x": 2, "y": 3}


def test_reasons_are_with_the_answer_they_are_about_and_tell_who_a_and_b_were() -> None:
    judgements = [
        Judgement("r", "j", "pairwise", ("base", "a"), (1, 2), ("A is wittier.",)),
        Judgement("r", "j", "pairwise", ("a", "base"), (2, 1), ("B is.",)),
        Judgement("r", "j", "listwise", ("base", "a"), (2, 1), ("Dull.", "")),
    ]
    judgements += [listed("cd", (1, 2), judge="k"), listed("dc", (2, 1))]
    found = row_outcomes(judgements, "base")["r"]
    assert found["base"].reasons == ("Dull.",) and found["c"].reasons == ("j of c", "k of c")
    assert found["a"].reasons == ("B is. (A is a, B is base)", "A is wittier. (A is base, B is a)")
