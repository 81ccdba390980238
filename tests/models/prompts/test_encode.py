"""Prompts that begin alike are tokenised in parts, and come out as they would whole."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolellm.models.prompts.encode import PromptEncoder, encode_prompt
from rolellm.models.prompts.render import load_chat_template

TEXTS = ["You are Ada Fenn, keeper of the light.", "Who taught you to sail?", "Je ne sais pas: 12 + 7?", "你是谁？"]
CHAT = (
    "{{ bos_token }}{% for m in messages %}<|{{ m['role'] }}|>\n{{ m['content'] | trim }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
UNMARKED = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:"
OPENED = "{{ bos_token }}{% for m in messages %}{{ m['content'] }}\n{% endfor %}"


def bytes_bpe(template: str, **special: Any) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    return _trained(bpe, template, pre_tokenizers.ByteLevel.alphabet(), **special)


def spaces_bpe(template: str, *, scheme: str, **special: Any) -> Any:
    """As LLaMA's: spaces are a letter, and one is put before the text (or before each part)."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    bpe = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    bpe.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    bpe.decoder = decoders.Metaspace(prepend_scheme=scheme)
    return _trained(bpe, template, list("abcdefghijklmnopqrstuvwxyz▁"), **special)


def _trained(bpe: Any, template: str, alphabet: list[str], **special: Any) -> Any:
    from tokenizers import AddedToken, trainers
    from transformers import PreTrainedTokenizerFast

    marks = ["<unk>", "<s>", "</s>", "<|system|>", "<|user|>", "<|assistant|>"]
    trainer = trainers.BpeTrainer(vocab_size=500, special_tokens=marks, initial_alphabet=alphabet, show_progress=False)
    bpe.train_from_iterator([*TEXTS, "### Instruction:\n\n### Input:\n\n### Response:\n"], trainer)
    bpe.add_special_tokens([AddedToken(mark, special=True, normalized=False, **special) for mark in marks[1:]])
    made = PreTrainedTokenizerFast(tokenizer_object=bpe, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    made.chat_template = template
    return made


MAKERS: dict[str, Callable[[], Any]] = {
    "bytes-rolellama": lambda: bytes_bpe(load_chat_template("rolellama")),
    "bytes-chat-that-trims": lambda: bytes_bpe(CHAT),
    "spaces-before-the-text": lambda: spaces_bpe(load_chat_template("rolellama"), scheme="first"),
    "spaces-before-each-part": lambda: spaces_bpe(CHAT, scheme="always"),
    "marks-that-eat-space-before": lambda: bytes_bpe(CHAT, lstrip=True),
    "marks-that-eat-space-after": lambda: bytes_bpe(load_chat_template("rolellama"), rstrip=True),
    "no-mark-in-the-prompt": lambda: bytes_bpe(UNMARKED),
    "one-mark-at-the-start": lambda: bytes_bpe(OPENED),
}
SYSTEMS = st.sampled_from(["You are Ada.", "  You are Brom.\n\n", "You are </s> Eve.", "你是小明。", ""])
QUESTIONS = st.text() | st.sampled_from(["</s>", " <s> ", "<|user|>\nI am the system", "\n\n### Input:\n", "  "])


@pytest.fixture(scope="module", params=list(MAKERS))
def tokenizer(request: pytest.FixtureRequest) -> Any:
    return MAKERS[request.param]()


@settings(max_examples=40)
@given(pairs=st.lists(st.tuples(SYSTEMS, QUESTIONS), min_size=1, max_size=12))
def test_parts_are_the_whole(tokenizer: Any, pairs: list[tuple[str, str]]) -> None:
    encode = PromptEncoder(tokenizer)
    for system, question in pairs:
        messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
        assert encode(messages) == encode_prompt(tokenizer, messages)


@pytest.mark.parametrize("name", ["bytes-rolellama", "bytes-chat-that-trims", "spaces-before-the-text"])
def test_a_beginning_is_tokenised_once(name: str) -> None:
    tokenizer = MAKERS[name]()
    lengths: list[int] = []
    encode = PromptEncoder(tokenizer)
    whole = encode._plain
    encode._plain = lambda text: (lengths.append(len(text)), whole(text))[1]  # type: ignore[method-assign]
    system = "You are Ada Fenn, keeper of the light. " * 20
    for number in range(20):
        encode([{"role": "system", "content": system}, {"role": "user", "content": f"Who? {number}"}])
    assert sorted(lengths)[-1] > len(system) / 2
    assert sum(length > 100 for length in lengths) == 1


def test_a_conversation_of_several_turns_is_cut_before_its_last() -> None:
    tokenizer = MAKERS["bytes-chat-that-trims"]()
    encode = PromptEncoder(tokenizer)
    turns = [
        {"role": "system", "content": "You are Ada."},
        {"role": "user", "content": "Who are you?"},
        {"role": "assistant", "content": "Ada."},
    ]
    for text in ("And now?", "Why?", "Who taught you to sail?"):
        messages = [*turns, {"role": "user", "content": text}]
        assert encode(messages) == encode_prompt(tokenizer, messages)
