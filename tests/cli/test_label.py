"""``rolellm label`` and ``rolellm label --agreement`` as a user runs them."""

import json
import os
import re
import signal
import socket
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rolellm.judging.records import Judgement

from ..commands import Command
from ..forking import Forked, Forking
from ..judge_runs import CONTESTANTS, make_comparison, make_rows, write_run

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


class Labelling:
    """A running ``rolellm label``."""

    def __init__(self, process: Forked) -> None:
        self.process = process
        end = time.monotonic() + 20
        found = None
        while not found:
            said = process.err.read_text() if process.err.exists() else ""
            assert time.monotonic() < end and process.poll() is None, said
            found = re.fullmatch(r"Open (http://127\.0\.0\.1:\d+/\S{22}/) in a browser on this machine\..*\n", said)
            time.sleep(0.02)
        self.url = found[1]

    def save(self, item: int, **said: Any) -> None:
        body = json.dumps({"item": item, "seconds": 1, **said}).encode()
        headers = {"Content-Type": "application/json", "Origin": self.url[: self.url.index("/", 8)]}
        request = urllib.request.Request(self.url + "label", body, headers)
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=10) as reply:
            assert reply.status == 200

    def stop(self, number: signal.Signals = signal.SIGINT) -> tuple[int, str, str]:
        """How it ended, what it printed, and what it said after the address."""
        self.process.send_signal(number)
        done = self.process.wait()
        assert "Traceback" not in done.stderr
        return done.returncode, done.stdout, done.stderr.split("\n", 1)[1]


Start = Callable[..., Labelling]


@pytest.fixture(scope="module")
def forking() -> Iterator[Forking]:
    with Forking(os.environ, ("rolellm.cli.app", "rolellm.reporting.labelling")) as forking:
        yield forking


@pytest.fixture
def start(forking: Forking, tmp_path: Path) -> Start:
    return lambda *words: Labelling(forking.start(["label", *words], tmp_path, env={"BROWSER": "false"}))


def test_ctrl_c_says_how_far_it_came_and_the_same_command_goes_on(start: Start, folder: Path, command: Command) -> None:
    words = (folder, "--annotator", "anna", "--limit", 3)
    first = start(*words, "--no-open")
    first.save(0, groups=[["A"], ["B"], ["C"]])
    first.save(1, skipped=True)
    code, out, err = first.stop()
    assert (code, out) == (3, "")
    assert "1 of 3 labeled, 1 skipped, 1 left" in err and str(folder / "labels" / "anna.jsonl") in err
    resume = f"Resume with: rolellm label '{folder}' --no-open --annotator anna --limit 3\n"
    assert err.endswith(resume)

    again = start(*words, "--json")
    again.save(2, groups=[["A", "B", "C"]])
    code, out, _ = again.stop(signal.SIGTERM)
    assert code == 0
    assert json.loads(out) == {
        "annotator": "anna",
        "kind": "ranking",
        "sample": 3,
        "done": 2,
        "skipped": 1,
        "open": 0,
        "labels": str(folder / "labels" / "anna.jsonl"),
    }

    code, out, err = command("label", "--agreement", folder, "--json")
    found = json.loads(out)
    assert code == 0 and found["annotators"][0]["labelled"] == 2 and found["judge_human"][0]["rows"] == 2
    assert "warning: judge and anna share 2 rows" in err
    code, out, err = command("label", "--agreement", folder)
    assert code == 0 and "Judges against people" in out and "judge / anna" in out and "Who ranked" in out


def test_the_audit_of_the_references_stands_beside_the_papers(start: Start, folder: Path, command: Command) -> None:
    running = start(folder, "--annotator", "anna", "--audit", "--system", "reference", "--limit", 2)
    running.save(0, instruction=True, style=True, correct=None)
    running.save(1, instruction=True, style=False, correct=False)
    assert running.stop()[0] == 0
    code, out, _ = command("label", "--agreement", folder)
    assert code == 0 and "84.0 %" in out
    (line,) = [line for line in out.splitlines() if line.startswith("│ reference")]
    assert [cell.split(" ")[0] for cell in line.split("│")[2:6] if cell] != [] and "50.0 % [9.5, 90.5] n=2" in line


def test_one_person_labels_in_one_place_at_a_time(start: Start, folder: Path, command: Command) -> None:
    start(folder, "--annotator", "anna")
    code, _, err = command("label", folder, "--annotator", "anna")
    assert code == 1 and "in use" in err
    start(folder, "--annotator", "anna", "--audit")
    start(folder, "--annotator", "bela")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        pytest.param(["--annotator", "../anna"], 2, "not a file name", id="a path for a name"),
        pytest.param(
            ["--annotator", "anna", "--system", "quill-7b"], 2, "--system needs --audit", id="a ranking of one"
        ),
    ],
)
def test_what_cannot_be_done_is_said(command: Command, folder: Path, words: list[str], code: int, said: str) -> None:
    found, out, err = command("label", folder, *words)
    assert found == code and said in err and out == ""


@pytest.mark.parametrize(("name", "words"), [("label", ["--annotator", "anna"]), ("label", ["--agreement"])])
def test_a_folder_that_is_no_finished_run_is_refused(
    command: Command, folder: Path, tmp_path: Path, name: str, words: list[str]
) -> None:
    assert command(name, tmp_path / "nowhere", *words)[0] == 1
    code, _, err = command(name, tmp_path, *words)
    assert code == 1 and "rolellm judge" in err
    (folder / "result.json").unlink()
    code, _, err = command(name, folder, *words)
    assert code == 1 and "not finished" in err


def test_a_port_that_is_taken_is_said(start: Start, folder: Path, command: Command) -> None:
    port = start(folder, "--annotator", "anna").url.split(":")[2].split("/")[0]
    code, _, err = command("label", folder, "--annotator", "bela", "--port", port)
    assert code == 2 and f"port {port} is not available" in err


def test_a_stop_is_quick_however_many_pages_are_open(start: Start, folder: Path) -> None:
    running = start(folder, "--annotator", "anna")
    port = int(running.url.split(":")[2].split("/")[0])
    with socket.create_connection(("127.0.0.1", port)):
        begun = time.monotonic()
        assert running.stop()[0] == 3
        assert time.monotonic() - begun < 5
