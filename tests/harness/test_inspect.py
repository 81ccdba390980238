"""The tasks of inspect_ai, which needs an environment of its own: `make .venv-inspect/installed`."""

from __future__ import annotations

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


JUDGED = """
import json
from inspect_ai import eval
from inspect_ai.model import ModelOutput, ModelUsage, get_model
from rolellm.harness.inspect_tasks import rolebench

def says(text):
    def output(*_):
        made = ModelOutput.from_content("mockllm", text)
        made.usage = ModelUsage()  # It would be counted with a vocabulary from the network.
        return made
    return get_model("mockllm/model", custom_outputs=output, memoize=False)

def judged(**roles):
    task = rolebench("sample", judged=True)
    return eval(task, model=says("Aye."), model_roles=roles, limit=3, display="none", log_format="json")[0]

def share(text):
    found = judged(grader=says(text))
    assert found.results, found.error
    (score,) = (one for one in found.results.scores if one.scorer == "judge")
    (mean,) = score.metrics.values()
    return [mean.value, score.scored_samples, score.unscored_samples]

def verdict(better):
    one = {"reason": "It sounds so.", "better": better}
    return json.dumps({"style": one, "knowledge": one})

found = [share(text) for text in (verdict("A"), verdict("tie"), "I like both.")]
print(json.dumps([*found, judged().error.message]))
"""


def test_the_judge_asks_in_both_orders_and_needs_a_grader(tmp_path: Path) -> None:
    done = run_harness(PYTHON, tmp_path, "-c", JUDGED)
    prefers_first, tie, no_verdict, without = json.loads(done.strip().splitlines()[-1])
    assert prefers_first == tie == [0.5, 3, 0]
    assert no_verdict[1:] == [0, 3]
    assert "Model role 'grader' is required" in without
