"""Weights: tensor by tensor and logit by logit against an independent implementation of the original."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from rolellm.models.chatglm.convert import convert_chatglm

from .conftest import Publish
from .published import CONFIG, random_tensors
from .reference import ReferenceModel

TOLERANCE = 1e-5


def tensors(folder: Path) -> dict[str, Tensor]:
    return {name: value for file in sorted(folder.glob("*.safetensors")) for name, value in load_file(file).items()}


def load(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    model, report = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True, output_loading_info=True)
    assert not any(report.values()), report
    return model.eval()


@pytest.mark.slow
@pytest.mark.parametrize("form", ["bin", "safetensors", "bin-1", "safetensors-1"])
def test_every_tensor_is_the_published_one(published: Publish, tmp_path: Path, form: str) -> None:
    convert_chatglm(published(form=form, dtype=torch.float16), tmp_path / "native")

    converted, before = tensors(tmp_path / "native"), random_tensors(CONFIG, torch.float16)
    expected = {
        "model.embed_tokens.weight": before["transformer.embedding.word_embeddings.weight"],
        "model.norm.weight": before["transformer.encoder.final_layernorm.weight"],
        "lm_head.weight": before["transformer.output_layer.weight"],
    }
    for layer in range(CONFIG["num_layers"]):
        old, new = f"transformer.encoder.layers.{layer}.", f"model.layers.{layer}."
        for part in ("weight", "bias"):
            fused = before[f"{old}self_attention.query_key_value.{part}"]
            # 4 heads and 2 groups of 16 numbers each.
            cuts = {"q": fused[:64], "k": fused[64:96], "v": fused[96:128]}
            expected |= {f"{new}self_attn.{name}_proj.{part}": cut for name, cut in cuts.items()}
        expected |= {
            f"{new}self_attn.o_proj.weight": before[f"{old}self_attention.dense.weight"],
            f"{new}mlp.gate_up_proj.weight": before[f"{old}mlp.dense_h_to_4h.weight"],
            f"{new}mlp.down_proj.weight": before[f"{old}mlp.dense_4h_to_h.weight"],
            f"{new}input_layernorm.weight": before[f"{old}input_layernorm.weight"],
            f"{new}post_attention_layernorm.weight": before[f"{old}post_attention_layernorm.weight"],
        }
    assert converted.keys() == expected.keys()
    for name, tensor in expected.items():
        assert converted[name].dtype == torch.float16
        assert torch.equal(converted[name], tensor), name
    assert load(tmp_path / "native").dtype == torch.float16


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "changed"),
    [
        pytest.param("chatglm2", {"rope_ratio": 4}, id="chatglm2-6b-32k: positions divided"),
        pytest.param("chatglm3", {"rope_ratio": 50}, id="chatglm3-6b-32k: base multiplied"),
        pytest.param("chatglm3", {"multi_query_group_num": 4}, id="as many groups as heads"),
        pytest.param("chatglm3", {"add_qkv_bias": False}, id="no bias"),
        pytest.param("chatglm3", {"kv_channels": 8, "layernorm_epsilon": 1e-2}, id="narrow heads, another epsilon"),
    ],
)
def test_logits_are_the_originals(published: Publish, tmp_path: Path, family: str, changed: dict[str, Any]) -> None:
    convert_chatglm(published(family, **changed), tmp_path / "native")
    config = CONFIG | changed
    original = ReferenceModel(family, config, random_tensors(config))
    ids = torch.randint(0, config["padded_vocab_size"], (2, 96), generator=torch.Generator().manual_seed(1))

    with torch.no_grad():
        found = load(tmp_path / "native")(ids).logits
    expected = original.logits(ids)
    assert (found - expected).abs().max() < TOLERANCE
    # The comparison can fail: logits differ from place to place, and from those of other angles.
    assert expected.std() > 0.1
    elsewhere = ReferenceModel(family, config | {"rope_ratio": 2 * config.get("rope_ratio", 1)}, original.tensors)
    assert (elsewhere.logits(ids) - expected).abs().max() > 100 * TOLERANCE
