"""The sample that people label, and the files that keep what they said."""

import json
import random
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolellm.core.errors import DataError, SettingsError
from rolellm.judging.people.labels import (
    Label,
    append_label,
    check_annotator,
    draw_blind_order,
    hash_content,
    label_path,
    list_annotators,
    list_labelled_systems,
    read_labels,
    sample_rows,
    select_answers,
)
from rolellm.judging.records import JudgeRun, read_run

from ...judge_runs import CONTESTANTS, make_comparison, make_rows, write_run

ROWS = make_rows(40)
CONTEST = make_comparison(ROWS)


@pytest.fixture
def run(tmp_path: Path) -> JudgeRun:
    return read_run(write_run(tmp_path / "run", CONTEST))


SAID = {"place of A": "1", "place of B": "2", "place of C": "2"}


def ranking(run: JudgeRun, number: int = 0, **changed: Any) -> Label:
    row = run.comparison.rows[number]
    names = list_labelled_systems(run.comparison)
    about = hash_content(row, select_answers(run.comparison, row, names))
    return replace(Label(row.id, tuple(names), SAID, about), **changed)


@given(st.integers(1, 45), st.integers(1, 45), st.randoms(use_true_random=False))
def test_a_larger_sample_holds_the_smaller_and_no_order_of_rows_changes_it(
    a: int, b: int, chance: random.Random
) -> None:
    shuffled = ROWS.copy()
    chance.shuffle(shuffled)
    small, large = sample_rows(CONTEST, min(a, b)), sample_rows(make_comparison(shuffled), max(a, b))
    assert large[: len(small)] == small
    assert len(large) == min(max(a, b), len(ROWS))


def test_people_see_answers_in_orders_of_their_own_and_each_name_in_each_place() -> None:
    orders = {
        who: [draw_blind_order(who, row, select_answers(CONTEST, row, list_labelled_systems(CONTEST))) for row in ROWS]
        for who in ("anna", "bela")
    }
    assert orders["anna"] != orders["bela"]
    for place in range(3):
        counts = [sum(order[place] == name for order in orders["anna"]) for name in list(CONTESTANTS)[:3]]
        assert min(counts) >= 5, counts


@pytest.mark.parametrize(
    ("call", "said"),
    [
        pytest.param(lambda: sample_rows(make_comparison(ROWS, {"a": "model", "b": "canary"}), 10), "at least two",
                     id="one and a canary"),
        pytest.param(lambda: sample_rows(make_comparison([]), 10), "no row", id="no rows"),
        pytest.param(lambda: sample_rows(make_comparison(
            ROWS, answer=lambda number, row: None if int(row.id[-3:]) % 3 == number else "x"), 10),
            "no row was answered by all", id="no row in common"),
        *(pytest.param(partial(check_annotator, name), "name", id=name) for name in (
            "", ".", "../anna", "a/b", "anna smith", ".hidden", "a\x00b", "n" * 101)),
    ],
)  # fmt: skip
def test_what_cannot_be_labelled_is_refused(call: Callable[[], Any], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        call()


def test_the_last_label_for_a_row_counts(run: JudgeRun) -> None:
    path = label_path(run.folder, "anna")
    first, other = ranking(run), ranking(run, 1, said=None)
    better = replace(first, said=dict(zip(SAID, "312", strict=True)))
    for label in (first, other, better):
        append_label(path, label)
    assert read_labels(run, "anna") == {"row-001": other, "row-000": better}
    assert len(path.read_text().splitlines()) == 3
    assert list(first.ranks.values()) == [1, 2, 2]
    assert list_annotators(run.folder) == ["anna"]


@settings(max_examples=25)
@given(cut=st.integers(1, 400))
def test_half_a_line_that_a_crash_left_is_set_aside(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    run = read_run(write_run(tmp_path_factory.mktemp("cut"), make_comparison(ROWS[:3])))
    path = label_path(run.folder, "anna")
    for number in range(3):
        append_label(path, ranking(run, number))
    content = path.read_bytes()
    kept = content[: max(0, len(content) - cut)]
    path.write_bytes(kept)
    whole = kept.count(b"\n")
    rows = [label.row for label in read_labels(run, "anna").values()]
    assert rows == [f"row-00{n}" for n in range(whole)]
    append_label(path, ranking(run, 2, said=None))
    read = list(read_labels(run, "anna").values())
    assert len(path.read_bytes().splitlines()) == whole + 1 and read[-1].said is None


@pytest.mark.parametrize(
    ("line", "said"),
    [
        pytest.param("{", "not valid JSON", id="no JSON"),
        pytest.param("[1]", "expected a JSON object", id="no object"),
        pytest.param({"said": {**SAID, "place of A": "4"}}, "the label is not valid", id="no place"),
        pytest.param({"said": {"place of A": "1"}}, "the label is not valid", id="a place missing"),
        pytest.param({"systems": ["quill-7b", "quill-7b", "marrow-13b"]}, "the label is not valid", id="a name twice"),
        pytest.param({"systems": ["quill-7b", "nullmodel", "marrow-13b"]}, "takes no part", id="a canary"),
        pytest.param({"row": "row-999"}, "not in this run", id="another row"),
        pytest.param({"answers": "00"}, "other answers", id="other answers"),
    ],
)
def test_a_line_that_is_no_label_of_this_run_is_refused_by_its_number(run: JudgeRun, line: Any, said: str) -> None:
    path = label_path(run.folder, "anna")
    append_label(path, ranking(run))
    text = line if isinstance(line, str) else json.dumps(asdict(ranking(run, 1)) | line)
    with path.open("a") as stream:
        stream.write(text + "\n")
    append_label(path, ranking(run, 3))
    with pytest.raises(DataError, match=said) as caught:
        read_labels(run, "anna")
    assert (caught.value.path, caught.value.line) == (path, 2)


def test_labels_outlast_a_system_who_joins_and_not_an_answer_that_changes(run: JudgeRun, tmp_path: Path) -> None:
    append_label(label_path(run.folder, "anna"), ranking(run))
    joined = write_run(run.folder, make_comparison(ROWS, {**CONTESTANTS, "newcomer": "model"}))
    assert len(read_labels(read_run(joined), "anna")) == 1
    changed = make_comparison(ROWS, answer=lambda number, row: "another" if number == 1 else f"Answer {number}")
    with pytest.raises(DataError, match="judged again"):
        read_labels(read_run(write_run(run.folder, changed)), "anna")
