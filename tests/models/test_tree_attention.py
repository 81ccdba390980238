"""Attention over a tree: its masks say what `PrefixTree.ends` says, and every way to attend gives the same numbers."""

import shutil
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import create_mask, flex_attention

from rolellm.core.errors import RoleLLMWarning
from rolellm.models import tree_attention
from rolellm.models.prefix_sharing import PrefixTree, fold_rows
from rolellm.models.tree_attention import TreeMask, attend_tree

from .test_prefix_tree import ROWS, pad

WINDOWS = st.none() | st.integers(1, 6)
HEADS = pytest.mark.parametrize("key_heads", [4, 2], ids=["every-head-its-keys", "grouped-heads"])


# What torch says of itself when FlexAttention runs uncompiled.
pytestmark = [
    pytest.mark.usefixtures("flex_gradients"),
    pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning"),
    pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning"),
]


def mask_of(tree: PrefixTree, attention: Any = "blocks", padding: int = 0) -> TreeMask:
    """The mask of a tree; tokens of padding after it see themselves alone."""
    length = len(tree.ids)
    ends = np.concatenate([tree.ends, np.arange(length + 1, length + padding + 1)])
    positions = np.concatenate([tree.positions, np.zeros(padding, np.int64)])
    return TreeMask(torch.from_numpy(ends), torch.from_numpy(positions), attention)


def visible(mask: TreeMask, window: int | None = None) -> torch.Tensor:
    """``(length, length)``: which token sees which, by the plain words."""
    tokens = torch.arange(len(mask.ends))
    seen = (tokens[None, :] <= tokens[:, None]) & (tokens[:, None] < mask.ends[None, :])
    return seen if window is None else seen & (mask.positions[:, None] - mask.positions[None, :] < window)


def role_tree(questions: int = 3, replies: int = 4, scale: int = 12) -> PrefixTree:
    """A role with questions and replies of which each is a multiple of ``scale`` tokens: several blocks."""
    rows = [
        [1] * (5 * scale) + [10 + question] * scale + [100 + reply] * (2 * scale)
        for question in range(questions)
        for reply in range(replies)
    ]
    return fold_rows(*pad(rows, "right"))


def random_inputs(length: int, key_heads: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(1, heads, length, 16) for heads in (4, key_heads, key_heads)]
    return [torch.randn(shape, generator=generator).to(dtype).requires_grad_() for shape in shapes]


def attend_densely(inputs: list[torch.Tensor], seen: torch.Tensor, softcap: float | None) -> torch.Tensor:
    query, key, value = inputs
    key, value = (side.repeat_interleave(query.shape[1] // side.shape[1], 1) for side in (key, value))
    scores = query @ key.transpose(2, 3) / 4
    scores = scores if softcap is None else softcap * (scores / softcap).tanh()
    return (scores.masked_fill(~seen, -torch.inf).softmax(-1) @ value).transpose(1, 2)


def with_gradients(inputs: list[torch.Tensor], attended: torch.Tensor) -> list[torch.Tensor]:
    weights = torch.randn(attended.shape, generator=torch.Generator().manual_seed(1))
    return [attended, *torch.autograd.grad((attended * weights).sum(), inputs)]


@given(rows=ROWS, padding=st.integers(0, 5), size=st.integers(1, 9), window=WINDOWS)
def test_blocks_are_what_each_token_sees_and_nothing_more(
    rows: list[list[int]], padding: int, size: int, window: int | None
) -> None:
    mask = mask_of(fold_rows(*pad(rows, "left")), padding=padding)
    length = len(mask.ends)
    seen, near = torch.zeros(2, length, length, dtype=torch.bool)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tree_attention, "_BLOCK", size)
        blocks = mask.blocks
    starts = list(range(0, length, size))
    for start, block in zip(starts, blocks, strict=True):
        keys, own = block.keys, slice(start, start + size)
        assert torch.equal(block.positions, mask.positions[keys])
        seen[own, keys] = block.mask[0, 0]
        near[own, keys] = block.apply_window(window)[0, 0]
        # Nothing is multiplied for nothing: the first token sees all that comes before the block.
        assert block.mask[0, 0, 0, keys < start].all()
    assert torch.equal(seen, visible(mask))
    assert torch.equal(near, visible(mask, window))


@given(rows=ROWS, padding=st.integers(0, 5), size=st.integers(1, 9), window=WINDOWS)
def test_the_block_mask_skips_no_pair_that_is_seen_and_takes_none_for_whole_that_is_not(
    rows: list[list[int]], padding: int, size: int, window: int | None
) -> None:
    mask = mask_of(fold_rows(*pad(rows, "left")), padding=padding)
    length, seen = len(mask.ends), visible(mask, window)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tree_attention, "_BLOCK", size)
        table = mask.make_block_mask(window)
    assert torch.equal(create_mask(table.mask_mod, 1, 1, length, length, device="cpu")[0, 0], seen)
    count = -(-length // size)
    for query in range(count):
        partial, whole = (
            set(indices[0, 0, query, : numbers[0, 0, query]].tolist())
            for numbers, indices in (
                (table.kv_num_blocks, table.kv_indices),
                (table.full_kv_num_blocks, table.full_kv_indices),
            )
        )
        assert not partial & whole
        for key in range(count):
            pair = seen[query * size : (query + 1) * size, key * size : (key + 1) * size]
            if key in whole:
                assert pair.shape == (size, size)
                assert pair.all()
            elif pair.any() or window is None:  # Under a window, it may hold a pair in which nothing is seen.
                assert (key in partial) == pair.any()
    assert mask.make_block_mask(window) is table


@HEADS
@pytest.mark.parametrize("window", [None, 30], ids=["whole", "window"])
@pytest.mark.parametrize("softcap", [None, 1.5], ids=["plain", "softcap"])
@pytest.mark.parametrize("attention", ["blocks", "flex"])
def test_every_way_to_attend_has_the_numbers_and_gradients_of_a_dense_mask(
    attention: str, softcap: float | None, window: int | None, key_heads: int
) -> None:
    mask = mask_of(role_tree(), attention, padding=3)
    inputs = random_inputs(len(mask.ends), key_heads)
    expected = with_gradients(inputs, attend_densely(inputs, visible(mask, window), softcap))
    actual = with_gradients(inputs, attend_tree(*inputs, mask, softcap=softcap, sliding_window=window))
    for one, other in zip(actual, expected, strict=True):
        assert (one - other).norm() / other.norm() < 1e-6
    assert mask.calls == 1


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("window", [None, 300], ids=["whole", "window"])
def test_a_compiled_kernel_that_goes_by_the_table_alone_sees_the_same(
    window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looks at no pair in a block that is left out, and masks none in a whole one."""
    mask = mask_of(role_tree(scale=40), "flex", padding=5)
    table = mask.make_block_mask(window)
    assert table.full_kv_num_blocks.sum() > 0
    compiled_flex = torch.compile(tree_attention._import_flex(), fullgraph=True)
    monkeypatch.setattr(tree_attention, "_import_flex", lambda: compiled_flex)
    inputs = random_inputs(len(mask.ends), 2)
    with torch.no_grad(), torch.compiler.set_stance("default"):
        compiled = attend_tree(*inputs, mask, sliding_window=window)
        torch.testing.assert_close(compiled, attend_densely(inputs, visible(mask, window), None))


@pytest.mark.parametrize("attention", ["blocks", "flex"])
@pytest.mark.parametrize("softcap", [None, 1.5], ids=["plain", "softcap"])
def test_dropout_drops_in_blocks_since_flex_attention_has_none(attention: str, softcap: float | None) -> None:
    mask = mask_of(role_tree(), attention)
    inputs = random_inputs(len(mask.ends), 2)
    torch.manual_seed(0)
    once, again, never = (attend_tree(*inputs, mask, softcap=softcap, dropout=share) for share in (0.5, 0.5, 0.0))
    assert not torch.equal(once, again)
    # The first token sees itself alone: it is dropped, or doubled.
    first = (once[0, 0] / never[0, 0]).round().unique()
    assert set(first.tolist()) <= {0.0, 2.0}


@pytest.mark.parametrize("attention", ["blocks", "flex"])
def test_queries_and_keys_wider_than_values_become_as_these_are(attention: str) -> None:
    """Rotated, they come in float32 under autocast."""
    mask = mask_of(role_tree(), attention)
    query, key, value = random_inputs(len(mask.ends), 2)
    mixed = attend_tree(query, key, value.bfloat16(), mask)
    assert mixed.dtype == torch.bfloat16
    assert torch.equal(mixed, attend_tree(query.bfloat16(), key.bfloat16(), value.bfloat16(), mask))


def fail(*_: Any, **__: Any) -> None:
    raise RuntimeError("no such kernel")


def ignore_mask(*inputs: Any, enable_gqa: bool, **_: Any) -> torch.Tensor:
    attend = torch.nn.functional.scaled_dot_product_attention
    return attend(*inputs[:3], is_causal=True, enable_gqa=enable_gqa)


def spoil_gradient(*inputs: Any, **options: Any) -> torch.Tensor:
    attended: torch.Tensor = flex_attention(*inputs, **options)
    attended.register_hook(lambda gradient: gradient * torch.nan)
    return attended


@pytest.mark.parametrize(
    ("flex", "words"),
    [
        pytest.param(fail, r"on cpu \(RuntimeError: no such kernel\), so", id="does-not-compile"),
        pytest.param(ignore_mask, r"a relative error of \d\.\de[+-]\d\d", id="ignores-the-mask"),
        pytest.param(spoil_gradient, "a relative error of nan", id="gradients-are-no-numbers"),
    ],
)
def test_a_kernel_that_differs_from_the_blocks_is_not_used(
    flex: Any, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tree_attention, "_import_flex", lambda: flex)
    with pytest.warns(RoleLLMWarning, match=words):
        assert not compare_with_blocks()


def compare_with_blocks() -> bool:
    tree_attention._check_flex.cache_clear()
    return tree_attention._check_flex(torch.device("cpu"), torch.float32, 4, 2, 16)


def test_a_right_kernel_passes_in_a_layer_under_a_checkpoint_which_keeps_its_gradient() -> None:
    def layer(states: torch.Tensor) -> torch.Tensor:
        assert compare_with_blocks()
        return states.square() @ states

    states = torch.randn(4, 4, requires_grad=True)
    results = [torch.utils.checkpoint.checkpoint(layer, states, use_reentrant=False), states.square() @ states]
    torch.testing.assert_close(*(torch.autograd.grad(result.sum(), states)[0] for result in results))
