"""Weights: tensor by tensor and logit by logit against an independent implementation of the original."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from rolellm.core.errors import ModelError
from rolellm.models.chatglm.convert import convert_chatglm

from .conftest import Publish
from .published import CONFIG, random_tensors, write_shards
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
@pytest.mark.parametrize("family", ["chatglm2", "chatglm3"])
@pytest.mark.parametrize("form", ["bin", "safetensors", "bin-1", "safetensors-1"])
def test_every_tensor_is_the_published_one(published: Publish, tmp_path: Path, family: str, form: str) -> None:
    convert_chatglm(published(family, form=form, dtype=torch.float16), tmp_path / "native")

    found, before = tensors(tmp_path / "native"), random_tensors(CONFIG, torch.float16)
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
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == torch.float16
        assert torch.equal(found[name], tensor), name
    assert load(tmp_path / "native").dtype == torch.float16


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "changed"),
    [
        pytest.param("chatglm2", {}, id="chatglm2-6b"),
        pytest.param("chatglm3", {}, id="chatglm3-6b"),
        pytest.param("chatglm2", {"rope_ratio": 4}, id="chatglm2-6b-32k: positions divided"),
        pytest.param("chatglm3", {"rope_ratio": 50}, id="chatglm3-6b-32k: base multiplied"),
        pytest.param("chatglm2", {"multi_query_group_num": 1}, id="one group"),
        pytest.param("chatglm3", {"multi_query_group_num": 4}, id="as many groups as heads"),
        pytest.param("chatglm2", {"multi_query_attention": False}, id="no multi-query attention"),
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


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_another_type_on_demand(published: Publish, tmp_path: Path, dtype: Any) -> None:
    made = convert_chatglm(published(dtype=torch.float16), tmp_path / "native", dtype=dtype)

    before = random_tensors(CONFIG, torch.float16)["transformer.output_layer.weight"]
    found = tensors(tmp_path / "native")["lm_head.weight"]
    assert torch.equal(found, before.to(getattr(torch, dtype)))
    assert made.dtype == dtype == str(load(tmp_path / "native").dtype).removeprefix("torch.")


def rewrite(src: Path, changes: dict[str, Tensor | None]) -> None:
    """Change tensors of a published checkpoint; ``None`` leaves one out."""
    for file in src.glob("pytorch_model*"):
        file.unlink()
    held = {**random_tensors(CONFIG), **changes}
    write_shards(src, {name: value for name, value in held.items() if value is not None}, "bin", 2)


NORM = "transformer.encoder.final_layernorm.weight"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        pytest.param({NORM: None}, f"lacks 1 of 24 tensors: {NORM}", id="missing"),
        pytest.param(
            {"transformer.adapter": torch.ones(1)}, "no place in GlmForCausalLM: transformer.adapter", id="extra"
        ),
        pytest.param(
            {NORM: torch.ones(31)}, rf"{NORM} has the shape \(31,\); config.json asks for \(32,\)", id="shape"
        ),
        pytest.param({NORM: torch.ones(32, dtype=torch.int8)}, "is of type torch.int8.*quantized", id="integers"),
        pytest.param({NORM + "_scale": torch.ones(1)}, "quantized.*convert the full checkpoint", id="scales"),
        pytest.param({NORM: torch.ones(32).half()}, "both float32 and float16.*--set dtype=", id="two types"),
    ],
)
def test_weights_that_do_not_fit_are_refused(
    published: Publish, tmp_path: Path, changes: dict[str, Tensor | None], message: str
) -> None:
    src = published()
    rewrite(src, changes)
    with pytest.raises(ModelError, match=message):
        convert_chatglm(src, tmp_path / "native")
    assert not list(tmp_path.glob("*native*"))


def test_numbers_too_large_for_float16_are_refused(published: Publish, tmp_path: Path) -> None:
    src = published()
    rewrite(src, {NORM: torch.full((32,), 1e5)})
    with pytest.raises(ModelError, match=f"{NORM} has numbers that float16 cannot hold"):
        convert_chatglm(src, tmp_path / "native", dtype="float16")
