"""A tiny chat model that says words of the sample's references, so that scores are not 0, and what harnesses share."""

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rolellm import load_rolebench
from rolellm.models.prompts.render import load_chat_template

from ..forking import Forking

METRICS = ("CUS", "RAW", "SPE", "avg")
TOKENS = 24


@pytest.fixture(scope="session")
def chat_model(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    import torch
    from transformers import AutoConfig, AutoTokenizer, LlamaForCausalLM

    rows = load_rolebench("sample", "test")
    texts = [text for row in rows for text in [*row["references"], row["raw_reference"] or ""]]
    tokenizer = AutoTokenizer.from_pretrained(tiny_model).train_new_from_iterator(texts, 1500, show_progress=False)
    tokenizer.chat_template = load_chat_template("rolellama")
    config = AutoConfig.from_pretrained(tiny_model, vocab_size=len(tokenizer), max_position_embeddings=4096)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = LlamaForCausalLM(config)
    folder = tmp_path_factory.mktemp("chat") / "tiny-chat"
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def run_harness(python: str | Path, cwd: Path, *words: str, **how: Any) -> str:
    """Run a Python that has a harness, and return what it prints."""
    done = subprocess.run([str(python), *words], cwd=cwd, capture_output=True, text=True, check=False, **how)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def score_replies(warm: Forking, cwd: Path, replies: Path) -> dict[str, float]:
    """The means that `rolellm score` gives to the replies in a harness' log, of which none is left over."""
    done = warm.run(["score", str(replies), "--config", "sample", "--json"], cwd)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["unmatched"] == {"predictions": 0, "rows": 0}
    means = {name: report["metrics"][name]["mean"] for name in METRICS}
    assert min(means.values()) > 0
    return means


def assert_reported(warm: Forking, cwd: Path, replies: Path, means: Mapping[str, float]) -> None:
    """`rolellm report` reads the same file."""
    done = warm.run(["report", f"tiny={replies}", "--config", "sample", "--out", "r.html"], cwd)
    assert done.returncode == 0, done.stderr
    assert f"{means['CUS']:.3f} [" in (cwd / "r.html").read_text(encoding="utf-8")
