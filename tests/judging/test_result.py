"""A judge of known faults: the result recovers who is better, and says what is wrong with the judge."""

import json
import math
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from rolellm.core.settings import dump
from rolellm.judging.records import DatasetName, Judgement
from rolellm.judging.result import JudgingResult
from rolellm.judging.settings import JudgingSettings
from rolellm.judging.summary import measure_diagnostics
from rolellm.judging.verdicts import Tally
from rolellm.scoring.statistics.intervals import estimate_proportion

from ..judge_runs import Simulator, summarize

QUICK = JudgingSettings()
JUDGES = [{"name": "judge", "prompts": {"pairwise": {"hash": "abc"}}}]


def result_of(made: Simulator, judgements: Sequence[Judgement] | None = None) -> dict[str, Any]:
    """The result of some judgements, by default of all pairs and lists."""
    if judgements is None:
        judgements = [*made.pairs(), *made.lists()]
    return summarize(made.comparison(), judgements, JUDGES, QUICK)


def by_name(result: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in result["models"]}


def test_the_order_of_judgements_and_rows_changes_nothing_to_the_digit() -> None:
    made = Simulator({"a": 0.6, "b": 0.1, "null": -1.0}, questions=35, canaries=("null",), spread=90, tie=0.2)
    judgements = [*made.pairs(), *made.pairs("k"), *made.lists(), *made.lists("k")]
    judgements = [replace(one, ranks=None, unscored="cut") if n % 37 == 0 else one for n, one in enumerate(judgements)]
    shuffled = judgements.copy()
    random.Random(0).shuffle(shuffled)
    assert result_of(made, shuffled) == result_of(made, judgements)


def test_ties_stay_ties() -> None:
    result = result_of(Simulator({"a": 0.0, "null": -900.0}, questions=40, tie=100.0, canaries=("null",)))
    pairs, lists = by_name(result)["a"]["pairwise"], by_name(result)["a"]["listwise"]
    rate = pairs["win_rate"]
    assert (rate["mean"], rate["n"], rate["questions"]) == (0.5, 80, 40)
    assert rate["ci95"] == pytest.approx([0.453, 0.547], abs=5e-4), "that all tied does not mean that all will"
    assert pairs["consistency"]["mean"] == 1
    assert [lists[name]["mean"] for name in ("average_rank", "win_rate")] == [1.5, 0.5]
    assert result["valid"] and result["problems"] == []


def test_nothing_judged_is_null_and_never_0() -> None:
    result = result_of(Simulator({"a": 1.0}), [])
    assert not result["valid"] and result["problems"] == ["nothing was judged"] and result["tests"] == []
    assert {one[design] for one in result["models"] for design in ("pairwise", "listwise")} == {None}
    found = result["diagnostics"]
    assert found["unscored"]["share"] is None and set(found["biases"].values()) == {None}


def test_who_always_wins_is_not_sure_to() -> None:
    result = result_of(Simulator({"a": 9.0, "b": -9.0, "cheat": 9.0}, questions=5, noise=0.0, canaries=("cheat",)))
    # Of one role's five rows, as Wilson has it; all ten rows of both are worth less than five, since questions repeat.
    for name, won in (("a", 5), ("b", 0), ("cheat", 5)):
        of = by_name(result)[name]
        assert all(one["ci95"] == list(estimate_proportion(won, 5).ends) for one in of["pairwise"]["by_role"].values())
        for one in (of["pairwise"]["win_rate"], of["listwise"]["win_rate"], of["pairwise"]["by_judge"]["judge"]):
            low, high = one["ci95"]
            assert (low < 0.566 and high == 1) if won else (low == 0 and high > 0.434)
    # Neither is the one that was always first sure to be, nor the one that was last.
    ranks = {name: by_name(result)[name]["listwise"]["average_rank"]["ci95"] for name in "ab"}
    assert ranks["a"][0] == 1 and ranks["a"][1] > 1.8 and ranks["b"][1] == 3 and ranks["b"][0] < 2.2
    assert all("cheat should lose" in problem for problem in result["problems"]) and result["problems"]


def test_who_was_compared_with_nobody_is_said_to_be() -> None:
    made = Simulator({"a": 1.0, "apart": 1.0}, questions=5)
    judgements = [one for one in made.pairs() if "apart" not in one.order]
    both = [{**JUDGES[0], "prompts": {"pairwise": {}, "listwise": {}}}]
    result = summarize(made.comparison(), judgements, both, QUICK)
    assert result["valid"] and by_name(result)["apart"]["pairwise"] is None
    assert result["problems"] == [
        "no list was judged: no row was answered by all systems",
        "apart has no verdict: no row was answered by both it and base, or no request returned one",
    ]
    answers = {**made.comparison().answers, "apart": {}}
    few = summarize(replace(made.comparison(), answers=answers), judgements, JUDGES, QUICK)
    assert few["problems"][0] == "apart answered 0 of 10 rows: its figures cover only those"


@pytest.mark.parametrize(("missing", "valid"), [(4, True), (5, False)], ids=["1 % to the verdict", "one more"])
def test_more_unscored_than_allowed_fails_the_run(missing: int, valid: bool) -> None:
    made = Simulator({"a": 1.0}, questions=100)
    judgements = made.pairs()
    for number in range(missing):
        judgements[number] = replace(judgements[number], ranks=None, unscored="cut off" if number else "refused")
    result = summarize(made.comparison(), judgements, JUDGES, replace(QUICK, max_unscored=0.01))
    found = result["diagnostics"]["unscored"]
    assert (found["count"], found["of"], found["share"], found["limit"]) == (missing, 400, missing / 400, 0.01)
    assert sum(found["by_reason"].values()) == missing
    assert result["valid"] is valid and bool(result["problems"]) is not valid


@pytest.mark.parametrize(("strength", "fit"), [(1.5, False), (0.0, False), (-1.5, True)], ids=["wins", "ties", "loses"])
def test_a_canary_that_does_not_lose_is_a_problem_in_words(strength: float, fit: bool) -> None:
    made = Simulator({"a": 0.0, "null": strength, "echo": -2.0}, canaries=("null", "echo"), questions=40)
    result = result_of(made)
    assert result["valid"] and (result["problems"] == []) is fit
    for problem, form in zip(result["problems"], ("pairs", "lists"), strict=False):
        assert "prefers planted losers: null should lose, and wins " in problem and form in problem
    assert {name for one in result["tests"] for name in (one["a"], one["b"])} == {"a", "base"}


def test_a_canary_above_all_is_found_without_a_baseline() -> None:
    made = Simulator({"a": -0.5, "b": -0.6, "null": 1.5}, canaries=("null",), questions=40)
    result = summarize(made.comparison(baseline=False), made.lists(baseline=False), JUDGES, QUICK)
    assert result["baseline"] is None
    (problem,) = result["problems"]
    assert "null ranks above the mean" in problem
    found = by_name(result)
    assert found["null"]["listwise"]["average_rank"]["ci95"][1] < 2
    assert all(one["listwise"]["win_rate"] is None for one in found.values())


def test_differences_are_tested_and_corrected() -> None:
    tests = result_of(Simulator({"best": 1.5, "same": 0.0, "poor": -1.5}, questions=60, seed=2))["tests"]
    assert len(tests) == 12
    for measure, sign in (("win_rate", 1), ("average_rank", -1)):
        found = {(one["a"], one["b"]): one for one in tests if one["measure"] == measure}
        assert found["best", "poor"]["difference"]["mean"] * sign > 0.3
        assert max(found["best", name]["p_adjusted"] for name in ("poor", "base")) < 0.05
        assert found["same", "base"]["p_adjusted"] > 0.05
        assert all(one["p_adjusted"] >= one["p"] for one in found.values())


def test_where_roles_are_held_out_p_is_that_of_the_interval_for_new_roles() -> None:
    made = Simulator({"a": 0.8, "b": 0.6}, questions=60, roles=("Ada", "Brom", "Cid"))
    data = DatasetName("role-generalization-eng")
    tests = JudgingResult.from_dict(summarize(made.comparison(), made.pairs(), JUDGES, QUICK, data)).leading.tests
    for test in tests:
        low, high = test.difference.ends  # type: ignore[union-attr]
        assert (test.p < 0.05) == (not low <= 0 <= high) and test.p <= test.p_adjusted  # type: ignore[operator]
    assert max(test.p for test in tests if test.b == "base") > 1e-4, "three roles are too few for a smaller p"


# --- diagnostics


def diagnosed(comparison: Any, judgements: Any) -> dict[str, Any]:
    return dump(measure_diagnostics(Tally(comparison, judgements), 0.01))


def contains(estimate: dict[str, Any], value: float) -> bool:
    low, high = estimate["ci95"]
    return bool(low <= value <= high)


@pytest.mark.parametrize("bias", [0.0, 0.8, -0.5], ids=["none", "for the first", "for the second"])
def test_a_taste_for_a_place_is_measured_in_pairs(bias: float) -> None:
    made = Simulator({"a": 0.0}, questions=300, first=bias, seed=1)
    found = diagnosed(made.comparison(), made.pairs())["biases"]
    # Preferences are drawn by Bradley and Terry's law: this is what the bias given does to equals.
    given = 1 / (1 + math.exp(-bias))
    assert contains(found["first_preferred"], given)
    assert found["first_preferred"]["ci95"][1] - found["first_preferred"]["ci95"][0] < 0.1
    assert (bias != 0) is not contains(found["first_preferred"], 0.5)


def test_pairs_that_lack_an_order_do_not_look_like_a_taste_for_a_place() -> None:
    made = Simulator({"a": 3.0}, questions=80, noise=0.1)
    judgements = [one if one.order[0] == "a" else replace(one, ranks=None, unscored="cut") for one in made.pairs()]
    found = diagnosed(made.comparison(), judgements)
    assert found["biases"]["first_preferred"] is found["biases"]["consistency"] is None


def test_a_taste_for_a_place_is_measured_in_lists() -> None:
    made = Simulator({"a": 0.5, "b": 0.0, "c": -0.5}, questions=100, first=1.5)
    found = diagnosed(made.comparison(), made.lists(rotations=4))
    assert found["biases"]["rank_slope"]["ci95"][0] > 0
    fair = Simulator({"a": 0.5, "b": 0.0, "c": -0.5}, questions=100)
    assert contains(diagnosed(fair.comparison(), fair.lists())["biases"]["rank_slope"], 0)


def test_answers_of_one_length_and_canaries_say_nothing_of_length() -> None:
    canary = Simulator({"null": -9.0}, questions=40, canaries=("null",), lengths={"null": 3})
    for made in (Simulator({"a": 1.0}, questions=40), canary):
        biases = diagnosed(made.comparison(), made.pairs())["biases"]
        assert biases["longer_preferred"] is None


def test_reasons_are_counted_without_what_they_quote_of_a_reply() -> None:
    made = Simulator({"a": 0.5}, questions=5)
    lost = []
    for number, one in enumerate(made.pairs()):
        words = f"I'm sorry, {number} times" if number % 2 else f'He said "no" and it\'s {number}'
        unscored = f"malformed: no JSON in the model's reply, which opens with {words!r}"
        lost.append(replace(one, ranks=None, unscored=unscored))
    short = replace(lost[0], unscored="malformed: $.better: 'C' is not one of ['A', 'B', 'tie']")
    reasons = diagnosed(made.comparison(), [*lost, short])["unscored"]["by_reason"]
    assert reasons == {
        "malformed: no JSON in the model's reply, which opens with …": len(lost),
        "malformed: $.better: 'C' is not one of ['A', 'B', 'tie']": 1,
    }


#: Prefers what it reads first, but where an answer is far worse.
UNFIT = Simulator({"a": 0.3, "b": -0.3, "null": -99.0}, questions=40, first=3.0, canaries=("null",))


def test_a_judge_of_places_has_its_rates_withheld_and_is_called_unfit() -> None:
    result = summarize(UNFIT.comparison(), UNFIT.pairs(), [{"name": "judge"}], JudgingSettings())
    _, a, b, null = (one["pairwise"] for one in result["models"])
    for one in (a, b):
        assert one["win_rate"] is one["lc_win_rate"] is None
        assert one["consistency"]["mean"] < 1 / 3
        assert one["by_role"] == one["by_judge"] == {}
    assert null["win_rate"]["mean"] == 0, "what it does tell apart is told"
    assert [test for test in result["tests"] if test["measure"] == "win_rate"] == []
    assert result["diagnostics"]["consistency_by_judge"]["judge"]["mean"] < 1 / 3
    assert not result["valid"]
    assert result["problems"][0].startswith("the judge judge is not fit to judge pairs")
    assert result["problems"][1].partition(" of the pairs: ")[2].startswith("a (")
    json.dumps(result, allow_nan=False)


def test_a_jury_with_one_unfit_judge_still_judges() -> None:
    sound = Simulator({"a": 2.0, "b": -2.0, "null": -99.0}, questions=40, canaries=("null",), noise=0.1)
    judgements = [*UNFIT.pairs("places"), *sound.pairs("one"), *sound.pairs("two")]
    result = summarize(UNFIT.comparison(), judgements, [], JudgingSettings())
    assert result["valid"] and "the judge places is not fit" in result["problems"][0]
    assert [one["pairwise"]["win_rate"]["mean"] for one in result["models"][1:]] == [1, 0, 0]


@pytest.mark.parametrize("tie", [0.0, 1.0], ids=["no ties", "ties"])
def test_a_judge_who_guesses_without_a_taste_is_not_called_unfit(tie: float) -> None:
    made = Simulator({"a": 0.0}, questions=150, tie=tie)
    result = summarize(made.comparison(), made.pairs(), [], JudgingSettings())
    assert result["valid"] and result["problems"] == []
    assert contains(result["models"][1]["pairwise"]["win_rate"], 0.5)
