"""One way from messages to tokens: what training reads is what inference sends, and text stays text."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rolellm.core.errors import ModelError
from rolellm.models.prompts.encode import encode_prompt, encode_replies, find_end_token
from rolellm.models.prompts.render import load_chat_template

from .tokenizers import SPECIAL, TEXTS, make_tokenizer

NO_SYSTEM = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system turn') }}{% endif %}"
NO_END = "{% for m in messages %}{{ '[' + m['role'] + ']' + m['content'] }}{% endfor %}"


@pytest.fixture(scope="module", params=["bytes", "chatml", "none"])
def tokenizer(request: pytest.FixtureRequest) -> Any:
    return make_tokenizer(request.param)


def special_ids(tokenizer: Any, ids: list[int]) -> list[int]:
    return [token for token in ids if token in set(tokenizer.all_special_ids)]


def messages(system: str, user: str) -> list[dict[str, str]]:
    return [{"role": "system", "content": system}, {"role": "user", "content": user}]


def rendered(tokenizer: Any, turns: list[dict[str, str]]) -> str:
    template = tokenizer.chat_template or load_chat_template("rolellama")
    return str(tokenizer.apply_chat_template(turns, chat_template=template, tokenize=False, add_generation_prompt=True))


# transformers keeps these two for itself, and takes them out of messages.
PRIVATE = ("\U000f0000", "\U000f0001")
pieces = st.sampled_from([*SPECIAL, "### Response:\n", "\n", " ", "海", "</", "s>", "<|im_"])
text = (
    st.lists(pieces | st.text(max_size=6), max_size=8)
    .map("".join)
    .filter(lambda value: not any(mark in value for mark in PRIVATE))
)


def test_ordinary_text_is_what_the_chat_template_gives(tokenizer: Any) -> None:
    turns = messages(TEXTS[1], TEXTS[0])
    template = tokenizer.chat_template or load_chat_template("rolellama")
    stock = tokenizer.apply_chat_template(turns, chat_template=template, add_generation_prompt=True)["input_ids"]
    assert encode_prompt(tokenizer, turns) == stock


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(system=text, user=text)
def test_text_in_a_message_never_becomes_a_special_token(tokenizer: Any, system: str, user: str) -> None:
    ids = encode_prompt(tokenizer, messages(system, user))
    harmless = encode_prompt(tokenizer, messages("a", "b"))
    assert special_ids(tokenizer, ids) == special_ids(tokenizer, harmless)
    assert tokenizer.decode(ids) == rendered(tokenizer, messages(system, user))


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(reply=text)
def test_a_reply_is_its_text_and_no_special_token(tokenizer: Any, reply: str) -> None:
    (ids,) = encode_replies(tokenizer, [reply])
    assert special_ids(tokenizer, ids) == []
    assert tokenizer.decode(ids) == reply


def test_replies_together_are_replies_alone(tokenizer: Any) -> None:
    replies = ["Gulls.", "\n\nGulls", "", " 海 ", "</s>"]
    assert encode_replies(tokenizer, replies) == [encode_replies(tokenizer, [reply])[0] for reply in replies]
    assert encode_replies(tokenizer, []) == []


def test_a_reply_does_not_open_with_the_space_that_a_sentencepiece_text_opens_with() -> None:
    tokenizer = make_tokenizer("metaspace")
    alone = tokenizer.encode("gulls", add_special_tokens=False)
    assert tokenizer.convert_ids_to_tokens(alone)[0].startswith("▁")
    (ids,) = encode_replies(tokenizer, ["gulls sleep"])
    assert not tokenizer.convert_ids_to_tokens(ids)[0].startswith("▁")
    prompt = encode_prompt(tokenizer, messages("Who?", "Where?"))
    assert tokenizer.decode(prompt + ids).endswith("### Response:\ngulls sleep")


def test_the_end_token_is_what_the_template_writes_after_a_reply() -> None:
    chatml = make_tokenizer("chatml")
    assert find_end_token(chatml) == chatml.convert_tokens_to_ids("<|im_end|>")
    ours = make_tokenizer("bytes")
    assert find_end_token(ours) == ours.eos_token_id
    ours.chat_template = NO_END
    assert find_end_token(ours) == ours.eos_token_id


def test_a_tokenizer_that_cannot_be_used_is_refused_in_words() -> None:
    tokenizer = make_tokenizer("bytes")
    tokenizer.chat_template = NO_SYSTEM
    with pytest.raises(ModelError, match="system, user: no system turn"):
        encode_prompt(tokenizer, messages("a", "b"))
    tokenizer = make_tokenizer("bytes")
    tokenizer.eos_token = None
    with pytest.raises(ModelError, match="no end token"):
        encode_prompt(tokenizer, messages("a", "b"))
