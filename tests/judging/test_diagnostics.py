"""The judge's own faults: those it was given are found, with their size."""

import json
import math
from dataclasses import replace
from typing import Any

import pytest

from rolellm.core.settings import dump
from rolellm.judging.settings import JudgingSettings
from rolellm.judging.summary import measure_diagnostics
from rolellm.judging.verdicts import Tally

from ..judge_runs import Simulator, summarize


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
