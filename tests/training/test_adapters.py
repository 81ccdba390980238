"""Going on with a tuned adapter (SFT, then DPO or GRPO): its reference, its record, its checkpoints."""

import math
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import TrainerCallback

from rolellm.core.errors import ModelError, RecipeError, StoppedShortError
from rolellm.models.find import find_model
from rolellm.models.training_record import read_manifest
from rolellm.training.recipe_files import load_recipe
from rolellm.training.train import TrainingRun, train

from .runs import Interrupt, make_recipe, read_object

pytestmark = [pytest.mark.slow, pytest.mark.versions]
QUESTIONS = ["Name a fish.", "Where is the whale?", "Who are you?", "What do you drink?"]
REFERENCES = {"references": ["Aye, the whale!"]}
PAIRS = [
    {"prompt": question, "chosen": f"Aye, {question}", "rejected": "I do not know that.", "role": "Ahab"}
    for question in QUESTIONS * 2
]
DPO: dict[str, Any] = {"use_cpu": True, "replies_per_step": 4, "max_length": 512, "learning_rate": 1e-2}
GRPO: dict[str, Any] = DPO | {"num_generations": 2, "max_completion_length": 8}


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> TrainingRun:
    """A tuned adapter, on a base within its run's folder."""
    folder = tmp_path_factory.mktemp("tuned")
    recipe = make_recipe(
        folder, method={"name": "lora", "lora": {"r": 4, "lora_dropout": 0.0}}, training__learning_rate=1e-2
    )
    return train(recipe, out=folder / "run")


def test_dpo_goes_on_and_its_reference_is_the_adapter(tuned: TrainingRun, tmp_path: Path) -> None:
    options = DPO | {"warmup_steps": 0, "loss_type": ["sigmoid"], "loss_weights": [1]}
    run = train("rocit-dpo", base=tuned.out, train_dataset=PAIRS, out=tmp_path / "run", **options)
    first, last = run.metrics[0], run.metrics[-1]
    # With the plain base for reference, rewards would begin elsewhere.
    assert first["loss"] == pytest.approx(math.log(2), abs=1e-6)
    assert first["rewards/chosen"] == first["rewards/rejected"] == 0
    assert last["rewards/margins"] != 0 and "entropy" in last
    # One adapter is left, on the base that the first one has.
    assert not (run.out / "ref").exists()
    assert Path(find_model(str(run.out)).base) == tuned.base.resolve() == run.base
    before, after = (each.out / "adapter_model.safetensors" for each in (tuned, run))
    assert before.read_bytes() != after.read_bytes()
    # The prompt is the one that it was tuned with, and what it has seen counts for both trainings.
    manifest = read_object(run.out)
    assert (manifest["prompt"]["form"], manifest["recipe"]["method"]["lora"]["r"]) == ("rolellama", 4)
    earlier, whole = (read_manifest(each.out / "manifest.json") for each in (tuned, run))
    assert earlier is not None and whole is not None
    assert whole.roles == earlier.roles | {"Ahab"}
    assert len(whole.instructions) == len(earlier.instructions) + len(QUESTIONS)


def test_a_run_that_was_stopped_goes_on_as_if_it_was_not(tuned: TrainingRun, tmp_path: Path) -> None:
    options: dict[str, Any] = {"base": tuned.out, "train_dataset": PAIRS, "max_steps": 4, "num_train_epochs": 4}
    options |= DPO | {"save_steps": 2}
    whole = train("rocit-dpo", out=tmp_path / "whole", **options)
    with pytest.raises(StoppedShortError, match="step 2 is the last checkpoint"):
        train("rocit-dpo", out=tmp_path / "stopped", callbacks=[Interrupt(3)], **options)
    resumed = train("rocit-dpo", out=tmp_path / "stopped", resume=True, **options)

    def read_numbers(run: TrainingRun) -> list[dict[str, Any]]:
        # TRL counts the tokens of pairs from where it began.
        others = ("seconds", "num_tokens")
        return [{name: value for name, value in line.items() if name not in others} for line in run.metrics]

    assert read_numbers(resumed) == read_numbers(whole)
    # A checkpoint is a model to go on from.
    recipe = load_recipe("rocit-dpo", base=whole.out / "checkpoint-2")
    assert (recipe.base.adapter, recipe.prompt.form) == (whole.out / "checkpoint-2", "rolellama")


class Stop(TrainerCallback):  # type: ignore[misc]
    """Ctrl-C in the first step on samples that three more are to use."""

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == 4:
            signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize(
    "reuse",
    [
        pytest.param({"num_iterations": 2, "steps_per_generation": 2}, id="iterations"),
        pytest.param({"generation_batch_size": 16}, id="batch"),
    ],
)
def test_grpo_is_stopped_where_no_sampled_reply_is_left_to_train_on(
    reuse: dict[str, Any], tuned: TrainingRun, tmp_path: Path
) -> None:
    rows = [{"prompt": question} | REFERENCES for question in QUESTIONS * 4]
    options: dict[str, Any] = {"base": tuned.out, "train_dataset": rows, "max_steps": 10, "save_steps": 3}
    options |= GRPO | reuse | {"warmup_steps": 0}
    whole = train("rocit-grpo", out=tmp_path / "whole", **options)
    assert {path.name for path in whole.out.glob("checkpoint-*")} == {"checkpoint-4", "checkpoint-8"}
    with pytest.raises(StoppedShortError, match="step 8 is the last checkpoint"):
        train("rocit-grpo", out=tmp_path / "stopped", callbacks=[Stop()], **options)
    resumed = train("rocit-grpo", out=tmp_path / "stopped", resume=True, **options)
    weights = [load_file(run.out / "adapter_model.safetensors") for run in (whole, resumed)]
    assert all(torch.equal(weights[1][name], weight) for name, weight in weights[0].items())
    assert [line["loss"] for line in resumed.metrics] == [line["loss"] for line in whole.metrics]


def test_grpo_samples_for_each_prompt_once_an_epoch_and_logs_kl_to_the_adapter(
    tuned: TrainingRun, tmp_path: Path
) -> None:
    rows = [{"prompt": question} | REFERENCES for question in QUESTIONS]
    options: dict[str, Any] = GRPO | {"num_train_epochs": 2, "warmup_steps": 0}
    run = train("rocit-grpo", base=tuned.out, train_dataset=rows, out=tmp_path / "run", **options)
    # Four replies a step are of two prompts.
    assert [line["epoch"] for line in run.metrics] == [0.5, 1, 1.5, 2]
    assert run.metrics[0]["kl"] == pytest.approx(0, abs=1e-6)
    assert {"kl", "entropy", "reward", "completions/mean_length"} <= run.metrics[-1].keys()


def test_qlora_goes_on_with_weights_that_are_not_rounded(tmp_path: Path) -> None:
    recipe = make_recipe(tmp_path, method={"name": "qlora", "lora": {"r": 4}}, training__max_steps=2)
    tuned = train(recipe, out=tmp_path / "tuned")
    options = DPO | {"max_steps": 1, "learning_rate": 1e-12}
    run = train("rocit-dpo", base=tuned.out, train_dataset=PAIRS, out=tmp_path / "run", **options)
    before, after = (load_file(each.out / "adapter_model.safetensors") for each in (tuned, run))
    assert before.keys() == after.keys()
    # TRL puts them into bfloat16, which has three digits.
    assert all(torch.allclose(before[name], after[name], rtol=0, atol=1e-9) for name in before)


def test_an_adapter_is_not_trained_into_its_own_folder_nor_put_on_another_base(
    tuned: TrainingRun, tmp_path: Path
) -> None:
    with pytest.raises(RecipeError, match=r"base.adapter .* is inside it"):
        train("rocit-dpo", base=tuned.out, train_dataset=PAIRS, out=tuned.out, overwrite=True, **DPO)
    (tmp_path / "adapter_model.safetensors").write_bytes(b"nothing")
    (tmp_path / "adapter_config.json").write_text((tuned.out / "adapter_config.json").read_text(encoding="utf-8"))
    recipe = {"base": {"path": str(tuned.base), "adapter": str(tmp_path)}, "prompt": {"form": "rolellama"}}
    recipe |= {"training": {"trainer": "dpo"}}
    with pytest.raises(ModelError, match="cannot be put on its base model"):
        train(recipe, train_dataset=PAIRS, out=tmp_path / "run", **DPO)
