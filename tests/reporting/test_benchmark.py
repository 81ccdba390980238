"""The benchmark of reports runs, and its page is opened, read and searched."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


@pytest.mark.browser
def test_it_runs(root: Path, clean_env: dict[str, str], tmp_path: Path) -> None:
    pytest.importorskip("selenium")
    page = tmp_path / "page.html"
    command = [sys.executable, str(root / "benchmarks/report.py"), "--json", "--rows", "600", "--runs", "1"]
    done = subprocess.run(
        [*command, "--keep", str(page)], env=clean_env, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result.keys() == {"ratios", "figures", "n", "versions", "hardware"}
    assert result["n"] == {"rows": 600, "models": 4, "openings": 1}
    figures = result["figures"]
    assert figures["made_file_mb"] == page.stat().st_size / 1e6
    assert figures["made_first_question_seconds"] > 0 and figures["made_load_seconds"] > 0
    assert "searched: 0 of 600 questions" in done.stderr
