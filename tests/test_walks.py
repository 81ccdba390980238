"""The ways a new user goes, from a wheel in an environment of its own: README's lines, a card, a model's numbers."""

import json
import os
import re
from pathlib import Path

import pytest

from .alone import make_environment, run_alone
from .journeys.test_making import CARD

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory, root: Path) -> Path:
    return make_environment(tmp_path_factory.mktemp("train"), root, ("train", "llm", "style"))


@pytest.fixture(scope="module")
def tuned(python: Path, root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The README's first lines as they stand there, but for a shorter training; the folder that they leave a run in."""
    block = re.findall(r"```python\n(.*?)```", (root / "README.md").read_text(encoding="utf-8"), re.DOTALL)[0]
    lines = block.partition("\nhamlet")[0].replace('report_to="none")', 'report_to="none", max_steps=4, out="run")')
    folder = tmp_path_factory.mktemp("walk")
    shown = run_alone(python, "-c", lines, env=dict(os.environ), cwd=folder, timeout=600)
    assert shown.returncode == 0, shown.stderr
    return folder / "run"


def test_the_lines_of_the_readme(tuned: Path) -> None:
    assert "<h1" in (tuned.parent / "eval" / "report.html").read_text(encoding="utf-8")
    assert json.loads((tuned.parent / "eval" / "eval.json").read_text(encoding="utf-8"))["findings"]


def test_a_card_talks_by_one_command(tuned: Path, python: Path, clean_env: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "tobin.json").write_text(json.dumps(CARD), encoding="utf-8")
    words = ("-m", "rolellm", "chat", "tobin.json", "--model", str(tuned), "--set", "max_tokens=8")
    shown = run_alone(python, *words, env=clean_env, cwd=tmp_path, input="Who are you?\n", timeout=300)
    assert shown.returncode == 0, shown.stderr
    assert CARD["data"]["first_mes"] in shown.stdout and "Traceback" not in shown.stderr


def test_the_samples_numbers_by_one_command(
    tuned: Path, python: Path, clean_env: dict[str, str], tmp_path: Path
) -> None:
    words = ("-m", "rolellm", "eval", str(tuned), "--config", "sample", "--limit", "8", "--set", "max_new_tokens=8")
    shown = run_alone(python, *words, env=clean_env, cwd=tmp_path, timeout=300)
    assert shown.returncode == 0, shown.stderr
    assert "Some figures rest on" in shown.stdout and "Report: eval/report.html" in shown.stdout
