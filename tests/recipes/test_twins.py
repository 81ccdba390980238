"""Each twin as a user drives it: trained, merged, pushed, and loaded back without this library; some killed between."""

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from rolellm.core.jsonl import read_jsonl
from rolellm.training.recipe_files import list_shipped_recipes, load_recipe
from rolellm.training.run_folder import MARK

from ..forking import Forking

# Recipes for a CPU that are no twins.
OWN = ("smoke-cpu-dpo", "smoke-cpu-grpo", "smoke-cpu-lora")
TWINS = sorted(name for name in list_shipped_recipes() if name.startswith("smoke-cpu-") and name not in OWN)
SECONDS = 150
# One of each kind is killed and resumed as well; that any run can be is shown in tests/training/test_resume.py.
KILLED = ("smoke-cpu-llama-script", "smoke-cpu-roleglm2-6b-qlora", "smoke-cpu-rolellama-7b-qlora")
# These are asked and scored, too, by the lines of docs/training.md.
ANSWERED = ("smoke-cpu-rolellama-7b-qlora", "smoke-cpu-rolellama-retrieval")

# The pushed model beside the run's own adapter on its base, by stock libraries alone.
_LOAD_BACK = """
import json, sys
sys.modules["rolellm"] = None  # importing the library would fail
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer
repo, base, run = sys.argv[1:]
pushed, tokenizer = AutoModelForCausalLM.from_pretrained(repo).eval(), AutoTokenizer.from_pretrained(repo)
plain = AutoModelForCausalLM.from_pretrained(base).eval()
turns = [{"role": "system", "content": "You are a cook."}, {"role": "user", "content": "What now?"}]
ids = tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_tensors="pt")["input_ids"]
own = AutoTokenizer.from_pretrained(run).apply_chat_template(turns, add_generation_prompt=True)["input_ids"]
with torch.no_grad():
    found, untuned = pushed(ids).logits, plain(ids).logits
    expected = PeftModel.from_pretrained(plain, run).eval()(ids).logits
    said = pushed.generate(ids, max_new_tokens=4, do_sample=False)
print(json.dumps({
    "error": (found - expected).abs().max().item(),
    "moved": (found - untuned).abs().max().item(),
    "same_prompt": ids[0].tolist() == own,
    "new_tokens": said.shape[1] - ids.shape[1],
    "type": type(pushed).__name__,
    "quantised": getattr(pushed.config, "quantization_config", None) is not None,
}))
"""


def kill_after_first_checkpoint(words: list[Any], out: Path, rolellm: Forking, cwd: Path) -> int:
    """Start a run and kill it as soon as its first checkpoint is complete; the exit status."""
    process = rolellm.start(words, cwd)
    until = time.monotonic() + SECONDS
    while not (out / "checkpoint-2" / MARK).is_file() and process.poll() is None and time.monotonic() < until:
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    return process.wait().returncode


def answer_and_score(out: Path, rolellm: Forking, cwd: Path) -> list[Any]:
    """Ask the run the test questions to one role, score the answers; the options that publish the scores."""
    answers, scores = cwd / "answers.jsonl", cwd / "scores.json"
    asked = ["--config", "sample", "--role", "Long John Silver", "--out", answers, "--max-new-tokens", 8]
    asked += ["--set", "strict=true"]
    generated = json.loads(rolellm(["generate", "--model", out, *asked, "--json"], cwd))
    assert generated["rows"] > 0
    assert generated["contaminated"] == 0
    meta = json.loads(answers.with_name("answers.jsonl.meta.json").read_text(encoding="utf-8"))
    recipe = json.loads((out / "recipe.json").read_text(encoding="utf-8"))
    assert meta["prompt"].get("profile", "description") == recipe["prompt"]["profile"]
    scores.write_text(rolellm(["score", answers, "--config", "sample", "--json"], cwd), encoding="utf-8")
    assert json.loads(scores.read_text(encoding="utf-8"))["contamination"]["contaminated"] == 0
    return ["--scores", scores]


@pytest.mark.slow
@pytest.mark.parametrize("name", TWINS)
def test_it_trains_merges_pushes_and_loads_back(
    name: str, tmp_path: Path, rolellm: Forking, without_rolellm: Forking
) -> None:
    out = tmp_path / "run"
    train = ["train", name, "--out", out]
    if name in KILLED:
        assert kill_after_first_checkpoint(train, out, rolellm, tmp_path) == -signal.SIGKILL
        assert not (out / "manifest.json").exists()
        train.append("--resume")

    result = json.loads(rolellm([*train, "--json"], tmp_path))
    recipe = load_recipe(list_shipped_recipes()[name])
    lines = [line for _, line in read_jsonl(out / "metrics.jsonl")]
    assert [line["step"] for line in lines] == list(range(1, recipe.training.max_steps + 1))
    manifest = json.loads((out / "manifest.json").read_text(encoding="utf-8"))
    assert (manifest["method"], manifest["base"]["kind"]) == ("qlora", recipe.base.build)
    assert manifest["trained_on"]["roles"] == list(recipe.data.roles)
    assert bool(manifest["trained_on"]["instructions"]) == (recipe.data.source == "rolebench")

    scores = answer_and_score(out, rolellm, tmp_path) if name in ANSWERED else []
    repo = f"me/{name}"
    push = ["push", out, repo, "--merge", "--license", "apache-2.0", "--public", "--json", *scores]
    pushed = json.loads(rolellm(push, tmp_path))
    assert (pushed["repo"], pushed["changed"]) == (repo, True)

    base = tmp_path / result["base"]
    loaded = json.loads(without_rolellm([repo, base, out], tmp_path, code=_LOAD_BACK))
    assert loaded["type"] == ("GlmForCausalLM" if "glm" in name else "LlamaForCausalLM")
    assert loaded["error"] < 1e-4 < loaded["moved"]
    assert loaded["same_prompt"] and not loaded["quantised"]
    assert 1 <= loaded["new_tokens"] <= 4
