"""Numbers that end: training stops within the step, names the rows, and nothing broken is ever saved."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from rolellm.core.errors import DivergedError
from rolellm.training.examples import Example
from rolellm.training.fit import fit
from rolellm.training.run_folder import find_checkpoint
from rolellm.training.schedule import schedule_replies

from .fits import make_job
from .models import new_model
from .runs import read_lines

pytestmark = pytest.mark.slow

# A token that stands in one row alone; the others use those from 100 to 299.
RARE = 350
BAD = "row-07"
SAVED = {"replies_per_step": 4, "num_train_epochs": 1.0, "save_steps": 1, "save_total_limit": 100}


def make_rows() -> list[Example]:
    """Two families of prompts, two replies to each; one row holds the rare token in its prompt."""
    made = []
    for number in range(12):
        row_id, family = f"row-{number:02}", number % 2
        start = [1, *range(100 + 50 * family, 120 + 50 * family), *range(200 + number, 206 + number)]
        prompt = (*start, RARE) if row_id == BAD else tuple(start)
        made += [
            Example(row_id, prompt, tuple(range(220 + number + reply, 226 + number)), reply, str(family))
            for reply in range(2)
        ]
    return made


ROWS = make_rows()


def make_model(**options: Any) -> Any:
    sizes = {"num_key_value_heads": 4, "head_dim": 4, "hidden_size": 16, "initializer_range": 0.1, "pad_token_id": 2}
    return new_model("Llama", 400, **sizes, **options)


def train_to_divergence(model: Any, tokenizer: Any, job: Any, problem: str) -> None:
    """Train under a seed that brings the bad row late; what was done before its step is there, whole and finite."""
    bad = [number for number, example in enumerate(ROWS) if example.row_id == BAD]
    step = 1
    while step == 1:
        job = replace(job, training=replace(job.training, seed=job.training.seed + 1))
        schedule = schedule_replies(ROWS, job.training)
        step = int(np.isin(schedule.order, bad).argmax()) // schedule.step_size + 1
    words = rf"the {problem} at step {step}, on rows {BAD}; training stopped before the weights were updated"
    with pytest.raises(DivergedError, match=words):
        fit(model, tokenizer, ROWS, job)
    lines = read_lines(job.folder)
    assert [line["step"] for line in lines] == list(range(1, step))
    assert all(math.isfinite(line["loss"]) and math.isfinite(line["grad_norm"]) for line in lines)
    checkpoints = {f"checkpoint-{done}" for done in range(1, step)}
    assert {path.name for path in job.folder.glob("checkpoint-*")} == checkpoints
    assert find_checkpoint(job.folder, {}) == job.folder / f"checkpoint-{step - 1}"
    for file in job.folder.rglob("*.safetensors"):
        assert all(torch.isfinite(weight).all() for weight in load_file(file).values())
    for file in job.folder.rglob("optimizer.pt"):
        for state in torch.load(file, weights_only=True)["state"].values():
            assert all(torch.isfinite(value).all() for value in state.values())


@pytest.mark.parametrize(
    ("training", "value"),
    [
        pytest.param({}, math.inf, id="shared"),
        pytest.param({"replies_per_step": 8, "replies_per_pass": 4}, math.nan, id="shared-two-passes"),
        pytest.param({"shared_prefix": False}, -math.inf, id="rows"),
    ],
)
def test_the_one_row_that_has_no_loss_is_named_and_no_other(
    training: dict[str, Any], value: float, tokenizer: Any, tmp_path: Path
) -> None:
    """In a shared pass the broken row's neighbors may have no loss either; by themselves they have."""
    model = make_model()
    with torch.no_grad():
        model.model.embed_tokens.weight[RARE] = value
    train_to_divergence(model, tokenizer, make_job(tmp_path, "lora", **SAVED | training), "loss is nan")


@pytest.mark.parametrize("shared_prefix", [True, False], ids=["shared", "rows"])
def test_a_gradient_that_overflows_under_a_finite_loss_is_found_before_the_step(
    shared_prefix: bool, tokenizer: Any, tmp_path: Path
) -> None:
    """The slope of a norm goes with one over its input: without a floor under it, a tiny input's overflows."""
    model = make_model(rms_norm_eps=1e-44)
    with torch.no_grad():
        model.model.embed_tokens.weight[RARE] *= 1e-22
        # The zeros that stand there would have such a slope, too.
        model.model.embed_tokens.weight[model.config.pad_token_id] = 0.1
    before = [parameter.clone() for parameter in model.parameters()]
    job = make_job(tmp_path, **SAVED, shared_prefix=shared_prefix, learning_rate=1e-4, warmup_steps=0)
    train_to_divergence(model, tokenizer, job, "gradient is (inf|nan)")
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())
    assert any(not torch.equal(one, other) for one, other in zip(before, model.parameters(), strict=True))


def test_of_many_rows_a_few_are_named(tokenizer: Any, tmp_path: Path) -> None:
    model = make_model()
    with torch.no_grad():
        model.model.norm.weight[0] = math.nan
    with pytest.raises(DivergedError, match=r"step 1, on rows (row-\d\d, ){9}row-\d\d and 2 more; training"):
        fit(model, tokenizer, ROWS, make_job(tmp_path, "lora", replies_per_step=24))
