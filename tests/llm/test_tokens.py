"""Tokens and estimates: counts, their bounds, and that the worst case is what a budget sets aside."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rolellm.llm.dispatcher import compute_worst_cost
from rolellm.llm.estimate import estimate
from rolellm.llm.model import Message, Price, Request, Sampling, Schema, Usage, assistant, system, user
from rolellm.llm.scripted import ScriptedModel
from rolellm.llm.settings import ModelSettings
from rolellm.llm.tokens import TokenCounter, count_fewest_tokens, count_most_prompt_tokens, count_most_tokens

ENGLISH = "The lighthouse keeper counts the waves, and writes the number down each night before he sleeps. " * 5
CHINESE = "守灯塔的老人每天夜里数一数海浪，把数目写在本子上，然后才去睡觉。" * 5


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A byte-level BPE with Qwen's normal form, and a BPE with byte fallback after NFKC as SentencePiece has it."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    byte_level = Tokenizer(models.BPE())
    byte_level.normalizer = normalizers.NFC()
    byte_level.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    byte_level.train_from_iterator(
        [ENGLISH, CHINESE], trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet, show_progress=False)
    )
    fallback = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    fallback.normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    fallback.decoder = decoders.ByteFallback()
    special = [AddedToken("<unk>"), *(AddedToken(f"<0x{byte:02X}>", normalized=False) for byte in range(256))]
    fallback.train_from_iterator(
        [ENGLISH, CHINESE], trainers.BpeTrainer(vocab_size=500, special_tokens=special, show_progress=False)
    )
    return {"byte-level": byte_level, "byte-fallback": fallback}


@pytest.fixture(scope="module")
def folder(tokenizers: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tokenizer and a chat template."""
    from transformers import PreTrainedTokenizerFast

    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizers["byte-level"])
    fast.chat_template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
    place = tmp_path_factory.mktemp("tokenizer")
    fast.save_pretrained(place)
    return place


@pytest.mark.parametrize("kind", ["byte-level", "byte-fallback"])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
@given(text=st.text(max_size=60) | st.text("\u0958\u1d160\ufdfa\ufb2c ▁️é中", max_size=40))
def test_no_tokenizer_exceeds_the_bound(tokenizers: dict[str, Any], kind: str, text: str) -> None:
    found = tokenizers[kind].encode(text, add_special_tokens=False)
    assert "<unk>" not in found.tokens
    assert len(found.ids) <= count_most_tokens(text)


@pytest.mark.parametrize(
    "text", [ENGLISH, CHINESE, "why? " * 2000, "a" * 9000, "1 2 3 " * 999, "def f(x):\n    pass\n" * 99]
)
def test_no_text_has_fewer_tokens_than_the_fewest(tokenizers: dict[str, Any], text: str) -> None:
    assert count_fewest_tokens(text) <= min(TokenCounter().count(text), len(tokenizers["byte-level"].encode(text).ids))


def test_the_estimate_is_of_the_size_that_large_vocabularies_give() -> None:
    # 4 to 5.5 characters a token in English, 1 to 1.75 in Chinese, by seven vocabularies (docs/models.md).
    assert 4 < len(ENGLISH) / TokenCounter().count(ENGLISH) < 5.5
    assert 1 < len(CHINESE) / TokenCounter().count(CHINESE) < 1.75


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="empty"),
        pytest.param("\ud800", id="half-a-pair"),
        pytest.param("a" * 100_000, id="one-long-word"),
        pytest.param("<|im_end|>" * 1000, id="special-tokens"),
    ],
)
def test_odd_texts_have_a_count(text: str, folder: Path) -> None:
    for counter in (TokenCounter(), TokenCounter(folder)):
        assert (counter.count(text) > 0) == bool(text)
        assert count_most_tokens(text) >= counter.count(text)


def test_a_tokenizer_counts(folder: Path, tokenizers: dict[str, Any]) -> None:
    counter = TokenCounter(folder)
    assert counter.exact
    assert not TokenCounter().exact
    for text in (ENGLISH, CHINESE):
        assert counter.count(text) == len(tokenizers["byte-level"].encode(text).ids)
    messages = (system("Be Ahab."), user("Who?"), assistant("I."), user("Why?"))
    made = "<system>Be Ahab.<user>Who?<assistant>I.<user>Why?<assistant>"
    assert counter.prompt(messages) == len(tokenizers["byte-level"].encode(made).ids)


def test_a_prompt_has_more_than_its_texts_and_no_more_than_its_bound(folder: Path) -> None:
    messages: tuple[Message, ...] = (system(ENGLISH), user(CHINESE))
    for counter in (TokenCounter(), TokenCounter(folder)):
        texts = sum(counter.count(message.content) for message in messages)
        assert texts < counter.prompt(messages) <= count_most_prompt_tokens(Request(messages))
    assert TokenCounter().prompt(messages) < TokenCounter().prompt((*messages, assistant("")))


def test_a_schema_counts_as_part_of_the_prompt() -> None:
    counter = TokenCounter()
    plain = Request((user("Who?"),))
    asked = Request((user("Who?"),), schema=Schema("s", {"type": "object", "properties": {"名": {"type": "string"}}}))
    assert counter.request(plain) == counter.prompt(plain.messages)
    assert counter.request(asked) > counter.request(plain)
    assert count_most_prompt_tokens(asked) - count_most_prompt_tokens(plain) > counter.request(asked)


def test_a_template_that_refuses_a_message_is_no_failure(folder: Path, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = "{{ raise_exception('no system message here') }}"
    tokenizer.save_pretrained(tmp_path)
    messages = (system("Be Ahab."), user("Who?"))
    assert TokenCounter(tmp_path).prompt(messages) > TokenCounter(tmp_path).count("Be Ahab.Who?")


def test_nobody_is_asked_for_a_tokenizer(tmp_path: Path) -> None:
    code = """
import os, sys
sys.addaudithook(lambda event, _: event in ("socket.connect", "socket.getaddrinfo") and os._exit(9))
from rolellm.core.errors import SettingsError
from rolellm.llm.tokens import TokenCounter, count_most_prompt_tokens, count_most_tokens
try:
    TokenCounter("no/such-tokenizer")
except SettingsError:
    os._exit(0)
"""
    home = {**os.environ, "HF_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=home, capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_tokenizer_in_the_cache_is_found_by_its_id(folder: Path, tmp_path: Path) -> None:
    commit = tmp_path / "models--some--tokenizer" / "snapshots" / ("0" * 40)
    shutil.copytree(folder, commit)
    (commit.parents[1] / "refs").mkdir()
    (commit.parents[1] / "refs" / "main").write_text("0" * 40, encoding="utf-8")
    code = "from rolellm.llm.tokens import TokenCounter; print(TokenCounter('some/tokenizer').count('The lighthouse'))"
    home = {**os.environ, "HF_HUB_CACHE": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=home, capture_output=True, timeout=120, check=False)
    assert int(done.stdout) == TokenCounter(folder).count("The lighthouse"), done.stderr


# --- estimates


PRICE = Price(1.0, 4.0, 0.25)
SHARED = system("You are an old lighthouse keeper who counts the waves. " * 20)


def priced(price: Price, concurrency: int = 8) -> ModelSettings:
    return ModelSettings(base_url="http://localhost/v1", model="m", price=price, concurrency=concurrency)


def requests(count: int = 10, max_tokens: int = 100) -> list[Request]:
    sampling = Sampling(max_tokens=max_tokens)
    return [Request((SHARED, user(f"How many on day {number}?")), sampling) for number in range(count)]


def test_both_cases() -> None:
    asked = requests()
    counter = TokenCounter()
    found = estimate(iter(asked), [priced(PRICE)], max_attempts=3)
    prompt = sum(counter.prompt(request.messages) for request in asked)
    assert found.requests == 10
    assert found.expected.calls == 11
    assert found.expected.tokens == Usage(round(1.1 * prompt), 550)
    bound = sum(map(count_most_prompt_tokens, asked))
    assert found.worst.calls == 30
    assert found.worst.tokens == Usage(3 * bound, 3000)
    assert found.worst.cost == pytest.approx((3 * bound + 4 * 3000) / 1e6)
    assert estimate(asked, [priced(PRICE)], max_attempts=1).expected.calls == 10


def test_a_batch_costs_half() -> None:
    whole, half = (estimate(requests(), [priced(PRICE)], batch=batch) for batch in (False, True))
    for name in ("expected", "worst"):
        assert getattr(half, name).tokens == getattr(whole, name).tokens
        assert getattr(half, name).cost == pytest.approx(getattr(whole, name).cost / 2)


def test_of_several_models_the_mean_and_the_dearest_count() -> None:
    cheap, dear = priced(Price(1.0, 1.0), 3), priced(Price(9.0, 9.0), 1)
    both, low, high = (estimate(requests(), models) for models in ([cheap, dear], [cheap], [dear]))
    assert both.worst.cost == high.worst.cost
    assert both.expected.cost == pytest.approx(3 * low.expected.cost)


def test_without_prices_there_is_no_cost_and_never_a_zero() -> None:
    found = estimate(requests(), [priced(Price())])
    assert [case.cost for case in (found.expected, found.worst)] == [None, None]
    assert found.unpriced == ("localhost/m",)
    assert "no price" in str(found.tables()[0])
    mixed = estimate(requests(), [priced(Price()), priced(PRICE)])
    assert any("No price is given for localhost/m." in note for note in mixed.remarks())


TEXT = st.text(max_size=40)


@given(
    st.lists(st.tuples(TEXT, TEXT, st.integers(1, 3000)), max_size=5),
    st.integers(1, 6),
    st.booleans(),
    st.floats(0, 50),
    st.none() | st.floats(0, 50),
)
def test_expected_and_worst_are_in_order_and_a_budget_never_needs_more(
    texts: list[tuple[str, str, int]], attempts: int, schema: bool, price: float, cached: float | None
) -> None:
    form = Schema("s", {"type": "object", "properties": {"名字": {"type": "string"}}}) if schema else None
    asked = [Request((system(a), user(b)), Sampling(max_tokens=most), schema=form) for a, b, most in texts]
    dollars = Price(price, 2 * price + 0.1, None if cached is None else min(cached, price))
    model = ScriptedModel(lambda _: "", rules_hash="1", price=dollars)
    found = estimate(asked, [model], max_attempts=attempts)
    cases = [found.expected, found.worst]
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
    assert both.expected.cost == pytest.approx((one.expected.cost or 0) + (two.expected.cost or 0))
    unpriced = estimate(requests(4), [priced(Price())])
    assert (unpriced + unpriced).worst.cost is None
