"""The fast tokenizer against SentencePiece."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rolellm.models.chatglm.tokenizer import compare_tokenizers, convert_tokenizer, find_stop_tokens

from .published import CORPUS, tokenizer_bytes
from .reference import ROLES, SPECIAL, ReferenceTokenizer

# Known characters and their neighbours in the corpus, white space of all kinds, and anything else.
TEXTS = st.one_of(
    st.text(st.sampled_from(sorted(set(CORPUS) | set(" \n\t▁"))), max_size=40),
    st.lists(st.sampled_from(CORPUS.split()), max_size=8).map(" ".join),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
)
SLOW_START = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=150)


@pytest.fixture(scope="session")
def tokenizer(native: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(native, local_files_only=True)


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
