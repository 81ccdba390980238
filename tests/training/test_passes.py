"""A step is the same however its replies go through the model: sharing prefixes or as rows, few or many at a time."""

import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from torch.nn.modules.module import register_module_forward_pre_hook

from rolellm.core.errors import RecipeError
from rolellm.core.records import Row
from rolellm.training.examples import Example, encode
from rolellm.training.fit import build_trainer
from rolellm.training.passes import _count_kept_bytes, choose_plan
from rolellm.training.recipe import TrainingRecipe
from rolellm.training.rows import Conversation
from rolellm.training.schedule import schedule_replies

from .examples import sample_examples
from .fits import fit_with_gradients, make_job
from .models import BOUND, FAMILIES, distance, new_model

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


def job_of(folder: Path, method: str = "lora", **training: Any) -> Any:
    """Three steps without clipping, each as long as its gradient."""
    options = {"max_steps": 3, "replies_per_step": STEP, "warmup_steps": 0}
    options |= {"optim": "sgd", "max_grad_norm": 1e9, "learning_rate": 1e-3} | training
    return make_job(folder, method, rewards=[reward] if "num_generations" in training else [], **options)


def train(tokenizer: Any, examples: list[Example], job: Any, family: str = "Llama") -> tuple[Any, Any]:
    model = new_model(family, len(tokenizer), initializer_range=0.1)
    return fit_with_gradients(model, tokenizer, examples, job)


def limit_memory(tokens: int, *, kept_only: bool = False) -> Callable[[Any], None]:
    """A device on which a pass over more tokens runs out of memory, or only one that keeps its activations."""

    def fail(layer: Any, inputs: tuple[Any, ...]) -> None:
        is_light = kept_only and getattr(layer, "activation_checkpointing", layer.gradient_checkpointing)
        if torch.is_grad_enabled() and not is_light and inputs[0].shape[:2].numel() > tokens:
            raise torch.OutOfMemoryError("device out of memory")

    # The last layer: what the first ones did is there already.
    return lambda model: model.model.layers[-1].register_forward_pre_hook(fail)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("method", "checkpointing"), [("full", False), ("lora", True)])
def test_a_step_is_the_same_with_shared_prefixes_and_as_rows(
    family: str, method: str, checkpointing: bool, examples: list[Example], tokenizer: Any, tmp_path: Path
) -> None:
    options = {"max_steps": 1, "gradient_checkpointing": checkpointing}
    # Of four passes of five rows, the last has three and places that are empty.
    rows_job = job_of(tmp_path, method, **options, shared_prefix=False, replies_per_step=20, replies_per_pass=5)
    expected, by_rows = train(tokenizer, examples, rows_job, family)
    shared_job = job_of(tmp_path, method, **options, replies_per_step=18, replies_per_pass=9)
    gradient, fitted = train(tokenizer, examples, shared_job, family)
    model = fitted.trainer.model
    sharing = (model if method == "full" else model.get_base_model()).prefix_sharing
    assert 0 < 2 * sharing.folded_tokens < sharing.padded_tokens
    assert fitted.losses == pytest.approx(by_rows.losses, rel=1e-6)
    assert distance(gradient, expected) < BOUND


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
        pytest.param(GRPO | {"top_entropy_quantile": 0.5}, (3,), id="grpo-that-chooses-tokens"),
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
    whole, fitted = train(tokenizer, rows, job_of(tmp_path / "whole", **options, replies_per_pass=STEP + 1))
    for size in sizes:
        job = job_of(tmp_path / str(size), **options, replies_per_pass=size, gradient_checkpointing=checkpointing)
        gradients, in_passes = train(tokenizer, rows, job)
        assert distance(gradients, whole) < 1e-6
        assert in_passes.losses == pytest.approx(fitted.losses, rel=1e-6, abs=1e-6)


def test_out_of_memory_halves_the_pass_and_loses_no_reply(
    examples: list[Example], tokenizer: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The count of tokens is that of the rows, or the run would stop."""
    longest = max(example.length for example in examples)
    expected, small = train(tokenizer, examples, job_of(tmp_path / "small", replies_per_pass=1))
    model = new_model("Llama", len(tokenizer), initializer_range=0.1)
    limit_memory(longest + longest // 4)(model)
    gradients, large = fit_with_gradients(model, tokenizer, examples, job_of(tmp_path / "large"))
    assert large.trainer.plan.replies_per_pass < STEP
    assert "out of memory with 7 replies a pass, 1 pass a step; going on with 4" in capsys.readouterr().err
    assert distance(gradients, expected) < 1e-6
    assert large.losses == pytest.approx(small.losses, rel=1e-6)


def test_memory_that_runs_out_once_halves_nothing(examples: list[Example], tokenizer: Any, tmp_path: Path) -> None:
    failures = [RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`")]

    def fail(_layer: Any, _inputs: Any) -> None:
        if failures and torch.is_grad_enabled():
            raise failures.pop()

    model = new_model("Llama", len(tokenizer), initializer_range=0.1)
    expected, whole = train(tokenizer, examples, job_of(tmp_path / "whole", max_steps=1))
    model.model.layers[-1].register_forward_pre_hook(fail)
    gradients, fitted = fit_with_gradients(model, tokenizer, examples, job_of(tmp_path / "again", max_steps=1))
    assert not failures
    assert fitted.trainer.plan == whole.trainer.plan
    assert distance(gradients, expected) < 1e-6


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
    job = job_of(tmp_path)
    model = new_model("Llama", len(tokenizer), initializer_range=0.1)
    limit_memory(**limit)(model)
    trainer = build_trainer(model, tokenizer, examples, schedule_replies(examples, job.training), job)
    before = torch.random.get_rng_state()
    if plan is None:
        with pytest.raises(RecipeError, match=r"memory for 1 reply at a time \(device out of memory\); use method"):
            choose_plan(trainer)
        return
    choose_plan(trainer)
    assert (trainer.plan.replies_per_pass, trainer.plan.gradient_checkpointing) == plan
    # Nothing is left of it.
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(weight.grad is None for weight in trainer.model.parameters())
    assert (trainer._total_train_tokens, dict(trainer._metrics["train"])) == (0, {})


def test_the_trial_is_as_the_steps_are_and_says_how_long_they_take(
    examples: list[Example],
    tokenizer: Any,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    casts = []

    def note(layer: Any, _inputs: Any) -> None:
        if isinstance(layer, BaseTunerLayer):
            casts.append(layer.cast_input_dtype_enabled)

    model = new_model("Llama", len(tokenizer), initializer_range=0.1)
    longest = max(example.length for example in examples)
    limit_memory(longest + longest // 4)(model)
    # As on a GPU, from when the trainer is there.
    monkeypatch.setattr(TrainingRecipe, "on_cpu", property(lambda _: not hasattr(model, "prefix_sharing")))
    handle = register_module_forward_pre_hook(note)
    try:
        _, fitted = fit_with_gradients(model, tokenizer, examples, job_of(tmp_path, bf16=True))
    finally:
        handle.remove()
    plan = fitted.trainer.plan
    printed = capsys.readouterr().err
    assert plan.replies_per_pass < STEP
    assert re.search(rf"{plan}; up to [\d.]+ s a step, \d+ minutes for 3 steps\n", printed)
    assert "out of memory" not in printed
    assert not any(casts), "the input of an adapter is cast by autocast alone"


@pytest.mark.parametrize(
    ("optimizer", "weight_bytes"),
    [("adamw_torch_fused", 8), ("adamw_8bit", 2), ("paged_adamw_32bit", 0), ("adafactor", 0)],
)
def test_the_trial_leaves_room_for_what_the_optimizer_keeps(optimizer: str, weight_bytes: int) -> None:
    assert _count_kept_bytes(optimizer) == weight_bytes


@pytest.mark.parametrize("options", [{}, {"trainer": "dpo"}], ids=["sft", "dpo"])
def test_what_is_evaluated_is_halved_when_memory_runs_out(
    options: dict[str, Any], examples: list[Example], pairs: list[Example], tokenizer: Any, tmp_path: Path
) -> None:
    rows = pairs if options else examples
    counts: list[int] = []

    def fail(_layer: Any, inputs: tuple[Any, ...]) -> None:
        counts.append(inputs[0].shape[1])
        if len(counts) > 1 and counts[-1] >= counts[0]:
            raise RuntimeError("CUDA error: out of memory")

    model = new_model("Llama", len(tokenizer), initializer_range=0.1)
    job = replace(job_of(tmp_path, **options), held_out=rows[:5])
    trainer = build_trainer(model, tokenizer, rows, schedule_replies(rows, job.training), job)
    model.model.layers[-1].register_forward_pre_hook(fail)
    whole, halves = (trainer.evaluate()["eval_loss"] for _ in range(2))
    assert min(counts) < counts[0]
    assert halves == pytest.approx(whole, rel=1e-6)


def test_a_loss_over_whole_steps_asks_for_smaller_ones(pairs: list[Example], tokenizer: Any, tmp_path: Path) -> None:
    model = new_model("Llama", len(tokenizer))
    limit_memory(1)(model)
    job = job_of(tmp_path, trainer="dpo", loss_type=["aot"])
    with pytest.raises(
        RecipeError, match=rf"memory for {STEP} replies at a time .* use a smaller training.replies_per_"
    ):
        fit_with_gradients(model, tokenizer, pairs, job)


@pytest.mark.slow
def test_a_run_goes_on_in_other_passes(examples: list[Example], tokenizer: Any, tmp_path: Path) -> None:
    options = {"save_steps": 1, "save_total_limit": 9}
    whole, fitted = train(tokenizer, examples, job_of(tmp_path, **options, replies_per_pass=STEP))
    shutil.rmtree(tmp_path / "checkpoint-3")
    job = replace(job_of(tmp_path, **options, replies_per_pass=2, gradient_checkpointing=True), resume=True)
    gradients, resumed = train(tokenizer, examples, job)
    assert distance(gradients, whole[-len(gradients) :]) < 1e-6
    assert resumed.losses == pytest.approx(fitted.losses, rel=1e-6)


@pytest.mark.parametrize("options", [{}, DPO, GRPO], ids=["sft", "dpo", "grpo"])
def test_rows_are_folded_before_they_reach_the_device(
    options: dict[str, Any],
    examples: list[Example],
    pairs: list[Example],
    tokenizer: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from rolellm.models import prefix_sharing

    def fail(_inputs: Any) -> None:
        raise AssertionError("a pass folded its rows by itself")

    monkeypatch.setattr(prefix_sharing, "fold_batch", fail)
    rows = pairs if "trainer" in options else examples
    job = job_of(tmp_path, **options | {"max_steps": 1, "replies_per_pass": 4})
    _, fitted = train(tokenizer, rows, job)
    assert fitted.trainer.model.get_base_model().prefix_sharing.folded_tokens


@pytest.mark.parametrize(
    ("rows", "tokens", "words"),
    [
        pytest.param(3, 10**6, "out of memory sampling 4 replies at a time; going on with 2", id="sampling"),
        pytest.param(8, 100, "out of memory with 8 replies a pass, 1 pass a step; going on with 4", id="scoring"),
    ],
)
def test_grpo_samples_and_scores_fewer_replies_when_memory_runs_out(
    rows: int,
    tokens: int,
    words: str,
    pairs: list[Example],
    tokenizer: Any,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(_layer: Any, inputs: tuple[Any, ...]) -> None:
        count, length = inputs[0].shape[:2]
        is_scored = count == 1 and length > tokens
        if not torch.is_grad_enabled() and (count > rows or is_scored):
            raise torch.OutOfMemoryError("device out of memory")

    model = new_model("Llama", len(tokenizer), initializer_range=0.1)
    model.model.layers[-1].register_forward_pre_hook(fail)
    # With two updates on the same samples, they are scored first.
    job = job_of(tmp_path, **GRPO | {"num_iterations": 2, "max_steps": 2})
    _, fitted = fit_with_gradients(model, tokenizer, pairs, job)
    assert words in capsys.readouterr().err
    assert len(fitted.losses) == 2
