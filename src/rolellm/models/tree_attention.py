"""Attention over a tree of tokens: by SDPA block by block, or by FlexAttention.

This module imports torch at its head; import it inside functions.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Final, Literal

import torch
from torch.nn import functional

from rolellm.core.errors import RoleLLMWarning, is_out_of_memory

#: How to attend: ``auto`` is FlexAttention on a GPU, once it has been compared with the blocks there.
Attention = Literal["auto", "flex", "blocks"]
# Tokens per block: on a CPU, 96 to 192 are alike; FlexAttention's kernels want 128.
_BLOCK: Final = 128
# Of the norm: sums in bfloat16 differ by less.
_TOLERANCE: Final = {torch.float32: 1e-4, torch.float64: 1e-8}


def send(values: torch.Tensor, device: torch.device | str) -> torch.Tensor:
    """Copy to a device without waiting for it, which CUDA does from pinned memory only."""
    if values.is_cpu and torch.device(device).type == "cuda":
        values = values.pin_memory()
    return values.to(device, non_blocking=True)


@dataclass(frozen=True, slots=True)
class TreeBlock:
    """Neighboring tokens of a tree, and all that they see.

    Attributes:
        keys: ``(seen,)``: tokens that one of them sees: those on the path of the first, then their own.
        mask: ``(1, 1, tokens, seen)`` booleans: which token sees which of these.
        positions: ``(seen,)``: the position of each of these in its row.
    """

    keys: torch.Tensor
    mask: torch.Tensor
    positions: torch.Tensor

    def apply_window(self, window: int | None) -> torch.Tensor:
        """The mask under a sliding window of that many tokens, a token itself included; with ``None``, under none."""
        if window is None:
            return self.mask
        own = self.positions[-self.mask.shape[2] :]
        distances = own[:, None] - self.positions
        return self.mask & (distances < window)


class TreeMask:
    """The mask of which token of a tree sees which, for the attention of all layers.

    Args:
        ends: ``(length,)``, as in `rolellm.models.prefix_sharing.PrefixTree`; on the host, so that no device is waited
            for.
        positions: ``(length,)``: likewise.
        attention: How to attend.
        device: Where.

    Attributes:
        calls: How often a layer attended.
        states: Which hidden states leave the backbone, ``(rows, columns)`` or, of scored tokens, ``(1, scored)``.
        is_scored: ``(rows, columns - 1)``: which tokens are followed by a label; ``None`` where all states are wanted.
        scored: ``(scored,)``: the numbers of those, row after row.
        kernel_options: For FlexAttention.
    """

    def __init__(
        self,
        ends: torch.Tensor,
        positions: torch.Tensor,
        attention: Attention = "auto",
        device: torch.device | str = "cpu",
    ) -> None:
        self.ends = send(ends, device)
        self.positions = send(positions, device)
        self.calls = 0
        self.states = self.scored = ends.new_zeros(0)
        self.is_scored: torch.Tensor | None = None
        self.kernel_options: dict[str, Any] | None = None
        self._host_ends = ends
        self._attention = attention
        self._block_masks: dict[int | None, Any] = {}

    @cached_property
    def blocks(self) -> list[TreeBlock]:
        """The blocks of the sequence: one mask over all of it would cost its length squared."""
        columns = torch.arange(len(self.ends))
        blocks = []
        for start in range(0, len(self.ends), _BLOCK):
            queries = columns[start : start + _BLOCK]
            before = (self._host_ends[:start] > start).nonzero().flatten()
            keys = send(torch.cat([before, queries]), self.ends.device)
            rows = keys[len(before) :, None]
            is_before = keys <= rows
            is_open = rows < self.ends[keys]
            mask = (is_before & is_open)[None, None]
            blocks.append(TreeBlock(keys, mask, self.positions[keys]))
        return blocks

    @cached_property
    def seen(self) -> torch.Tensor:
        """``(seen,)``: the tokens that each block sees, block after block."""
        return torch.cat([block.keys for block in self.blocks])

    def make_block_mask(self, window: int | None) -> Any:
        """The same for FlexAttention, as a ``BlockMask``: it skips pairs of blocks in which no token sees another.

        The table of blocks comes from the least and greatest end and position of each block, without a look at pairs
        of tokens. Under a window it may hold pairs in which nothing is seen, which costs time only.
        """
        if window not in self._block_masks:
            self._block_masks[window] = _make_block_mask(self.ends, self.positions, window)
        return self._block_masks[window]

    def uses_flex(self, query: torch.Tensor, key: torch.Tensor, dropout: float) -> bool:
        """True if FlexAttention attends: it has no dropout."""
        if self._attention == "blocks" or dropout:
            return False
        if self._attention == "flex":
            return True
        if not query.is_cuda:
            return False
        _, heads, _, width = query.shape
        return _check_flex(query.device, query.dtype, heads, key.shape[1], width)


def attend_tree(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    tree: TreeMask,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    softcap: float | None = None,
    sliding_window: int | None = None,
    **_unused: Any,
) -> torch.Tensor:
    """Attention over one tree; what else transformers hands to an attention is ignored.

    Args:
        query: ``(1, heads, length, width)``.
        key: ``(1, key heads, length, width)``.
        value: As ``key``.
        tree: Who sees whom.
        scaling: Factor of the scores.
        dropout: Share of weights to drop.
        softcap: Bound of the scores.
        sliding_window: How far back the layer's tokens see.

    Returns:
        ``(1, length, heads, width)``.
    """
    tree.calls += 1
    # Under autocast, rotated queries and keys of float32 weights come in float32 next to values in bfloat16.
    query = query.to(value.dtype)
    key = key.to(value.dtype)
    if tree.uses_flex(query, key, dropout):
        return _attend_flex(query, key, value, tree, scaling, softcap, sliding_window)
    return _attend_blocks(query, key, value, tree, scaling, dropout, softcap, sliding_window)


def _attend_blocks(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    tree: TreeMask,
    scaling: float | None,
    dropout: float,
    softcap: float | None,
    window: int | None,
) -> torch.Tensor:
    repeats = query.shape[1] // key.shape[1]
    # One gather for all blocks: the gradient of each slice would be as long as the tree.
    both = torch.cat([key, value], dim=1).transpose(1, 2)
    gathered = functional.embedding(tree.seen, both[0].flatten(1))
    lengths = [len(block.keys) for block in tree.blocks]
    pairs = torch.split(gathered.view(1, -1, *both.shape[2:]), lengths, dim=1)
    queries = torch.split(query, _BLOCK, dim=2)
    parts = []
    for block, own, pair in zip(tree.blocks, queries, pairs, strict=True):
        keys, values = pair.transpose(1, 2).chunk(2, dim=1)
        if repeats > 1:
            keys = keys.repeat_interleave(repeats, 1)
            values = values.repeat_interleave(repeats, 1)
        mask = block.apply_window(window)
        if softcap is None:
            part = functional.scaled_dot_product_attention(own, keys, values, mask, dropout, scale=scaling)
        else:
            part = _attend_capped(own, keys, values, mask, scaling, dropout, softcap)
        parts.append(part)
    return torch.cat(parts, dim=2).transpose(1, 2)


def _attend_capped(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor,
    scaling: float | None,
    dropout: float,
    softcap: float,
) -> torch.Tensor:
    """Attention whose scores are bounded, which SDPA cannot do."""
    if scaling is None:
        scaling = query.shape[3] ** -0.5
    scores = query @ key.transpose(-1, -2) * scaling
    scores = (scores / softcap).tanh() * softcap
    lowest = torch.finfo(scores.dtype).min
    scores = scores.masked_fill(~mask, lowest)
    weights = scores.softmax(dim=-1, dtype=torch.float32).to(query.dtype)
    return functional.dropout(weights, dropout) @ value


def _attend_flex(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    tree: TreeMask,
    scaling: float | None,
    softcap: float | None,
    window: int | None,
) -> torch.Tensor:
    attention = _compile_flex() if query.is_cuda else _import_flex()
    mask = tree.make_block_mask(window)
    attended: torch.Tensor = attention(
        query, key, value, _cap(softcap), mask, scaling, enable_gqa=True, kernel_options=tree.kernel_options
    )
    return attended.transpose(1, 2)


def _import_flex() -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    return flex_attention


@lru_cache
def _compile_flex() -> Any:
    """FlexAttention, compiled for all lengths; past its limit of graphs it raises, where torch would run it unfused."""
    return torch.compile(_import_flex(), dynamic=True, fullgraph=True)


@lru_cache
def _cap(bound: float | None) -> Callable[..., torch.Tensor] | None:
    if bound is None:
        return None

    def cap(score: torch.Tensor, _batch: Any, _head: Any, _query: Any, _key: Any) -> torch.Tensor:
        return torch.tanh(score / bound) * bound

    return cap


def _make_block_mask(ends: torch.Tensor, positions: torch.Tensor, window: int | None) -> Any:
    from torch.nn.attention.flex_attention import BlockMask

    length = len(ends)
    count = -(-length // _BLOCK)
    table = torch.stack([ends, positions])
    padded = functional.pad(table, (0, -length % _BLOCK))
    of_blocks = padded.view(2, count, _BLOCK)
    # Zeros of padding change no maximum, and no least of a block that is seen whole.
    last_end, last_position = of_blocks.amax(2)
    first_end, first_position = of_blocks.amin(2)
    # Query blocks are rows, key blocks columns.
    keys = torch.arange(count, device=ends.device) * _BLOCK
    queries = keys[:, None]
    earlier = keys < queries
    is_seen = (earlier & (last_end > queries)) | (keys == queries)
    is_whole = earlier & (first_end >= queries + _BLOCK)
    if window is not None:
        is_seen &= first_position[:, None] - last_position < window
        is_whole &= last_position[:, None] - first_position < window

    # FlexAttention does not mask what it takes for whole; a last block that is cut off is left to its kernels.
    def is_visible(_batch: Any, _head: Any, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        on_path = (key <= query) & (query < ends[key])
        if window is None:
            return on_path
        return on_path & (positions[query] - positions[key] < window)

    masked = _list_pairs(is_seen & ~is_whole)
    whole = _list_pairs(is_seen & is_whole)
    return BlockMask.from_kv_blocks(*masked, *whole, _BLOCK, is_visible, (length, length))


def _list_pairs(pairs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """List pairs of blocks: how many there are for each query block, and which, those first."""
    pairs = pairs[None, None].int()
    order = pairs.argsort(descending=True, stable=True)
    return pairs.sum(-1).int(), order.int()


@lru_cache
def _check_flex(device: torch.device, dtype: torch.dtype, heads: int, key_heads: int, width: int) -> bool:
    """Check that FlexAttention gives what the blocks give, with its gradients, for a small tree on a device."""
    length, stem = 3 * _BLOCK, _BLOCK + 40
    # A stem, and two branches of which neither sees the other.
    ends = torch.full((length,), length)
    ends[stem : stem + 90] = stem + 90
    positions = torch.arange(length)
    positions[stem + 90 :] -= 90
    generator = torch.Generator().manual_seed(0)
    shapes = [(1, count, length, width) for count in (heads, key_heads, key_heads)]
    inputs = [torch.randn(shape, generator=generator).to(device, dtype) for shape in shapes]
    tolerance = _TOLERANCE.get(dtype, 2e-2)
    try:
        with torch.enable_grad():
            flex = _attend_with_gradients(inputs, TreeMask(ends, positions, "flex", device))
            blocks = _attend_with_gradients(inputs, TreeMask(ends, positions, "blocks", device))
        errors = []
        for actual, expected in zip(flex, blocks, strict=True):
            errors.append((actual - expected).norm() / expected.norm())
        # Not Python's maximum, which may pass over a NaN.
        error = float(torch.stack(errors).max())
        reason = f"a relative error of {error:.1e}"
        agrees = error < tolerance
    except Exception as failure:  # Whatever a compiler may raise.
        if is_out_of_memory(failure):
            raise
        reason = f"{type(failure).__name__}: {str(failure)[:200]}"
        agrees = False
    if not agrees:
        warnings.warn(
            f"FlexAttention fails its comparison with plain attention on {device} ({reason}), so attention runs in "
            "blocks, which is slower; training.attention: blocks says so without this warning",
            RoleLLMWarning,
            stacklevel=2,
        )
    return agrees


def _attend_with_gradients(inputs: list[torch.Tensor], tree: TreeMask) -> list[torch.Tensor]:
    query, key, value = (tensor.detach().clone().requires_grad_() for tensor in inputs)
    # A layer may be under a checkpoint, which would take these tensors for its own.
    with torch.autograd.graph.saved_tensors_hooks(lambda saved: saved, lambda saved: saved):
        attended = attend_tree(query, key, value, tree)
        loss = attended.float().square().sum()
        gradients = torch.autograd.grad(loss, [query, key, value])
        return [attended.detach(), *gradients]
