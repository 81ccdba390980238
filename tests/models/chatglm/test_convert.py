"""A whole conversion: what lies in the folder, who can use it, and what is left when it fails."""

from pathlib import Path
from typing import Any

import pytest

from rolellm.core.errors import ModelError
from rolellm.models.chatglm.convert import convert_chatglm
from rolellm.models.local_model import Decoding, LocalModel

from .conftest import Publish
from .published import CONFIG
from .reference import ReferenceModel, ReferenceTokenizer

pytestmark = pytest.mark.slow

MESSAGES = [{"role": "system", "content": "你是李白。"}, {"role": "user", "content": "今天天气怎么样？"}]


def test_the_folder_holds_a_native_checkpoint_and_nothing_else(native: Path) -> None:
    assert sorted(file.name for file in native.iterdir()) == [
        "MODEL_LICENSE",
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    assert sorted(file.name for file in native.parent.iterdir()) == ["native", "published"]
    assert not (native.parent / "published" / "ran").exists()


def test_it_answers_through_generate_as_the_original_would(
    native: Path, family: str, original_model: ReferenceModel, original_tokenizer: ReferenceTokenizer
) -> None:
    from transformers import GenerationConfig

    stops = [2] if family == "chatglm2" else [2, 606, 608]
    saved = GenerationConfig.from_pretrained(native)
    assert (saved.eos_token_id, saved.pad_token_id) == (stops, 0)
    model = LocalModel(str(native), device="cpu")
    prompt = model.encode(MESSAGES)
    short = model.encode(MESSAGES[1:])
    assert model.vocabulary == CONFIG["padded_vocab_size"]
    assert model.context == CONFIG["seq_length"]
    assert prompt[:2] == original_tokenizer.opening

    replies = model.generate_batch([prompt, short], Decoding(max_new_tokens=24))
    for ids, reply in zip([prompt, short], replies, strict=True):
        expected = original_model.greedy(ids, 24, stops)
        ended = expected[-1] in stops
        text = model.tokenizer.decode(expected[: len(expected) - ended], skip_special_tokens=True)
        assert reply.text == text.strip()
        assert (reply.new_tokens, reply.finish) == (len(expected), "stop" if ended else "length")


def test_a_native_layout_that_changed_is_refused(
    published: Publish, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it would be with a later transformers."""
    from transformers import GlmForCausalLM

    real = GlmForCausalLM.state_dict

    def renamed(self: Any, *args: Any, **options: Any) -> Any:
        return {name.replace("o_proj", "out_proj"): value for name, value in real(self, *args, **options).items()}

    monkeypatch.setattr(GlmForCausalLM, "state_dict", renamed)
    with pytest.raises(
        ModelError, match=r"lays GlmForCausalLM out in another way: model\.layers\.0\.self_attn\.o_proj"
    ):
        convert_chatglm(published(), tmp_path / "native")
