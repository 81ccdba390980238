"""`train` from Python: recipes as names and dicts, datasets of one's own, evaluation, early stopping and callbacks."""

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset
from transformers import TrainerCallback

from rolellm.core.errors import ModelError, RecipeError
from rolellm.models.training_record import read_manifest
from rolellm.training.publish import _read_manifest
from rolellm.training.recipe_files import load_recipe
from rolellm.training.rows import read_own_rows, select_base_rows
from rolellm.training.train import train

from .runs import MINI, read_object

CHAT = [{"role": "user", "content": f"What is {number}?"} for number in range(24)]
FORMS = {
    "rows": [{"role": "Ahab", "question": turn["content"], "references": ["Aye.", "A whale."]} for turn in CHAT],
    "plain": [{"prompt": turn["content"], "completion": "Aye."} for turn in CHAT],
    "conversational": [{"prompt": [turn], "completion": [{"role": "assistant", "content": "Aye."}]} for turn in CHAT],
    "messages": [{"messages": [turn, {"role": "assistant", "content": "Aye."}], "role": "Ahab"} for turn in CHAT],
}


class Model(TrainerCallback):  # type: ignore[misc]  # transformers ships no types
    """Refers to the model that is trained, without keeping it."""

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any, **_: Any) -> None:
        self.reference = weakref.ref(model)


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_any_dataset_trains_with_a_manifest_that_push_accepts(form: str, base: Path, tmp_path: Path) -> None:
    recipe = MINI | {"base": {"path": str(base)}}
    run = train(recipe, train_dataset=Dataset.from_list(FORMS[form]), out=tmp_path / "run", max_steps=2)
    assert (run.model_dir, run.rows + run.held_out, run.steps) == (tmp_path / "run", 24, 2)
    assert run.held_out > 0
    assert any(line.startswith(f"loss on {run.held_out} held-out row") for line in run.remarks())
    assert {"loss", "mean_token_accuracy", "entropy", "num_tokens"} <= run.metrics[0].keys()
    manifest = _read_manifest(run.out / "manifest.json")
    assert manifest["recipe"]["data"]["source"] == manifest["data"]["config"] == "dataset"
    record = read_manifest(run.out / "manifest.json")
    assert record is not None
    assert len(record.instructions) == run.rows
    assert record.roles == (frozenset({"Ahab"}) if form in ("rows", "messages") else frozenset())


def test_the_held_out_loss_stops_early_and_is_logged(tmp_path: Path) -> None:
    options = {"eval_strategy": "steps", "eval_steps": 1, "early_stopping_patience": 1, "learning_rate": 1e-12}
    run = train(MINI, out=tmp_path / "run", max_steps=6, lr_scheduler_type="constant", **options)
    lines = run.metrics
    assert all({"loss", "eval_loss", "eval_mean_token_accuracy", "eval_entropy"} <= line.keys() for line in lines)
    assert run.steps == len(lines) < 6
    data = read_object(run.out)["data"]
    assert data["held_out"] >= 1 and data["rows"] < 12


def test_the_model_leaves_memory_when_training_ends(tmp_path: Path) -> None:
    model = Model()
    gc.disable()
    try:
        train(MINI, out=tmp_path / "run", max_steps=1, callbacks=[model])
        assert model.reference() is None
    finally:
        gc.enable()


class Full(TrainerCallback):  # type: ignore[misc]  # transformers ships no types
    """A device on which the optimizer finds no memory."""

    def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
        raise RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported")


def test_memory_that_runs_out_outside_of_a_pass_is_said_in_words(base: Path, tmp_path: Path) -> None:
    recipe = MINI | {"base": {"path": str(base)}}
    with pytest.raises(
        RecipeError, match=r"little memory \(CUDA error: out of memory\); use a smaller training.replies_p"
    ):
        train(recipe, out=tmp_path / "run", max_steps=1, callbacks=[Full()])


def test_a_base_without_plain_answers_to_warm_on_takes_those_of_the_sample(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """As with instructions that have no role-free answers: none of them is in Chinese, so the base learns none."""
    recipe = load_recipe(MINI | {"data": {"source": "dataset"}})
    for form, count in {"rows": 24, "plain": 0}.items():
        rows = select_base_rows(recipe, read_own_rows(FORMS[form]))
        assert {row.language for row in rows} == {"en"}
        assert sum(row.role == "Ahab" for row in rows) == count
    run = train(MINI, train_dataset=FORMS["rows"], out=tmp_path / "run", max_steps=1)
    assert read_object(run.base, "base.json")["examples"] > 24
    assert "the base is warmed on those of the sample" in capfd.readouterr().err


def test_what_conflicts_is_refused_by_name(base: Path) -> None:
    with pytest.raises(RecipeError, match="unknown key epochs"):
        train(MINI, epochs=1)
    with pytest.raises(RecipeError, match=r"there is no rolellm\.rewards\.nothing"):
        train(MINI, trainer="grpo", reward_funcs="rolellm.rewards.nothing")
    with pytest.raises(ModelError, match="takes 2048 tokens, fewer than"):
        train(MINI | {"base": {"path": str(base)}}, max_length=2049)
    with pytest.raises(RecipeError, match="resume needs out"):
        train("smoke-cpu", resume=True)
