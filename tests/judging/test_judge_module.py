"""The `evaluate` module of the judge, loaded as a user loads it: by path, offline, in a process of its own."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rolellm.cli.app import app
from rolellm.core.records import Row

from ..scoring.module_process import run_calls

pytestmark = pytest.mark.slow

_LOAD = """
import json, sys
import evaluate
calls, out = json.load(open(sys.argv[1], encoding="utf-8")), {}
judge = evaluate.load("evaluate_metrics/role_judge")
for name, call in calls.items():
    try:
        batches = call.pop("batches", ())
        for batch in batches:
            judge.add_batch(**batch)
        out[name] = judge.compute(**call)
    except Exception as error:
        out[name] = {"error": str(error), "is_value_error": isinstance(error, ValueError)}
json.dump(out, open(sys.argv[2], "w", encoding="utf-8"))
"""

SIMPLE = {"predictions": ["a", "b"], "references": ["c", "d"], "questions": ["q", "r"], "roles": ["Ada", "Ada"]}
WHOLE = {**SIMPLE, "llm": "words.yaml", "folder": "simple"}
#: Errors of every kind come through; tests/judging/test_columns.py has the others.
BAD = {
    "nothing": ({}, "no predictions to judge"),
    "null": ({**WHOLE, "predictions": ["a", None]}, "must be a text, found NoneType"),
    "few-questions": ({**WHOLE, "questions": ["q"]}, "2 predictions but 1 values of question"),
    "no-llm": (SIMPLE, "llm is NoneType"),
    "seed": ({**WHOLE, "seed": -1}, "seed: must be"),
}


@pytest.fixture(scope="module")
def card(root: Path) -> str:
    return (root / "evaluate_metrics" / "role_judge" / "README.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def known(rows: list[Row]) -> list[Row]:
    """The sample's rows that have knowledge of the role."""
    return [row for row in rows if row.subset == "role_specific"]


@pytest.fixture(scope="module")
def sample(known: list[Row]) -> dict[str, Any]:
    """Those rows as lists."""
    rows = known
    return {
        "predictions": [row.references[0] for row in rows],
        "references": [row.rolegpt for row in rows],
        "questions": [row.question for row in rows],
        "roles": [row.role for row in rows],
        "descriptions": [row.role_description for row in rows],
        "knowledge": [row.references for row in rows],
        "llm": "words.yaml",
    }


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, root: Path, card: str) -> Path:
    """A folder with the module and the card's settings."""
    folder = tmp_path_factory.mktemp("judge")
    (folder / "evaluate_metrics").symlink_to(root / "evaluate_metrics")
    for name, text in re.findall(r"```yaml\n# (\S+)\n(.*?)```", card, flags=re.DOTALL):
        (folder / name).write_text(text, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def results(place: Path, sample: dict[str, Any], card: str) -> dict[str, Any]:
    """What `compute` gave for each call; the card's code runs along, for `evaluate` is slow to import."""
    parts = (slice(10), slice(10, None))
    halves = [{key: sample[key][part] for key in ("predictions", "references")} for part in parts]
    rest = {key: value for key, value in sample.items() if key not in halves[0]}
    # Bad calls come first: a refused one must leave nothing behind.
    calls: dict[str, Any] = {name: call for name, (call, _) in BAD.items()}
    calls["sample"] = {**sample, "folder": "sample"}
    calls["batches"] = {**rest, "batches": halves, "folder": "sample"}
    return run_calls(place, place, _LOAD, calls, card)


@pytest.fixture(scope="module")
def by_command(place: Path, known: list[Row], results: dict[str, Any]) -> dict[str, Any]:
    """The same answers, judged by the command line."""
    texts = {"model": [row.references[0] for row in known], "baseline": [row.rolegpt for row in known]}
    for name, said in texts.items():
        lines = [json.dumps({"id": row.id, "prediction": text}) + "\n" for row, text in zip(known, said, strict=True)]
        (place / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
    answers, baseline = (place / f"{name}.jsonl" for name in texts)
    words = ["judge", str(answers), "--config", "sample", "--llm", str(place / "words.yaml"), "--json"]
    words += ["--baseline", str(baseline), "--subset", "role_specific"]
    done = CliRunner().invoke(app, [*words, "--out", str(place / "by-command")])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("name", BAD)
def test_bad_calls_are_value_errors_in_words_and_ask_nobody(results: dict[str, Any], place: Path, name: str) -> None:
    assert BAD[name][1] in results[name]["error"]
    assert results[name]["is_value_error"] and not (place / "simple").exists()


def _list_figures(result: dict[str, Any]) -> dict[str, Any]:
    """The figures of each system; lists do not say which script a row is from."""
    return {
        (model["name"], design): {**model[design], "by_category": None} if model[design] else None
        for model in result["models"]
        for design in ("pairwise", "listwise")
    }


def test_the_numbers_are_those_of_the_command(results: dict[str, Any], by_command: dict[str, Any]) -> None:
    found = results["sample"]["result"]
    assert _list_figures(found) == _list_figures(by_command)
    assert found["spent"]["calls"] == by_command["spent"]["calls"] > 0


def test_the_figures_are_those_of_the_result(results: dict[str, Any], known: list[Row]) -> None:
    found = results["sample"]
    models = {one["name"]: one for one in found["result"]["models"]}
    pairs, lists = models["model"]["pairwise"], models["model"]["listwise"]
    for key, estimate in {"win_rate": pairs["win_rate"], "average_rank": lists["average_rank"]}.items():
        assert (found[key], found[f"{key}_ci95"]) == (estimate["mean"], estimate["ci95"])
    assert found["canaries"] == {
        name: models[name]["pairwise"]["win_rate"]["mean"] for name in ("canary: null model", "canary: echo")
    }
    assert (found["n"], found["problems"]) == (len(known), [])


def test_the_same_call_asks_nothing_anew(results: dict[str, Any]) -> None:
    first, second = results["sample"]["result"], results["batches"]["result"]
    assert second["spent"]["calls"] == 0
    assert second["spent"]["from_journal"] == first["spent"]["calls"]
    assert {**second, "spent": None} == {**first, "spent": None}


def test_the_folder_can_be_reported(results: dict[str, Any], place: Path) -> None:
    page = place / "silver.html"
    # The card's: one row with a reference and one without.
    done = CliRunner().invoke(app, ["report", str(place / "silver"), "--out", str(page)])
    assert done.exit_code == 0, done.output
    assert "canary: echo" in page.read_text(encoding="utf-8")
