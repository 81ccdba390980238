"""The loop inside: the loss of a batch, its gradient, and the stop when numbers end."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rolellm.core.errors import DivergedError, RoleLLMError
from rolellm.core.records import Row
from rolellm.rocit.packing.examples import IGNORED, Example, Examples
from rolellm.rocit.packing.tree import Packed
from rolellm.rocit.recipe import MethodRecipe, TrainingRecipe

from .models import new_model
from .packing.trees import predictions, predictions_by_row, sample_examples

pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")

LAYOUTS = pytest.mark.parametrize("packed", [True, False], ids=["trees", "rows"])


@pytest.fixture(scope="module")
def examples(sample_rows: list[Row], tokenizer: Any) -> Examples:
    return sample_examples(sample_rows[:3] + sample_rows[-3:], tokenizer, max_length=512)


def job(folder: Path, **training: Any) -> Any:
    from rolellm.rocit.fit import Fit

    options: dict[str, Any] = {
        "max_steps": 2,
        "per_device_train_batch_size": 3,
        "use_cpu": True,
        "group_by_length": False,
    }
    return Fit(
        training=TrainingRecipe(**(options | training)),
        method=MethodRecipe(name="full"),
        folder=folder,
        label="test",
        kept=True,
    )


def trainer_of(tokenizer: Any, examples: Examples | list[Example], folder: Path, **training: Any) -> Any:
    from rolellm.rocit.fit import fit

    return fit(new_model("Llama", len(tokenizer)), tokenizer, examples, job(folder, **training)).trainer


def tree_of(batch: dict[str, Any]) -> Packed:
    """A batch of the trainer, read as the pack that it was made from."""
    ids, positions = batch["input_ids"][0].numpy(), batch["position_ids"][0].numpy()
    return Packed(ids, positions, *(batch[name].numpy() for name in ("ends", "scored", "targets")))


def rows_of(batch: dict[str, Any]) -> list[tuple[list[int], list[int]]]:
    """Ids and labels of each row of a batch of the trainer; what pads it is checked to be untrained."""
    found = []
    for ids, labels, mask in zip(batch["input_ids"], batch["labels"], batch["attention_mask"], strict=True):
        length = int(mask.sum())
        assert labels[length:].eq(IGNORED).all()
        found.append((ids[:length].tolist(), labels[:length].tolist()))
    return found


@LAYOUTS
def test_a_batch_of_the_real_trainer_is_trained_on_replies_alone(
    packed: bool, tokenizer: Any, examples: Examples, tmp_path: Path
) -> None:
    trainer = trainer_of(tokenizer, examples, tmp_path, shared_prefix=packed, max_steps=-1, num_train_epochs=1.0)
    batches = list(trainer.get_train_dataloader())
    assert len(batches) > 2
    if packed:
        trained = sum((predictions(tree_of(batch)) for batch in batches), Counter())
        assert trained == predictions_by_row(examples)
        return
    rows = [row for batch in batches for row in rows_of(batch)]
    assert sorted(rows) == sorted((example.input_ids, example.labels) for example in examples)


@LAYOUTS
def test_the_gradient_does_not_feel_what_the_prompt_would_have_said(
    packed: bool, tokenizer: Any, examples: Examples, tmp_path: Path
) -> None:
    """The head's gradient is that of the replies' predictions, written out by hand, and of nothing else."""
    import torch

    from rolellm.rocit.packing.attention import attend

    trainer = trainer_of(tokenizer, examples, tmp_path, shared_prefix=packed)
    model = new_model("Llama", len(tokenizer))
    attend(model, flex=False, longest=512)
    head = model.get_output_embeddings().weight
    places = range(4)
    trained = sum(len(examples[place].reply_ids) for place in places)
    loss = trainer.compute_loss(model, trainer._layout.of(places), num_items_in_batch=torch.tensor(trained))
    loss.backward()
    expected = torch.zeros_like(head)
    with torch.no_grad():
        for place in places:
            ids = torch.tensor([examples[place].input_ids])
            labels = torch.tensor(examples[place].labels)[1:]
            scored = labels != IGNORED
            hidden = model.model(ids).last_hidden_state[0, :-1][scored]
            # The head is not tied to the embeddings, so its gradient is softmax minus one-hot over scored positions.
            probabilities = torch.softmax(hidden @ head.T, dim=-1)
            one_hot = torch.nn.functional.one_hot(labels[scored], len(head)).float()
            expected += (probabilities - one_hot).T @ hidden / trained
    assert torch.allclose(head.grad, expected, atol=1e-6)


@pytest.mark.parametrize("more", [0, 37], ids=["mean", "of-a-larger-step"])
def test_the_loss_of_rows_is_trl_s_own(more: int, tokenizer: Any, examples: Examples, tmp_path: Path) -> None:
    import torch
    from trl import SFTTrainer

    from rolellm.rocit.packing.layout import trained_tokens

    trainer = trainer_of(tokenizer, examples, tmp_path, shared_prefix=False)
    batch = trainer._layout.of(range(5))
    items = torch.tensor(trained_tokens(batch) + more)
    gradients = []
    losses = []
    for compute in (type(trainer).compute_loss, SFTTrainer.compute_loss):
        trainer.model.zero_grad()
        loss = compute(trainer, trainer.model, dict(batch), num_items_in_batch=items)
        loss.backward()
        losses.append(loss.item())
        gradients.append([parameter.grad.clone() for parameter in trainer.model.parameters()])
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    for one, other in zip(*gradients, strict=True):
        assert torch.allclose(one, other, atol=1e-6)


EXPERTS = pytest.mark.parametrize(
    ("family", "sizes"),
    [
        pytest.param("Qwen3Moe", {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}, id="qwen3"),
        pytest.param("Mixtral", {"num_local_experts": 4}, id="mixtral"),
        pytest.param("Mixtral", {"num_local_experts": 4, "router_aux_loss_coef": 0.0}, id="mixtral-without-weight"),
    ],
)


def moe_trainer(
    family: str, sizes: dict[str, Any], tokenizer: Any, examples: Any, folder: Path, **training: Any
) -> Any:
    from rolellm.rocit.fit import fit

    model = new_model(family, len(tokenizer), **({"router_aux_loss_coef": 0.5} | sizes))
    return fit(model, tokenizer, examples, job(folder, shared_prefix=False, **training))


@pytest.mark.slow
@EXPERTS
def test_the_loss_of_a_mixture_of_experts_is_trl_s_own_its_routers_included(
    family: str, sizes: dict[str, Any], tokenizer: Any, examples: Examples, tmp_path: Path
) -> None:
    """In a step of two passes, and in the last, whose other pass takes nothing."""
    import torch
    from trl import SFTTrainer

    options = {
        "max_steps": -1,
        "num_train_epochs": 1.0,
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2,
    }
    trainer = moe_trainer(family, sizes, tokenizer, list(examples)[:6], tmp_path, **options).trainer
    layout = trainer._layout
    assert [layout.plan.idle(number) for number in range(4)] == [False, False, True, False]
    for first in (0, 2):
        batches = [layout([{"pass": number}]) for number in (first, first + 1)]
        items = trainer._get_num_items_in_batch(batches, "cpu")
        busy = [batch for batch in batches if not layout.plan.idle(batch.pop("pass"))]
        trainer.current_gradient_accumulation_steps = trainer._busy = len(busy)
        losses, gradients = [], []
        for compute in (type(trainer).compute_loss, SFTTrainer.compute_loss):
            trainer.model.zero_grad()
            loss = sum(compute(trainer, trainer.model, dict(batch), num_items_in_batch=items) for batch in busy)
            loss.backward()
            losses.append(loss.item())
            gradients.append({name: weight.grad.clone() for name, weight in trainer.model.named_parameters()})
        assert losses[0] == pytest.approx(losses[1], rel=1e-6)
        for name, gradient in gradients[0].items():
            assert torch.allclose(gradient, gradients[1][name], atol=1e-6), name


@EXPERTS
def test_the_configuration_of_a_mixture_of_experts_is_saved_as_it_was_loaded(
    family: str, sizes: dict[str, Any], tokenizer: Any, examples: Examples, tmp_path: Path
) -> None:
    """With ``output_router_logits`` a model weighs its routers in inference, and fails on a padded batch."""
    import json

    import torch
    from transformers import AutoModelForCausalLM

    fitted = moe_trainer(family, sizes, tokenizer, examples, tmp_path, max_steps=1)
    fitted.save(tmp_path / "saved")
    config = json.loads((tmp_path / "saved" / "config.json").read_text(encoding="utf-8"))
    assert config["output_router_logits"] is False
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    ids = torch.tensor([[0, 0, 5, 6], [5, 6, 7, 8]])
    assert model.generate(input_ids=ids, attention_mask=ids.ne(0).long(), max_new_tokens=2).shape == (2, 6)


@LAYOUTS
@pytest.mark.parametrize("value", [float("nan"), float("inf")], ids=["nan", "inf"])
def test_a_loss_that_is_no_number_stops_training_in_words(
    value: float, packed: bool, tokenizer: Any, examples: Examples, tmp_path: Path
) -> None:
    import torch

    from rolellm.rocit.fit import fit

    model = new_model("Llama", len(tokenizer))
    with torch.no_grad():
        model.model.norm.weight[0] = value
    with pytest.raises(DivergedError, match=r"the loss is (nan|inf) at step 1, .*Lower training.learning_rate"):
        fit(model, tokenizer, examples, job(tmp_path, shared_prefix=packed))
    assert (tmp_path / "metrics.jsonl").read_text() == ""


def test_accumulated_batches_step_as_one(tokenizer: Any, examples: Examples, tmp_path: Path) -> None:
    import torch

    rates = {
        "learning_rate": 1e-2,
        "max_steps": 1,
        "lr_scheduler_type": "constant",
        "warmup_steps": 0,
        "shared_prefix": False,
    }
    four = list(examples)[:4]
    whole = trainer_of(tokenizer, four, tmp_path / "a", per_device_train_batch_size=4, **rates)
    parts = trainer_of(
        tokenizer,
        list(examples)[:4],
        tmp_path / "b",
        per_device_train_batch_size=1,
        gradient_accumulation_steps=4,
        **rates,
    )
    apart = torch.cat(
        [
            (one - other).abs().flatten()
            for one, other in zip(whole.model.parameters(), parts.model.parameters(), strict=True)
        ]
    )
    # Adam's first step is the gradient's sign times the rate, so a gradient that is all rounding may go either way.
    assert (apart > 1e-5).float().mean() < 1e-3


def test_weight_saved_and_loaded_in_bf16_recipes_is_finite(tokenizer: Any, examples: Examples, tmp_path: Path) -> None:
    import torch

    trainer = trainer_of(tokenizer, examples, tmp_path, bf16=True)
    assert all(torch.isfinite(parameter).all() for parameter in trainer.model.parameters())
    assert trainer.args.bf16


# What transformers may rename


class Ignored:
    """An attribute that is set and that nobody reads: the loss is divided."""

    def __get__(self, *_: object) -> bool:
        return False

    def __set__(self, *_: object) -> None:
        pass


@pytest.mark.slow
@LAYOUTS
@pytest.mark.parametrize(
    "name",
    [
        pytest.param("_get_train_sampler", id="order"),
        pytest.param("_get_grad_norm", id="check"),
        pytest.param("loss_is_scaled_for_ga", id="scale"),
    ],
)
def test_an_override_that_nobody_calls_any_more_stops_the_first_step(
    name: str, packed: bool, tokenizer: Any, examples: Examples, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    from rolellm.rocit.fit import fit
    from rolellm.rocit.trainer import RocitTrainer

    if name in vars(RocitTrainer):
        monkeypatch.delattr(RocitTrainer, name)
    else:
        monkeypatch.setattr(RocitTrainer, name, Ignored(), raising=False)
    model = new_model("Llama", len(tokenizer))
    before = [weight.clone() for weight in model.parameters()]
    training = {
        "shared_prefix": packed,
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "pack_tokens": 512,
        "max_length": 512,
    }
    with pytest.raises(RoleLLMError, match=f"ignores {name}, so .* install the versions that rolellm is tested with"):
        fit(model, tokenizer, examples, job(tmp_path, **training))
    assert all(torch.equal(one, other) for one, other in zip(before, model.parameters(), strict=True))
    assert (tmp_path / "metrics.jsonl").read_text() == ""


@LAYOUTS
def test_the_plan_s_count_of_trained_tokens_is_that_of_the_tensors(packed: bool, examples: Examples) -> None:
    from rolellm.rocit.packing.layout import Layout, trained_tokens
    from rolellm.rocit.packing.plan import plan

    passes = plan(
        examples,
        TrainingRecipe(
            per_device_train_batch_size=3, gradient_accumulation_steps=2, num_train_epochs=1.5, shared_prefix=packed
        ),
        2,
    )
    layout = Layout(examples, passes, packed=packed, pad_id=0)
    size = passes.passes * passes.processes
    counts = [trained_tokens(layout.of(passes[number].tolist())) for number in range(len(passes))]
    by_step = [sum(counts[first : first + size]) for first in range(0, len(counts), size)]
    assert [int(count) for count in passes.trained(examples)[1:] - passes.trained(examples)[:-1]] == by_step
    assert len(by_step) == passes.steps


def test_the_versions_that_training_takes_are_bounded(root: Path) -> None:
    import tomllib

    content = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    wanted = content["project"]["optional-dependencies"]["train"]
    assert [word for word in wanted if word.startswith(("transformers", "trl")) and ",<" not in word] == []
