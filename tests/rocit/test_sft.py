"""The loop inside: the loss of a batch, its gradient, and the stop when numbers end."""

from pathlib import Path
from typing import Any

import pytest

from rolellm.records import Row
from rolellm.rocit.recipe import MethodRecipe, OutputRecipe, PromptRecipe, TrainingRecipe
from rolellm.rocit.rows import IGNORED, Example, conversations, encode, templates

pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")


@pytest.fixture(scope="module")
def examples(sample_rows: list[Row], tokenizer: Any) -> list[Example]:
    chosen = sample_rows[:3] + sample_rows[-3:]
    return encode(list(conversations(chosen, templates(PromptRecipe()))), tokenizer, max_length=512)


def new_model(tokenizer: Any) -> Any:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            max_position_embeddings=512,
            initializer_range=0.3,
            pad_token_id=tokenizer.pad_token_id,
        )
    )


def job(folder: Path, **training: Any) -> Any:
    from rolellm.rocit.sft import Fit

    options: dict[str, Any] = {"max_steps": 2, "batch_size": 3, "device": "cpu", "group_by_length": False}
    return Fit(
        training=TrainingRecipe(**(options | training)),
        method=MethodRecipe(name="full"),
        folder=folder,
        label="test",
        output=OutputRecipe(checkpoint_every=10),
    )


def trainer_of(tokenizer: Any, examples: list[Example], folder: Path, **training: Any) -> Any:
    from rolellm.rocit.sft import fit

    return fit(new_model(tokenizer), tokenizer, examples, job(folder, **training)).trainer


def test_a_batch_of_the_real_trainer_is_labelled_on_replies_alone(
    tokenizer: Any, examples: list[Example], tmp_path: Path
) -> None:
    trainer = trainer_of(tokenizer, examples, tmp_path)
    by_ids = {tuple(example.input_ids): example for example in examples}
    seen = 0
    for batch in trainer.get_train_dataloader():
        for ids, labels, mask in zip(batch["input_ids"], batch["labels"], batch["attention_mask"], strict=True):
            length = int(mask.sum())
            example = by_ids[tuple(ids[:length].tolist())]
            read = len(example.prompt_ids)
            assert labels[:read].eq(IGNORED).all()
            assert labels[read:length].tolist() == list(example.reply_ids)
            assert labels[length:].eq(IGNORED).all()
            seen += 1
    assert seen == len(examples)


def test_the_gradient_does_not_feel_what_the_prompt_would_have_said(
    tokenizer: Any, examples: list[Example], tmp_path: Path
) -> None:
    """The head's gradient is that of the replies' predictions, written out by hand, and of nothing else."""
    import torch

    trainer = trainer_of(tokenizer, examples, tmp_path)
    model = new_model(tokenizer)
    embeddings = model.get_output_embeddings()
    batch = trainer.data_collator([trainer.train_dataset[0]])
    trainer.model.train()
    # The head is not tied to the embeddings, so its gradient is softmax minus one-hot, summed over scored positions.
    loss = trainer.compute_loss(model, batch)
    loss.backward()
    with torch.no_grad():
        labels = batch["labels"][0, 1:]
        scored = labels != IGNORED
        hidden = model.model(batch["input_ids"]).last_hidden_state[0, :-1][scored]
        probabilities = torch.softmax(hidden @ embeddings.weight.T, dim=-1)
        one_hot = torch.nn.functional.one_hot(labels[scored], embeddings.weight.shape[0]).float()
        expected = (probabilities - one_hot).T @ hidden / scored.sum()
    assert torch.allclose(embeddings.weight.grad, expected, atol=1e-6)


@pytest.mark.parametrize("items", [None, 37], ids=["mean", "of-a-larger-step"])
def test_the_quick_loss_on_a_cpu_is_trl_s_own(
    items: int | None, tokenizer: Any, examples: list[Example], tmp_path: Path
) -> None:
    import torch
    from trl import SFTTrainer

    trainer = trainer_of(tokenizer, examples, tmp_path)
    batch = trainer.data_collator([trainer.train_dataset[index] for index in range(5)])
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


@pytest.mark.parametrize("value", [float("nan"), float("inf")], ids=["nan", "inf"])
def test_a_loss_that_is_no_number_stops_training_in_words(
    value: float, tokenizer: Any, examples: list[Example], tmp_path: Path
) -> None:
    import torch

    from rolellm.rocit.recorder import DivergedError
    from rolellm.rocit.sft import fit

    model = new_model(tokenizer)
    with torch.no_grad():
        model.model.norm.weight[0] = value
    with pytest.raises(DivergedError, match=r"the loss is (nan|inf) at step 1, .*Lower training.learning_rate"):
        fit(model, tokenizer, examples, job(tmp_path))
    assert (tmp_path / "metrics.jsonl").read_text() == ""


def test_accumulated_batches_step_as_one(tokenizer: Any, examples: list[Example], tmp_path: Path) -> None:
    import torch

    rates = {"learning_rate": 1e-2, "max_steps": 1, "schedule": "constant", "warmup": 0, "max_length": 512}
    whole = trainer_of(tokenizer, examples[:4], tmp_path / "a", batch_size=4, **rates)
    parts = trainer_of(tokenizer, examples[:4], tmp_path / "b", batch_size=1, grad_accumulation=4, **rates)
    apart = torch.cat(
        [
            (one - other).abs().flatten()
            for one, other in zip(whole.model.parameters(), parts.model.parameters(), strict=True)
        ]
    )
    # Adam's first step is the gradient's sign times the rate, so a gradient that is all rounding may go either way.
    assert (apart > 1e-5).float().mean() < 1e-3


def test_weight_saved_and_loaded_in_bf16_recipes_is_finite(
    tokenizer: Any, examples: list[Example], tmp_path: Path
) -> None:
    import torch

    trainer = trainer_of(tokenizer, examples, tmp_path, precision="bf16")
    assert all(torch.isfinite(parameter).all() for parameter in trainer.model.parameters())
    assert trainer.args.bf16
