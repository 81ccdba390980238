"""What holds with real models: stages through a real server, and shared prefixes on a real base."""

import os
from pathlib import Path

import pytest

import rolellm
from rolellm.data.rolebench import load_rolebench
from rolellm.data.rolebench.source import sample_folder
from rolellm.models.prompts.leaks import make_leak_check

pytestmark = [pytest.mark.realmodel, pytest.mark.slow, pytest.mark.timeout(3000)]


@pytest.mark.filterwarnings("ignore")
def test_every_stage_ends_usable_and_without_our_own_words(tmp_path: Path) -> None:
    script = Path(str(sample_folder() / "scripts" / "Queen of Hearts.txt"))
    llm = os.environ["ROLELLM_REAL_LLM"]
    character = rolellm.Character.from_script(script, role="Queen of Hearts").save(tmp_path / "queen")
    character = character.build(llm, max_tokens=1000).instruct(llm, per_role=6, max_tokens=1000)
    character = character.respond(llm, ["How many days are there in a week?"], replies=2)
    leak = make_leak_check("en", script.read_text(encoding="utf-8"))
    rows = character.to_dataset()
    texts = [character.description or "", *rows["question"], *(text for of in rows["references"] for text in of)]
    assert len(rows) > 1 and all(map(str.strip, texts))
    assert [found for text in texts if (found := leak(text))] == []


@pytest.mark.filterwarnings("ignore")
def test_a_step_on_packs_is_a_step_on_rows_of_a_real_base(tmp_path: Path) -> None:
    rows = load_rolebench("sample", "train").select(range(8))
    recipe = {
        "base": {"path": os.environ["ROLELLM_REAL_BASE"]},
        "method": {"name": "lora", "lora": {"r": 4, "target_modules": "all-linear"}},
        "training": {
            "max_steps": 2,
            "replies_per_step": 8,
            "replies_per_pass": 4,
            "max_length": 512,
            "bf16": False,
            "use_cpu": True,
        },
    }
    losses = {}
    for shared in (True, False):
        run = rolellm.train(recipe, train_dataset=rows, out=tmp_path / str(shared), shared_prefix=shared)
        losses[shared] = [step["loss"] for step in run.metrics if "loss" in step]
    assert losses[True][0] == pytest.approx(losses[False][0], rel=1e-5)
    assert losses[True] == pytest.approx(losses[False], rel=1e-3)
