"""Training by `fit` itself, on models that are built here: its job, and the gradients of its steps."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from rolellm.training.examples import Example
from rolellm.training.fit import Fit, fit
from rolellm.training.recipe import Lora, MethodRecipe, TrainingRecipe


def make_job(folder: Path, method: Any = "full", **training: Any) -> Any:
    """A job on the CPU; without dropout, which draws for what it computes, so that layouts can be compared."""
    if isinstance(method, str):
        method = MethodRecipe(name=method, lora=Lora(r=4, lora_dropout=0.0))  # type: ignore[arg-type]
    rewards = training.pop("rewards", ())
    recipe = TrainingRecipe(**({"use_cpu": True, "max_length": 512} | training))
    return Fit(training=recipe, method=method, folder=folder, label="test", writes_checkpoints=True, rewards=rewards)


def fit_with_gradients(model: Any, tokenizer: Any, examples: Sequence[Example], job: Any) -> tuple[Any, Any]:
    """The gradients of all steps, one after the other, and what `fit` returns."""
    gradients = []

    def take(optimizer: Any, _args: Any, _kwargs: Any) -> None:
        for group in optimizer.param_groups:
            gradients.extend(weight.grad.flatten().clone() for weight in group["params"])

    handle = register_optimizer_step_pre_hook(take)
    try:
        fitted = fit(model, tokenizer, examples, job)
    finally:
        handle.remove()
    return torch.cat(gradients), fitted
