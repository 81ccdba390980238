"""Judging by the odds of a letter: what both orders say together, however much the judge likes one place."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolellm.judging.judge_models import load_judge
from rolellm.judging.records import Judgement
from rolellm.judging.requests import accept_verdicts
from rolellm.judging.verdicts import sort_verdicts
from rolellm.llm.model import Reply, Request, UnacceptableError, Usage, user

JUDGE = load_judge("role-odds")


def body(probabilities: Mapping[str, float]) -> dict[str, Any]:
    """A chat completion of one token, with what it might have been."""
    likeliest = [{"token": token, "logprob": math.log(share)} for token, share in probabilities.items()]
    message = {"role": "assistant", "content": max(probabilities, key=lambda token: probabilities[token])}
    logprobs = {"content": [{"token": message["content"], "top_logprobs": likeliest}]}
    choice = {"message": message, "finish_reason": "length", "logprobs": logprobs}
    return {"model": "m", "choices": [choice], "usage": {"prompt_tokens": 500, "completion_tokens": 1}}


def read(raw: dict[str, Any]) -> Any:
    accept = accept_verdicts({JUDGE.settings.parser: JUDGE})
    return accept(Request((user("…"),)), Reply("A", "length", Usage(), "m", "e", raw))


@pytest.mark.parametrize(
    ("probabilities", "odds"),
    [
        pytest.param({"A": 0.6, "B": 0.3}, 2, id="both"),
        pytest.param({"B": 0.5, " A": 0.2, "a": 0.05}, 0.5, id="spellings-of-a-letter"),
        pytest.param({"A": 0.9, "The": 0.01}, 90, id="one-is-not-among-the-likeliest"),
    ],
)
def test_odds_are_those_of_the_first_token(probabilities: dict[str, float], odds: float) -> None:
    verdict = read(body(probabilities))
    assert verdict.lead == pytest.approx(math.log(odds))
    assert verdict.ranks == ((1, 2) if odds > 1 else (2, 1))


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        pytest.param(body({"The": 0.6, "A": 0.2, "B": 0.1}), "neither letter", id="a-sentence"),
        pytest.param({"choices": [{"message": {"content": "A"}, "logprobs": None}]}, "no", id="none"),
        pytest.param({"choices": [{"logprobs": {"content": []}}]}, "without log probabilities", id="empty"),
        pytest.param(
            {"choices": [{"logprobs": {"content": [{"top_logprobs": [{"token": "A", "logprob": None}]}]}}]},
            "without log probabilities",
            id="no-number",
        ),
    ],
)
def test_what_has_no_odds_is_no_verdict(raw: dict[str, Any], why: str) -> None:
    with pytest.raises(UnacceptableError, match=why):
        read(raw)


@given(st.lists(st.floats(-50, 50), min_size=2, max_size=2), st.floats(-50, 50))
def test_a_liking_for_a_place_cancels_out(values: Sequence[float], liking: float) -> None:
    def shown(order: tuple[str, str], lead: float) -> Judgement:
        return Judgement("r", "j", "pairwise", order, (1.0, 2.0) if lead > 0 else (2.0, 1.0), lead=lead)

    gain = values[0] - values[1]
    verdicts = sort_verdicts([shown(("a", "b"), gain + liking), shown(("b", "a"), liking - gain)], "b")
    (pair,) = verdicts.pairs
    if abs(gain) > 1e-6:
        assert pair.mean == float(gain > 0)
