"""The tasks of lighteval, which needs an environment of its own: `make .venv-lighteval/installed`."""

import json
import os
from pathlib import Path

import pytest

from ..forking import Forking
from .conftest import TOKENS, assert_reported, run_harness, score_replies

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".venv-lighteval" / "bin" / "python"
pytestmark = [
    pytest.mark.slow,
    # A process of its own imports torch and lighteval.
    pytest.mark.timeout(600),
    pytest.mark.skipif(not PYTHON.exists(), reason="needs `make .venv-lighteval/installed`"),
]


@pytest.fixture(scope="module")
def evaluated(chat_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the real harness writes about the sample."""
    folder = tmp_path_factory.mktemp("lighteval")
    decoding = f"generation_parameters={{temperature:0.0,max_new_tokens:{TOKENS}}}"
    model = f"model_name={chat_model},dtype=float32,batch_size=8,add_special_tokens=False,cache_dir={folder}/cache"
    module = "rolellm.harness.lighteval_tasks"
    words = ["-m", module, "accelerate", f"{model},{decoding}", "rolebench_sample", "--custom-tasks", module]
    env = {**os.environ, "HF_HOME": str(folder / "hf")}
    run_harness(PYTHON, folder, *words, "--output-dir", ".", "--save-details", env=env)
    return folder


@pytest.fixture
def details(evaluated: Path) -> Path:
    (path,) = evaluated.glob("details/**/*.parquet")
    return path


def means(folder: Path) -> dict[str, float]:
    (path,) = folder.glob("results/**/results_*.json")
    found: dict[str, float] = json.loads(path.read_text(encoding="utf-8"))["results"]["rolebench_sample|0"]
    return found


def test_its_numbers_are_those_of_rolellm_score_on_its_replies(
    evaluated: Path, details: Path, tmp_path: Path, warm: Forking
) -> None:
    assert score_replies(warm, tmp_path, details) == means(evaluated)
    assert_reported(warm, tmp_path, details, means(evaluated))


def test_its_results_hold_no_replies_and_say_where_they_are(evaluated: Path, tmp_path: Path, warm: Forking) -> None:
    (path,) = evaluated.glob("results/**/results_*.json")
    done = warm.run(["score", str(path), "--config", "sample"], tmp_path)
    assert done.returncode != 0
    assert "--save-details" in done.stderr
