"""One packed tree trains a model exactly as its rows do: the same loss and the same gradient, for every family."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import pytest

from rolellm.core.records import Row
from rolellm.rocit.packing.examples import Examples
from rolellm.rocit.packing.tree import pack
from rolellm.rocit.recipe import MethodRecipe, Quantization, TrainingRecipe

from .models import BOUND, FAMILIES, check_exact, distance, gradient, losses_alone, new_model, packed_loss, with_adapter
from .packing.trees import sample_examples

# peft 0.21 asks transformers 5.23 by a deprecated name.
pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")

EACH_FAMILY = pytest.mark.parametrize("family", FAMILIES)


@pytest.fixture(scope="module")
def examples(sample_rows: list[Row], tokenizer: Any) -> Examples:
    """Replies of an English and a Chinese role, several to a question."""
    chosen = [rows[:4] for rows in _by_role(sample_rows) if len(rows[0].references) > 1]
    return sample_examples([row for rows in (chosen[0], chosen[-1]) for row in rows], tokenizer)


def _by_role(rows: list[Row]) -> list[list[Row]]:
    return [[row for row in rows if row.role == role] for role in dict.fromkeys(row.role for row in rows)]


@contextmanager
def counted(model: Any) -> Iterator[list[int]]:
    """Counts how often the first layer's feed-forward part is computed."""
    calls: list[int] = []
    layer = next(module for name, module in model.named_modules() if name.endswith("layers.0.mlp"))
    handle = layer.register_forward_pre_hook(lambda *_: calls.append(1))
    yield calls
    handle.remove()


def test_what_is_compared_shares_most_of_its_prompts(examples: Examples) -> None:
    assert len({row.row_id for row in examples}) == 8
    assert len(examples) >= 20
    assert len(pack(examples, range(len(examples))).ids) < 0.4 * int(examples.lengths.sum())


@pytest.mark.slow
@EACH_FAMILY
@pytest.mark.parametrize("adapter", [False, True], ids=["full", "lora"])
@pytest.mark.parametrize("checkpointing", [False, True], ids=["kept", "recomputed"])
def test_loss_and_gradient_are_those_of_the_rows(
    family: str, adapter: bool, checkpointing: bool, examples: Examples, tokenizer: Any
) -> None:
    model = new_model(family, len(tokenizer))
    model.train()
    if checkpointing:
        model.activation_checkpointing_enable()
        model.enable_input_require_grads()
    model = with_adapter(model) if adapter else model
    with counted(model) as calls:
        packed_loss(model, examples).backward()
    assert len(calls) == 1 + checkpointing
    check_exact(model, examples)


def quantised(family: str, vocabulary: int, folder: Path, compute: Literal["float32", "bfloat16"]) -> Any:
    """A model held in NF4 under an adapter, as a recipe loads it."""
    from rolellm.rocit.bases import load_model

    # Whole blocks of 64 weights, as NF4 takes them.
    sizes = {"hidden_size": 64, "intermediate_size": 128, "head_dim": 16, "initializer_range": 0.1}
    new_model(family, vocabulary, **sizes).save_pretrained(folder)
    method = MethodRecipe(name="qlora", quantization=Quantization(bnb_4bit_compute_dtype=compute))
    model = with_adapter(load_model(folder, method, TrainingRecipe(use_cpu=True, bf16=compute == "bfloat16")))
    assert [type(module).__name__ for module in model.modules()].count("Linear4bit") >= 2 * 6
    return model


@pytest.mark.slow
@EACH_FAMILY
def test_a_quantised_base_gives_its_adapter_the_same_gradient(
    family: str, examples: Examples, tokenizer: Any, tmp_path: Path
) -> None:
    import torch

    model = quantised(family, len(tokenizer), tmp_path, "float32")
    # A forward pass without gradients comes first, which on some processors spoils those of a quantised model.
    with torch.no_grad():
        packed_loss(model, examples)
    check_exact(model, examples)


@pytest.mark.slow
@EACH_FAMILY
def test_in_bf16_packs_are_off_by_no_more_than_padding_is(
    family: str, examples: Examples, tokenizer: Any, tmp_path: Path
) -> None:
    import torch

    from rolellm.rocit.packing.layout import padded_rows, summed_loss

    model = quantised(family, len(tokenizer), tmp_path, "bfloat16")
    with torch.autocast("cpu", torch.bfloat16):
        rows = gradient(model, losses_alone(model, examples))
        padded = gradient(model, summed_loss(model, padded_rows(list(examples), 0)))
        packed = gradient(model, packed_loss(model, examples))
    assert 0 < distance(packed, rows) < 2 * distance(padded, rows)


@EACH_FAMILY
def test_a_mask_positions_or_attention_that_are_off_would_show(family: str, examples: Examples, tokenizer: Any) -> None:
    import torch

    model = new_model(family, len(tokenizer))
    rows = gradient(model, losses_alone(model, examples))
    length = len(pack(examples, range(len(examples))).ids)
    for wrong in (
        {"ends": torch.full((length,), length)},
        {"position_ids": torch.arange(length)[None]},
    ):
        assert distance(gradient(model, packed_loss(model, examples, **wrong)), rows) > 100 * BOUND


@pytest.mark.parametrize("other", ["sdpa", "eager"])
@EACH_FAMILY
def test_an_attention_that_does_not_know_of_blocks_fails(
    other: str, family: str, examples: Examples, tokenizer: Any
) -> None:
    from rolellm.rocit.packing.layout import summed_loss, tree_tensors

    model = new_model(family, len(tokenizer), attn_implementation=other)
    tree = pack(examples, range(len(examples)))
    with pytest.raises(RuntimeError, match="size"):
        summed_loss(model, tree_tensors(tree, len(tree.ids), 0))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning")
@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning")  # torch, of itself.
@EACH_FAMILY
def test_flex_attention_gives_the_same_loss(family: str, examples: Examples, tokenizer: Any) -> None:
    """Forward and uncompiled: on a CPU it has no gradient."""
    import torch

    from rolellm.rocit.packing.layout import summed_loss, tree_tensors

    model = new_model(family, len(tokenizer))
    tree = pack(examples, range(len(examples)))
    with torch.no_grad(), torch.compiler.set_stance("force_eager"):
        rows = losses_alone(model, examples).item()
        model.set_attn_implementation("flex_attention")
        batch = tree_tensors(tree, -(-len(tree.ids) // 256) * 256, 0)
        assert summed_loss(model, batch, flex=True).item() == pytest.approx(rows, rel=1e-6)


@pytest.mark.gpu
@EACH_FAMILY
def test_flex_attention_gives_the_same_gradient_on_a_gpu(family: str, examples: Examples, tokenizer: Any) -> None:
    import torch

    from rolellm.rocit.packing.layout import summed_loss, tree_tensors

    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    model = new_model(family, len(tokenizer), hidden_size=128, head_dim=32)
    rows = gradient(model, losses_alone(model, examples))
    model.cuda().set_attn_implementation("flex_attention")
    tree = pack(examples, range(len(examples)))
    tensors = tree_tensors(tree, -(-len(tree.ids) // 256) * 256, 0)
    batch = {key: value.cuda() for key, value in tensors.items()}
    assert distance(gradient(model, summed_loss(model, batch, flex=True)).cpu(), rows) < 1e-3
