"""Progress on a terminal and in a file: numbers that are not cut, labels that do nothing, and quiet for quick work."""

from __future__ import annotations

import re
import time

import pytest

from rolellm.core import progress
from rolellm.core.progress import Progress, track_progress

LABEL = f"RoleGPT \x07\u202e[bold]{'x' * 200}"


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shows at once, and in a file a line whenever something changed."""
    monkeypatch.setattr(progress, "_PATIENCE", 0.0)
    monkeypatch.setattr(progress, "_EVERY", 0.01)


@pytest.mark.parametrize("columns", [pytest.param(80, id="narrow"), pytest.param(160, id="wide")])
def test_no_number_is_cut_off_and_the_label_is_inert(
    hasty: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("FORCE_COLOR", "1")
    state = "64 in flight, 13 failed, $10.0803"
    with Progress(LABEL, 12_000, look=lambda bar: bar.update(done=10_000, state=state)):
        time.sleep(0.6)
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", capsys.readouterr().err)
    assert "10000/12000 64 in flight, 13 failed, $10.0803" in shown
    assert re.search(r"\d:\d\d:\d\d ETA [\d-]:[\d-]{2}:[\d-]{2}", shown)
    assert "\x07" not in shown and "\u202e" not in shown
    assert max(map(len, shown.replace("\r", "\n").splitlines())) <= columns
    assert ("━" in shown) is (columns == 160)


def test_in_a_file_it_is_a_line_for_each_change(hasty: None, capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(LABEL, 3, done=1, unit="rows") as shown:
        shown.update(state="loss 2.31")
        time.sleep(0.2)
        shown.advance(2)
    lines = capsys.readouterr().err.splitlines()
    assert all("\x07" not in line and "\x1b" not in line for line in lines)
    assert ": 1/3 loss 2.31 0:00:00 ETA -:--:--" in lines[-2]
    assert re.search(r": 3/3 loss 2\.31 [0-9.]+ rows/s 0:00:00 ETA 0:00:00$", lines[-1])
    assert len(lines) <= 3, "nothing is said twice"


def test_nothing_is_shown_of_what_is_quick_or_not_to_be_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert list(track_progress([1, 2], "quick")) == [1, 2]
    monkeypatch.setattr(progress, "_PATIENCE", 0.0)
    with Progress("hidden", 1, show=False) as shown:
        shown.advance()
    assert capsys.readouterr().err == ""
