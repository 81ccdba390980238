"""The benchmark of retrieval runs, names what it measured, and finds no other order than a full sort gives."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("language", ["en", "zh"])
def test_it_runs(root: Path, clean_env: dict[str, str], language: str) -> None:
    command = [sys.executable, str(root / "benchmarks/retrieval.py"), "--json", "--pairs", "3000", "--queries", "8"]
    done = subprocess.run(
        [*command, "--language", language], env=clean_env, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result.keys() == {"ratios", "figures", "n", "versions", "hardware"}
    assert result["n"] == {"pairs": 3000, "queries": 8}
    assert result["ratios"][f"bm25s_{language}"] > 0
    assert result["figures"][f"{language}_queries_in_other_order_than_a_full_sort"] == 0
    assert result["figures"][f"{language}_query_ms_p95"] > 0
    assert result["versions"]["bm25s"]
