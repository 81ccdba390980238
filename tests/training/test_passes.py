"""A step is the same however many of its replies go through the model at a time, and memory decides how many."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rolellm.core.errors import RecipeError
from rolellm.core.records import Row
from rolellm.training.examples import Example, encode
from rolellm.training.recipe import Lora, MethodRecipe, TrainingRecipe
from rolellm.training.rows import Conversation

from .examples import sample_examples
from .models import distance, new_model

pytestmark = [
    pytest.mark.filterwarnings("ignore:Could not find a config file:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*gradient_checkpointing:FutureWarning"),
]
STEP = 7
DPO = {"trainer": "dpo", "loss_type": ["sigmoid", "sft"], "loss_weights": [1.0, 0.5]}
GRPO = {"trainer": "grpo", "num_generations": 2, "replies_per_step": 8, "max_completion_length": 5, "max_steps": 1}


@pytest.fixture(scope="module")
def examples(sample_rows: list[Row], tokenizer: Any) -> list[Example]:
    """Replies of several lengths and roles; two steps of seven, and one of four."""
    return sample_examples(sample_rows[:4] + sample_rows[-4:], tokenizer, max_length=512)[:18]


@pytest.fixture(scope="module")
def pairs(examples: list[Example], tokenizer: Any) -> list[Example]:
    """A short and a longer reply to questions of two roles, by turns preferred."""
    chats = []
    for number in range(14):
        messages = [{"role": "system", "content": f"Role {number % 2}"}, {"role": "user", "content": f"Why {number}?"}]
        replies = ["Aye.", "I do not know that " * (1 + number % 5)]
        chosen, rejected = replies if number % 2 else replies[::-1]
        chats.append(Conversation(str(number), tuple(messages), {"chosen": chosen, "rejected": rejected}))
    return encode(chats, tokenizer, max_length=512, trainer="dpo")


def reward(completion_ids: list[list[int]], **_: Any) -> list[float]:
    """Differs from one reply to the next."""
    return [float(sum(ids) % 7) for ids in completion_ids]


def make_job(folder: Path, **training: Any) -> Any:
    from rolellm.training.fit import Fit

    options = {"max_steps": 3, "replies_per_step": STEP, "max_length": 512, "use_cpu": True, "warmup_steps": 0}
    # No clipping, and steps that are as long as their gradients.
    options |= {"optim": "sgd", "max_grad_norm": 1e9, "learning_rate": 1e-3}
    method = MethodRecipe(name="lora", lora=Lora(r=4, lora_dropout=0.0))
    merged = TrainingRecipe(**(options | training))
    rewards = [reward] if merged.trainer == "grpo" else []
    return Fit(training=merged, method=method, folder=folder, label="test", writes_checkpoints=True, rewards=rewards)


def train(
    tokenizer: Any, examples: list[Example], job: Any, limit: Callable[[Any], None] | None = None
) -> tuple[Any, list[float], Any]:
    """The gradients of all steps, the loss of each, and the trainer."""
    import torch
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    from rolellm.training.fit import fit

    gradients = []

    def take(optimizer: Any, _args: Any, _kwargs: Any) -> None:
        for group in optimizer.param_groups:
            gradients.extend(weight.grad.flatten().clone() for weight in group["params"])

    model = new_model("Llama", len(tokenizer), initializer_range=0.1)
    if limit is not None:
        limit(model)
    handle = register_optimizer_step_pre_hook(take)
    try:
        fitted = fit(model, tokenizer, examples, job)
    finally:
        handle.remove()
    return torch.cat(gradients), list(fitted.losses), fitted.trainer


def limit_memory(tokens: int, *, kept_only: bool = False) -> Callable[[Any], None]:
    """A device on which a pass over more tokens runs out of memory, or only one that keeps its activations."""
    import torch

    def fail(layer: Any, inputs: tuple[Any, ...]) -> None:
        is_light = kept_only and getattr(layer, "activation_checkpointing", layer.gradient_checkpointing)
        if torch.is_grad_enabled() and not is_light and inputs[0].shape[:2].numel() > tokens:
            raise torch.OutOfMemoryError("device out of memory")

    # The last layer: what the first ones did is there already.
    return lambda model: model.model.layers[-1].register_forward_pre_hook(fail)


@pytest.mark.slow
@pytest.mark.parametrize("checkpointing", [False, True], ids=["kept", "checkpointed"])
@pytest.mark.parametrize(
    ("options", "sizes"),
    [
        pytest.param({}, (1, 3), id="sft-shared"),
        pytest.param({"shared_prefix": False}, (1, 4), id="sft-rows"),
        pytest.param(DPO, (1, 3), id="dpo-with-sft"),
        pytest.param(GRPO, (1, 3), id="grpo-sum-of-tokens"),
        pytest.param(GRPO | {"loss_type": "grpo"}, (3,), id="grpo-mean-of-replies"),
        pytest.param(GRPO | {"loss_type": "bnpo"}, (3,), id="grpo-that-is-not-split"),
    ],
)
def test_no_pass_size_changes_a_run(
    options: dict[str, Any],
    sizes: tuple[int, ...],
    checkpointing: bool,
    examples: list[Example],
    pairs: list[Example],
    tokenizer: Any,
    tmp_path: Path,
) -> None:
    rows = pairs if "trainer" in options else examples
    whole, losses, _ = train(tokenizer, rows, make_job(tmp_path / "whole", **options, replies_per_pass=STEP + 1))
    for size in sizes:
        job = make_job(tmp_path / str(size), **options, replies_per_pass=size, gradient_checkpointing=checkpointing)
        gradients, own_losses, _ = train(tokenizer, rows, job)
        assert distance(gradients, whole) < 1e-6
        assert own_losses == pytest.approx(losses, rel=1e-6, abs=1e-6)


def test_out_of_memory_halves_the_pass_and_loses_no_reply(
    examples: list[Example], tokenizer: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The count of tokens is that of the rows, or the run would stop."""
    longest = max(example.length for example in examples)
    expected, losses, _ = train(tokenizer, examples, make_job(tmp_path / "small", replies_per_pass=1))
    gradients, own_losses, trainer = train(
        tokenizer, examples, make_job(tmp_path / "large"), limit_memory(longest + longest // 4)
    )
    assert trainer.plan.replies_per_pass < STEP
    assert "out of memory with 7 replies a pass, 1 pass a step; going on with 4" in capsys.readouterr().err
    assert distance(gradients, expected) < 1e-6
    assert own_losses == pytest.approx(losses, rel=1e-6)


@pytest.mark.parametrize(
    ("limit", "plan"),
    [
        pytest.param({"tokens": 100_000}, (STEP, False), id="all-fits"),
        pytest.param({"tokens": 1, "kept_only": True}, (STEP, True), id="only-with-checkpointing"),
        pytest.param({"tokens": 1}, None, id="not-one-reply"),
    ],
)
def test_what_fits_is_found_by_trial_before_the_first_step(
    limit: dict[str, Any], plan: tuple[int, bool] | None, examples: list[Example], tokenizer: Any, tmp_path: Path
) -> None:
    import torch

    from rolellm.training.fit import build_trainer
    from rolellm.training.passes import choose_plan
    from rolellm.training.schedule import schedule_replies

    job = make_job(tmp_path)
    model = new_model("Llama", len(tokenizer), initializer_range=0.1)
    limit_memory(**limit)(model)
    trainer = build_trainer(model, tokenizer, examples, schedule_replies(examples, job.training), job)
    before = torch.random.get_rng_state()
    if plan is None:
        with pytest.raises(RecipeError, match=r"too little memory for one reply \(device out of memory\); use method"):
            choose_plan(trainer)
        return
    trial = choose_plan(trainer)
    assert (trainer.plan.replies_per_pass, trainer.plan.gradient_checkpointing) == plan
    assert trial.seconds > 0
    assert 0 < trial.load <= 1
    # Nothing is left of it.
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(weight.grad is None for weight in trainer.model.parameters())
    assert (trainer._total_train_tokens, dict(trainer._metrics["train"])) == (0, {})


@pytest.mark.slow
def test_a_run_goes_on_in_other_passes(examples: list[Example], tokenizer: Any, tmp_path: Path) -> None:
    from dataclasses import replace

    options = {"save_steps": 1, "save_total_limit": 9}
    whole, losses, _ = train(tokenizer, examples, make_job(tmp_path, **options, replies_per_pass=STEP))
    shutil.rmtree(tmp_path / "checkpoint-3")
    job = replace(make_job(tmp_path, **options, replies_per_pass=2, gradient_checkpointing=True), resume=True)
    gradients, own_losses, trainer = train(tokenizer, examples, job)
    assert trainer.state.global_step == 3
    assert distance(gradients, whole[-len(gradients) :]) < 1e-6
    assert own_losses == pytest.approx(losses, rel=1e-6)
