import json
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from ..commands import Command
from ..forking import Forking

# Its own system instruction, so that prompts fit the tiny model's context.
CHOICE = ("--role", "Queen of Hearts", "--role", "Long John Silver", "--set", "system_template=short.txt")


@pytest.fixture(autouse=True)
def template(tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("Speak as {role} would.")


def words_for(model: Path, out: Path | str, *more: str) -> list[str]:
    return ["generate", "--model", str(model), "--config", "sample", "--out", str(out), *CHOICE, *more]


@pytest.mark.slow
def test_ctrl_c_keeps_what_is_done_and_the_printed_line_finishes_it(
    tiny_model: Path, tmp_path: Path, warm: Forking
) -> None:
    options = ("--set", "batch_size=2", "--max-new-tokens", "200", "--temperature", "0.7", "--set", "top_p=0.95")
    # A name that the shell would take apart, and --overwrite, which the resume line must not repeat.
    out = tmp_path / "my $out.jsonl"
    words = words_for(tiny_model, out.name, *options, "--overwrite")
    process = warm.start(words, tmp_path)
    deadline = time.monotonic() + 100
    while not (out.exists() and out.read_bytes().count(b"\n") >= 4):
        assert process.poll() is None, process.err.read_text()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    stopped = process.wait()
    errors = stopped.stderr
    assert stopped.returncode == 3, errors
    kept = out.read_bytes().splitlines()
    assert f"stopped: {len(kept)} predictions are kept" in errors
    (line,) = re.findall("Resume with: (.*)", errors)
    assert "--overwrite" not in line

    # The words that a shell makes of it.
    shown = subprocess.run(f"printf '%s\\n' {line}", shell=True, capture_output=True, text=True, check=True)
    program, *again = shown.stdout.splitlines()
    assert program == "rolellm"
    summary = json.loads(warm([*again, "--json"], tmp_path))
    finished = out.read_bytes()
    assert summary["generated"] == summary["rows"] - len(kept) > 0
    assert set(kept) <= set(finished.splitlines())

    warm(words_for(tiny_model, "whole.jsonl", *options), tmp_path)
    assert (tmp_path / "whole.jsonl").read_bytes() == finished


def test_the_models_of_a_settings_file_answer_and_a_dry_run_asks_nobody(
    tiny_model: Path, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "llm.yaml").write_text(f"endpoints: [{{backend: local, model: {tiny_model}}}]")
    words = ["generate", "--llm", "llm.yaml", "--config", "sample", "--out", "p.jsonl", "--role", "long john silver"]
    words += ["--set", "system_template=short.txt", "--max-new-tokens", "4", "--limit", "3", "--json"]
    assert command(*words, "--dry-run").result["requests"] == 3
    assert not (tmp_path / "p.jsonl").exists()
    summary = command(*words).result
    assert (summary["rows"], summary["generated"]) == (3, 3)
    lines = [json.loads(line) for line in (tmp_path / "p.jsonl").read_text(encoding="utf-8").splitlines()]
    assert {line["role"] for line in lines} == {"Long John Silver"}
    again = command(*words).result
    assert (again["rows"], again["generated"]) == (3, 0)
    more = command(*words, "--limit", "5").result
    assert (more["rows"], more["generated"]) == (5, 2)
