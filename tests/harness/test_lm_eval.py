from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ..forking import Forking

# The harness is a process of its own, which imports torch and all that is behind it.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
TOKENS = 24


def run(cwd: Path, *words: str) -> str:
    done = subprocess.run([sys.executable, "-m", *words], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def evaluated(chat_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the real harness writes about the sample."""
    folder = tmp_path_factory.mktemp("lm_eval")
    include = run(folder, "rolellm", "data", "harness").strip()
    words = ["lm_eval", "run", "--model", "hf", "--model_args", f"pretrained={chat_model},dtype=float32"]
    words += ["--device", "cpu", "--batch_size", "8", "--include_path", include, "--tasks", "rolebench_sample"]
    words += ["--apply_chat_template", "--gen_kwargs", f"max_gen_toks={TOKENS}", "--log_samples", "--output_path", "."]
    run(folder, *words)
    return folder


def harness_scores(folder: Path) -> dict[str, float]:
    (path,) = folder.glob("*/results_*.json")
    found = json.loads(path.read_text(encoding="utf-8"))["results"]["rolebench_sample"]
    return {name: found[f"{name},none"] for name in ("CUS", "RAW", "SPE", "avg")}


def scores(warm: Forking, cwd: Path, path: Path) -> dict[str, Any]:
    done = warm.run(["score", str(path), "--config", "sample", "--json"], cwd)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def means(report: dict[str, Any]) -> dict[str, float]:
    return {name: report["metrics"][name]["mean"] for name in ("CUS", "RAW", "SPE", "avg")}


def test_its_numbers_are_those_of_rolellm_score_on_its_replies(evaluated: Path, tmp_path: Path, warm: Forking) -> None:
    (samples,) = evaluated.glob("*/samples_*.jsonl")
    report = scores(warm, tmp_path, samples)
    assert harness_scores(evaluated) == means(report)
    assert min(means(report).values()) > 0
    assert report["unmatched"] == {"predictions": 0, "rows": 0}
    made = report["fingerprint"]["predictions"][0]["generation"]
    assert (made["config"], made["split"], made["decoding"]["max_gen_toks"]) == ("sample", "test", TOKENS)


def test_the_same_model_scores_the_same_through_rolellm_generate(
    evaluated: Path, chat_model: Path, tmp_path: Path, warm: Forking
) -> None:
    words = ["generate", "--model", str(chat_model), "--config", "sample", "--out", "p.jsonl"]
    done = warm.run([*words, "--max-new-tokens", str(TOKENS)], tmp_path)
    assert done.returncode == 0, done.stderr
    assert means(scores(warm, tmp_path, tmp_path / "p.jsonl")) == harness_scores(evaluated)


def test_report_reads_its_samples(evaluated: Path, tmp_path: Path, warm: Forking) -> None:
    (samples,) = evaluated.glob("*/samples_*.jsonl")
    done = warm.run(["report", f"tiny={samples}", "--config", "sample", "--out", "r.html"], tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"{harness_scores(evaluated)['CUS']:.3f} [" in (tmp_path / "r.html").read_text(encoding="utf-8")
