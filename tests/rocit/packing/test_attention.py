"""Both masks of a pack say what `Packed.ends` says, and attention under either is the same."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolellm.core.errors import ModelError
from rolellm.rocit.packing.examples import Example, Examples
from rolellm.rocit.packing.tree import pack

from ..models import FAMILIES, new_model
from .trees import dense_mask, example_lists, role_rows, visible

WINDOWS = st.none() | st.integers(1, 6)
# Uncompiled, which is what can be run without a GPU.
UNFUSED = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning")


def places_of(made: list[Example], padding: int = 0) -> tuple[Any, Any]:
    """The `ends` and `positions` of a pack of all examples, padded as for a GPU."""
    from rolellm.rocit.packing.layout import tree_tensors

    tree = pack(Examples.of(made), range(len(made)))
    tensors = tree_tensors(tree, len(tree.ids) + padding, 0)
    return tensors["ends"], tensors["position_ids"][0]


def by_the_words(made: list[Example], padding: int, window: int | None = None) -> Any:
    import torch

    tree = pack(Examples.of(made), range(len(made)))
    mask = torch.zeros((len(tree.ids) + padding,) * 2, dtype=torch.bool)
    for place in range(len(tree.ids)):
        # Its path in order, itself last.
        mask[place, visible(tree, place)[-(window or len(tree.ids)) :]] = True
    # What pads a pack sees itself, since attention to nothing is no number.
    for place in range(len(tree.ids), len(mask)):
        mask[place, place] = True
    return mask


@given(example_lists(), st.integers(0, 5), st.integers(1, 9), WINDOWS)
def test_blocks_are_what_each_token_sees_and_nothing_more(
    made: list[Example], padding: int, size: int, window: int | None
) -> None:
    import torch

    from rolellm.rocit.packing.attention import blocks

    ends, depths = places_of(made, padding)
    seen, near = (torch.zeros(len(ends), len(ends), dtype=torch.bool) for _ in range(2))
    made_blocks = blocks(ends, depths, size)
    for block in made_blocks:
        keys = torch.cat([block.before, torch.arange(block.start, block.stop)])
        assert block.mask.shape == (1, 1, block.stop - block.start, len(keys))
        seen[block.start : block.stop, keys] = block.mask[0, 0]
        near[block.start : block.stop, keys] = block.within(window)[0, 0]
        # What comes before is looked at by some token of the block: the first, whose path it is.
        assert block.mask[0, 0, 0, : len(block.before)].all()
    assert [block.start for block in made_blocks] == list(range(0, len(ends), size))
    assert torch.equal(seen, by_the_words(made, padding))
    assert torch.equal(seen, dense_mask(ends)[0, 0])
    assert torch.equal(near, by_the_words(made, padding, window))


@pytest.mark.parametrize("size", [1, 7, 128, 10_000])
@pytest.mark.parametrize("heads", [4, 2], ids=["every-head-its-keys", "grouped-heads"])
def test_attention_by_blocks_is_attention_under_the_whole_mask(size: int, heads: int) -> None:
    import torch

    from rolellm.rocit.packing.attention import block_attention, blocks

    ends, depths = places_of(role_rows(3, 2, 4), padding=3)
    torch.manual_seed(0)
    layer = torch.nn.Module()
    layer.num_key_value_groups, layer.is_causal = 4 // heads, True  # type: ignore[assignment]
    sides = [torch.randn(1, count, len(ends), 16, requires_grad=True) for count in (4, heads, heads)]
    weights = torch.randn(1, len(ends), 4, 16)
    whole = torch.nn.functional.scaled_dot_product_attention(
        *sides, attn_mask=dense_mask(ends), enable_gqa=True
    ).transpose(1, 2)
    parts, _ = block_attention(layer, *sides, None, tree=blocks(ends, depths, size), scaling=None, dropout=0.0)
    assert torch.allclose(parts, whole, atol=1e-6)
    for one, other in zip(*(torch.autograd.grad((out * weights).sum(), sides) for out in (parts, whole)), strict=True):
        assert torch.allclose(one, other, atol=1e-5)


@settings(max_examples=20)
@given(example_lists(), st.integers(0, 5), WINDOWS)
def test_the_block_mask_is_what_each_token_sees(made: list[Example], padding: int, window: int | None) -> None:
    import torch
    from torch.nn.attention.flex_attention import create_mask

    from rolellm.rocit.packing.attention import block_mask

    ends, depths = places_of(made, padding)
    built = block_mask(ends, depths, window)
    assert built.shape == dense_mask(ends).shape
    seen = create_mask(built.mask_mod, 1, 1, len(ends), len(ends), device="cpu")
    assert torch.equal(seen[0, 0], by_the_words(made, padding, window))


def test_blocks_in_which_nothing_is_seen_are_left_out() -> None:
    import torch

    from rolellm.rocit.packing.attention import block_mask

    made = role_rows(3, 4, 5, lengths=(60, 20, 30))
    length = len(places_of(made)[0])
    ends, depths = places_of(made, padding=-length % 128)
    blocks = len(ends) // 128
    seen = dense_mask(ends)[0, 0].view(blocks, 128, blocks, 128).any(dim=3).any(dim=1)
    assert torch.equal(block_mask(ends, depths).to_dense()[0, 0].bool(), seen)
    causal = blocks * (blocks + 1) // 2
    assert blocks >= 8
    assert int(seen.sum()) < 0.75 * causal


@pytest.mark.slow
@UNFUSED
@pytest.mark.parametrize("heads", [4, 2], ids=["every-head-its-keys", "grouped-heads"])
@pytest.mark.parametrize("padding", [0, 40])
def test_attention_is_the_same_under_both(heads: int, padding: int) -> None:
    import torch
    from torch.nn.attention.flex_attention import flex_attention

    from rolellm.rocit.packing.attention import block_mask

    made = role_rows(3, 2, 4)
    ends, depths = places_of(made, padding)
    torch.manual_seed(0)
    query, key, value = (torch.randn(1, count, len(ends), 16) for count in (4, heads, heads))
    dense = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=dense_mask(ends), enable_gqa=True
    )
    sparse = flex_attention(query, key, value, block_mask=block_mask(ends, depths), enable_gqa=True)
    assert torch.isfinite(dense).all()
    assert torch.allclose(dense, sparse, atol=1e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_gets_the_attention_that_the_masks_are_for(family: str) -> None:
    from rolellm.rocit.packing.attention import attend

    model = new_model(family, 100, attn_implementation="eager")
    attend(model, flex=False, longest=512)
    assert model.config._attn_implementation == "rolellm_blocks"
    attend(model, flex=True, longest=512)
    assert model.config._attn_implementation == "rolellm_flex"


def test_dropout_in_attention_is_refused_where_the_kernel_has_none() -> None:
    from rolellm.rocit.packing.attention import attend

    model = new_model("Llama", 100, attention_dropout=0.1)
    attend(model, flex=False, longest=512)
    with pytest.raises(ModelError, match=r"dropout in its attention.*training.shared_prefix: false"):
        attend(model, flex=True, longest=512)


@UNFUSED
@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning")  # torch, of itself.
def test_flex_attention_takes_wider_queries_and_keys_than_values() -> None:
    import torch

    from rolellm.rocit.packing.attention import block_mask, flex_attention

    ends, depths = places_of(role_rows(2, 2, 2))
    torch.manual_seed(0)
    layer = torch.nn.Module().eval()
    query, key, value = (torch.randn(1, 4, len(ends), 16) for _ in range(3))
    with torch.no_grad(), torch.compiler.set_stance("force_eager"):
        mixed, _ = flex_attention(layer, query, key, value.bfloat16(), block_mask(ends, depths))
        narrow, _ = flex_attention(layer, query.bfloat16(), key.bfloat16(), value.bfloat16(), block_mask(ends, depths))
    assert mixed.dtype == torch.bfloat16
    assert torch.equal(mixed, narrow)
