"""``rolellm data instructions`` as a user meets it."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from rolellm.core.jsonl import read_jsonl, write_jsonl

from ..commands import Command

THINGS = ["map", "key", "stew", "kettle", "parrot", "crutch", "captain", "rat", "apron", "crown"]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, deed in (("one", "Draw"), ("two", "Weigh")):
        rows = ({"instruction": f"{deed} a {thing} {thing}.", "input": "", "output": f"{thing}!"} for thing in THINGS)
        write_jsonl(tmp_path / f"{name}.jsonl", rows)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run(command: Command) -> Command:
    return partial(command, "data", "instructions")


@pytest.mark.parametrize(
    ("counts", "drawn"),
    [
        pytest.param(("7",), [4, 3], id="one count goes round"),
        pytest.param(("2", "6"), [2, 6], id="a count each"),
        pytest.param((), [10, 10], id="1,500 by default, or all there are"),
    ],
)
def test_two_data_sets(place: Path, run: Command, counts: tuple[str, ...], drawn: list[int]) -> None:
    given = [word for count in counts for word in ("--count", count)]
    found = run("one.jsonl", "two.jsonl", *given, "--out", "out.jsonl", "--set", "duplicates=exact", "--json").result
    assert [entry["drawn"] for entry in found["sources"]] == drawn
    rows = [row for _, row in read_jsonl(place / "out.jsonl")]
    assert [row["source"]["dataset"] for row in rows] == ["one.jsonl"] * drawn[0] + ["two.jsonl"] * drawn[1]
    assert (place / "out.jsonl.meta.json").is_file()


def test_the_table_says_what_was_left_out(place: Path, run: Command) -> None:
    shown = run("one.jsonl", "--count", "50", "--out", "out.jsonl", "--set", "max_words=3")
    assert shown.code == 1 and "too long: 10" in shown.err
    shown = run("one.jsonl", "--count", "50", "--out", "out.jsonl")
    assert shown.code == 0
    assert "10 of 50" in shown.out and "fewer than requested" in shown.err


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        pytest.param(("one.jsonl", "--count", "1", "--count", "2"), 2, "2 counts for 1 data sets", id="counts"),
        pytest.param(("one.jsonl", "two.jsonl", "--count", "1"), 2, "at least one from each", id="too few"),
        pytest.param(("none.jsonl",), 1, "none.jsonl: no such file or folder", id="no file"),
    ],
)
def test_bad_usage(place: Path, run: Command, words: tuple[str, ...], code: int, message: str) -> None:
    done = run(*words, "--out", "out.jsonl")
    assert done.code == code and message in done.err
    assert not (place / "out.jsonl").exists()


def test_nothing_is_replaced_unasked(place: Path, run: Command) -> None:
    done = run("one.jsonl", "--count", "2", "--out", "two.jsonl")
    assert done.code == 2 and "exists already" in done.err
    assert run("one.jsonl", "--count", "2", "--out", "two.jsonl", "--overwrite").code == 0


def test_a_data_set_is_not_written_over(place: Path, run: Command) -> None:
    before = (place / "one.jsonl").read_bytes()
    done = run("one.jsonl", "--count", "2", "--out", "./one.jsonl", "--overwrite")
    assert done.code == 2 and "is one of the datasets to draw from" in done.err
    assert (place / "one.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    ("share", "language", "drawn"),
    [
        pytest.param(1, "zh", 9, id="Chinese"),
        pytest.param(0.6, "zh", 6, id="mostly Chinese"),
        pytest.param(0.4, "en", 6, id="mostly English"),
    ],
)
def test_the_language_is_that_of_most_instructions(
    place: Path, run: Command, share: float, language: str, drawn: int
) -> None:
    chinese = round(10 * share)
    texts = [("写一首关于月亮的诗。" * (n + 1), "好。") for n in range(chinese)]
    texts += [(f"Draw a {n}.", "A.") for n in range(10 - chinese)]
    write_jsonl(place / "mixed.jsonl", ({"instruction": asked, "output": told} for asked, told in texts))
    found = run(
        "mixed.jsonl", "--out", "out.jsonl", "--set", "duplicates=exact", "--json", "--set", "max_chars=90"
    ).result
    assert (found["settings"]["language"], found["drawn"]) == (language, drawn)
