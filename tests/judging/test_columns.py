"""Judging of plain lists: what rows are made of them, who is asked, and what a run leaves behind."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolellm.core.errors import DataError, JudgingError, SettingsError, StoppedShortError
from rolellm.judging.columns import build_rows, check_answers, judge_columns
from rolellm.judging.overlap_judge import make_words_judge
from rolellm.judging.records import read_run
from rolellm.judging.run import name_judges
from rolellm.scoring.predictions import Predictions
from rolellm.scoring.score import score_rows

QUESTIONS = ["What is that bell?", "Who cast it?", "What is two and two?"]
COLUMNS: dict[str, Any] = {
    "questions": QUESTIONS,
    "roles": ["Tobin Ash"] * 3,
    "descriptions": ["You keep the tower."] * 3,
    "knowledge": ["It is the storm bell.", ["Old Hawke, of anchors.", "Hawke cast it."], None],
}
MINE = ["That is the storm bell, friend.", "Old Hawke cast it of drowned anchors.", "Four, I say."]
THEIRS = ["I do not know.", "No idea.", "Four"]


@pytest.fixture
def words(tmp_path: Path) -> dict[str, Any]:
    path = tmp_path / "words.yaml"
    path.write_text("endpoints:\n  - backend: scripted\n    rules: words\n    price: {prompt: 1.0}\n", encoding="utf-8")
    return {"llm": path, "folder": tmp_path / "run", "resamples": 20}


def test_rows_are_made_of_what_is_known() -> None:
    bell, hawke, sum_ = build_rows(3, COLUMNS)
    assert (bell.subset, bell.references, bell.raw_reference) == ("role_specific", ("It is the storm bell.",), None)
    assert hawke.references == ("Old Hawke, of anchors.", "Hawke cast it.")
    assert (sum_.subset, sum_.references, sum_.raw_reference) == ("general", (), None)
    assert [row.question for row in (bell, hawke, sum_)] == QUESTIONS
    assert {row.role_description for row in (bell, hawke, sum_)} == {"You keep the tower."}


def test_knowledge_of_a_general_row_is_its_plain_target() -> None:
    (row,) = build_rows(
        1, {"questions": ["What is two and two?"], "roles": ["Ada"], "knowledge": ["Four"], "subsets": ["general"]}
    )
    assert (row.references, row.raw_reference) == ((), "Four")


@settings(max_examples=50)
@given(st.permutations(range(5)))
def test_ids_follow_the_content_not_the_place(order: list[int]) -> None:
    questions = ["a", "b", "c", "c", "d"]
    roles = ["x", "x", "x", "y", "x"]
    before = [row.id for row in build_rows(5, {"questions": questions, "roles": roles})]
    columns = {"questions": [questions[at] for at in order], "roles": [roles[at] for at in order]}
    assert [row.id for row in build_rows(5, columns)] == [before[at] for at in order]
    assert len(set(before)) == 5


def test_rows_that_are_the_same_are_still_two() -> None:
    first, second = build_rows(2, {"questions": ["a", "a"], "roles": ["x", "x"]})
    assert second.id == f"{first.id}-2"


def test_half_a_surrogate_pair_becomes_text() -> None:
    assert check_answers(["a\ud800"], ["\udfff"]) == (["a\ufffd"], ["\ufffd"])
    names = ("questions", "roles", "descriptions", "knowledge", "ids")
    (row,) = build_rows(1, {name: [f"{name}\ud800"] for name in names})
    for text in (row.id, row.question, row.role, row.role_description, row.references[0]):
        assert text is not None
        assert text.encode("utf-8").endswith("\ufffd".encode())


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        pytest.param({"subsets": [""]}, "row 0 is not valid at subsets", id="an-empty-subset-is-none"),
        pytest.param({"language": [None]}, "row 0 is not valid at language", id="no-language"),
        pytest.param({"ids": [None]}, "needs an id of its own", id="no-id"),
        pytest.param({"ids": [""]}, "needs an id of its own", id="an-empty-id"),
        pytest.param({"roles": "x"}, "roles: expected a list, one value a row, found str", id="a-text-is-no-list"),
        pytest.param({"questions": iter(["q"])}, "questions: expected a list", id="an-iterator-is-no-list"),
        pytest.param({"knowledge": [{"a": 1}]}, "row 0 is not valid at knowledge", id="knowledge-in-an-object"),
        pytest.param({"knowledge": [float("nan")]}, "row 0 is not valid at knowledge", id="what-pandas-calls-missing"),
    ],
)
def test_odd_columns_are_refused_in_words(columns: dict[str, Any], words: str) -> None:
    given: dict[str, Any] = {"questions": ["q"], "roles": ["r"], **columns}
    with pytest.raises(DataError, match=words):
        build_rows(1, given)


def test_lists_in_another_order_ask_nothing_anew(words: dict[str, Any]) -> None:
    first = judge_columns(MINE, THEIRS, **COLUMNS, **words)
    turned = {name: values[::-1] for name, values in COLUMNS.items()}
    second = judge_columns(MINE[::-1], THEIRS[::-1], **turned, **words)
    assert first["result"]["spent"]["calls"] > 0
    assert second["result"]["spent"]["calls"] == 0
    assert first["win_rate"] == second["win_rate"] > 0.5
    assert first["canaries"] == second["canaries"]


def test_one_more_row_asks_for_that_row_alone(words: dict[str, Any]) -> None:
    quiet = {**words, "name_probe": 0}
    judge_columns(MINE, THEIRS, **COLUMNS, **quiet)
    firsts = {"questions": "Why?", "roles": "Tobin Ash", "descriptions": "You keep the tower.", "knowledge": None}
    more: dict[str, Any] = {name: [firsts[name], *values] for name, values in COLUMNS.items()}
    found = judge_columns(["Because of the storm.", *MINE], ["Why not?", *THEIRS], **more, **quiet)
    # The model and two canaries, each in both orders; the list twice.
    assert found["result"]["spent"]["calls"] == 3 * 2 + 2
    assert found["n"] == 4


def test_a_budget_stops_and_the_same_call_goes_on(words: dict[str, Any]) -> None:
    with pytest.raises(StoppedShortError):
        judge_columns(MINE, THEIRS, **COLUMNS, **{**words, "budget": 0.02})
    with pytest.raises(DataError, match="not finished"):
        read_run(words["folder"])
    found = judge_columns(MINE, THEIRS, **COLUMNS, **words)
    assert found["result"]["spent"]["from_journal"] > 0
    assert found["result"]["spent"]["calls"] > 0


def test_a_rate_of_pairs_that_is_withheld_is_not_that_of_lists(llm_server: Callable[..., Any], tmp_path: Path) -> None:
    def first(body: dict[str, Any]) -> str:
        if body["response_format"]["json_schema"]["name"] == "better":
            return json.dumps({name: {"reason": "", "better": "A"} for name in ("style", "knowledge")})
        entries = [{"answer": letter, "reason": "", "style": 1, "knowledge": 1} for letter in "ABCD"]
        return json.dumps({"ranking": entries})

    path = tmp_path / "server.yaml"
    path.write_text(json.dumps({"endpoints": [{"base_url": llm_server(first).url, "model": "local"}]}))
    found = judge_columns(MINE, THEIRS, **COLUMNS, llm=path, folder=tmp_path / "run", resamples=20)
    assert found["win_rate"] is found["win_rate_ci95"] is found["wins"] is None
    assert set(found["canaries"].values()) == {None}
    assert found["position_consistency"] == 0 and found["average_rank"] == 1.5
    assert "is not fit" in found["problems"][0]


def test_what_is_no_verdict_fails_the_run(
    llm_server: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = llm_server(lambda *_: "Answer A is better, I should think.")
    path = tmp_path / "server.yaml"
    entry = {"base_url": server.url, "model": "local"}
    path.write_text(json.dumps({"endpoints": [entry], "max_attempts": 1}), encoding="utf-8")
    setup: dict[str, Any] = {
        "llm": path,
        "folder": tmp_path / "run",
        "resamples": 20,
        "name_probe": 0,
        "judges": ["role-pair"],
    }
    with pytest.raises(JudgingError, match=r"6 of 6 verdicts are missing \(100.0%"):
        judge_columns(MINE, THEIRS, **COLUMNS, **setup)
    assert read_run(setup["folder"]).result["valid"] is False
    found = judge_columns(MINE, THEIRS, **COLUMNS, **{**setup, "max_unscored": 1.0})
    assert found["unscored"] == 1.0
    assert found["win_rate"] is None
    assert found["wins"] is None
    assert set(found["canaries"].values()) == {None}


def test_without_a_model_nothing_is_written(words: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match="llm is NoneType"):
        judge_columns(MINE, THEIRS, **COLUMNS, **{**words, "llm": None})
    assert not Path(words["folder"]).exists()


def test_a_jury_has_a_judge_model_for_each_model() -> None:
    models = [make_words_judge(), make_words_judge()]
    assert name_judges(models, each=False) == ["words"]
    assert name_judges(models, each=True) == ["words (1)", "words (2)"]


def test_rows_without_a_reference_have_no_rouge_and_fail_nothing() -> None:
    columns = {"questions": ["q", "r"], "roles": ["x", "x"], "knowledge": [None, "four"]}
    rows = build_rows(2, {**columns, "subsets": ["general", "role_specific"]})
    report = score_rows(rows, Predictions.pair_texts([row.id for row in rows], ["a", "four"]))
    assert report.metrics["CUS"] is None
    assert report.metrics["SPE"] is not None
    assert (report.metrics["SPE"].mean, report.metrics["SPE"].n) == (1.0, 1)
