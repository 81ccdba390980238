"""The way of docs/judging.md, command by command as it stands there, and what it says of files, keys and counts."""

from __future__ import annotations

import csv
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rolellm.cli.app import app
from rolellm.data.rolebench import load_rolebench

pytestmark = pytest.mark.slow

JUDGE = "judge tuned.jsonl base.jsonl --config sample --llm words.yaml"


@pytest.fixture(scope="module")
def page(root: Path) -> str:
    return (root / "docs" / "judging.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, root: Path, page: str) -> Iterator[Path]:
    """A folder with what the page's commands read: its settings, its judge, and predictions of three models."""
    folder = tmp_path_factory.mktemp("judging")
    (folder / "evaluate_metrics").symlink_to(root / "evaluate_metrics")
    for text in blocks(page, "yaml"):
        (folder / text.split()[1]).write_text(text, encoding="utf-8")
    answers = {
        "tuned": lambda row: row["references"][0],
        "base": lambda row: f"I am a language model. {row['question']}",
        "third": lambda row: f"Well. {row['references'][-1]}",
    }
    for name, answer in answers.items():
        lines = [json.dumps({"id": row["id"], "prediction": answer(row)}) for row in load_rolebench("sample", "test")]
        (folder / f"{name}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    (copy,) = blocks(page, "bash")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(["bash", "-ec", copy], cwd=folder, check=True, env={**os.environ, "PATH": path})
    settings = folder / "my-judge" / "judge.yaml"
    settings.write_text(settings.read_text(encoding="utf-8").replace("version: 2", "version: 3"), encoding="utf-8")
    before = Path.cwd()
    os.chdir(folder)
    yield folder
    os.chdir(before)


def blocks(page: str, kind: str) -> list[str]:
    return [
        text for found, text in re.findall(r"^```(\w*)\n(.*?)^```$", page, re.DOTALL | re.MULTILINE) if found == kind
    ]


def run(*words: str) -> str:
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == 0, (words, result.output, result.exception)
    return result.stdout


def label(words: list[str]) -> str:
    """What a person does: write the sheet, fill in three lines, and read it."""
    run(*words)
    sheet = Path(words[words.index("--sheet") + 1])
    with sheet.open(encoding="utf-8-sig", newline="") as stream:
        lines = list(csv.DictReader(stream))
    for line in lines[:3]:
        places = [name for name in line if name.startswith("place of ")]
        line.update({name: str(place) for place, name in enumerate(places, start=1)})
    with sheet.open("w", encoding="utf-8-sig", newline="") as stream:
        writer = csv.DictWriter(stream, list(lines[0]))
        writer.writeheader()
        writer.writerows(lines)
    return run(*words)


@pytest.fixture(scope="module")
def shown(place: Path, page: str) -> dict[str, str]:
    """What each command of the page printed, in order; of a judging run its result."""
    lines = re.findall(r"^\$ rolellm (.+)$", page, re.MULTILINE)
    commands = [shlex.split(line, comments=True) for line in lines]
    assert len(commands) > 10
    found = {}
    for words in commands:
        if words[0] == "label" and "--agreement" not in words:
            # The page of the other command waits for a person.
            if "--sheet" in words:
                found[shlex.join(words)] = label(words)
        elif words[0] == "judge":
            found[shlex.join(words)] = run(*words, "--json")
        else:
            found[shlex.join(words)] = run(*words)
    return found


def result(shown: dict[str, str], command: str) -> dict[str, Any]:
    return dict(json.loads(shown[command]))


@pytest.mark.slow
def test_the_counts_are_those_of_the_page(shown: dict[str, str], page: str) -> None:
    planned = result(shown, f"{JUDGE} --dry-run")
    few, all_ = result(shown, f"{JUDGE} --out run --limit 20"), result(shown, f"{JUDGE} --out run")
    assert "820 for 72 rows and two models" in page
    assert planned["requests"] == 820
    assert all_["diagnostics"]["judgements"] == {"pairwise": 676, "listwise": 144}
    assert few["rows"] == 20
    assert all_["spent"]["calls"] < 820
    assert all_["spent"]["from_journal"] >= 20 * (2 * 4 + 2)
    jury = result(shown, f"{JUDGE.replace('words.yaml', 'jury.yaml')} --jury --dry-run")
    assert jury["requests"] == 2 * 820


def test_the_page_names_every_file_of_a_run(shown: dict[str, str], page: str, place: Path) -> None:
    table = page.split("RUN holds plain files:")[1].split("Each run parses the verdicts")[0]
    named = set(re.findall(r"`([\w./]+)`", re.sub(r"\|[^|]*\|\n", "|\n", table)))
    there = {f"{path.name}/" if path.is_dir() else path.name for path in (place / "run").iterdir()}
    assert {name for name in there if not name.startswith(".")} == named


@pytest.mark.slow
def test_the_python_of_the_page_runs(place: Path, page: str) -> None:
    *_, code = blocks(page, "python")
    done = subprocess.run([sys.executable, "-c", code], cwd=place, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert "canary: echo" in done.stdout
