"""``rolellm score`` through its entry point, on the embedded sample and on the real release."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rolellm.core.records import Row

from ..commands import Command


@pytest.fixture
def run(command: Command) -> Command:
    return partial(command, "score")


@pytest.fixture
def predictions(tmp_path: Path, rows: list[Row]) -> Path:
    """The baseline's reply to every row, by id."""
    return write(tmp_path / "P.jsonl", [{"id": row.id, "prediction": row.rolegpt} for row in rows])


def write(path: Path, lines: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8")
    return path


def test_the_table_shows_means_intervals_counts_and_the_recipe(run: Command, predictions: Path) -> None:
    found = run(predictions, "--config", "sample", "--json").json
    shown = run(predictions, "--config", "sample")
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


def test_what_the_join_left_open_is_on_standard_error(run: Command, tmp_path: Path, rows: list[Row]) -> None:
    lines: list[dict[str, Any]] = [{"id": row.id, "prediction": row.rolegpt} for row in rows[:60]]
    lines += [{"id": rows[0].id, "prediction": "Else."}, {"role": "Nobody", "question": "Who?", "prediction": "x"}]
    lines[1]["prediction"] = " "
    path = write(tmp_path / "P.jsonl", lines)
    shown = run(path, "--config", "sample", "--json")
    assert shown.result["unmatched"] == {"predictions": 1, "rows": 12}
    counts = shown.json["counts"]
    assert (counts["duplicates_differing"], counts["empty"]) == (1, 1)
    assert "warning: rows of sample/test without a prediction: 12 of 72" in shown.err
    assert f"{path}:61: id " in shown.err
    assert f"{path}:62: Nobody, “Who?”" in shown.err
    assert "note: predictions that are empty and score 0: 1" in shown.err
    refused = run(path, "--config", "sample", "--json", "--set", "strict=true")
    assert (refused.code, refused.out) == (1, "")
    assert refused.err.startswith("error: refused, as asked by strict: rows of sample/test")
