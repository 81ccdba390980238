"""What is known of a model's files before it is loaded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import LlamaConfig, LlamaForCausalLM

from rolellm.models.find import count_parameters, hash_model


@pytest.mark.parametrize("shard", ["5GB", "2KB"])
@pytest.mark.parametrize("tied", [True, False])
def test_parameters_are_counted_by_the_headers(tmp_path: Path, shard: str, tied: bool) -> None:
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(**sizes, vocab_size=50, tie_word_embeddings=tied))
    model.save_pretrained(tmp_path, max_shard_size=shard)
    assert count_parameters(str(tmp_path)) == model.num_parameters()
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"quantization_config": {"load_in_4bit": True}}))
    assert count_parameters(str(tmp_path)) is None


def test_what_is_not_here_has_no_known_size(tmp_path: Path) -> None:
    assert count_parameters(str(tmp_path)) is None
    assert count_parameters("nobody/nothing") is None


def test_an_adapter_s_hash_does_not_depend_on_the_order_of_a_set(tmp_path: Path) -> None:
    def make(name: str, **settings: object) -> str:
        folder = tmp_path / name
        folder.mkdir()
        (folder / "adapter_model.safetensors").write_bytes(b"weights")
        (folder / "adapter_config.json").write_text(json.dumps({"r": 4, **settings}), encoding="utf-8")
        return hash_model(str(folder))

    forth, back = ({"target_modules": names, "exclude_modules": names} for names in (["a", "b"], ["b", "a"]))
    assert make("forth", **forth) == make("back", **back)
    assert make("layers", layers_to_transform=[1, 0]) != make("others", layers_to_transform=[0, 1])
    assert make("few", target_modules=["a"]) != make("many", target_modules=["a", "b"])
