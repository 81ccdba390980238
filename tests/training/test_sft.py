"""The loop inside: what a batch trains, that loss is TRL's, what is saved, and how the loop is hooked into."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM
from trl import SFTTrainer

from rolellm.core.errors import RoleLLMError
from rolellm.core.records import Row
from rolellm.training.examples import IGNORED, Example
from rolellm.training.fit import fit
from rolellm.training.passes import split_step

from ..versions import needs
from .examples import sample_examples
from .fits import make_job
from .models import new_model

LAYOUTS = pytest.mark.parametrize("shared", [True, False], ids=["shared", "rows"])


@pytest.fixture(scope="module")
def examples(sample_rows: list[Row], tokenizer: Any) -> list[Example]:
    return sample_examples(sample_rows[:3] + sample_rows[-3:], tokenizer, max_length=512)


def trainer_of(tokenizer: Any, examples: list[Example], folder: Path, **training: Any) -> Any:
    options = {"max_steps": 2, "replies_per_step": 3, "group_by_length": False} | training
    held_out = options.pop("held_out", ())
    job = replace(make_job(folder, **options), held_out=held_out)
    return fit(new_model("Llama", len(tokenizer)), tokenizer, examples, job).trainer


@LAYOUTS
def test_an_epoch_of_the_real_trainer_trains_each_reply_once(
    shared: bool, tokenizer: Any, examples: list[Example], tmp_path: Path
) -> None:
    trainer = trainer_of(tokenizer, examples, tmp_path, shared_prefix=shared, max_steps=-1, num_train_epochs=1.0)
    batches = list(trainer.get_train_dataloader())
    assert len(batches) == trainer.state.global_step > 2
    rows = [
        (ids[: mask.sum()].tolist(), labels[: mask.sum()].tolist())
        for batch in batches
        for ids, labels, mask in zip(batch["input_ids"], batch["labels"], batch["attention_mask"], strict=True)
        if labels.ne(IGNORED).any()
    ]
    assert sorted(rows) == sorted((example.input_ids, example.labels) for example in examples)
    # The shape of a pass is the tree's, not the rows'.
    assert hasattr(trainer.model, "prefix_sharing") == shared


@LAYOUTS
def test_the_gradient_does_not_feel_what_the_prompt_would_have_said(
    shared: bool, tokenizer: Any, examples: list[Example], tmp_path: Path
) -> None:
    """The head's gradient is that of the replies' predictions, written out by hand, and of nothing else."""
    trainer = trainer_of(tokenizer, examples, tmp_path, shared_prefix=shared)
    model = trainer.model
    model.zero_grad()
    head = model.get_output_embeddings().weight
    batch = trainer.data_collator([{"example": number} for number in range(4)])
    trained = int((batch["labels"] != IGNORED).sum())
    # As one of several passes of a step.
    trainer.compute_loss(model, batch, num_items_in_batch=torch.tensor(2 * trained)).backward()
    expected = torch.zeros_like(head)
    with torch.no_grad():
        for example in examples[:4]:
            labels = torch.tensor(example.labels)[1:]
            scored = labels != IGNORED
            hidden = model.model(torch.tensor([example.input_ids])).last_hidden_state[0, :-1][scored]
            # The head is not tied to the embeddings, so its gradient is softmax minus one-hot over scored positions.
            one_hot = torch.nn.functional.one_hot(labels[scored], len(head)).float()
            expected += (torch.softmax(hidden @ head.T, dim=-1) - one_hot).T @ hidden / (2 * trained)
    assert torch.allclose(head.grad, expected, atol=1e-6)


def test_the_held_out_loss_is_computed_the_same_with_and_without_shared_prefixes(
    tokenizer: Any, examples: list[Example], tmp_path: Path
) -> None:
    # Each reply in a batch with others, and a last batch that is short.
    options = {"eval_strategy": "epoch", "max_steps": -1, "num_train_epochs": 1.0, "learning_rate": 1e-12}
    options["held_out"] = examples[:7]
    losses = []
    for shared in (True, False):
        trainer = trainer_of(tokenizer, examples, tmp_path, shared_prefix=shared, **options)
        losses += [entry for entry in trainer.state.log_history if "eval_loss" in entry]
    one, other = losses
    for name in ("eval_loss", "eval_mean_token_accuracy", "eval_entropy"):
        assert one[name] == pytest.approx(other[name], rel=1e-5)


@needs("trl", "1.16", "weighs the router loss of a step otherwise")
@pytest.mark.parametrize(
    ("family", "sizes"),
    [
        pytest.param("Qwen3Moe", {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}, id="qwen3"),
        pytest.param("Mixtral", {"num_local_experts": 4}, id="mixtral"),
        pytest.param("Mixtral", {"num_local_experts": 4, "router_aux_loss_coef": 0.0}, id="mixtral-without-weight"),
    ],
)
def test_a_mixture_of_experts_is_trained_with_its_routers_and_saved_as_it_was_loaded(
    family: str, sizes: dict[str, Any], tokenizer: Any, examples: list[Example], tmp_path: Path
) -> None:
    """With ``output_router_logits`` a model weighs its routers in inference, and fails on a padded batch."""
    # Of four replies, one is not there.
    sizes = {"router_aux_loss_coef": 0.5} | sizes
    model = new_model(family, len(tokenizer), **sizes)
    job = make_job(tmp_path, shared_prefix=False, warmup_steps=0, replies_per_step=4, replies_per_pass=2, max_steps=1)
    fitted = fit(model, tokenizer, examples[:3], job)

    untrained = new_model(family, len(tokenizer), **sizes)
    (step,) = fitted.trainer.get_train_dataloader()
    batches = list(split_step(step, 2))
    count = sum(int((batch["labels"] != IGNORED).sum()) for batch in batches)
    loss = 0.0
    with torch.no_grad():
        for batch in batches:
            output = untrained(**batch, output_router_logits=True)
            weighted = sizes["router_aux_loss_coef"] * output.aux_loss.item()
            likelihood = (output.loss.item() - weighted) * int((batch["labels"] != IGNORED).sum())
            loss += likelihood / count + weighted / 2
    assert fitted.losses == (pytest.approx(loss, rel=1e-5),)

    fitted.save(tmp_path / "saved")
    config = json.loads((tmp_path / "saved" / "config.json").read_text(encoding="utf-8"))
    assert config["output_router_logits"] is False
    saved = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    ids = torch.tensor([[0, 0, 5, 6], [5, 6, 7, 8]])
    assert saved.generate(input_ids=ids, attention_mask=ids.ne(0).long(), max_new_tokens=2).shape == (2, 6)


@LAYOUTS
def test_another_order_of_rows_than_the_schedule_s_ends_the_run(
    shared: bool, tokenizer: Any, examples: list[Example], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_backwards(trainer: Any, *_: Any) -> Any:
        return list(reversed(range(len(trainer.train_dataset))))

    monkeypatch.setattr(SFTTrainer, "_get_train_sampler", read_backwards)
    words = r"did not train the rows of the schedule\. .* install versions that rolellm is tested with"
    with pytest.raises(RoleLLMError, match=words):
        trainer_of(tokenizer, examples, tmp_path, shared_prefix=shared)
    assert (tmp_path / "metrics.jsonl").read_text(encoding="utf-8") == ""
    assert not list(tmp_path.glob("checkpoint-*"))
