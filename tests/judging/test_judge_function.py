"""`judge`, the front door: datasets, files, texts and plain lists in, a typed result out."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset
from hypothesis import given, settings
from hypothesis import strategies as st

from rolellm import load_rolebench
from rolellm.core.errors import DataError, SettingsError
from rolellm.core.jsonl import write_jsonl
from rolellm.judging.columns import build_rows, check_answers, judge_columns
from rolellm.judging.run import judge

from ..commands import Command

LLM = {"endpoints": [{"backend": "scripted", "rules": "words"}]}
QUICK = {"limit": 6}


@pytest.fixture(scope="module")
def rows() -> Any:
    return load_rolebench("sample", "test").select(range(12))


@pytest.fixture(scope="module")
def good(rows: Any) -> Any:
    return rows.add_column("prediction", [texts[0] for texts in rows["references"]])


def test_datasets_files_and_texts_are_judged_alike(rows: Any, good: Any, tmp_path: Path) -> None:
    bad = ["I am a program."] * len(rows)
    write_jsonl(tmp_path / "p.jsonl", ({"id": row["id"], "prediction": "I am a program."} for row in rows))
    results = [
        judge({"good": good, "bad": given}, dataset, llm=LLM, out=tmp_path / name, **QUICK)
        for name, given, dataset in (
            ("dataset", rows.add_column("prediction", bad), rows),
            ("file", tmp_path / "p.jsonl", None),
            ("texts", bad, rows),
        )
    ]
    first, *others = [result.to_dict()["models"] for result in results]
    assert others == [first, first]
    result = results[0]
    assert result.to_dict() == json.loads((tmp_path / "dataset/result.json").read_text())
    table = result.to_pandas().set_index("System")["Win rate, %"]
    rates = {one["name"]: one["pairwise"] and one["pairwise"]["win_rate"] for one in first}
    assert table["bad"] == pytest.approx(100 * rates["bad"]["mean"], abs=1e-3)
    assert "<table" in result._repr_html_() and "good" in repr(result)


def test_files_find_their_rows_as_the_command_does(rows: Any, command: Command, tmp_path: Path) -> None:
    """By the record that `rolellm generate` writes beside them."""
    for name in ("a", "b"):
        path = tmp_path / f"{name}.jsonl"
        write_jsonl(path, ({"id": row["id"], "prediction": f"{name}: {row['question']}"} for row in rows))
        path.with_name(f"{name}.jsonl.meta.json").write_text('{"config": "sample", "split": "test"}')
    (tmp_path / "words.yaml").write_text(json.dumps(LLM))
    files = {name: str(tmp_path / f"{name}.jsonl") for name in ("a", "b")}
    result = judge(files, llm=tmp_path / "words.yaml", out=tmp_path / "python", limit=6)
    words = [*files.values(), "--llm", str(tmp_path / "words.yaml"), "--limit", "6", "--out", str(tmp_path / "run")]
    assert (result.config, result.split, result.rows) == ("sample", "test", 6)
    assert {**result.to_dict(), "spent": None} == {**command("judge", *words, "--json").json, "spent": None}


def test_a_dataset_of_your_own_needs_roles_and_questions_only(tmp_path: Path) -> None:
    own = Dataset.from_dict({"role": ["Ada"] * 2, "question": ["Why?", "How?"], "prediction": ["a", "b"]})
    result = judge({"a": own, "b": own}, llm=LLM, out=tmp_path / "run", baseline="b", canaries=False)
    assert (result.baseline, result.rows, result.folder) == ("b", 2, tmp_path / "run")


@pytest.mark.parametrize(
    ("predictions", "changed", "problem"),
    [
        ({"a": Dataset.from_dict({"question": ["q"]})}, {}, "lacks the column role; it has: question"),
        ({"a": Dataset.from_dict({"role": ["r"], "question": ["q"]})}, {}, "a: the predictions lack the column"),
        ({"a": ["text"]}, {}, "dataset="),
        ({"a": ["x", "y"]}, {"config": "sample"}, "a: 72 rows but 2 predictions"),
        ({}, {}, "of each system"),
    ],
    ids=["rows", "answers", "texts-alone", "few-texts", "nothing"],
)
def test_what_cannot_be_judged_is_named(predictions: Any, changed: dict[str, Any], problem: str) -> None:
    with pytest.raises((DataError, SettingsError), match=problem):
        judge(predictions, **{"llm": LLM, **changed})


# --- plain lists


QUESTIONS = ["What is that bell?", "Who cast it?", "What is two and two?"]
COLUMNS: dict[str, Any] = {
    "questions": QUESTIONS,
    "roles": ["Tobin Ash"] * 3,
    "descriptions": ["You keep the tower."] * 3,
    "knowledge": ["It is the storm bell.", ["Old Hawke, of anchors.", "Hawke cast it."], None],
}
MINE = ["That is the storm bell, friend.", "Old Hawke cast it of drowned anchors.", "Four, I say."]
THEIRS = ["I do not know.", "No idea.", "Four"]


def test_half_a_surrogate_pair_becomes_text() -> None:
    names = ("questions", "roles", "descriptions", "knowledge")
    (row,) = build_rows(1, **{name: [f"{name}\ud800"] for name in names})
    assert "\ud800" not in "".join(map(str, row.values()))


def test_rows_are_made_of_what_is_known() -> None:
    bell, hawke, sum_ = build_rows(3, **COLUMNS)
    assert (bell["subset"], bell["references"]) == ("role_specific", "It is the storm bell.")
    assert hawke["references"] == ["Old Hawke, of anchors.", "Hawke cast it."]
    assert (sum_["subset"], sum_["references"]) == ("general", None)
    assert [row["question"] for row in (bell, hawke, sum_)] == QUESTIONS
    assert {row["role_description"] for row in (bell, hawke, sum_)} == {"You keep the tower."}


@settings(max_examples=50)
@given(st.permutations(range(5)))
def test_ids_follow_the_content_not_the_place(order: list[int]) -> None:
    questions = ["a", "b", "c", "c", "d"]
    roles = ["x", "x", "x", "y", "x"]
    before = [row["id"] for row in build_rows(5, questions=questions, roles=roles)]
    columns = {"questions": [questions[at] for at in order], "roles": [roles[at] for at in order]}
    assert [row["id"] for row in build_rows(5, **columns)] == [before[at] for at in order]
    assert len(set(before)) == 5
    # Rows that are the same are still two.
    first, second = build_rows(2, questions=["a", "a"], roles=["x", "x"])
    assert second["id"] == f"{first['id']}-2"


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: build_rows(1, questions=["q"], roles="x"), "roles: expected a list, one value a row, found str"),
        (lambda: build_rows(1, questions=iter(["q"]), roles=["r"]), "questions: expected a list"),
        (lambda: build_rows(1, questions=["q", "r"], roles=["r"]), "1 predictions but 2 values of questions"),
        (lambda: check_answers([], []), "no predictions"),
        (lambda: check_answers(["a", "b"], ["c"]), "2 predictions but 1 values of references"),
    ],
    ids=["a-text", "an-iterator", "too-many", "no-rows", "unequal"],
)
def test_odd_lists_are_refused_in_words(call: Callable[[], Any], words: str) -> None:
    with pytest.raises(DataError, match=words):
        call()


def test_a_rate_of_pairs_that_is_withheld_is_not_that_of_lists(llm_server: Callable[..., Any], tmp_path: Path) -> None:
    def first(body: dict[str, Any]) -> str:
        if body["response_format"]["json_schema"]["name"] == "better":
            return json.dumps({name: {"reason": "", "better": "A"} for name in ("style", "knowledge")})
        entries = [{"answer": letter, "reason": "", "style": 1, "knowledge": 1} for letter in "ABCD"]
        return json.dumps({"ranking": entries})

    path = tmp_path / "server.yaml"
    path.write_text(json.dumps({"endpoints": [{"base_url": llm_server(first).url, "model": "local"}]}))
    found = judge_columns(MINE, THEIRS, **COLUMNS, llm=path, folder=tmp_path / "run")
    assert found["win_rate"] is found["win_rate_ci95"] is None
    assert set(found["canaries"].values()) == {None}
    assert found["average_rank"] == 1.5
    assert "is not fit" in found["problems"][0]
