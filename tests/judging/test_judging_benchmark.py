"""The benchmark of judging runs, and names what it measured."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


def test_it_runs(root: Path, clean_env: dict[str, str]) -> None:
    command = [sys.executable, str(root / "benchmarks/judging.py"), "--json", "--judgements", "300", "--rows", "400"]
    done = subprocess.run([*command], env=clean_env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result.keys() == {"ratios", "figures", "n", "versions", "hardware"}
    assert result["n"]["judgements"] == 300
    assert result["n"]["split_judgements"] == 400 * 4 * 2
    assert result["figures"]["judgements_seconds"] > 0
    assert result["figures"]["split_cpu_seconds"] > 0
    assert result["hardware"]["cpu"]


def test_what_cannot_be_measured_is_refused(root: Path, clean_env: dict[str, str]) -> None:
    command = [sys.executable, str(root / "benchmarks/judging.py"), "--rows", "0"]
    done = subprocess.run(command, env=clean_env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert "at least" in done.stderr
