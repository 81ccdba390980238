"""An optimizer step of the real trainer is the same whether its rows share prefixes or not."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rolellm.core.records import Row
from rolellm.training.examples import Example
from rolellm.training.recipe import Lora, MethodRecipe, TrainingRecipe

from .examples import sample_examples
from .models import BOUND, FAMILIES, distance, new_model

pytestmark = [
    pytest.mark.slow,
    # peft 0.19, of a base that was never saved.
    pytest.mark.filterwarnings("ignore:Could not find a config file:UserWarning"),
]

LAYOUTS: dict[str, dict[str, Any]] = {
    "shared": {"shared_prefix": True, "replies_per_step": 24, "replies_per_pass": 12},
    # Of five passes of five rows, the last has four and a place that is empty.
    "rows": {"shared_prefix": False, "replies_per_step": 25, "replies_per_pass": 5},
}


@pytest.fixture(scope="module")
def examples(sample_rows: list[Row], tokenizer: Any) -> list[Example]:
    """24 replies of several roles: one step of either layout, in several forward passes."""
    general = [row for row in sample_rows if row.language == "en" and len(row.references) > 1]
    several = sample_examples([row for role in _roles(general)[:3] for row in role[:3]], tokenizer)
    return several[:24]


def _roles(rows: list[Row]) -> list[list[Row]]:
    return [[row for row in rows if row.role == role] for role in dict.fromkeys(row.role for row in rows)]


def recipe(**changes: Any) -> TrainingRecipe:
    """Without clipping, so that the gradients themselves are compared."""
    options: dict[str, Any] = {
        "max_steps": 1,
        "max_length": 700,
        "use_cpu": True,
        "warmup_steps": 0,
    }
    return TrainingRecipe(
        **(options | {"max_grad_norm": 1e9, "lr_scheduler_type": "constant", "learning_rate": 1e-3} | changes)
    )


@contextmanager
def gradients() -> Iterator[list[Any]]:
    """Takes down the whole gradient before each step of any optimizer."""
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
    tokenizer: Any,
    examples: list[Example],
    folder: Path,
    training: TrainingRecipe,
    method: str = "full",
    *,
    family: str,
) -> tuple[list[Any], list[float]]:
    """The gradient and the loss of each step."""
    from rolellm.training.fit import Fit, fit

    job = Fit(
        training=training,
        # Dropout draws for what it computes, and shared rows compute less: only without it can the two be equal.
        method=MethodRecipe(name=method, lora=Lora(r=4, lora_dropout=0.0)),  # type: ignore[arg-type]
        folder=folder,
        label="test",
        writes_checkpoints=True,
    )
    with gradients() as taken:
        fitted = fit(new_model(family, len(tokenizer)), tokenizer, examples, job)
    if training.shared_prefix:
        model = fitted.trainer.model
        sharing = (model if method == "full" else model.get_base_model()).prefix_sharing
        assert 0 < 2 * sharing.folded_tokens < sharing.padded_tokens
    return taken, list(fitted.losses)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("method", "checkpointing"), [("full", False), ("lora", True)])
def test_a_step_has_the_same_gradient_and_loss(
    family: str, method: str, checkpointing: bool, examples: list[Example], tokenizer: Any, tmp_path: Path
) -> None:
    steps = {
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
    ((shared,), shared_losses), ((rows,), rows_losses) = steps["shared"], steps["rows"]
    assert shared_losses == pytest.approx(rows_losses, rel=1e-6)
    assert distance(shared, rows) < BOUND
