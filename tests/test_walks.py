"""The ways a new user goes, from a wheel in an environment of its own: the README's blocks, and a card."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from .alone import make_environment, run_alone
from .journeys.test_making import CARD

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory, root: Path) -> Path:
    return make_environment(tmp_path_factory.mktemp("train"), root, ("train", "llm", "style"))


@pytest.fixture(scope="module")
def folder(python: Path, root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is left of the README's blocks, run one after another as they stand, all but the first, which installs."""
    blocks = re.findall(r"^```(bash|python)\n(.*?)^```$", (root / "README.md").read_text("utf-8"), re.M | re.S)
    assert blocks[0][1].startswith("pip install") and len(blocks) > 5
    folder = tmp_path_factory.mktemp("readme")
    (folder / "examples").symlink_to(root / "examples")
    command = python.with_name("rolellm")
    command.write_text(f'#!/bin/sh\nexec {python} -m rolellm "$@"\n')
    command.chmod(0o755)
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    env.pop("ROLEBENCH_DIR", None)  # a reader of the README has no release
    env |= {"PATH": f"{python.parent}:{os.environ['PATH']}", "HF_HUB_OFFLINE": "1"}
    for kind, block in blocks[1:]:
        words = ["bash", "-e", "-c", block] if kind == "bash" else [str(python), "-c", block]
        shown = subprocess.run(
            words, cwd=folder, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=900
        )
        assert shown.returncode == 0, f"{block}\n{shown.stdout[-2000:]}\n{shown.stderr[-2000:]}"
        comments = re.findall(r"^# (.*)$", block, re.M)
        assert all(comment in shown.stdout for comment in comments), shown.stdout
    return folder


def test_the_readmes_blocks_leave_what_they_name(folder: Path) -> None:
    for name in ("first", "new", "own", "ada"):
        assert "<h1" in (folder / name / "report.html").read_text(encoding="utf-8"), name
    assert (folder / "first" / "scores.svg").read_text(encoding="utf-8").startswith("<svg")
    assert (folder / "smoke.html").is_file() and (folder / "runs" / "queen" / "manifest.json").is_file()


def test_a_card_talks_by_one_command(folder: Path, python: Path, clean_env: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "tobin.json").write_text(json.dumps(CARD), encoding="utf-8")
    words = ("-m", "rolellm", "chat", "tobin.json", "--model", "sample", "--set", "max_tokens=8")
    shown = run_alone(python, *words, env=clean_env, cwd=tmp_path, input="Who are you?\n", timeout=300)
    assert shown.returncode == 0, shown.stderr
    assert CARD["data"]["first_mes"] in shown.stdout and "Traceback" not in shown.stderr
