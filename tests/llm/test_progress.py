"""The bar of a run, as it stands in a terminal and in a pipe."""

from __future__ import annotations

import re
import time

import pytest

from rolellm.llm import progress
from rolellm.llm.task import Counts

COUNTS = Counts(done=10_000, failed=13, in_flight=64)


@pytest.mark.parametrize("columns", [pytest.param(80, id="narrow"), pytest.param(160, id="wide")])
def test_no_number_is_cut_off_and_the_label_is_inert(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], columns: int
) -> None:
    monkeypatch.setattr(progress, "_PATIENCE", 0.0)
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("FORCE_COLOR", "1")
    label = f"RoleGPT \x07\u202e[bold]{'x' * 200}"
    with progress.shown(label, 12_000, lambda: (COUNTS, 10.0803), show=True):
        time.sleep(0.6)
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", capsys.readouterr().err)
    assert "10000/12000 64 in flight, 13 failed, $10.0803" in shown
    assert re.search(r"\d:\d\d:\d\d ETA [\d-]:[\d-]{2}:[\d-]{2}", shown)
    assert "\x07" not in shown and "\u202e" not in shown
    assert max(map(len, shown.replace("\r", "\n").splitlines())) <= columns
    assert ("━" in shown) is (columns == 160)


def test_nothing_is_shown_of_what_is_quick(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.shown("quick", 1, lambda: (COUNTS, 0.0), show=True):
        pass
    assert capsys.readouterr().err == ""
