"""The `evaluate` module, loaded as a user loads it: by path, offline, in a process and a cache of its own."""

from pathlib import Path
from typing import Any

import pytest

from rolellm.core.records import Row
from rolellm.scoring.predictions import Predictions
from rolellm.scoring.score import score_rows
from rolellm.scoring.settings import ScoreOptions

from .module_process import run_calls

pytestmark = pytest.mark.slow

_LOAD = """
import json, sys
import evaluate
calls, out = json.load(open(sys.argv[1], encoding="utf-8")), {}
rouge = evaluate.load("evaluate_metrics/rolebench_rouge")
for name, call in calls.items():
    try:
        out[name] = rouge.compute(**call)
    except Exception as error:
        out[name] = {"error": str(error), "is_value_error": isinstance(error, ValueError)}
json.dump(out, open(sys.argv[2], "w", encoding="utf-8"))
"""

PROTOCOLS = ("rouge-score", "paper")
BAD = {
    "mixed": ({"predictions": ["a", "b"], "references": [["a"], "b"]}, "that of row 1 a text"),
    "protocol": ({"predictions": ["a"], "references": ["a"], "protocol": "rouge"}, "protocol: must be"),
}
SIMPLE = {
    "lists": {"predictions": ["the raven sits still"], "references": [["a raven", "the raven never sits"]]},
    "texts": {"predictions": ["a b", "c"], "references": ["a b", "d"], "questions": ["x", "y"]},
    "chinese": {"predictions": ["油灯从不熄灭"], "references": [["油灯不熄"]], "tokenizer": "characters"},
    "recall": {"predictions": ["a b c d"], "references": [["a b", "a b x x"]], "protocol": "paper"},
}


@pytest.fixture(scope="module")
def card(root: Path) -> str:
    return (root / "evaluate_metrics" / "rolebench_rouge" / "README.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory, root: Path, rows: list[Row], card: str) -> dict[str, Any]:
    """What `compute` gave for each call; the card's code runs along, for `evaluate` is slow to import."""
    folder = tmp_path_factory.mktemp("metric")
    sample = {
        "predictions": [row.rolegpt for row in rows],
        "references": [row.references for row in rows],
        "language": [row.language for row in rows],
        "subsets": [row.subset for row in rows],
        "raw_references": [row.raw_reference for row in rows],
        "questions": [row.question for row in rows],
        "roles": [row.role for row in rows],
    }
    # Bad calls come first: a refused one must leave nothing behind.
    calls = {**{name: call for name, (call, _) in BAD.items()}, **SIMPLE}
    calls |= {protocol: {**sample, "protocol": protocol} for protocol in PROTOCOLS}
    return run_calls(folder, root, _LOAD, calls, card)


@pytest.mark.parametrize("name", BAD)
def test_bad_lists_are_value_errors_in_words(results: dict[str, Any], name: str) -> None:
    assert BAD[name][1] in results[name]["error"]
    assert results[name]["is_value_error"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("lists", {"rougeL": 0.75, "precision": 0.75, "n": 1, "ci95": None, "tokenizer": "rouge_score"}),
        ("texts", {"rougeL": 0.5, "n": 2, "ci95": [0.0, 1.0], "protocol": "rouge-score"}),
        ("chinese", {"rougeL": 0.8, "tokenizer": "characters"}),
        ("recall", {"rougeL": 1.0, "recall": 1.0, "precision": 0.5, "protocol": "paper"}),
    ],
)
def test_plain_lists(results: dict[str, Any], name: str, expected: dict[str, Any]) -> None:
    found = results[name]
    assert {key: found[key] for key in expected} == expected
    assert "metrics" not in found
    assert found["fingerprint"]["protocol"] == found["protocol"]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_cus_raw_spe_are_those_of_the_library(results: dict[str, Any], rows: list[Row], protocol: str) -> None:
    found = results[protocol]
    predictions = Predictions.pair_texts([row.id for row in rows], [str(row.rolegpt) for row in rows])
    expected = score_rows(rows, predictions, ScoreOptions(protocol=protocol)).to_dict()
    assert found["metrics"] == expected["metrics"]
    assert found["by_role"] == expected["by_role"]
    for name, part in expected["metrics"].items():
        assert found[name] == part["mean"]
    assert found["n"] == len(rows)
    assert found["fingerprint"]["tokenizer"] == expected["fingerprint"]["tokenizer"]
