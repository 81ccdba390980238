"""From a forward pass's number to its tensors, and the loss of either layout."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolellm.rocit.packing.examples import IGNORED, Example, Examples
from rolellm.rocit.packing.plan import plan
from rolellm.rocit.packing.tree import pack
from rolellm.rocit.recipe import TrainingRecipe

from .trees import example_lists, role_rows

PAD = 77
ROLES = Examples.of(role_rows(4, 3, 3))


def layout_of(examples: Examples, *, packed: bool, pad_to: int | None = None, **training: Any) -> Any:
    from rolellm.rocit.packing.layout import Layout

    recipe = TrainingRecipe(**({"num_train_epochs": 1.0, "shared_prefix": packed, "pack_tokens": 128} | training))
    return Layout(examples, plan(examples, recipe), packed=packed, pad_id=PAD, pad_to=pad_to)


def tiny_llama() -> Any:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from rolellm.rocit.packing.attention import attend

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=100,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        initializer_range=0.5,
    )
    model = LlamaForCausalLM(config).eval()
    attend(model, flex=False, longest=100)
    return model


@given(example_lists())
def test_padded_rows_are_the_examples_and_nothing_else(made: list[Example]) -> None:
    from rolellm.rocit.packing.layout import padded_rows, trained_tokens

    batch = padded_rows(made, PAD)
    longest = max(len(example.input_ids) for example in made)
    assert {key: tuple(value.shape) for key, value in batch.items()} == dict.fromkeys(
        ("input_ids", "attention_mask", "labels"), (len(made), longest)
    )
    for place, example in enumerate(made):
        length = len(example.input_ids)
        left = longest - length
        assert batch["input_ids"][place].tolist() == example.input_ids + [PAD] * left
        assert batch["attention_mask"][place].tolist() == [1] * length + [0] * left
        assert batch["labels"][place].tolist() == example.labels + [IGNORED] * left
    assert trained_tokens(batch) == sum(len(example.reply_ids) for example in made)


@given(example_lists(), st.integers(0, 9))
def test_a_tree_s_tensors_are_its_arrays_and_padding_that_sees_and_shows_nothing(
    made: list[Example], more: int
) -> None:
    import torch

    from rolellm.rocit.packing.layout import trained_tokens, tree_tensors

    tree = pack(Examples.of(made), range(len(made)))
    real, length = len(tree.ids), len(tree.ids) + more
    batch = tree_tensors(tree, length, PAD)
    assert batch["input_ids"].tolist() == [tree.ids.tolist() + [PAD] * more]
    assert batch["position_ids"].tolist() == [tree.positions.tolist() + [0] * more]
    assert batch["ends"].tolist() == tree.ends.tolist() + list(range(real + 1, length + 1))
    assert batch["scored"].tolist() == tree.scored.tolist()
    assert batch["targets"].tolist() == tree.targets.tolist()
    assert {value.dtype for value in batch.values()} == {torch.long}
    assert trained_tokens(batch) == sum(len(example.reply_ids) for example in made)


@pytest.mark.parametrize("packed", [True, False], ids=["trees", "rows"])
def test_a_number_becomes_the_examples_that_the_plan_has_there(packed: bool) -> None:
    layout = layout_of(ROLES, packed=packed)
    for number in range(len(layout.plan)):
        chosen = [ROLES[place] for place in layout.plan[number].tolist()]
        batch = layout([{"pass": number}])
        assert batch["pass"] == number
        assert ("targets" in batch) == packed
        if packed:
            tree = pack(ROLES, layout.plan[number].tolist())
            assert batch["input_ids"].tolist() == [tree.ids.tolist() or [PAD]]
        else:
            rows = zip(batch["input_ids"], batch["attention_mask"], strict=True)
            assert [ids[mask.bool()].tolist() for ids, mask in rows] == [example.input_ids for example in chosen]


@pytest.mark.parametrize(
    ("budget", "step"),
    [
        pytest.param(100, 128, id="less-than-a-block"),
        pytest.param(1000, 128, id="no-multiple-of-a-block"),
        pytest.param(2048, 256, id="2048"),
        pytest.param(4096, 512, id="4096"),
    ],
)
def test_packs_are_padded_to_few_lengths_of_whole_blocks(budget: int, step: int) -> None:
    sizes = [*range(2, budget, 37), budget]
    made = Examples.of([Example(str(size), (1,), (2,) * (size - 1)) for size in sizes])
    layout = layout_of(made, packed=True, pad_to=budget, pack_tokens=budget, per_device_train_batch_size=1)
    lengths = {size: layout.of([place])["input_ids"].shape[1] for place, size in enumerate(sizes)}
    assert all(size <= length < size + step for size, length in lengths.items())
    distinct = sorted(set(lengths.values()))
    assert distinct == list(range(step, distinct[-1] + 1, step))
    assert len(distinct) <= 8
    assert step % 128 == 0


@pytest.mark.parametrize("packed", [True, False], ids=["trees", "rows"])
@pytest.mark.parametrize("pad_to", [None, 128], ids=["plain", "padded"])
def test_a_pass_that_takes_nothing_is_a_loss_of_nothing(packed: bool, pad_to: int | None) -> None:
    from rolellm.rocit.packing.layout import Layout, summed_loss, trained_tokens

    recipe = TrainingRecipe(num_train_epochs=1.0, shared_prefix=packed, per_device_train_batch_size=1)
    settled_plan = plan(Examples.of(role_rows(1, 1, 3)), recipe, processes=2)
    layout = Layout(ROLES, settled_plan, packed=packed, pad_id=3, pad_to=pad_to)
    nothing = next(number for number in range(len(settled_plan)) if not len(settled_plan[number]))
    batch = layout([{"pass": nothing}])
    assert trained_tokens(batch) == 0
    model = tiny_llama()
    loss = summed_loss(model, batch)
    loss.backward()
    assert loss.item() == 0
    # Every weight has a gradient, which processes that train together wait for.
    assert all(weight.grad is not None and not weight.grad.any() for weight in model.parameters())


@pytest.mark.slow
@settings(max_examples=30)
@given(example_lists(), st.sampled_from([0, 1, 30]))
def test_the_loss_of_a_tree_is_the_sum_of_its_rows_losses(made: list[Example], padding: int) -> None:
    import torch

    from rolellm.rocit.packing.layout import padded_rows, summed_loss, tree_tensors

    model = tiny_llama()
    tree = pack(Examples.of(made), range(len(made)))
    with torch.no_grad():
        packed = summed_loss(model, tree_tensors(tree, len(tree.ids) + padding, PAD)).item()
        together = summed_loss(model, padded_rows(made, PAD)).item()
        alone = sum(summed_loss(model, padded_rows([example], PAD)).item() for example in made)
    assert packed == pytest.approx(alone, rel=1e-5)
    assert together == pytest.approx(alone, rel=1e-5)


def test_what_pads_changes_nothing_whatever_it_is() -> None:
    import torch

    from rolellm.rocit.packing.layout import padded_rows, summed_loss, tree_tensors

    model = tiny_llama()
    made = [Example("a", (1, 2), (3, 4)), Example("b", (1, 5, 6), (7, 8, 9))]
    tree = pack(Examples.of(made), [0, 1])
    with torch.no_grad():
        trees = [summed_loss(model, tree_tensors(tree, 40, pad)).item() for pad in (0, 50, 99)]
        rows = [summed_loss(model, padded_rows(made, pad)).item() for pad in (0, 50, 99)]
    assert len(set(trees)) == len(set(rows)) == 1


def test_the_loss_of_rows_is_that_of_transformers() -> None:
    import torch

    from rolellm.rocit.packing.layout import padded_rows, summed_loss, trained_tokens

    model = tiny_llama()
    batch = padded_rows([Example("a", (1, 2), (3, 4)), Example("b", (1, 5, 6), (7, 8, 9))], PAD)
    with torch.no_grad():
        stock = model(**batch).loss.item() * trained_tokens(batch)
        assert summed_loss(model, batch).item() == pytest.approx(stock, rel=1e-6)
