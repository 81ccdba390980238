"""The configuration of a published ChatGLM2 or ChatGLM3 checkpoint, and the same as a native ``GlmConfig``.

The keys are those of ``configuration_chatglm.py`` next to the weights (THUDM/chatglm2-6b and THUDM/chatglm3-6b on the
Hub), what they do is in ``modeling_chatglm.py`` there; both were read, neither is run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from rolellm.core.errors import DataError, ModelError
from rolellm.core.jsonl import read_json

Family = Literal["chatglm2", "chatglm3"]
DType = Literal["float16", "bfloat16", "float32"]

# What GlmConfig calls the sizes.
_SIZES = {
    "num_layers": "num_hidden_layers",
    "hidden_size": "hidden_size",
    "ffn_hidden_size": "intermediate_size",
    "num_attention_heads": "num_attention_heads",
    "kv_channels": "head_dim",
    "padded_vocab_size": "vocab_size",
    "seq_length": "max_position_embeddings",
}
# The only value of each that GlmForCausalLM can follow, which is also what the configuration class takes by default.
_ONLY: Mapping[str, bool] = {
    "rmsnorm": True,
    "post_layer_norm": True,
    "original_rope": True,
    "add_bias_linear": False,
    "apply_residual_connection_post_layernorm": False,
    "fp32_residual_connection": False,
    "tie_word_embeddings": False,
}
_GLM4_VOCABULARY = 151552


@dataclass(frozen=True, slots=True)
class Published:
    """A checkpoint of the original architecture.

    Attributes:
        family: They differ in special tokens, in the chat's text form and in what ``rope_ratio`` does.
        by_head: Whether the fused projection holds query, key and value head by head (without multi-query attention),
            instead of all queries, then all keys, then all values.
        native: The same model in the arguments of ``GlmConfig``, without type and special tokens.
    """

    family: Family
    by_head: bool
    native: dict[str, Any]


def read_config(src: Path, family: Family | None = None) -> Published:
    """Read ``config.json`` of a published checkpoint.

    A ``rope_ratio`` multiplies the base of the rotary angles in ChatGLM3 and divides the positions in ChatGLM2-32k,
    according to the two ``modeling_chatglm.py``.

    Args:
        src: The checkpoint's folder.
        family: Which family it is; by default what the folder says.

    Raises:
        ModelError: When there is none, when it is another architecture (ChatGLM-6B, GLM-4, an already native one), when
            it is quantized or P-tuned, when a setting has no counterpart, or when the family cannot be told.
    """
    path = src / "config.json"
    config = _read_json(path)
    _check_architecture(config, path)
    _check_settings(config, path)
    sizes = {native: _get_positive(config, key, path) for key, native in _SIZES.items()}
    heads, shared = sizes["num_attention_heads"], bool(config.get("multi_query_attention", False))
    groups = _get_positive(config, "multi_query_group_num", path) if shared else heads
    if heads % groups:
        raise ModelError(f"{path}: {heads} attention heads cannot be shared out over {groups} multi_query_group_num")
    kind = family or _find_family(src, config)
    ratio = float(config.get("rope_ratio") or 1)
    rope = {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.5}
    if kind == "chatglm3":
        rope["rope_theta"] = 10_000.0 * ratio
    elif ratio != 1:
        rope |= {"rope_type": "linear", "factor": ratio}
    native = {
        "architectures": ["GlmForCausalLM"],
        "num_key_value_heads": groups,
        "rms_norm_eps": float(config.get("layernorm_epsilon", 1e-5)),
        "rope_parameters": rope,
        "attention_bias": bool(config.get("add_qkv_bias", False)),
        "tie_word_embeddings": False,
        **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id")),
    }
    return Published(kind, not shared, sizes | native)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return read_json(path)
    except DataError as error:
        raise ModelError(f"{error}; give the folder of a ChatGLM2 or ChatGLM3 checkpoint") from error


def _check_architecture(config: Mapping[str, Any], path: Path) -> None:
    kind = config.get("model_type")
    if kind in ("glm", "glm4"):
        raise ModelError(f"{path}: this checkpoint is already native (model_type {kind}); use it directly")
    if "position_encoding_2d" in config or "inner_hidden_size" in config:
        raise ModelError(
            f"{path}: this is ChatGLM-6B, the first one, whose two-dimensional positions and two-way attention over "
            "the prompt have no native counterpart; convert ChatGLM2-6B or ChatGLM3-6B"
        )
    if kind != "chatglm" or "padded_vocab_size" not in config:
        raise ModelError(
            f"{path}: expected the configuration of ChatGLM2 or ChatGLM3 (model_type chatglm, with padded_vocab_size, "
            f"num_layers, …), found model_type {kind!r}"
        )
    if config["padded_vocab_size"] == _GLM4_VOCABULARY:
        raise ModelError(
            f"{path}: this is GLM-4, which has native checkpoints, such as zai-org/glm-4-9b-chat-hf; use one"
        )


def _check_settings(config: Mapping[str, Any], path: Path) -> None:
    if config.get("quantization_bit"):
        raise ModelError(
            f"{path}: the weights are quantized to {config['quantization_bit']} bits; convert the full checkpoint "
            "(a QLoRA recipe quantizes it again)"
        )
    if config.get("pre_seq_len"):
        raise ModelError(
            f"{path}: pre_seq_len is set: a P-tuning prefix cannot be kept; convert the model it belongs to"
        )
    differing = [f"{key} is {config[key]}" for key, only in _ONLY.items() if config.get(key, only) != only]
    if differing:
        raise ModelError(f"{path}: GlmForCausalLM has no such architecture: {', '.join(differing)}")


def _get_positive(config: Mapping[str, Any], key: str, path: Path) -> int:
    value = config.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ModelError(f"{path}: {key} should be a whole number above 0, found {value!r}")
    return value


def _find_family(src: Path, config: Mapping[str, Any]) -> Family:
    code = src / "tokenization_chatglm.py"
    if code.is_file():
        return "chatglm3" if "<|assistant|>" in code.read_text(encoding="utf-8", errors="replace") else "chatglm2"
    described = src / "tokenizer_config.json"
    names = [config.get("_name_or_path"), _read_json(described).get("name_or_path") if described.is_file() else None]
    families: tuple[Family, ...] = get_args(Family)
    for family in families:
        if any(isinstance(name, str) and family in name.lower() for name in names):
            return family
    raise ModelError(f"{src}: the folder does not say whether it is ChatGLM2 or ChatGLM3; add --family {families[0]}")
