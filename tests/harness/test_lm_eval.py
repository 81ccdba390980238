import json
import sys
from pathlib import Path

import pytest

from ..forking import Forking
from .conftest import METRICS, TOKENS, assert_reported, run_harness, score_replies

# The harness is a process of its own, which imports torch and all that is behind it.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def evaluated(chat_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the real harness writes about the sample."""
    folder = tmp_path_factory.mktemp("lm_eval")
    include = run_harness(sys.executable, folder, "-m", "rolellm", "data", "harness").strip()
    words = ["-m", "lm_eval", "run", "--model", "hf", "--model_args", f"pretrained={chat_model},dtype=float32"]
    words += ["--device", "cpu", "--batch_size", "8", "--include_path", include, "--tasks", "rolebench_sample"]
    words += ["--apply_chat_template", "--gen_kwargs", f"max_gen_toks={TOKENS}", "--log_samples", "--output_path", "."]
    run_harness(sys.executable, folder, *words)
    return folder


def harness_scores(folder: Path) -> dict[str, float]:
    (path,) = folder.glob("*/results_*.json")
    found = json.loads(path.read_text(encoding="utf-8"))["results"]["rolebench_sample"]
    return {name: found[f"{name},none"] for name in METRICS}


def test_its_numbers_are_those_of_rolellm_score_on_its_replies(evaluated: Path, tmp_path: Path, warm: Forking) -> None:
    (samples,) = evaluated.glob("*/samples_*.jsonl")
    assert score_replies(warm, tmp_path, samples) == harness_scores(evaluated)
    assert_reported(warm, tmp_path, samples, harness_scores(evaluated))


def test_the_same_model_scores_the_same_through_rolellm_generate(
    evaluated: Path, chat_model: Path, tmp_path: Path, warm: Forking
) -> None:
    words = ["generate", "--model", str(chat_model), "--config", "sample", "--out", "p.jsonl"]
    done = warm.run([*words, "--max-new-tokens", str(TOKENS)], tmp_path)
    assert done.returncode == 0, done.stderr
    assert score_replies(warm, tmp_path, tmp_path / "p.jsonl") == harness_scores(evaluated)
