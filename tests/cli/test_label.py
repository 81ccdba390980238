"""``rolellm label`` and ``rolellm label --agreement`` as a user runs them."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rolellm.judging.records import Judgement

from ..commands import Command
from ..judge_runs import CONTESTANTS, make_comparison, make_rows, write_run

ROLELLM = str(Path(sys.executable).parent / "rolellm")
NAMES = [name for name, kind in CONTESTANTS.items() if kind != "canary"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rows = make_rows(4)
    said = [Judgement(row.id, "judge", "listwise", tuple(CONTESTANTS), (1.0, 2.0, 3.0, 4.0)) for row in rows]
    for row in rows:
        for name in NAMES[:2]:
            said.append(Judgement(row.id, "judge", "pairwise", (name, NAMES[2]), (1.0, 2.0)))
            said.append(Judgement(row.id, "judge", "pairwise", (NAMES[2], name), (2.0, 1.0)))
    return write_run(tmp_path / "a run", make_comparison(rows), said)


@pytest.mark.slow
def test_one_person_labels_in_one_place_until_asked_to_stop(folder: Path, command: Command) -> None:
    pytest.importorskip("gradio")
    words = [ROLELLM, "label", str(folder), "--annotator", "anna"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        found = re.match(r"Open http://127\.0\.0\.1:\d+/\?key=\S{22} in a browser", process.stderr.readline())
        refused = command("label", folder, "--annotator", "anna")
        assert refused.code == 1 and "in use" in refused.err
        assert found is not None
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "") and "0 of 4 labeled, 0 skipped, 4 left" in out
    assert f"Go on with: rolellm label '{folder}' --annotator anna" in out
