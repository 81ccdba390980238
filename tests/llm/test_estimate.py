"""Estimates: what each case takes for granted, and that the worst is what a budget sets aside."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolellm.llm.dispatcher import compute_worst_cost
from rolellm.llm.estimate import estimate
from rolellm.llm.model import Price, Request, Sampling, Schema, Usage, system, user
from rolellm.llm.scripted import ScriptedModel
from rolellm.llm.settings import ModelSettings
from rolellm.llm.tokens import TokenCounter, count_most_prompt_tokens

PRICE = Price(1.0, 4.0, 0.25)
SHARED = system("You are an old lighthouse keeper who counts the waves. " * 20)


def priced(price: Price, concurrency: int = 8) -> ModelSettings:
    return ModelSettings(base_url="http://localhost/v1", model="m", price=price, concurrency=concurrency)


def requests(count: int = 10, max_tokens: int = 100) -> list[Request]:
    sampling = Sampling(max_tokens=max_tokens)
    return [Request((SHARED, user(f"How many on day {number}?")), sampling) for number in range(count)]


def test_the_three_cases() -> None:
    asked = requests()
    counter = TokenCounter()
    found = estimate(iter(asked), [priced(PRICE)], max_attempts=3)
    prompt = sum(counter.prompt(request.messages) for request in asked)
    shared = 9 * counter.count(SHARED.content)
    assert found.requests == 10
    assert found.low.calls == 10
    assert found.low.tokens == Usage(prompt, 10 * 10, shared)
    assert found.low.cost == pytest.approx((prompt - shared + 0.25 * shared + 4 * 100) / 1e6)
    assert found.expected.calls == 11
    assert found.expected.tokens == Usage(round(1.1 * prompt), 550)
    bound = sum(map(count_most_prompt_tokens, asked))
    assert found.worst.calls == 30
    assert found.worst.tokens == Usage(3 * bound, 3000)
    assert found.worst.cost == pytest.approx((3 * bound + 4 * 3000) / 1e6)
    assert estimate(asked, [priced(PRICE)], max_attempts=1).expected.calls == 10


def test_a_batch_costs_half() -> None:
    whole, half = (estimate(requests(), [priced(PRICE)], batch=batch) for batch in (False, True))
    for name in ("low", "expected", "worst"):
        assert getattr(half, name).tokens == getattr(whole, name).tokens
        assert getattr(half, name).cost == pytest.approx(getattr(whole, name).cost / 2)


def test_of_several_models_the_cheapest_the_mean_and_the_dearest_count() -> None:
    cheap, dear = priced(Price(1.0, 1.0), 3), priced(Price(9.0, 9.0), 1)
    both, low, high = (estimate(requests(), models) for models in ([cheap, dear], [cheap], [dear]))
    assert both.low.cost == low.low.cost
    assert both.worst.cost == high.worst.cost
    assert both.expected.cost == pytest.approx(3 * low.expected.cost)


def test_without_prices_there_is_no_cost_and_never_a_zero() -> None:
    found = estimate(requests(), [priced(Price())])
    assert [case.cost for case in (found.low, found.expected, found.worst)] == [None, None, None]
    assert found.unpriced == ("localhost/m",)
    assert "no price" in str(found.tables()[0])
    mixed = estimate(requests(), [priced(Price()), priced(PRICE)])
    assert mixed.low.cost == 0
    assert any("No price is given for localhost/m." in note for note in mixed.remarks())


TEXT = st.text(max_size=40)


@given(
    st.lists(st.tuples(TEXT, TEXT, st.integers(1, 3000)), max_size=5),
    st.integers(1, 6),
    st.booleans(),
    st.floats(0, 50),
    st.none() | st.floats(0, 50),
)
def test_low_expected_and_worst_are_in_order_and_a_budget_never_needs_more(
    texts: list[tuple[str, str, int]], attempts: int, schema: bool, price: float, cached: float | None
) -> None:
    form = Schema("s", {"type": "object", "properties": {"名字": {"type": "string"}}}) if schema else None
    asked = [Request((system(a), user(b)), Sampling(max_tokens=most), schema=form) for a, b, most in texts]
    dollars = Price(price, 2 * price + 0.1, None if cached is None else min(cached, price))
    model = ScriptedModel(lambda _: "", rules_hash="1", price=dollars)
    found = estimate(asked, [model], max_attempts=attempts)
    cases = [found.low, found.expected, found.worst]
    assert [case.calls for case in cases] == sorted(case.calls for case in cases)
    assert [case.tokens.completion for case in cases] == sorted(case.tokens.completion for case in cases)
    costs = [case.cost for case in cases if case.cost is not None]
    assert costs == sorted(costs)
    reserved = sum(compute_worst_cost(model, request) for request in asked) * attempts
    assert reserved <= costs[-1] * (1 + 1e-9)


def test_estimates_of_stages_add_up() -> None:
    one = estimate(requests(4), [priced(PRICE)])
    two = estimate(requests(6, 50), [priced(PRICE)])
    both = one + two
    assert both.requests == 10
    assert both.worst.calls == one.worst.calls + two.worst.calls
    assert both.low.tokens == one.low.tokens + two.low.tokens
    assert both.expected.cost == pytest.approx((one.expected.cost or 0) + (two.expected.cost or 0))
    unpriced = estimate(requests(4), [priced(Price())])
    assert (unpriced + unpriced).low.cost is None
