"""Two runs side by side: what changed, what of it is more than luck, what moved most, and what cannot be compared."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rolellm.core.errors import DataError, PredictionError, SettingsError
from rolellm.core.files import write_json
from rolellm.judging import records as judging_records
from rolellm.judging.compare import RunSide, compare_sides, read_judged_side, read_scored_side
from rolellm.judging.records import Comparison, Judgement
from rolellm.judging.settings import CompareSettings, JudgingSettings
from rolellm.scoring.settings import ScoreOptions

from ..judge_runs import Simulator, summarize

QUICK = CompareSettings()
SCORE = ScoreOptions()


def make_side(
    folder: Path,
    made: Simulator,
    judgements: Sequence[Judgement] | None = None,
    comparison: Comparison | None = None,
    judge: str = "judge",
    **manifest: Any,
) -> RunSide:
    """A finished judging run, read back."""
    comparison, judgements = comparison or made.comparison(), made.pairs() if judgements is None else judgements
    judges = [{"name": judge, "prompts": {"pairwise": {"name": "role-pair", "hash": "abc"}}, "family": None}]
    result = summarize(comparison, judgements, judges, JudgingSettings(resamples=100))
    judging_records.write_run(folder, comparison, judgements, result, judges=judges, **manifest)
    return read_judged_side(folder)


def changes(result: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    return {(one["system"], one["measure"]): one for one in result["changes"]}


def test_a_run_beside_itself_has_not_changed(tmp_path: Path) -> None:
    made = Simulator({"a": 0.5, "b": -0.5}, questions=40, spread=100)
    run = make_side(tmp_path / "run", made, [*made.pairs(), *made.lists()])
    result = compare_sides(run, run, QUICK)
    assert result["settings"] == result["moved"] == result["problems"] == []
    assert result["shared"]["systems"] == [["a", "a"], ["b", "b"], ["base", "base"]]
    found = changes(result)
    measured = {(name, measure) for name in ("a", "b") for measure in ("win_rate", "average_rank")}
    assert set(found) == measured | {("base", "average_rank")}
    assert {(one["difference"]["mean"], one["p"]) for one in found.values()} == {(0, 1.0)}
    assert all(one["before"] == one["after"] for one in found.values())


def test_who_got_better_is_found_and_who_did_not_is_not(tmp_path: Path) -> None:
    first = make_side(tmp_path / "first", Simulator({"a": 0.0, "b": 0.0}, questions=80, seed=1))
    second = make_side(tmp_path / "second", Simulator({"a": 1.6, "b": 0.0}, questions=80, seed=2))
    result = compare_sides(first, second, QUICK)
    found = changes(result)
    assert found["a", "win_rate"]["difference"]["ci95"][0] > 0
    assert found["a", "win_rate"]["p_adjusted"] < 0.05 < found["b", "win_rate"]["p_adjusted"]
    assert found["a", "win_rate"]["p_adjusted"] >= found["a", "win_rate"]["p"]
    sizes = [abs(one["after"] - one["before"]) for one in result["moved"]]
    assert len(sizes) == 10 and sizes == sorted(sizes, reverse=True) and sizes[0] == 1


def test_what_moved_says_all_that_one_must_see(tmp_path: Path) -> None:
    made = Simulator({"a": 9.0}, questions=10, noise=0.1)
    row, comparison = made.rows[7], made.comparison()
    lost = [
        replace(one, ranks=(2.0, 1.0) if one.order[0] == "a" else (1.0, 2.0), reasons=("so", "dull"))
        if one.row == row.id
        else one
        for one in made.pairs()
    ]
    answers = {**comparison.answers, "a": {**comparison.answers["a"], row.id: "Something else."}}
    first = make_side(tmp_path / "first", made)
    second = make_side(tmp_path / "second", made, lost, replace(comparison, answers=answers))
    (moved,) = compare_sides(first, second, QUICK)["moved"]
    assert moved == {
        "row": row.id,
        "role": row.role,
        "question": row.question,
        "system": "a",
        "system_b": "a",
        "measure": "win_rate",
        "before": 1.0,
        "after": 0.0,
        "answer_before": "x" * 200,
        "answer_after": "Something else.",
        "same_answer": False,
        "reasons_before": ["judge on a", "judge on a"],
        "reasons_after": ["so", "dull"],
    }
    assert compare_sides(first, second, replace(QUICK, top=0))["moved"] == []


def test_what_is_set_otherwise_is_listed(tmp_path: Path) -> None:
    made = Simulator({"a": 0.0}, questions=4)
    other = made.comparison()
    other.answers["a"][made.rows[0].id] = "Changed."  # type: ignore[index]
    models = {"seed": 1, "kept": [{"name": "x", "deep": {"is": 1}}, {"deep": []}]}
    first = make_side(tmp_path / "first", made, models=models)
    changed = {**models, "seed": 2, "new": True}
    second = make_side(tmp_path / "second", made, made.pairs("k"), other, judge="k", models=changed)
    found = {one["name"]: (one["before"], one["after"]) for one in compare_sides(first, second, QUICK)["settings"]}
    hashes = found.pop("answers.a")
    assert hashes[0] != hashes[1]
    assert found == {"judge.name": ("judge", "k"), "models.seed": (1, 2), "models.new": (None, True)}
    assert first.settings["models.kept[x].deep.is"] == 1 and first.settings["models.kept[1].deep"] == []


def test_rouge_is_compared_where_answers_changed_and_only_there(tmp_path: Path) -> None:
    made = Simulator({"a": 0.0, "b": 0.0}, questions=20)
    other = made.comparison()
    other.answers["a"].update({row.id: "None." for row in made.rows})  # type: ignore[attr-defined]
    first, second = make_side(tmp_path / "first", made), make_side(tmp_path / "second", made, comparison=other)
    result = compare_sides(first, second, QUICK)
    found = changes(result)
    assert {(name, measure) for name, measure in found if measure != "win_rate"} == {("a", "CUS"), ("a", "SPE")}
    assert (found["a", "CUS"]["before"]["mean"], found["a", "CUS"]["after"]["mean"]) == (0, 1)
    assert found["a", "CUS"]["p_adjusted"] < 0.05
    assert result["moved"] == []  # the verdicts are the same


def test_systems_are_paired_as_asked(tmp_path: Path) -> None:
    first = make_side(tmp_path / "first", Simulator({"old": -1.0, "x": 0.0}, questions=30))
    second = make_side(tmp_path / "second", Simulator({"new": 2.0, "x": 0.0}, questions=30))
    same = compare_sides(first, second, QUICK)["shared"]
    assert same["systems"] == [["x", "x"], ["base", "base"]]
    assert (same["only_a"], same["only_b"]) == (["old"], ["new"])
    result = compare_sides(first, second, replace(QUICK, pairs=("old=new",)))
    assert result["shared"]["systems"][0] == ["old", "new"]
    assert changes(result)["old", "win_rate"]["difference"]["ci95"][0] > 0
    for pair, problem in (("odd=new", r"no system 'odd' .* old, x, base"), ("old", "expected NAME_A=NAME_B")):
        with pytest.raises(SettingsError, match=problem):
            compare_sides(first, second, replace(QUICK, pairs=(pair,)))


def test_only_rows_of_both_count(tmp_path: Path) -> None:
    made = Simulator({"a": 0.0}, questions=20)
    comparison, kept = made.comparison(), made.rows[:30]
    # The same id, another question: not the same row.
    odd = [replace(kept[0], question="Something else?"), *kept[1:]]
    ids = {row.id for row in kept}
    answers = {name: {row: text for row, text in of.items() if row in ids} for name, of in comparison.answers.items()}
    few = Comparison(odd, comparison.systems, answers)
    second = make_side(tmp_path / "second", made, [one for one in made.pairs() if one.row in ids], few)
    result = compare_sides(make_side(tmp_path / "first", made), second, QUICK)
    assert result["shared"]["rows"] == changes(result)["a", "win_rate"]["before"]["n"] == 29
    assert result["problems"] == [
        "1 rows have the same id and another question; they are left out",
        "10 rows are only in the first and 0 only in the second; left out",
    ]


def test_problems_of_either_run_are_said(tmp_path: Path) -> None:
    made = Simulator({"a": 0.0}, questions=10)
    lost = [replace(one, ranks=None, unscored="cut") for one in made.pairs()[:4]]
    first = make_side(tmp_path / "first", made, [*lost, *made.pairs()[4:]])
    second = make_side(tmp_path / "second", made, [], made.comparison(baseline=False))
    problems = compare_sides(first, replace(second, answers=made.comparison().answers), QUICK)["problems"]
    for problem in ("first: 4 of 40 judgements", "second: nothing was judged", "against base in the first and nobody"):
        assert any(problem in one for one in problems)


def predictions(path: Path, rows: Sequence[Any], text: Callable[[int], str]) -> Path:
    lines = [json.dumps({"id": row.id, "prediction": text(number)}) for number, row in enumerate(rows)]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def test_predictions_are_compared_by_rouge(tmp_path: Path) -> None:
    rows = Simulator({}, questions=30).rows
    first = read_scored_side(predictions(tmp_path / "a.jsonl", rows, lambda n: "Wide of it."), rows, SCORE)
    texts = predictions(tmp_path / "b.jsonl", rows, lambda n: "None." if n != 9 else "No.")
    result = compare_sides(first, read_scored_side(texts, rows, SCORE), replace(QUICK, top=60))
    assert result["shared"]["systems"] == [["a.jsonl", "b.jsonl"]]
    found = changes(result)
    assert set(found) == {("a.jsonl", "CUS"), ("a.jsonl", "SPE")}
    assert all(one["p_adjusted"] < 0.05 for one in found.values())
    assert len(result["moved"]) == 59
    assert {one["name"] for one in result["settings"]} == {"predictions[0].sha256", "predictions[0].file"}
    part = read_scored_side(predictions(tmp_path / "c.jsonl", rows[4:], lambda n: "None."), rows, SCORE)
    assert compare_sides(first, part, QUICK)["shared"]["rows"] == 56


def test_what_cannot_be_compared_is_refused(tmp_path: Path) -> None:
    made = Simulator({"a": 0.0}, questions=3)
    run = make_side(tmp_path / "run", made)
    scored = read_scored_side(predictions(tmp_path / "a.jsonl", made.rows, lambda n: "None."), made.rows, SCORE)
    elsewhere = replace(run, rows=[replace(row, id=f"{row.id}-other") for row in made.rows])
    alone, stranger = (replace(run, answers={name: run.answers["a"]}) for name in "ab")
    for first, second, problem in (
        (run, scored, "give two of one kind"),
        (run, elsewhere, "no row in common"),
        (alone, stranger, "--pair NAME_A=NAME_B"),
    ):
        with pytest.raises((SettingsError, DataError), match=problem):
            compare_sides(first, second, QUICK)
    with pytest.raises(DataError, match="no such folder"):
        read_judged_side(tmp_path / "none")
    write_json(tmp_path / "run" / judging_records.RESULT, {"models": []})
    with pytest.raises(DataError, match="the result is not valid at"):
        read_judged_side(tmp_path / "run")
    with pytest.raises(PredictionError, match="not a file"):
        read_scored_side(tmp_path / "none.jsonl", made.rows, SCORE)
