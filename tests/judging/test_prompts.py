"""What a judge is shown: blind, fenced, in both orders, with the reference that favors nobody."""

import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolellm.core.errors import SettingsError
from rolellm.core.records import Row
from rolellm.judging.judge_models import load_judges
from rolellm.judging.records import Comparison, System
from rolellm.judging.requests import VerdictRequest, build_judge_request, plan_verdicts, prepare_material, rotate_orders
from rolellm.llm.model import Request
from rolellm.models.prompts.fences import read_fences

from ..judge_runs import make_comparison

LISTS, PAIRS = load_judges()
ROW = Row(
    "r1", "Fox", "en", "role_specific", "Fox, are you sly?", ("Ever so.", "Ask the crow."), role_description="A fox."
)
NAMES = ("base", "Zed-7B", "Yon-13B")


def comparison(row: Row = ROW, answers: tuple[str, ...] = ("Very.", "As a fox.", "Who asks?")) -> Comparison:
    people = [System(name, "baseline" if name == "base" else "model") for name in NAMES]
    return Comparison([row], people, {name: {row.id: text} for name, text in zip(NAMES, answers, strict=True)})


def request(found: Comparison, order: tuple[str, ...] = NAMES) -> Request:
    judge = LISTS if len(order) > 2 else PAIRS
    return build_judge_request(prepare_material(found, found.rows[0]), VerdictRequest(0, judge, order))


def fences(found: Request) -> dict[str, str]:
    return read_fences(found.messages[-1].content)


def test_everything_stands_behind_a_fence_under_letters_and_no_name_is_shown() -> None:
    whole = request(comparison())
    assert not any(name in message.content for message in whole.messages for name in NAMES)
    assert fences(whole) == {
        "role": "Fox",
        "description": "A fox.",
        "question": "Fox, are you sly?",
        "reference 1": "Ever so.",
        "reference 2": "Ask the crow.",
        "answer A": "Very.",
        "answer B": "As a fox.",
        "answer C": "Who asks?",
    }


def test_both_orders_share_their_beginning_and_their_mark() -> None:
    one, other = (request(comparison(), order) for order in (("base", "Zed-7B"), ("Zed-7B", "base")))
    assert one.messages[0] == other.messages[0]
    start = one.messages[1].content.index(" answer A>>>")
    assert one.messages[1].content[:start] == other.messages[1].content[:start]


def test_a_general_row_shows_no_reply_of_the_baselines_siblings() -> None:
    row = replace(ROW, subset="general", raw_reference="Yes.", references=("RoleGPT says: ever so.",))
    assert fences(request(comparison(row))).get("reference 1") == "Yes."
    bare = request(comparison(replace(row, raw_reference=None)))
    assert "reference 1" not in fences(bare) and "no reference" in bare.messages[1].content
    assert "RoleGPT says" not in bare.messages[1].content


def test_chinese_rows_get_chinese_prompts() -> None:
    row = replace(ROW, language="zh", role="李白", question="李白，你爱喝酒吗？", role_description=None)
    told, asked = request(comparison(row)).messages
    assert "评判" in told.content and "没有更多介绍" in asked.content
    assert fences(request(comparison(row)))["question"] == "李白，你爱喝酒吗？"


def test_long_answers_are_cut() -> None:
    found = prepare_material(comparison(answers=("a" * 8090, "b", "")), ROW)
    shown = fences(build_judge_request(found, VerdictRequest(0, LISTS, NAMES)))
    assert shown["answer A"].startswith("a" * 8000 + "\n[") and "90 more" in shown["answer A"]
    assert shown["answer C"] == "(the answer is empty)"


# --- orders


SYSTEMS = ("base", "one", "two", "three")


def compare(names: tuple[str, ...] = SYSTEMS, missing: tuple[tuple[str, int], ...] = ()) -> Comparison:
    given = [Row(f"r{n}", "Fox", "en", "general", f"Question {n}?", ("Aye.",)) for n in range(6)]
    lacking = {(name, f"r{n}") for name, n in missing}
    return make_comparison(
        given,
        {name: "baseline" if name == "base" else "model" for name in names},
        lambda number, row: None if (names[number], row.id) in lacking else f"{names[number]} {row.id}",
    )


def test_pairs_in_both_orders_and_lists_turned() -> None:
    found = compare()
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
    found = compare(missing=(("two", 0), ("base", 1)))
    asks = plan_verdicts(found, load_judges())
    lists = {ask.row for ask in asks if ask.judge.design == "listwise"}
    assert lists == {2, 3, 4, 5}
    pairs = Counter((ask.row, frozenset(ask.order)) for ask in asks if ask.judge.design == "pairwise")
    assert (0, frozenset(("one", "base"))) in pairs and (0, frozenset(("two", "base"))) not in pairs
    assert not any(row == 1 for row, _ in pairs)


def test_a_comparison_that_cannot_be_judged_says_why() -> None:
    many = compare(names=("base", *(f"m{n}" for n in range(26))))
    for found, said in ((compare(names=("one", "two")), "this run has none"), (many, "more than a list holds")):
        with pytest.raises(SettingsError, match=said):
            plan_verdicts(found, load_judges())
