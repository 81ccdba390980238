"""The shapes of real models, as configurations without weights: what decides their sizes and their work, and no more.

Each is from the ``config.json`` on the Hub; ChatGLM2-6B's is as `rolellm data convert-chatglm` writes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

_LLAMA_3: Final = {
    "num_key_value_heads": 8,
    "vocab_size": 128_256,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 500_000.0},
}

#: By name: the model type of transformers, and what differs from its defaults (for llama those are LLaMA-7B's, for glm
#: GLM-4-9B's).
SHAPES: Final[Mapping[str, tuple[str, Mapping[str, Any]]]] = MappingProxyType(
    {
        "llama-3.2-1b": (
            "llama",
            {
                **_LLAMA_3,
                "hidden_size": 2048,
                "intermediate_size": 8192,
                "num_hidden_layers": 16,
                "num_attention_heads": 32,
                "head_dim": 64,
                "tie_word_embeddings": True,
            },
        ),
        # Of no model: to see on a CPU that all runs.
        "tiny": (
            "llama",
            {
                "vocab_size": 8000,
                "hidden_size": 64,
                "intermediate_size": 128,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "head_dim": 16,
            },
        ),
        "llama-7b": ("llama", {}),
        "llama-3.1-8b": ("llama", {**_LLAMA_3, "hidden_size": 4096, "intermediate_size": 14_336}),
        "llama-13b": (
            "llama",
            {
                "hidden_size": 5120,
                "intermediate_size": 13_824,
                "num_hidden_layers": 40,
                "num_attention_heads": 40,
                "num_key_value_heads": 40,
            },
        ),
        "chatglm2-6b": ("glm", {"vocab_size": 65_024, "num_hidden_layers": 28, "max_position_embeddings": 32_768}),
        "glm-4-9b": ("glm", {}),
    }
)


def shape(name: str) -> PreTrainedConfig:
    """The configuration of a model.

    Args:
        name: One of `SHAPES`.

    Raises:
        KeyError: For another name.
    """
    from transformers import AutoConfig

    family, values = SHAPES[name]
    # The default of glm lies outside ChatGLM2's vocabulary.
    return AutoConfig.for_model(family, pad_token_id=None, **values)
