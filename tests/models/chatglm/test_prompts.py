"""A converted tokenizer and its prompts, against SentencePiece and what the original's chat code would have sent."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rolellm.core.errors import ModelError
from rolellm.models.chatglm.tokenizer import compare_tokenizers, convert_tokenizer, find_stop_tokens
from rolellm.models.prompts.encode import encode_prompt, encode_replies, find_end_token

from .published import CORPUS, tokenizer_bytes
from .reference import ROLES, SPECIAL, ReferenceTokenizer

ORDINARY = st.one_of(
    st.lists(st.sampled_from(CORPUS.split()), min_size=1, max_size=8).map(" ".join),
    st.text(st.sampled_from(sorted(set(CORPUS) | {"\n", " "})), min_size=1, max_size=30),
)
OPTIONS = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=100)


@pytest.fixture(scope="session")
def tokenizer(native: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(native, local_files_only=True)


def turns(*contents: str, system: str | None = None) -> list[dict[str, str]]:
    roles = [("user", "assistant")[number % 2] for number in range(len(contents))]
    spoken = [{"role": role, "content": content} for role, content in zip(roles, contents, strict=True)]
    return spoken if system is None else [{"role": "system", "content": system}, *spoken]


def expected_prompt(original: ReferenceTokenizer, messages: list[dict[str, str]]) -> list[int]:
    """By the original's chat code. ChatGLM2 has no system turn there, so it opens the first question (our choice)."""
    if "<|user|>" in original.special:
        return original.prompt3(messages[-1]["content"], [(turn["role"], turn["content"]) for turn in messages[:-1]])
    spoken = [turn["content"] for turn in messages]
    if messages[0]["role"] == "system":
        spoken = [f"{spoken[0]}\n\n{spoken[1]}", *spoken[2:]]
    return original.prompt2(spoken[-1], list(zip(spoken[:-1:2], spoken[1:-1:2], strict=True)))


@OPTIONS
@given(
    contents=st.lists(ORDINARY, min_size=1, max_size=5).filter(lambda contents: len(contents) % 2 == 1),
    system=st.none() | ORDINARY,
)
def test_prompts_are_the_originals_token_for_token(
    tokenizer: Any, original_tokenizer: ReferenceTokenizer, contents: list[str], system: str | None
) -> None:
    messages = turns(*contents, system=system)
    expected = expected_prompt(original_tokenizer, messages)
    assert encode_prompt(tokenizer, messages) == expected
    assert tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"] == expected


@OPTIONS
@given(question=ORDINARY, reply=ORDINARY, system=st.none() | ORDINARY)
def test_a_whole_conversation_is_what_the_original_is_tuned_on(
    tokenizer: Any, original_tokenizer: ReferenceTokenizer, question: str, reply: str, system: str | None
) -> None:
    """The published fine-tuning code cuts prompt and reply each on its own and closes with the end token."""
    prompt = turns(question, system=system)
    ids = tokenizer.apply_chat_template([*prompt, {"role": "assistant", "content": reply}])["input_ids"]
    opening = original_tokenizer.pieces.encode("\n") if "<|user|>" in original_tokenizer.special else []
    answer = [*opening, *original_tokenizer.pieces.encode(reply), 2]
    assert ids == [*expected_prompt(original_tokenizer, prompt), *answer]
    assert encode_replies(tokenizer, [reply]) == [answer[:-1]]
    assert find_end_token(tokenizer) == ids[-1] == tokenizer.eos_token_id


def message(role: str) -> dict[str, str]:
    return {"role": role, "content": "x"}


@pytest.mark.parametrize(
    ("roles", "families"),
    [
        pytest.param(["assistant"], ["chatglm2"], id="a reply to nothing"),
        pytest.param(["user", "user"], ["chatglm2"], id="two questions"),
        pytest.param(["user", "system"], ["chatglm2"], id="a late system turn"),
        pytest.param(["system"], ["chatglm2"], id="a system turn alone"),
        pytest.param(["user", "tool"], ["chatglm2", "chatglm3"], id="an unknown role"),
    ],
)
def test_turns_that_the_form_cannot_take_are_refused(
    tokenizer: Any, family: str, roles: list[str], families: list[str]
) -> None:
    messages = [message(role) for role in roles]
    if family not in families:
        assert encode_prompt(tokenizer, messages)
        return
    with pytest.raises(ModelError, match="chat template cannot take the turns"):
        encode_prompt(tokenizer, messages)


# --- the tokenizer


# Known characters and their neighbours in the corpus, white space of all kinds, and anything else.
TEXTS = st.one_of(
    st.text(st.sampled_from(sorted(set(CORPUS) | set(" \n\t▁"))), max_size=40),
    st.lists(st.sampled_from(CORPUS.split()), max_size=8).map(" ".join),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
)
SLOW_START = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=150)


@SLOW_START
@given(text=TEXTS)
def test_every_text_is_cut_as_the_original_cuts_it(
    tokenizer: Any, original_tokenizer: ReferenceTokenizer, text: str
) -> None:
    ids = tokenizer(text, split_special_tokens=True)["input_ids"]
    assert ids == original_tokenizer.text(text)
    bare = original_tokenizer.pieces.encode(text)
    assert tokenizer.decode(bare) == original_tokenizer.pieces.decode(bare)


def test_special_tokens_have_the_ids_of_the_original(
    tokenizer: Any, original_tokenizer: ReferenceTokenizer, family: str
) -> None:
    renamed = {"sop": "<sop>", "eop": "<eop>"}
    for name in SPECIAL + (ROLES if family == "chatglm3" else []):
        number = original_tokenizer.special[name]
        assert tokenizer.convert_tokens_to_ids(renamed.get(name, name)) == number
        assert tokenizer.decode([number], skip_special_tokens=True) == ""
    assert len(tokenizer) == 600 + len(original_tokenizer.special)
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.unk_token_id) == (2, 0, 0)
    assert find_stop_tokens(tokenizer) == ([2] if family == "chatglm2" else [2, 606, 608])


def place(folder: Path, model: bytes) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.model").write_bytes(model)
    return folder


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="as published"),
        pytest.param({"kind": "unigram", "vocab_size": 440}, id="unigram"),
        pytest.param({"normalization_rule_name": "nmt_nfkc"}, id="normalised"),
        pytest.param({"byte_fallback": False}, id="unknown characters"),
        pytest.param({"control_symbols": ["<extra>"]}, id="another control symbol"),
    ],
)
def test_the_check_finds_nothing_where_there_is_nothing(tmp_path: Path, options: dict[str, Any]) -> None:
    src = place(tmp_path / "src", tokenizer_bytes(tmp_path, **options))
    looked_at, differing = compare_tokenizers(src, convert_tokenizer(src, "chatglm3"))
    assert looked_at > 4_200
    assert differing == []


@pytest.mark.parametrize(
    ("options", "text"),
    [
        pytest.param({"user_defined_symbols": ["<tag>"]}, "<tag>", id="pieces that are never merged"),
        pytest.param({"remove_extra_whitespaces": True}, "  a  b ", id="white space removed"),
        pytest.param({"add_dummy_prefix": False}, "\n", id="no space in front"),
        pytest.param({"treat_whitespace_as_suffix": True}, "\n", id="space behind"),
    ],
)
def test_the_check_finds_a_tokenizer_that_is_otherwise(tmp_path: Path, options: dict[str, Any], text: str) -> None:
    src = place(tmp_path / "src", tokenizer_bytes(tmp_path, **options))
    assert text in compare_tokenizers(src, convert_tokenizer(src, "chatglm2"))[1]
