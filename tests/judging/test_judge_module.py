"""The `evaluate` module of the judge, loaded as a user loads it: by path, offline, in a process of its own."""

import re
from pathlib import Path
from typing import Any

import pytest

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
#: Errors of every kind come through; tests/judging/test_judge_function.py has the others.
BAD = {
    "nothing": ({}, "no predictions to judge"),
    "no-llm": (SIMPLE, "llm is NoneType"),
    "seed": ({**WHOLE, "seed": -1}, "seed: must be"),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, root: Path) -> Path:
    """A folder with the module and the settings of its card."""
    folder = tmp_path_factory.mktemp("judge")
    (folder / "evaluate_metrics").symlink_to(root / "evaluate_metrics")
    card = (folder / "evaluate_metrics/role_judge/README.md").read_text(encoding="utf-8")
    for name, text in re.findall(r"```yaml\n# (\S+)\n(.*?)```", card, flags=re.DOTALL):
        (folder / name).write_text(text, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def results(place: Path, rows: list[Row]) -> dict[str, Any]:
    """What `compute` gave for each call; the card's code runs along, for `evaluate` is slow to import."""
    known = [row for row in rows if row.subset == "role_specific"]
    answers = {"predictions": [row.references[0] for row in known], "references": [row.rolegpt for row in known]}
    columns: dict[str, Any] = {
        "questions": [row.question for row in known],
        "roles": [row.role for row in known],
        "descriptions": [row.role_description for row in known],
        "knowledge": [row.references for row in known],
    }
    options = {**columns, "llm": "words.yaml", "folder": "sample"}
    # Bad calls come first: a refused one must leave nothing behind.
    calls: dict[str, Any] = {name: call for name, (call, _) in BAD.items()}
    calls["sample"] = {**answers, **options}
    halves = [{key: values[part] for key, values in answers.items()} for part in (slice(10), slice(10, None))]
    calls["batches"] = {**options, "batches": halves}
    card = (place / "evaluate_metrics/role_judge/README.md").read_text(encoding="utf-8")
    return run_calls(place, place, _LOAD, calls, card)


@pytest.mark.parametrize("name", BAD)
def test_bad_calls_are_value_errors_in_words_and_ask_nobody(results: dict[str, Any], place: Path, name: str) -> None:
    assert BAD[name][1] in results[name]["error"]
    assert results[name]["is_value_error"] and not (place / "simple").exists()


def test_the_figures_are_those_of_the_result_and_the_same_call_asks_nothing(results: dict[str, Any]) -> None:
    first, second = results["sample"]["result"], results["batches"]["result"]
    models = {one["name"]: one for one in first["models"]}
    estimates = {
        "win_rate": models["model"]["pairwise"]["win_rate"],
        "average_rank": models["model"]["listwise"]["average_rank"],
    }
    for key, estimate in estimates.items():
        assert (results["sample"][key], results["sample"][f"{key}_ci95"]) == (estimate["mean"], estimate["ci95"])
    assert results["sample"]["canaries"] == {
        name: models[name]["pairwise"]["win_rate"]["mean"] for name in ("canary: null model", "canary: echo")
    }
    assert (results["sample"]["n"], results["sample"]["problems"]) == (first["rows"], [])
    assert (second["spent"]["calls"], second["spent"]["from_journal"]) == (0, first["spent"]["calls"])
    assert {**second, "spent": None} == {**first, "spent": None}
