"""Who sees whom in a packed sequence, for two attentions of transformers, and the models in which that is all.

This module imports torch at its head; import it inside functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from rolellm.core.errors import ModelError

# Types of models in which tokens meet in attention alone, and there under the mask that they are given; others (with
# recurrent or convolutional layers, say) would let replies see each other without a word. Each is tested.
EXACT = ("glm", "glm4", "llama", "mistral", "qwen2", "qwen3")

_BLOCKS, _FLEX = "rolellm_blocks", "rolellm_flex"
# Tokens a block on a CPU: measured, 96 to 192 are alike.
_BLOCK = 128


def attend(model: Any, *, flex: bool, longest: int) -> None:
    """Set a model's attention to the one that the masks of packs are for.

    Args:
        model: A causal language model of transformers, not yet wrapped.
        flex: FlexAttention, instead of SDPA block by block.
        longest: Tokens of the longest prompt with its reply.

    Raises:
        ModelError: As `check_packing` does.
    """
    check_packing(model.config, flex=flex, longest=longest)
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import flex_attention_mask, sdpa_mask

    name, attention, mask = (
        (_FLEX, flex_attention, flex_attention_mask) if flex else (_BLOCKS, block_attention, sdpa_mask)
    )
    AttentionInterface.register(name, attention)
    AttentionMaskInterface.register(name, mask)
    model.set_attn_implementation(name)


def check_packing(config: Any, *, flex: bool, longest: int) -> None:
    """Check by a model's configuration alone that packs are exact for it.

    Args:
        config: The configuration.
        flex: As in `attend`.
        longest: As in `attend`.

    Raises:
        ModelError: For a type of model that packs are not known to be exact for, or one with a shorter window.
    """
    kind, window = config.model_type, getattr(config, "sliding_window", None)
    found = None
    if kind not in EXACT:
        found = f"a model of type {kind}; replies that share a prefix are known to be exact for {', '.join(EXACT)}"
    elif window is not None and longest > window:
        found = (
            f"one with attention in a window of {window} tokens, which packs cannot keep to with examples of {longest}"
        )
    elif flex and getattr(config, "attention_dropout", None):
        found = "one with dropout in its attention, which FlexAttention does not have"
    if found is not None:
        raise ModelError(f"the base is {found}; set training.shared_prefix: false")


@dataclass(frozen=True, slots=True)
class Block:
    """Neighboring tokens of a packed sequence, and all that they see.

    Attributes:
        start: The first of them.
        stop: Where they end.
        before: ``(seen,)``: places of earlier tokens that one of them sees; those at the start's own path.
        mask: ``(1, 1, stop - start, seen + stop - start)`` booleans: which token sees which of these and of its own.
    """

    start: int
    stop: int
    before: torch.Tensor
    mask: torch.Tensor


def blocks(ends: torch.Tensor, size: int = _BLOCK) -> list[Block]:
    """Cut a packed sequence into blocks.

    A mask over the whole sequence would cost its length squared, though no token sees more than its own path.

    Args:
        ends: ``(length,)``, as in `rolellm.rocit.packing.tree.Packed`.
        size: Tokens a block.
    """
    places = torch.arange(len(ends), device=ends.device)
    made = []
    for start in range(0, len(ends), size):
        stop = min(start + size, len(ends))
        before = (ends[:start] > start).nonzero().flatten()
        keys, queries = torch.cat([before, places[start:stop]]), places[start:stop]
        mask = (keys[None, :] <= queries[:, None]) & (queries[:, None] < ends[keys][None, :])
        made.append(Block(start, stop, before, mask[None, None]))
    return made


def block_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    tree: Sequence[Block] | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """SDPA over one packed sequence, block by block; an attention function as transformers calls them.

    Args:
        module: The attention layer.
        query: ``(1, heads, length, width)``.
        key: ``(1, key heads, length, width)``.
        value: As ``key``.
        attention_mask: For a batch that is no packed sequence.
        tree: The blocks of the sequence; without them this is transformers' own SDPA.
        options: ``scaling``, ``dropout`` and what else transformers hands on.

    Returns:
        ``(1, length, heads, width)``, and no weights.
    """
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    if tree is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)  # type: ignore[no-any-return]
    parts = []
    for block in tree:
        here = slice(block.start, block.stop)
        keys, values = (torch.cat([side[:, :, block.before], side[:, :, here]], dim=2) for side in (key, value))
        part, _ = sdpa_attention_forward(module, query[:, :, here], keys, values, block.mask, **options)
        parts.append(part)
    return torch.cat(parts, dim=1), None


def flex_attention(
    module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: Any, **options: Any
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """FlexAttention in one type; an attention function as transformers calls them.

    Under autocast, rotated queries and keys of float32 weights come in float32 next to values in bfloat16.
    """
    from transformers.integrations.flex_attention import flex_attention_forward

    query, key = query.to(value.dtype), key.to(value.dtype)
    return flex_attention_forward(module, query, key, value, attention_mask, **options)  # type: ignore[no-any-return]


def block_mask(ends: torch.Tensor) -> Any:
    """The same as a ``BlockMask`` for FlexAttention, which skips the blocks in which no token sees another.

    Args:
        ends: ``(length,)`` on the device of the attention.

    Returns:
        A ``torch.nn.attention.flex_attention.BlockMask`` for one sequence and all heads.
    """
    from torch.nn.attention.flex_attention import create_block_mask

    def seen(batch: Any, head: Any, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return (key <= query) & (query < ends[key])

    build = _compiled(create_block_mask) if ends.device.type == "cuda" else create_block_mask
    return build(seen, B=None, H=None, Q_LEN=len(ends), KV_LEN=len(ends), device=str(ends.device))


@lru_cache
def _compiled(function: Any) -> Any:
    return torch.compile(function)
