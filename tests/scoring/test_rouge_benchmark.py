"""The benchmark runs offline from a clone, says what it measured, and finds no difference from its rivals."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


def test_the_benchmark_runs_on_the_embedded_sample(root: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(root / "benchmarks" / "rouge.py"), "--json", "--pairs", "20", "--seconds", "0.05"],
        env={name: value for name, value in os.environ.items() if name != "ROLEBENCH_DIR"},
        capture_output=True,
        text=True,
        check=True,
    )
    result = json.loads(done.stdout)
    assert "embedded sample" in done.stderr
    assert result["data"] == "embedded sample"
    assert result["n"] == 20
    assert set(result["ratios"]) == {"rouge_score", "rouge"}
    assert result["figures"]["max_abs_error"] == {"rouge-score": 0.0, "paper": 0.0}
    assert {"versions", "hardware"} <= result.keys()


def test_the_benchmark_names_a_folder_that_is_not_the_release(root: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(root / "benchmarks" / "rouge.py"), "--data-dir", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert str(tmp_path) in done.stderr
    assert "role_specific" in done.stderr
