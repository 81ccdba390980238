"""An optimiser step of the real trainer is the same whether its replies are laid out as trees or as rows."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rolellm.core.jsonl import read_jsonl
from rolellm.core.records import Row
from rolellm.rocit.packing.examples import Examples
from rolellm.rocit.packing.plan import plan
from rolellm.rocit.recipe import Lora, MethodRecipe, TrainingRecipe

from .models import BOUND, FAMILIES, distance, gradient, new_model
from .packing.trees import sample_examples

# peft 0.21 asks transformers 5.23 by a deprecated name.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")]

PACKED = {"shared_prefix": True, "per_device_train_batch_size": 24, "gradient_accumulation_steps": 1}
ROWS = {"shared_prefix": False, "per_device_train_batch_size": 5, "gradient_accumulation_steps": 5}
LAYOUTS = {"packed": PACKED, "rows": ROWS}


@pytest.fixture(scope="module")
def examples(sample_rows: list[Row], tokenizer: Any) -> Examples:
    """24 replies of several roles: one step of either layout, and several forward passes in both."""
    general = [row for row in sample_rows if row.language == "en" and len(row.references) > 1]
    several = sample_examples([row for role in _roles(general)[:3] for row in role[:3]], tokenizer)
    return Examples.of(several[:24])


def _roles(rows: list[Row]) -> list[list[Row]]:
    return [[row for row in rows if row.role == role] for role in dict.fromkeys(row.role for row in rows)]


def recipe(**changes: Any) -> TrainingRecipe:
    """Without clipping, so that the gradients themselves are compared."""
    options: dict[str, Any] = {
        "max_steps": 1,
        "pack_tokens": 700,
        "max_length": 700,
        "use_cpu": True,
        "warmup_steps": 0,
    }
    return TrainingRecipe(
        **(options | {"max_grad_norm": 1e9, "lr_scheduler_type": "constant", "learning_rate": 1e-3} | changes)
    )


@contextmanager
def gradients() -> Iterator[list[Any]]:
    """Takes down the whole gradient before each step of any optimiser."""
    import torch
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    taken: list[Any] = []

    def take(optimizer: Any, _args: Any, _kwargs: Any) -> None:
        weights = [weight for group in optimizer.param_groups for weight in group["params"]]
        taken.append(torch.cat([weight.grad.flatten().clone() for weight in weights]))

    handle = register_optimizer_step_pre_hook(take)
    try:
        yield taken
    finally:
        handle.remove()


def train(
    tokenizer: Any, examples: Examples, folder: Path, training: TrainingRecipe, method: str = "full", *, family: str
) -> tuple[list[Any], list[float]]:
    """The gradient and the loss of each step."""
    from rolellm.rocit.fit import Fit, fit

    job = Fit(
        training=training,
        # Dropout draws for what it computes, and trees compute less: only without it can the two be equal.
        method=MethodRecipe(name=method, lora=Lora(r=4, lora_dropout=0.0)),  # type: ignore[arg-type]
        folder=folder,
        label="test",
        kept=True,
    )
    with gradients() as taken:
        fitted = fit(new_model(family, len(tokenizer)), tokenizer, examples, job)
    return taken, list(fitted.losses)


def test_what_is_compared_takes_several_passes_in_both_layouts(examples: Examples) -> None:
    for layout in (PACKED, ROWS):
        settled_plan = plan(examples, recipe(**layout, num_train_epochs=1.0, max_steps=-1))
        assert (settled_plan.steps, settled_plan.passes >= 3) == (1, True)
        assert len({len(settled_plan[number]) for number in range(len(settled_plan))}) > 1


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("method", ["full", "lora"])
@pytest.mark.parametrize("checkpointing", [False, True], ids=["kept", "recomputed"])
def test_a_step_has_the_same_gradient_and_loss(
    family: str, method: str, checkpointing: bool, examples: Examples, tokenizer: Any, tmp_path: Path
) -> None:
    found = {
        name: train(
            tokenizer,
            examples,
            tmp_path / name,
            recipe(**layout, gradient_checkpointing=checkpointing),
            method,
            family=family,
        )
        for name, layout in LAYOUTS.items()
    }
    ((packed,), packed_losses), ((rows,), rows_losses) = found["packed"], found["rows"]
    assert packed_losses == pytest.approx(rows_losses, rel=1e-6)
    assert distance(packed, rows) < BOUND


def test_that_gradient_and_loss_are_of_the_mean_over_the_step_s_trained_tokens(
    examples: Examples, tokenizer: Any, tmp_path: Path
) -> None:
    import torch

    model = new_model("Llama", len(tokenizer))
    total = sum(
        model(input_ids=torch.tensor([row.input_ids]), labels=torch.tensor([row.labels])).loss * len(row.reply_ids)
        for row in examples
    )
    mean = total / sum(len(row.reply_ids) for row in examples)
    by_hand = gradient(model, mean)
    for name, layout in LAYOUTS.items():
        (found,), (loss,) = train(tokenizer, examples, tmp_path / name, recipe(**layout), family="Llama")
        assert loss == pytest.approx(mean.item(), rel=1e-6)
        # The optimiser holds weights in groups of its own, so what is compared is what no order changes.
        assert float(found.norm()) == pytest.approx(float(by_hand.norm()), rel=1e-5)
        assert torch.allclose(found.abs().sort().values, by_hand.abs().sort().values, rtol=1e-4, atol=1e-6)


def test_steps_follow_each_other_alike(examples: Examples, tokenizer: Any, tmp_path: Path) -> None:
    """Each step is on all replies, so that both layouts take the same ones."""
    losses = {
        name: train(
            tokenizer,
            examples,
            tmp_path / name,
            recipe(**layout, max_steps=4, lr_scheduler_type="linear"),
            family="Llama",
        )[1]
        for name, layout in LAYOUTS.items()
    }
    assert len(losses["packed"]) == 4
    assert losses["packed"] == pytest.approx(losses["rows"], rel=1e-4)
    assert losses["packed"][-1] < losses["packed"][0]
    for name, found in losses.items():
        lines = [line for _, line in read_jsonl(tmp_path / name / "metrics.jsonl")]
        assert [line["loss"] for line in lines] == found


def test_each_pass_trains_the_replies_that_the_plan_has_there(
    examples: Examples, tokenizer: Any, tmp_path: Path
) -> None:
    """What the loader of the real trainer brings, in its order, is what was planned, once an epoch."""
    from rolellm.rocit.fit import Fit, fit

    training = recipe(shared_prefix=True, per_device_train_batch_size=10, max_steps=-1, num_train_epochs=2.0)
    job = Fit(training=training, method=MethodRecipe(name="full"), folder=tmp_path, label="test")
    trainer = fit(new_model("Llama", len(tokenizer)), tokenizer, examples, job).trainer
    settled_plan = plan(examples, training)
    assert trainer.state.global_step == settled_plan.steps == 6
    numbers = []
    for batch in trainer.get_train_dataloader():
        numbers.append(batch["pass"])
        replies = [examples[place].reply_ids for place in settled_plan[numbers[-1]].tolist()]
        assert sorted(batch["targets"].tolist()) == sorted(token for reply in replies for token in reply)
    assert numbers == list(range(len(settled_plan)))
    assert np.bincount(settled_plan.order).tolist() == [2] * len(examples)
