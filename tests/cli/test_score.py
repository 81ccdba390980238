"""`rolellm score`, `instruct` and `report`, and the options of commands that ask models, as a user gives them."""

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rolellm.characters.folder import write_character
from rolellm.core.records import Profile, Row
from rolellm.data.rolebench.release import load_profiles
from rolellm.data.rolebench.source import sample_folder
from rolellm.llm.llm import LLM, CallOptions, ModelOptions
from rolellm.llm.model import RunOptions
from rolellm.llm.settings import ModelSettings

from ..commands import Command, Shown

# --- score


@pytest.fixture
def run_score(command: Command) -> Command:
    return partial(command, "score")


@pytest.fixture
def predictions(tmp_path: Path, rows: list[Row]) -> Path:
    """The baseline's reply to every row, by id."""
    return write(tmp_path / "P.jsonl", [{"id": row.id, "prediction": row.rolegpt} for row in rows])


def write(path: Path, lines: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8")
    return path


def test_the_table_shows_means_intervals_counts_and_the_recipe(run_score: Command, predictions: Path) -> None:
    found = run_score(predictions, "--config", "sample", "--json").json
    shown = run_score(predictions, "--config", "sample")
    assert shown.code == 0
    assert shown.err == ""
    for metric in ("CUS", "RAW", "SPE"):
        value = found["metrics"][metric]
        assert f"n={value['n']}  {value['mean']:.3f}" in shown.out
        assert "[{:.3f}, {:.3f}]".format(*value["ci95"]) in shown.out
    flat = " ".join(shown.out.split())
    for part in ("protocol rouge-score", "sample/test", "script_agnostic", found["fingerprint"]["hash"][:12]):
        assert part in flat
    assert any(role in shown.out for role in found["by_role"])
    assert all(name in flat for name in found["scale"]["markers"])


def test_what_the_join_left_open_is_on_standard_error(run_score: Command, tmp_path: Path, rows: list[Row]) -> None:
    lines: list[dict[str, Any]] = [{"id": row.id, "prediction": row.rolegpt} for row in rows[:60]]
    lines += [{"id": rows[0].id, "prediction": "Else."}, {"role": "Nobody", "question": "Who?", "prediction": "x"}]
    lines[1]["prediction"] = " "
    path = write(tmp_path / "P.jsonl", lines)
    shown = run_score(path, "--config", "sample", "--json")
    assert shown.result["unmatched"] == {"predictions": 1, "rows": 12}
    counts = shown.json["counts"]
    assert (counts["duplicates_differing"], counts["empty"]) == (1, 1)
    assert "warning: rows of sample/test without a prediction: 12 of 72" in shown.err
    assert f"{path}:61: id " in shown.err
    assert f"{path}:62: Nobody, “Who?”" in shown.err
    assert "note: predictions that are empty and score 0: 1" in shown.err
    refused = run_score(path, "--config", "sample", "--json", "--set", "strict=true")
    assert (refused.code, refused.out) == (1, "")
    assert refused.err.startswith("error: refused, as asked by strict: rows of sample/test")


# --- instruct


@pytest.fixture
def run_instruct(command: Command, tmp_path: Path) -> Command:
    """Runs ``rolellm instruct`` with these words, and with the scripted model."""
    (tmp_path / "llm.yaml").write_text("endpoints: [{backend: scripted, rules: quotes}]\n", encoding="utf-8")

    def call(*words: Any, model: bool = True) -> Shown:
        return command("instruct", *words, *(["--llm", tmp_path / "llm.yaml"] if model else []))

    return call


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    """A role of the sample as a character's folder."""
    (found,) = load_profiles("sample", roles=["Queen of Hearts"])
    character = Profile(found.role, found.language, found.turns, description=found.description)
    return write_character(character, tmp_path / "queen")


def test_a_table_for_people_and_a_warning_when_the_model_has_no_more(
    run_instruct: Command, profile: Path, tmp_path: Path
) -> None:
    shown = run_instruct(profile, "--out", tmp_path / "elsewhere")
    assert shown.code == 0
    assert "dropped: duplicate" in shown.out
    assert "from the journal" in shown.out
    assert "warning:" in shown.err
    assert "different questions of the 400 requested" in shown.err
    assert "the model finds no more in this profile" in shown.err
    assert (tmp_path / "elsewhere/kept.jsonl").is_file()
    assert not (profile / "instruct").exists()


def test_a_run_without_any_reply_fails_and_says_why(run_instruct: Command, profile: Path, tmp_path: Path) -> None:
    (tmp_path / "down.yaml").write_text("{endpoints: [{base_url: 'http://127.0.0.1:9/v1', model: m}], max_attempts: 1}")
    shown = run_instruct(profile, "--per-role", 10, "--llm", tmp_path / "down.yaml", "--json", model=False)
    assert shown.code == 1
    assert shown.json["counts"]["candidates"] == 0 and shown.json["requests"]["failed"] == 2
    assert "retry_failed=true" in shown.err


# --- report


@pytest.fixture
def report(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Runs the command in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    return partial(command, "report")


def test_the_published_table_is_not_shown_with_rows_that_share_the_configs_name(
    report: Command, tmp_path: Path
) -> None:
    """A config that the paper has a table of, here with the sample's rows under its name."""
    folder = sample_folder()
    files = sorted((folder / "rolebench-eng" / "instruction-generalization").rglob("rolegpt_baseline.jsonl"))
    named = [f"Replies={file}" for file in files]
    words = f"--config instruction-generalization-eng --set data_dir={folder} --tables t --json"
    shown = report(*named, *words.split())
    (part,) = shown.result["parts"]
    assert part["published"] is False and part["protocol"] == "paper"
    lines = (tmp_path / "t" / "scores.md").read_text(encoding="utf-8").splitlines()
    assert not any("published" in line for line in lines)
    ours = [line.split("|")[2:] for line in lines if line.startswith(("| RoleGPT |", "| Replies |"))]
    assert len(ours) == 2 and ours[0] == ours[1]


@pytest.mark.slow
@pytest.mark.realdata
@pytest.mark.filterwarnings("ignore::rolellm.data.rolebench.source.MissingFilesWarning")
def test_the_published_table_with_the_releases_own_rows(report: Command, real_release: Path, tmp_path: Path) -> None:
    file = real_release / "rolebench-zh" / "role_specific" / "rolegpt_baseline.jsonl"
    words = f"--config instruction-generalization-zh --set data_dir={real_release} --tables t --json"
    shown = report(f"Replies={file}", *words.split())
    (part,) = shown.json["parts"]
    assert part["published"] is True and part["protocol"] == "paper"
    lines = (tmp_path / "t" / "scores.md").read_text(encoding="utf-8").splitlines()
    assert "| RoleGPT (published) | 0.537 | 0.575 | 0.248 | 0.453 |" in lines


# --- models


HERE = "http://localhost:8000/v1"
PRICED = """
endpoints:
  - base_url: https://api.example.com/v1
    model: big
    api_key_env: A_KEY_THAT_IS_NOT_SET
    price: {prompt: 3, completion: 6}
max_attempts: 3
budget: 2.5
"""
# Whatever opens a socket or looks a host up ends the process, and cannot be caught.
DRY = """
import os, sys

def audit(event, args):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto"):
        os.write(2, f"{event} {args}".encode())
        os._exit(9)

sys.addaudithook(audit)
"""


@pytest.fixture
def priced(place: Path) -> Path:
    (place / "llm.yaml").write_text(PRICED, encoding="utf-8")
    return place


def test_options_go_before_a_file(priced: Path) -> None:
    chosen = ModelOptions(llm=str(priced / "llm.yaml"))
    assert LLM.from_options(chosen).options == RunOptions(max_attempts=3, budget=2.5)
    limited = LLM.from_options(chosen, CallOptions(budget=0.0, retry_failed=True))
    assert limited.options == RunOptions(max_attempts=3, budget=0.0, retry_failed=True)
    server = LLM.from_options(ModelOptions(llm=HERE, model="small", api_key_env="SOME_KEY"))
    assert server.settings.endpoints == (ModelSettings(base_url=HERE, model="small", api_key_env="SOME_KEY"),)


def test_a_dry_run_opens_no_socket_and_prints_one_object(priced: Path) -> None:
    # As at a user's: nothing in the environment keeps other libraries off the network.
    environment = {name: value for name, value in os.environ.items() if "OFFLINE" not in name}
    words = ["instruct", "fox", "--llm", "llm.yaml", "--dry-run", "--json"]
    command = [sys.executable, "-c", f"{DRY}from rolellm.cli.app import main\nmain()", *words]
    done = subprocess.run(command, cwd=priced, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["worst"]["calls"] == 3 * found["requests"] > 0
    assert 0 < found["expected"]["cost"] < found["worst"]["cost"]
    assert found["exact"] is False


def test_a_dry_run_without_prices(place: Path, command: Command) -> None:
    done = command("instruct", place / "fox", "--llm", HERE, "--model", "small", "--dry-run")
    for words in ("no price", "No price is given for localhost:8000/small.", "Tokens are estimated"):
        assert words in done.out


def test_the_hook_of_these_tests_would_end_a_process_that_connects() -> None:
    code = f"{DRY}import socket\nsocket.create_connection(('127.0.0.1', 9))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 9
