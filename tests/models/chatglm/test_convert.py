"""A whole conversion: what lies in the folder, who can use it, and what is left when it fails."""

from pathlib import Path
from typing import Any

import pytest

from rolellm.core.errors import ModelError, RoleLLMError, SettingsError
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


def test_an_empty_folder_is_taken_and_a_full_one_is_not(published: Publish, tmp_path: Path) -> None:
    src = published()
    (tmp_path / "native").mkdir()
    convert_chatglm(src, tmp_path / "native")
    before = {file: file.read_bytes() for file in (tmp_path / "native").iterdir()}
    with pytest.raises(SettingsError, match="is not empty; give a new folder"):
        convert_chatglm(src, tmp_path / "native")
    assert {file: file.read_bytes() for file in (tmp_path / "native").iterdir()} == before


def test_places_and_options_that_cannot_be(published: Publish, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    src = published()
    refusals: list[tuple[Path, Path, Any, str]] = [
        (tmp_path / "nowhere", tmp_path / "native", {}, "no folder at .*nowhere"),
        (src, tmp_path / "file", {}, "is a file"),
        (src, tmp_path / "file" / "native", {}, "cannot be written"),
        (src, tmp_path / "native", {"dtype": "int8"}, "unknown .*; known: "),
        (src, tmp_path / "native", {"family": "chatglm"}, "unknown .*; known: "),
    ]
    for source, target, options, message in refusals:
        with pytest.raises(RoleLLMError, match=message):
            convert_chatglm(source, target, **options)


@pytest.mark.parametrize("broken", ["pytorch_model-00002-of-00002.bin", "model-00002-of-00002.safetensors"])
def test_a_conversion_that_fails_half_way_leaves_nothing(published: Publish, tmp_path: Path, broken: str) -> None:
    src = published(form="bin" if broken.endswith("bin") else "safetensors")
    torn = (src / broken).read_bytes()
    (src / broken).write_bytes(torn[: len(torn) // 2])
    with pytest.raises(ModelError, match=broken):
        convert_chatglm(src, tmp_path / "native")
    assert [file.name for file in tmp_path.iterdir()] == ["published"]


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
