"""``rolellm judge`` as a user meets it: on the sample, with the rules that ship, a server, a jury, and a kill."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rolellm import load_rolebench
from rolellm.core.jsonl import write_jsonl
from rolellm.models.prompts.fences import read_fences

from ..commands import Command

ASK = ("good.jsonl", "dull-7b=bad.jsonl", "--config", "sample", "--llm", "llm.yaml", "--out", "run")


@pytest.fixture(scope="module")
def answers() -> dict[str, list[dict[str, str]]]:
    """Answers to the sample: the first reference, and a refusal to play."""
    rows = load_rolebench("sample", "test")
    return {
        "good.jsonl": [{"id": row["id"], "prediction": row["references"][0]} for row in rows],
        "bad.jsonl": [{"id": row["id"], "prediction": "I am a program."} for row in rows],
    }


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: dict[str, list[dict[str, str]]]) -> Path:
    for name, lines in answers.items():
        write_jsonl(tmp_path / name, lines)
    (tmp_path / "llm.yaml").write_text("endpoints: [{backend: scripted, rules: words}]\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run(command: Command) -> Command:
    return partial(command, "judge")


def write_endpoints(place: Path, url: str, *models: str, more: str = "") -> None:
    """Settings of models behind one address."""
    entries = (f"  - {{base_url: '{url}', model: {model}{more}}}\n" for model in models)
    (place / "llm.yaml").write_text("endpoints:\n" + "".join(entries), encoding="utf-8")


def test_the_table_shows_canaries_and_biases_beside_the_scores(place: Path, run: Command) -> None:
    shown = run(*ASK, "--limit", "8")
    assert shown.code == 0
    columns = ("canary: null model", "Win rate, %", "Avg. rank", "Consistency, %")
    for word in (*columns, "First answer of a pair preferred", "rolellm report run", "rolellm label run"):
        assert word in shown.out


def places(body: dict[str, Any]) -> str:
    """The server's verdict: whatever it reads first is the best."""
    if body["response_format"]["json_schema"]["name"] == "better":
        return json.dumps({name: {"reason": "It comes first.", "better": "A"} for name in ("style", "knowledge")})
    shown = [name[-1] for name in read_fences(body["messages"][-1]["content"]) if name.startswith("answer ")]
    entries = [{"answer": name, "reason": "", "style": at, "knowledge": at} for at, name in enumerate(shown, start=1)]
    return json.dumps({"ranking": entries})


def test_a_judge_that_goes_by_the_place_is_called_unfit_before_all_else(
    place: Path, run: Command, command: Command, llm_server: Callable[..., Any]
) -> None:
    write_endpoints(place, llm_server(places).url, "local")
    shown = run(*ASK, "--limit", "6")
    assert shown.code == 0
    first, *rest = shown.out.splitlines()
    assert first.startswith("warning: the judge local is not fit to judge pairs")
    figures = "\n".join(rest).partition("biases")[0]
    assert "win rates are withheld" in figures and "Win rate, %" not in figures
    assert command("report", "run", "--out", "report.html").code == 0
    page = (place / "report.html").read_text(encoding="utf-8")
    assert page.index("is not fit to judge pairs") < page.index("<table")


def test_a_model_on_this_machine_can_be_asked_without_a_key(place: Path, tiny_model: Path, run: Command) -> None:
    (place / "llm.yaml").write_text(
        f"endpoints: [{{backend: local, model: '{tiny_model}', device: cpu}}]\nmax_attempts: 1\n"
    )
    judge = ("--judge", "role-pair", "--limit", "1", "--set", "canaries=false")
    # Random weights give no verdicts; that they were asked, and that this counts as none, is the point.
    done = run(*ASK, *judge)
    assert done.code == 1 and "4 of 4 verdicts are missing" in done.err
