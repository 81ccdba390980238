"""The tasks of inspect_ai, which needs an environment of its own: `make .venv-inspect/installed`."""

import json
from pathlib import Path

import pytest

from ..forking import Forking
from .conftest import TOKENS, run_harness, score_replies

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".venv-inspect" / "bin" / "python"
pytestmark = [
    pytest.mark.slow,
    # A process of its own imports torch and inspect_ai.
    pytest.mark.timeout(600),
    pytest.mark.skipif(not PYTHON.exists(), reason="needs `make .venv-inspect/installed`"),
]


@pytest.fixture(scope="module")
def log(chat_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The log of the real harness about the sample."""
    folder = tmp_path_factory.mktemp("inspect")
    words = ["-m", "inspect_ai", "eval", "rolellm/rolebench", "-T", "config=sample", "--model", "hf/local"]
    words += ["-M", f"model_path={chat_model}", "-M", "do_sample=false", "--max-tokens", str(TOKENS)]
    run_harness(PYTHON, folder, *words, "--log-dir", ".", "--log-format", "json", "--display", "plain")
    (path,) = folder.glob("*.json")
    return path


def means(log: Path) -> dict[str, float]:
    scores = json.loads(log.read_text(encoding="utf-8"))["results"]["scores"]
    return {
        name if score["name"] == "rouge" else score["name"]: metric["value"]
        for score in scores
        for name, metric in score["metrics"].items()
    }


def test_its_numbers_are_those_of_rolellm_score_on_its_replies(log: Path, tmp_path: Path, warm: Forking) -> None:
    assert score_replies(warm, tmp_path, log) == means(log)
