"""The core alone: a clean virtual environment with the wheel and its declared dependencies, and nothing else."""

import importlib.metadata
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

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


def _closure(name: str) -> set[str]:
    """Names of the distributions that installing ``name`` without extras brings."""
    found: set[str] = set()
    waiting = [name]
    while waiting:
        current = canonicalize_name(waiting.pop())
        if current in found:
            continue
        found.add(current)
        for text in importlib.metadata.distribution(current).requires or ():
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                waiting.append(requirement.name)
                # An extra that the requirement names itself, such as fsspec[http].
                waiting += _of_extras(requirement)
    return found


def _of_extras(requirement: Requirement) -> list[str]:
    names = []
    for extra in requirement.extras:
        for text in importlib.metadata.distribution(requirement.name).requires or ():
            inner = Requirement(text)
            if inner.marker is not None and inner.marker.evaluate({"extra": extra}):
                names.append(inner.name)
    return names


@pytest.fixture(scope="module")
def core_python(tmp_path_factory, root) -> Path:
    """The interpreter of a virtual environment that holds the core's closure and the wheel."""
    folder = tmp_path_factory.mktemp("core")
    wheels = folder / "wheels"
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(wheels)]
    subprocess.run(build, cwd=root, check=True, capture_output=True)
    venv.create(folder / "venv", with_pip=False)
    site = next((folder / "venv" / "lib").glob("python*/site-packages"))
    for name in _closure("rolellm") - {"rolellm"}:
        distribution = importlib.metadata.distribution(name)
        for file in distribution.files or ():
            source, target = Path(str(distribution.locate_file(file))), site / file
            if ".." not in file.parts and source.is_file():
                target.parent.mkdir(parents=True, exist_ok=True)
                target.symlink_to(source)
    wheel = next(wheels.glob("*.whl"))
    subprocess.run([sys.executable, "-m", "zipfile", "-e", str(wheel), str(site)], check=True)
    return folder / "venv" / "bin" / "python"


@pytest.fixture
def run(core_python, clean_env):
    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        env = {key: value for key, value in clean_env.items() if not key.startswith("PYTHON")}
        return subprocess.run(
            [str(core_python), *arguments], env=env, cwd=os.sep, capture_output=True, text=True, timeout=120
        )

    return call


def test_heavy_packages_are_not_there(run):
    assert run("-c", "import torch").returncode == 1
    assert run("-c", "import pytest").returncode == 1


def test_import_load_and_score(run, core_python):
    import json

    shown = run("-c", _CODE)
    assert shown.returncode == 0, shown.stderr
    result = json.loads(shown.stdout)
    assert result["heavy"] == []
    assert result["scored"] > 10
    assert Path(result["where"]).is_relative_to(core_python.parent.parent)


def test_score_command(run, tmp_path):
    import json

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
