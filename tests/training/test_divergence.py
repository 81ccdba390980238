"""Numbers that end: training stops within the step, names the rows, and nothing broken is ever saved."""

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rolellm.core.errors import DivergedError
from rolellm.training.examples import Example
from rolellm.training.recipe import Lora, MethodRecipe, TrainingRecipe
from rolellm.training.run_folder import find_checkpoint
from rolellm.training.schedule import schedule_replies

from .models import new_model
from .runs import read_lines

pytestmark = pytest.mark.slow

# A token that stands in one row alone; the others use those from 100 to 299.
RARE = 350
ROWS = 12
BAD = "row-07"


def rows(rare: Iterable[str] = (BAD,)) -> list[Example]:
    """Two families of prompts, two replies to each; some rows hold the rare token in their prompt."""
    made = []
    for number in range(ROWS):
        row_id, family = f"row-{number:02}", number % 2
        start = [1, *range(100 + 50 * family, 120 + 50 * family), *range(200 + number, 206 + number)]
        prompt = (*start, RARE) if row_id in rare else tuple(start)
        made += [
            Example(row_id, prompt, tuple(range(220 + number + reply, 226 + number)), reply, str(family))
            for reply in range(2)
        ]
    return made


def make_model(**options: Any) -> Any:
    sizes = {"num_key_value_heads": 4, "head_dim": 4, "hidden_size": 16, "initializer_range": 0.1, "pad_token_id": 2}
    return new_model("Llama", 400, **sizes, **options)


def recipe(**training: Any) -> TrainingRecipe:
    sizes: dict[str, Any] = {"num_train_epochs": 1.0, "replies_per_step": 4, "max_length": 128}
    return TrainingRecipe(**(sizes | {"save_steps": 1, "save_total_limit": 100, "use_cpu": True} | training))


def train(model: Any, tokenizer: Any, folder: Path, method: str = "lora", **training: Any) -> Any:
    from rolellm.training.fit import Fit, fit

    job = Fit(
        training=recipe(**training),
        method=MethodRecipe(name=method, lora=Lora(r=4)),  # type: ignore[arg-type]
        folder=folder,
        label="test",
        writes_checkpoints=True,
    )
    return fit(model, tokenizer, rows(), job)


def check_what_is_kept(folder: Path, step: int) -> None:
    """All up to the step is there, whole and finite; of the step and later there is nothing."""
    import torch
    from safetensors.torch import load_file

    lines = read_lines(folder)
    assert [line["step"] for line in lines] == list(range(1, step))
    assert all(math.isfinite(line["loss"]) and math.isfinite(line["grad_norm"]) for line in lines)
    assert {path.name for path in folder.glob("checkpoint-*")} == {f"checkpoint-{done}" for done in range(1, step)}
    found = find_checkpoint(folder, {})
    assert (found and found.name) == (f"checkpoint-{step - 1}" if step > 1 else None)
    for file in folder.rglob("*.safetensors"):
        assert all(torch.isfinite(weight).all() for weight in load_file(file).values())
    for file in folder.rglob("optimizer.pt"):
        for state in torch.load(file, weights_only=True)["state"].values():
            assert all(torch.isfinite(value).all() for value in state.values())


def late(**training: Any) -> tuple[dict[str, Any], int]:
    """The same training under a seed that brings the bad row late, and the step that it first comes in."""
    examples = rows()
    bad = [number for number, example in enumerate(examples) if example.row_id == BAD]
    for seed in range(100):
        schedule = schedule_replies(examples, recipe(**training, seed=seed))
        step = int(np.isin(schedule.order, bad).argmax()) // schedule.step_size + 1
        if step > 1:
            return {**training, "seed": seed}, step
    raise AssertionError


@pytest.mark.parametrize(
    ("training", "value"),
    [
        pytest.param({"shared_prefix": True}, math.inf, id="shared"),
        pytest.param(
            {"shared_prefix": True, "replies_per_step": 8, "replies_per_pass": 4}, math.nan, id="shared-two-passes"
        ),
        pytest.param({"shared_prefix": False}, -math.inf, id="rows"),
    ],
)
def test_the_one_row_that_has_no_loss_is_named_and_no_other(
    training: dict[str, Any], value: float, tokenizer: Any, tmp_path: Path
) -> None:
    """In a shared pass the broken row's neighbors may have no loss either; by themselves they have."""
    import torch

    model = make_model()
    with torch.no_grad():
        model.model.embed_tokens.weight[RARE] = value
    training, step = late(**training)
    with pytest.raises(
        DivergedError,
        match=rf"the loss is nan at step {step}, on rows {BAD}; training stopped before the weights were updated",
    ):
        train(model, tokenizer, tmp_path, **training)
    check_what_is_kept(tmp_path, step)


@pytest.mark.parametrize("shared_prefix", [True, False], ids=["shared", "rows"])
def test_a_gradient_that_overflows_under_a_finite_loss_is_found_before_the_step(
    shared_prefix: bool, tokenizer: Any, tmp_path: Path
) -> None:
    """The slope of a norm goes with one over its input: without a floor under it, a tiny input's overflows."""
    import torch

    model = make_model(rms_norm_eps=1e-44)
    with torch.no_grad():
        model.model.embed_tokens.weight[RARE] *= 1e-22
        # The zeros that stand there would have such a slope, too.
        model.model.embed_tokens.weight[model.config.pad_token_id] = 0.1
    training, step = late(shared_prefix=shared_prefix, learning_rate=1e-4, warmup_steps=0)
    before = [parameter.clone() for parameter in model.parameters()]
    with pytest.raises(DivergedError, match=rf"the gradient is (inf|nan) at step {step}, on rows {BAD}; training"):
        train(model, tokenizer, tmp_path, method="full", **training)
    check_what_is_kept(tmp_path, step)
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())
    assert any(not torch.equal(one, other) for one, other in zip(before, model.parameters(), strict=True))


def test_of_many_rows_a_few_are_named(tokenizer: Any, tmp_path: Path) -> None:
    import torch

    model = make_model()
    with torch.no_grad():
        model.model.norm.weight[0] = math.nan
    with pytest.raises(DivergedError, match=r"step 1, on rows (row-\d\d, ){9}row-\d\d and 2 more; training"):
        train(model, tokenizer, tmp_path, replies_per_step=24, max_length=512)
