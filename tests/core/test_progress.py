"""Progress on a terminal and in a file: numbers that are not cut, labels that do nothing, and quiet for quick work."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from rolellm.core import progress
from rolellm.core.progress import announce_imports, open_bar, track_progress

LABEL = f"RoleGPT \x07\u202e{'x' * 200}"


@pytest.mark.parametrize("is_terminal", [True, False])
def test_what_is_shown(is_terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(progress, "_DELAY", 0.01)
    monkeypatch.setattr(progress, "_BETWEEN_LINES", 0.05)
    monkeypatch.setattr("sys.stderr.isatty", lambda: is_terminal)
    with open_bar(LABEL, 3, done=1, unit="rows") as bar:
        bar.set_postfix_str("loss 2.31", refresh=False)
        for _ in range(2):
            time.sleep(0.1)
            bar.update()
    shown = capsys.readouterr().err
    assert "\x07" not in shown and "\u202e" not in shown
    assert ("\r" in shown) is is_terminal
    assert "3/3" in shown and "rows/s, loss 2.31" in shown
    assert len(shown.splitlines()) <= 4 or is_terminal


def test_nothing_is_shown_of_what_is_quick_or_not_to_be_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert list(track_progress([1, 2], "quick")) == [1, 2]
    monkeypatch.setattr(progress, "_DELAY", 0.0)
    with open_bar("hidden", 1, show=False) as bar:
        bar.update()
    assert capsys.readouterr().err == ""


def test_a_slow_import_is_named_on_a_terminal(tmp_path: Path) -> None:
    (tmp_path / "slow_package.py").write_text("import time; time.sleep(1.5)")
    code = "from rolellm.core.progress import announce_imports; announce_imports(); import slow_package"
    near, far = os.openpty()
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    subprocess.run([sys.executable, "-c", code], stderr=far, env=env, check=True)
    os.close(far)
    assert os.read(near, 1000).decode().split() == ["Loading", "slow_package", "…"]
    os.close(near)
    announce_imports()
    assert "imports" not in {thread.name for thread in threading.enumerate()}, "nothing where there is no terminal"
