"""Families of models in which tokens meet in attention alone, so that prompts and replies can share a beginning."""

from __future__ import annotations

from typing import Any

#: Types of models in which tokens meet in attention alone, and there under the mask that they are given; others (with
#: recurrent or convolutional layers, say) would let replies see each other without a word. Each is tested.
EXACT = ("gemma2", "gemma3_text", "glm", "glm4", "llama", "mistral", "phi", "phi3", "qwen2", "qwen3")


def explain_not_shared(config: Any, longest: int) -> str | None:
    """Explain why shared beginnings are not known to be exact for a model, by its configuration alone.

    Args:
        config: The configuration.
        longest: Tokens of the longest prompt with its reply.

    Returns:
        The end of a sentence that begins with "the base is"; ``None`` where they are exact.
    """
    if config.model_type not in EXACT:
        return f"a model of type {config.model_type}; shared prefixes are known to be exact for {', '.join(EXACT)}"
    if getattr(config, "use_bidirectional_attention", None) or not getattr(config, "is_causal", True):
        return "one whose tokens see those after them"
    ropes = config.rope_parameters or {}
    for rope in (ropes, *ropes.values()):
        if isinstance(rope, dict) and rope.get("rope_type") == "longrope":
            limit = rope["original_max_position_embeddings"]
            if longest > limit:
                return f"one that encodes positions in another way beyond {limit} tokens; the longest row has {longest}"
    return None
