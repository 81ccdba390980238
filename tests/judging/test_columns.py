"""Judging of plain lists: what rows are made of them, who is asked, and what a run leaves behind."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolellm.core.errors import DataError
from rolellm.judging.columns import build_rows, check_answers, judge_columns

QUESTIONS = ["What is that bell?", "Who cast it?", "What is two and two?"]
COLUMNS: dict[str, Any] = {
    "questions": QUESTIONS,
    "roles": ["Tobin Ash"] * 3,
    "descriptions": ["You keep the tower."] * 3,
    "knowledge": ["It is the storm bell.", ["Old Hawke, of anchors.", "Hawke cast it."], None],
}
MINE = ["That is the storm bell, friend.", "Old Hawke cast it of drowned anchors.", "Four, I say."]
THEIRS = ["I do not know.", "No idea.", "Four"]


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


def test_half_a_surrogate_pair_becomes_text() -> None:
    names = ("questions", "roles", "descriptions", "knowledge")
    (row,) = build_rows(1, **{name: [f"{name}\ud800"] for name in names})
    assert "\ud800" not in "".join(map(str, row.values()))


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
