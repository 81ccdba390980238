"""``rolellm report --compare``: two judging runs, two files of predictions, and what is neither."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from rolellm.core.records import Row
from rolellm.judging.records import Comparison, Judgement, System, write_run
from rolellm.judging.settings import JudgingSettings

from ..commands import Command
from ..judge_runs import summarize


@pytest.fixture
def run(command: Command) -> Command:
    return partial(command, "report", "--compare")


def judged(folder: Path, rows: list[Row], wins: Callable[[int], bool], answer: str, judge: str = "judge") -> Path:
    """A finished run of one model, called ``fox``, that wins in the rows named."""
    people = [System("fox"), System("base", "baseline")]
    comparison = Comparison(rows, people, {name: {row.id: answer for row in rows} for name in ("fox", "base")})
    judgements = [
        Judgement(row.id, judge, "pairwise", order, (1.0, 2.0) if wins(number) == (order[0] == "fox") else (2.0, 1.0))
        for number, row in enumerate(rows)
        for order in (("fox", "base"), ("base", "fox"))
    ]
    judges = [{"name": judge, "prompts": {}, "model": [], "family": None, "flagged": []}]
    result = summarize(comparison, judgements, judges, JudgingSettings(resamples=50))
    write_run(folder, comparison, judgements, result, judges=judges)
    return folder


@pytest.fixture
def runs(tmp_path: Path, rows: list[Row]) -> tuple[Path, Path]:
    """Two runs: the model wins a third of the rows, then all."""
    first = judged(tmp_path / "first", rows, lambda number: number % 3 == 0, "Grapes, sour.")
    return first, judged(tmp_path / "second", rows, lambda number: True, "Sweet\x1b[31m grapes.", judge="k")


def test_two_runs_as_json(run: Command, runs: tuple[Path, Path], rows: list[Row]) -> None:
    shown = run(*runs, "--json", "--top", 3)
    # A slow machine sees progress.
    assert shown.code == 0 and all(line.startswith("scoring:") for line in shown.err.splitlines())
    result = json.loads(shown.out)
    (win,) = [one for one in result["changes"] if one["measure"] == "win_rate"]
    assert win["after"]["mean"] == 1
    assert win["difference"]["mean"] == pytest.approx(1 - win["before"]["mean"])
    assert win["p_adjusted"] < 0.05
    assert result["shared"]["rows"] == len(rows)
    assert len(result["moved"]) == 3
    assert {"name": "judge.name", "before": "judge", "after": "k"} in result["settings"]
    assert {one["measure"] for one in result["changes"]} >= {"CUS", "SPE"}
    assert run(*runs, "--json", "--top", 3).out == shown.out
    # Interval and p are of one test, for these roles and for new ones.
    for change in shown.json["changes"]:
        for ends, p in (("ci95", "p"), ("ci95_new_roles", "p_new_roles")):
            if (interval := change["difference"].get(ends)) is not None:
                assert (change[p] < 0.05) == (not interval[0] <= 0 <= interval[1])


def test_two_runs_for_people(run: Command, runs: tuple[Path, Path]) -> None:
    shown = run(*runs, "--top", 1)
    assert shown.code == 0
    for words in ("What changed", "judge.name", "win rate %", "p for new roles (Holm)", "B: Sweet␛[31m grapes."):
        assert words in shown.out
    assert "\x1b" not in shown.out
    assert "\n1. fox, win rate 0 → 1" in shown.out
    assert "\n2. " not in shown.out


def write_predictions(path: Path, rows: list[Row], text: str) -> Path:
    path.write_text("".join(json.dumps({"id": row.id, "prediction": text}) + "\n" for row in rows), encoding="utf-8")
    return path


def test_two_files_of_predictions(run: Command, rows: list[Row], tmp_path: Path) -> None:
    first = write_predictions(tmp_path / "a.jsonl", rows, "Nothing to say.")
    second = write_predictions(tmp_path / "b.jsonl", rows, "I am the one who says a great many things to you.")
    shown = run(first, second, "--config", "sample", "--json")
    assert (shown.code, shown.err) == (0, "")
    result = json.loads(shown.out)
    assert result["shared"]["systems"] == [["a.jsonl", "b.jsonl"]]
    assert [one["measure"] for one in result["changes"]] == ["CUS", "RAW", "SPE"]
    assert all(one["p_adjusted"] >= one["p"] for one in result["changes"])
    people = run(first, second, "--config", "sample")
    assert "a.jsonl → b.jsonl" in people.out


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        pytest.param(["RUN", "FILE"], 2, "two folders of judging runs, or two files", id="a run and a file"),
        pytest.param(["FILE", "FILE"], 2, "--config", id="predictions without a data set"),
        pytest.param(["RUN", "RUN", "--pair", "fox=owl"], 2, "no system 'owl'", id="a pair of nobody"),
        pytest.param(["EMPTY", "RUN"], 1, "not the folder of a judging run", id="another folder"),
    ],
)
def test_what_cannot_be_compared_ends_in_words(
    run: Command, runs: tuple[Path, Path], rows: list[Row], tmp_path: Path, words: list[str], code: int, message: str
) -> None:
    (tmp_path / "empty").mkdir()
    file = write_predictions(tmp_path / "a.jsonl", rows[:3], "Well.")
    places = {"RUN": str(runs[0]), "FILE": str(file), "EMPTY": str(tmp_path / "empty"), "gone": str(tmp_path / "gone")}
    shown = run(*(places.get(word, word) for word in words))
    assert shown.code == code
    assert message in shown.err
    assert shown.out == ""


def test_names_and_questions_cannot_steer_a_terminal(run: Command, rows: list[Row], tmp_path: Path) -> None:
    evil = [replace(row, question=f"{row.question}\x1b]0;owned\x07\n\n1. forged") for row in rows]
    first = judged(tmp_path / "first", evil, lambda number: True, "[bold red]same[/]")
    second = judged(tmp_path / "second", evil, lambda number: False, "[bold red]same[/]")
    shown = run(first, second)
    assert shown.code == 0
    assert "\x1b" not in shown.out
    assert "A and B: [bold red]same[/]" in shown.out
    assert "\n1. forged" not in shown.out
