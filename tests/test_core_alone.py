"""The core alone: a clean virtual environment with the wheel and its declared dependencies, and nothing else."""

import json
from pathlib import Path

import pytest

from .alone import make_environment, run_alone

pytestmark = pytest.mark.slow

_CODE = """
import json, sys
import rolellm
from datasets import load_dataset
from rolellm.evaluation import rouge_l

data = load_dataset("rolebench", "sample", split="test")
zh = [row for row in data if row["language"] == "zh"]
scores = rouge_l([row["rolegpt"] for row in zh], [row["references"] for row in zh], language="zh")
print(json.dumps({
    "rows": data.num_rows,
    "scored": len(scores),
    "where": rolellm.__file__,
    "heavy": sorted({"torch", "transformers", "trl", "peft", "openai", "matplotlib"} & sys.modules.keys()),
}))
"""


@pytest.fixture(scope="module")
def core_python(tmp_path_factory, root) -> Path:
    """The interpreter of a virtual environment that holds the core's closure and the wheel."""
    return make_environment(tmp_path_factory.mktemp("core"), root)


@pytest.fixture
def run(core_python, clean_env):
    return lambda *arguments: run_alone(core_python, *arguments, env=clean_env)


def test_heavy_packages_are_not_there(run):
    assert run("-c", "import torch").returncode == 1
    assert run("-c", "import pytest").returncode == 1


def test_import_load_and_score(run, core_python):
    shown = run("-c", _CODE)
    assert shown.returncode == 0, shown.stderr
    result = json.loads(shown.stdout)
    assert result["heavy"] == []
    assert result["scored"] > 10
    assert Path(result["where"]).is_relative_to(core_python.parent.parent)


def test_score_command(run, tmp_path):
    from datasets import load_dataset

    answers = tmp_path / "answers.jsonl"
    rows = load_dataset("rolebench", "sample", split="test")
    answers.write_text("".join(json.dumps({"id": r["id"], "prediction": r["rolegpt"]}) + "\n" for r in rows))
    shown = run("-m", "rolellm", "score", str(answers), "--config", "sample", "--json")
    assert shown.returncode == 0, shown.stderr
    assert json.loads(shown.stdout)["metrics"]["CUS"]["n"] == 40


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        pytest.param(["train", "{recipe}"], "train", id="train"),
        pytest.param(["generate", "--model", "m", "--config", "sample", "--out", "x.jsonl"], "train", id="generate"),
        pytest.param(["demo"], "demo", id="demo"),
    ],
)
def test_missing_extras_name_the_line_to_run(arguments, extra, run, root):
    recipe = str(root / "recipes" / "smoke-cpu.yaml")
    shown = run("-m", "rolellm", *(argument.format(recipe=recipe) for argument in arguments))
    assert shown.returncode == 1
    assert f'pip install "rolellm[{extra}]"' in shown.stderr
    assert "Traceback" not in shown.stderr
