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
from rolellm.judging.compare import compare_sides, flatten, read_judged_side, read_scored_side
from rolellm.judging.records import Comparison, Judgement
from rolellm.judging.settings import CompareSettings, JudgingSettings
from rolellm.scoring.settings import ScoreOptions

from ..judge_runs import summarize
from .conftest import Simulator

QUICK = CompareSettings()
SCORE = ScoreOptions()


def write_run(
    folder: Path, comparison: Comparison, judgements: Sequence[Judgement], judge: str = "judge", **manifest: Any
) -> Path:
    """A finished judging run."""
    judges = [
        {"name": judge, "prompts": {"pairwise": {"name": "role-pair", "hash": "abc"}}, "family": None, "flagged": []}
    ]
    result = summarize(comparison, judgements, judges, JudgingSettings(resamples=100))
    judging_records.write_run(folder, comparison, judgements, result, judges=judges, **manifest)
    return folder


def changes(result: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    return {(one["system"], one["measure"]): one for one in result["changes"]}


def test_a_run_beside_itself_has_not_changed(tmp_path: Path) -> None:
    made = Simulator({"a": 0.5, "b": -0.5}, questions=40, spread=100)
    run = read_judged_side(write_run(tmp_path / "run", made.comparison(), [*made.pairs(), *made.lists()]))
    result = compare_sides(run, run, QUICK)
    assert result["settings"] == result["moved"] == result["problems"] == []
    assert result["shared"]["systems"] == [["a", "a"], ["b", "b"], ["base", "base"]]
    found = changes(result)
    assert set(found) == {
        ("a", "win_rate"),
        ("a", "average_rank"),
        ("a", "lc_win_rate"),
        ("b", "win_rate"),
        ("b", "average_rank"),
        ("b", "lc_win_rate"),
        ("base", "average_rank"),
    }
    assert all(one["difference"]["mean"] == 0 for one in found.values())
    assert {one["p"] for one in found.values()} == {1.0, None}
    assert all(one["before"] == one["after"] for one in found.values())


def test_who_got_better_is_found_and_who_did_not_is_not(tmp_path: Path) -> None:
    before = Simulator({"a": 0.0, "b": 0.0}, questions=80, seed=1)
    after = Simulator({"a": 1.6, "b": 0.0}, questions=80, seed=2)
    first = read_judged_side(write_run(tmp_path / "first", before.comparison(), before.pairs()))
    second = read_judged_side(write_run(tmp_path / "second", after.comparison(), after.pairs()))
    result = compare_sides(first, second, QUICK)
    found = changes(result)
    assert found["a", "win_rate"]["difference"]["ci95"][0] > 0
    assert found["a", "win_rate"]["p_adjusted"] < 0.05 < found["b", "win_rate"]["p_adjusted"]
    assert found["a", "win_rate"]["p_adjusted"] >= found["a", "win_rate"]["p"]
    assert result["moved"][0]["after"] - result["moved"][0]["before"] in (1, -1)
    sizes = [abs(one["after"] - one["before"]) for one in result["moved"]]
    assert len(sizes) == 10
    assert sizes == sorted(sizes, reverse=True)


def test_what_moved_says_all_that_one_must_see(tmp_path: Path) -> None:
    made = Simulator({"a": 9.0}, questions=10, noise=0.1)
    comparison, judgements = made.comparison(), made.pairs()
    row = made.rows[7]
    lost = [
        replace(one, ranks=(2.0, 1.0) if one.order[0] == "a" else (1.0, 2.0), reasons=("so", "dull"))
        if one.row == row.id
        else one
        for one in judgements
    ]
    answers = {**comparison.answers, "a": {**comparison.answers["a"], row.id: "Something else."}}
    first = read_judged_side(write_run(tmp_path / "first", comparison, judgements))
    second = read_judged_side(write_run(tmp_path / "second", replace(comparison, answers=answers), lost))
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
    comparison, other = made.comparison(), made.comparison()
    other.answers["a"][made.rows[0].id] = "Changed."
    first = read_judged_side(write_run(tmp_path / "first", comparison, made.pairs(), models={"seed": 1, "kept": [1]}))
    second = read_judged_side(
        write_run(tmp_path / "second", other, made.pairs("k"), judge="k", models={"seed": 2, "kept": [1], "new": True})
    )
    found = {one["name"]: (one["before"], one["after"]) for one in compare_sides(first, second, QUICK)["settings"]}
    hashes = found.pop("answers.a")
    assert hashes[0] != hashes[1]
    assert found == {"judge.name": ("judge", "k"), "models.seed": (1, 2), "models.new": (None, True)}


def test_rouge_is_compared_where_answers_changed_and_only_there(tmp_path: Path) -> None:
    made = Simulator({"a": 0.0, "b": 0.0}, questions=20)
    comparison, other = made.comparison(), made.comparison()
    other.answers["a"].update({row.id: "None." for row in made.rows})
    first = read_judged_side(write_run(tmp_path / "first", comparison, made.pairs()))
    second = read_judged_side(write_run(tmp_path / "second", other, made.pairs()))
    result = compare_sides(first, second, QUICK)
    found = changes(result)
    assert {(name, measure) for name, measure in found if measure != "win_rate"} == {("a", "CUS"), ("a", "SPE")}
    assert found["a", "CUS"]["before"]["mean"] == 0
    assert found["a", "CUS"]["after"]["mean"] == 1
    assert found["a", "CUS"]["p_adjusted"] < 0.05
    assert result["moved"] == []  # the verdicts are the same
    assert {one["measure"] for one in compare_sides(first, second, replace(QUICK, rouge=False))["changes"]} == {
        "win_rate"
    }


def test_systems_are_paired_as_asked(tmp_path: Path) -> None:
    before, after = Simulator({"old": -1.0, "x": 0.0}, questions=30), Simulator({"new": 2.0, "x": 0.0}, questions=30)
    first = read_judged_side(write_run(tmp_path / "first", before.comparison(), before.pairs()))
    second = read_judged_side(write_run(tmp_path / "second", after.comparison(), after.pairs()))
    same = compare_sides(first, second, QUICK)["shared"]
    assert same["systems"] == [["x", "x"], ["base", "base"]]
    assert (same["only_a"], same["only_b"]) == (["old"], ["new"])
    result = compare_sides(first, second, replace(QUICK, pairs=("old=new",)))
    assert result["shared"]["systems"][0] == ["old", "new"]
    assert changes(result)["old", "win_rate"]["difference"]["ci95"][0] > 0
    with pytest.raises(SettingsError, match=r"no system 'odd' .* old, x, base"):
        compare_sides(first, second, replace(QUICK, pairs=("odd=new",)))


def test_only_rows_of_both_count(tmp_path: Path) -> None:
    made = Simulator({"a": 0.0}, questions=20)
    comparison, judgements = made.comparison(), made.pairs()
    kept = made.rows[:30]
    # The same id, another question: not the same row.
    odd = [replace(kept[0], question="Something else?"), *kept[1:]]
    ids = {row.id for row in kept}
    answers = {name: {row: text for row, text in of.items() if row in ids} for name, of in comparison.answers.items()}
    few = Comparison(odd, comparison.systems, answers)
    first = read_judged_side(write_run(tmp_path / "first", comparison, judgements))
    second = read_judged_side(write_run(tmp_path / "second", few, [one for one in judgements if one.row in ids]))
    result = compare_sides(first, second, QUICK)
    assert result["shared"]["rows"] == 29
    assert changes(result)["a", "win_rate"]["before"]["n"] == 29
    assert result["problems"] == [
        "1 rows have the same id and another question; they are left out",
        "10 rows are only in the first and 0 only in the second; left out",
    ]


def test_problems_of_either_run_are_said(tmp_path: Path) -> None:
    made = Simulator({"a": 0.0}, questions=10)
    lost = [replace(one, ranks=None, unscored="cut") for one in made.pairs()[:4]]
    first = read_judged_side(write_run(tmp_path / "first", made.comparison(), [*lost, *made.pairs()[4:]]))
    alone = made.comparison(baseline=False)
    second = read_judged_side(write_run(tmp_path / "second", alone, []))
    problems = compare_sides(first, replace(second, answers=made.comparison().answers), QUICK)["problems"]
    assert any("first: 4 of 40 judgements" in problem for problem in problems)
    assert any("second: nothing was judged" in problem for problem in problems)
    assert any("against base in the first and nobody in the second" in problem for problem in problems)


def predictions(path: Path, rows: Sequence[Any], text: Callable[[int], str]) -> Path:
    lines = [json.dumps({"id": row.id, "prediction": text(number)}) for number, row in enumerate(rows)]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def test_predictions_are_compared_by_rouge(tmp_path: Path) -> None:
    rows = Simulator({}, questions=30).rows
    first = read_scored_side(predictions(tmp_path / "a.jsonl", rows, lambda n: "Wide of it."), rows, SCORE)
    second = read_scored_side(
        predictions(tmp_path / "b.jsonl", rows, lambda n: "None." if n != 9 else "No."), rows, SCORE
    )
    result = compare_sides(first, second, replace(QUICK, top=60))
    assert result["shared"]["systems"] == [["a.jsonl", "b.jsonl"]]
    found = changes(result)
    assert set(found) == {("a.jsonl", "CUS"), ("a.jsonl", "SPE")}
    assert all(one["p_adjusted"] < 0.05 for one in found.values())
    assert len(result["moved"]) == 59
    assert {one["name"] for one in result["settings"]} == {"predictions[0].sha256", "predictions[0].file"}


def test_rows_that_a_file_does_not_answer_are_not_in_both(tmp_path: Path) -> None:
    rows = Simulator({}, questions=10).rows
    first = read_scored_side(predictions(tmp_path / "a.jsonl", rows[:6], lambda n: "None."), rows, SCORE)
    second = read_scored_side(predictions(tmp_path / "b.jsonl", rows[4:], lambda n: "None."), rows, SCORE)
    assert compare_sides(first, second, QUICK)["shared"]["rows"] == 2


def test_a_run_and_predictions_are_no_pair(tmp_path: Path) -> None:
    made = Simulator({"a": 0.0}, questions=3)
    run = read_judged_side(write_run(tmp_path / "run", made.comparison(), made.pairs()))
    scored = read_scored_side(predictions(tmp_path / "a.jsonl", made.rows, lambda n: "None."), made.rows, SCORE)
    with pytest.raises(SettingsError, match="give two of one kind"):
        compare_sides(run, scored, QUICK)


def test_what_has_nothing_in_common_is_refused(tmp_path: Path) -> None:
    made, other = Simulator({"a": 0.0}, questions=3), Simulator({"b": 0.0}, questions=3)
    run = read_judged_side(write_run(tmp_path / "run", made.comparison(), made.pairs()))
    elsewhere = [replace(row, id=f"{row.id}-other") for row in made.rows]
    with pytest.raises(DataError, match="no row in common"):
        compare_sides(run, replace(run, rows=elsewhere), QUICK)
    alone = other.comparison(baseline=False)
    second = read_judged_side(write_run(tmp_path / "second", alone, []))
    with pytest.raises(DataError, match="--pair NAME_A=NAME_B"):
        compare_sides(replace(run, answers={"a": run.answers["a"]}), second, QUICK)


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such folder"):
        read_judged_side(tmp_path / "none")
    made = Simulator({"a": 0.0}, questions=3)
    run = write_run(tmp_path / "run", made.comparison(), made.pairs())
    write_json(run / judging_records.RESULT, {"models": []})
    with pytest.raises(DataError, match="the result is not valid at"):
        read_judged_side(run)
    with pytest.raises(PredictionError, match="not a file"):
        read_scored_side(tmp_path / "none.jsonl", made.rows, SCORE)


def test_settings_become_flat_names() -> None:
    nested = {"a": {"b": 1, "c": []}, "judges": [{"name": "j", "k": {"l": None}}], "many": [{"x": 1}, {"x": 2}]}
    assert flatten(nested) == {
        "a.b": 1,
        "a.c": [],
        "judges[j].name": "j",
        "judges[j].k.l": None,
        "many[0].x": 1,
        "many[1].x": 2,
    }


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        *((CompareSettings, wrong) for wrong in ({"top": -1}, {"resamples": 0})),
        *((JudgingSettings, wrong) for wrong in ({"rotations": 0}, {"name_probe": -1}, {"max_unscored": 1.5})),
        *((JudgingSettings, wrong) for wrong in ({"resamples": 0}, {"seed": -1})),
    ],
)
def test_settings_out_of_range_are_refused_by_name(kind: type, wrong: dict[str, float]) -> None:
    with pytest.raises(SettingsError, match=next(iter(wrong))):
        kind(**wrong)
