"""Control tokens in answers: no tokenizer that knows them finds one in what a judge is shown."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, normalizers
from tokenizers.models import WordLevel

from rolellm.models.prompts.fences import make_harmless

SHREDS = st.lists(
    st.sampled_from(
        ["<", ">", "<<", "|", "｜", "＜", "\n", "\u200b", "\u200d", "\U000e0041", "s", "/", "[", "]", "INST", "im_end"]
    ),
    max_size=20,
).map("".join)

# From the published configurations of tokenizers; each is one token where it stands in a prompt.
TOKENS = [
    *("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|fim_prefix|>", "<|channel|>", "<|start_header_id|>"),
    *("<|eot_id|>", "<|python_tag|>", "<|reserved_special_token_7|>", "<|system|>", "<|assistant|>", "<|end|>"),
    *("<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>", "<BOS_TOKEN>", "<EOS_TOKEN>", "<PAD>", "<UNK>"),
    *("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>", "<｜tool▁calls▁begin｜>"),
    *("<s>", "</s>", "<unk>", "<pad>", "<bos>", "<eos>", "<mask>", "<start_of_turn>", "<end_of_turn>", "<unused0>"),
    *("<unused99>", "<start_of_image>", "<|turn>", "<turn|>", "<channel|>", "<reserved_102>", "<reserved_106>"),
    *("[gMASK]", "[sMASK]", "[MASK]", "<sop>", "<eop>", "<eoh>", "<eoa>", "[UNUSED_TOKEN_146]", "<|tool_response>"),
    *("[INST]", "[/INST]", "[/SYSTEM_PROMPT]", "[TOOL_CALLS]", "[/THINK]", "[IMG]", "[CLS]", "[SEP]", "<<SYS>>"),
    *("<</SYS>>", "</think>", "</tool_call>", "<tool_response>", "<repo_name>", "<fim_suffix>", "<extra_id_0>"),
    *(">>QUESTION<<", ">>ANSWER<<", "[|user|]", "[|endofturn|]", "|||IP_ADDRESS|||", "<seed:bos>", "<SPECIAL_12>"),
    *("]~b]", "]~!b[", "[e~[", "<end_of_utterance>", "<mask:1>", "<|fim▁hole|>"),
]


def make_tokenizer(normalizer: normalizers.Normalizer | None, *, normalized: bool) -> Tokenizer:
    """Knows every token of `TOKENS` as one, as a server does that takes a prompt for a template's output."""
    made = Tokenizer(WordLevel({"?": 0}, unk_token="?"))
    if normalizer is not None:
        made.normalizer = normalizer
    made.add_special_tokens([AddedToken(token, special=True, normalized=normalized) for token in TOKENS])
    return made


TOKENIZERS = [
    make_tokenizer(None, normalized=False),
    *(make_tokenizer(normalizers.NFKC(), normalized=normalized) for normalized in (False, True)),
    make_tokenizer(normalizers.NFKD(), normalized=True),
]


def specials(text: str) -> set[str]:
    """The special tokens that any of the tokenizers finds."""
    return {token for one in TOKENIZERS for token in one.encode(text, add_special_tokens=False).tokens} - {"?", " "}


@pytest.mark.parametrize("token", TOKENS)
def test_no_tokenizer_finds_a_token_in_what_is_shown(token: str) -> None:
    assert specials(token), "the tokenizers would find it"
    assert not specials(make_harmless(f"Well,{token}then {token}{token}."))


@given(st.lists(st.one_of(st.sampled_from(TOKENS), SHREDS, st.text("＜＞｜［］<>|[]/ｓｉm_", max_size=4)), max_size=6))
def test_tokens_in_any_surroundings_are_defanged(pieces: list[str]) -> None:
    assert not specials(make_harmless("".join(pieces)))
