"""Who sees whom in a packed sequence, for two attentions of transformers, and the models in which that is all.

This module imports torch at its head; import it inside functions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from rolellm.core.errors import ModelError
from rolellm.models.families import EXACT as EXACT
from rolellm.models.families import why_not_shared

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
        ModelError: When packs are not known to be exact for the model; see `why_rows`.
    """
    if reason := why_rows(model.config, flex=flex, longest=longest):
        raise ModelError(f"the base is {reason}; set training.shared_prefix: false")
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import flex_attention_mask, sdpa_mask

    name, attention, mask = (
        (_FLEX, flex_attention, flex_attention_mask) if flex else (_BLOCKS, block_attention, sdpa_mask)
    )
    AttentionInterface.register(name, attention)
    AttentionMaskInterface.register(name, mask)
    model.set_attn_implementation(name)


def why_rows(config: Any, *, flex: bool, longest: int) -> str | None:
    """What a model is for which packs are not known to be exact, by its configuration alone.

    Args:
        config: The configuration.
        flex: As in `attend`.
        longest: As in `attend`.

    Returns:
        The end of a sentence that begins with "the base is"; ``None`` where packs are exact.
    """
    if reason := why_not_shared(config, longest):
        return reason
    if flex and getattr(config, "attention_dropout", None):
        return "one with dropout in its attention, which FlexAttention does not have"
    return None


@dataclass(frozen=True, slots=True)
class Block:
    """Neighboring tokens of a packed sequence, and all that they see.

    Attributes:
        start: The first of them.
        stop: Where they end.
        before: ``(seen,)``: places of earlier tokens that one of them sees; those at the start's own path.
        mask: ``(1, 1, stop - start, seen + stop - start)`` booleans: which token sees which of these and of its own.
        depths: ``(seen + stop - start,)``: the place of each of these on its own path.
    """

    start: int
    stop: int
    before: torch.Tensor
    mask: torch.Tensor
    depths: torch.Tensor

    def within(self, window: int | None) -> torch.Tensor:
        """The mask under a sliding window of that many tokens, a token itself included; with ``None``, under none."""
        if window is None:
            return self.mask
        return self.mask & (self.depths[self.start - self.stop :, None] - self.depths < window)


def blocks(ends: torch.Tensor, depths: torch.Tensor, size: int = _BLOCK) -> list[Block]:
    """Cut a packed sequence into blocks.

    A mask over the whole sequence would cost its length squared, though no token sees more than its own path.

    Args:
        ends: ``(length,)``, as in `rolellm.rocit.packing.tree.Packed`.
        depths: ``(length,)``: the ``positions`` there.
        size: Tokens a block.
    """
    places = torch.arange(len(ends), device=ends.device)
    made = []
    for start in range(0, len(ends), size):
        stop = min(start + size, len(ends))
        before = (ends[:start] > start).nonzero().flatten()
        keys, queries = torch.cat([before, places[start:stop]]), places[start:stop]
        mask = (keys[None, :] <= queries[:, None]) & (queries[:, None] < ends[keys][None, :])
        made.append(Block(start, stop, before, mask[None, None], depths[keys]))
    return made


def block_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    tree: Sequence[Block] | None = None,
    sliding_window: int | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Attention over one packed sequence, block by block; an attention function as transformers calls them.

    Args:
        module: The attention layer.
        query: ``(1, heads, length, width)``.
        key: ``(1, key heads, length, width)``.
        value: As ``key``.
        attention_mask: For a batch that is no packed sequence.
        tree: The blocks of the sequence; without them this is transformers' own SDPA.
        sliding_window: How far back the layer's tokens see.
        options: ``scaling``, ``dropout`` and what else transformers hands on; SDPA has no ``softcap``, so that goes
            through transformers' attention in plain torch.

    Returns:
        ``(1, length, heads, width)``, and no weights.
    """
    from transformers.integrations.sdpa_attention import sdpa_attention_forward as attention

    if tree is None:
        return attention(module, query, key, value, attention_mask, **options)  # type: ignore[no-any-return]
    capped = options.get("softcap") is not None
    if capped:
        from transformers.models.gemma2.modeling_gemma2 import eager_attention_forward as attention
    parts = []
    for block in tree:
        here = slice(block.start, block.stop)
        keys, values = (torch.cat([side[:, :, block.before], side[:, :, here]], dim=2) for side in (key, value))
        mask = block.within(sliding_window)
        if capped:
            mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill(~mask, torch.finfo(query.dtype).min)
        part, _ = attention(module, query[:, :, here], keys, values, mask, **options)
        parts.append(part)
    return torch.cat(parts, dim=1), None


def flex_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Any,
    *,
    tree: Callable[[int], Any] | None = None,
    sliding_window: int | None = None,
    **options: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """FlexAttention in one type; an attention function as transformers calls them.

    Under autocast, rotated queries and keys of float32 weights come in float32 next to values in bfloat16. A layer that
    sees no further back than a window takes the mask that ``tree`` gives for it.
    """
    from transformers.integrations.flex_attention import flex_attention_forward

    if tree is not None and sliding_window is not None:
        attention_mask = tree(sliding_window)
    query, key = query.to(value.dtype), key.to(value.dtype)
    return flex_attention_forward(module, query, key, value, attention_mask, **options)  # type: ignore[no-any-return]


def block_mask(ends: torch.Tensor, depths: torch.Tensor, window: int | None = None) -> Any:
    """The same as a ``BlockMask`` for FlexAttention, which skips the blocks in which no token sees another.

    Args:
        ends: ``(length,)`` on the device of the attention.
        depths: As for `blocks`.
        window: As for `Block.within`.

    Returns:
        A ``torch.nn.attention.flex_attention.BlockMask`` for one sequence and all heads.
    """
    from torch.nn.attention.flex_attention import create_block_mask

    def seen(batch: Any, head: Any, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        on_path = (key <= query) & (query < ends[key])
        return on_path if window is None else on_path & (depths[query] - depths[key] < window)

    build = _compiled(create_block_mask) if ends.device.type == "cuda" else create_block_mask
    return build(seen, B=None, H=None, Q_LEN=len(ends), KV_LEN=len(ends), device=str(ends.device))


@lru_cache
def _compiled(function: Any) -> Any:
    return torch.compile(function)
