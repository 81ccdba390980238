"""Orders: pairs in both, lists turned, drawn by content so that what grows asks only for what is new."""

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolellm.core.errors import SettingsError
from rolellm.core.records import Row
from rolellm.judging.judge_models import load_judges
from rolellm.judging.records import Comparison
from rolellm.judging.requests import plan_verdicts, rotate_orders

from ..judge_runs import make_comparison

NAMES = ("base", "one", "two", "three")


def comparison(names: tuple[str, ...] = NAMES, missing: tuple[tuple[str, int], ...] = ()) -> Comparison:
    given = [Row(f"r{n}", "Fox", "en", "general", f"Question {n}?", ("Aye.",)) for n in range(6)]
    lacking = {(name, f"r{n}") for name, n in missing}
    return make_comparison(
        given,
        {name: "baseline" if name == "base" else "model" for name in names},
        lambda number, row: None if (names[number], row.id) in lacking else f"{names[number]} {row.id}",
    )


def test_pairs_in_both_orders_and_lists_turned() -> None:
    found = comparison()
    asks = plan_verdicts(found, load_judges())
    pairs = [ask for ask in asks if ask.judge.design == "pairwise"]
    assert len(pairs) == 6 * 3 * 2
    assert all((ask.row, ask.order[::-1]) in {(other.row, other.order) for other in pairs} for ask in pairs)
    lists = [ask for ask in asks if ask.judge.design == "listwise"]
    assert len(lists) == 6 * 2
    # No system stands in one place twice.
    assert set(Counter((ask.row, place, name) for ask in lists for place, name in enumerate(ask.order)).values()) == {1}


@given(st.lists(st.text(min_size=1, max_size=5), min_size=2, max_size=8, unique=True))
def test_a_list_is_drawn_by_content_and_not_by_the_order_of_files(names: list[str]) -> None:
    mixed = random.Random(0).sample(names, len(names))
    orders = rotate_orders(names, 0, "row")
    assert orders == rotate_orders(mixed, 0, "row")
    assert len(set(orders)) == len(orders) == 2
    assert all(sorted(order) == sorted(names) for order in orders)


def test_what_was_not_answered_is_not_asked_for() -> None:
    found = comparison(missing=(("two", 0), ("base", 1)))
    asks = plan_verdicts(found, load_judges())
    lists = {ask.row for ask in asks if ask.judge.design == "listwise"}
    assert lists == {2, 3, 4, 5}
    pairs = Counter((ask.row, frozenset(ask.order)) for ask in asks if ask.judge.design == "pairwise")
    assert (0, frozenset(("one", "base"))) in pairs and (0, frozenset(("two", "base"))) not in pairs
    assert not any(row == 1 for row, _ in pairs)


def test_a_comparison_that_cannot_be_judged_says_why() -> None:
    many = comparison(names=("base", *(f"m{n}" for n in range(26))))
    for found, said in ((comparison(names=("one", "two")), "this run has none"), (many, "more than a list holds")):
        with pytest.raises(SettingsError, match=said):
            plan_verdicts(found, load_judges())
