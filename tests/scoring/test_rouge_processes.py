"""Several processes give what one gives, from a plain program and from one with threads."""

from __future__ import annotations

import multiprocessing
import random
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from rolellm.scoring.rouge import iter_rouge_l, map_rows, rouge_l

ROWS = 2600


@pytest.fixture(scope="module")
def rows() -> tuple[list[str], list[list[str]]]:
    draw = random.Random(5)
    vocabulary = [*"abcdefghij", ".", "李", "白", "月"]

    def text() -> str:
        return " ".join(draw.choices(vocabulary, k=draw.randrange(12)))

    return [text() for _ in range(ROWS)], [[text() for _ in range(draw.randrange(1, 4))] for _ in range(ROWS)]


@pytest.fixture
def another_thread() -> Iterator[None]:
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    yield
    stop.set()
    thread.join()


@pytest.mark.slow
@pytest.mark.parametrize(
    "recipe",
    [
        {"protocol": "rouge-score"},
        {"protocol": "paper"},
        {"protocol": "rouge-score", "language": "zh"},
        {"protocol": "paper", "language": "zh"},
    ],
    ids=lambda recipe: "-".join(recipe.values()),
)
@pytest.mark.parametrize("processes", [2, 3])
def test_processes_change_no_score(rows: tuple[list[str], list[list[str]]], recipe: Any, processes: int) -> None:
    assert rouge_l(*rows, **recipe, processes=processes) == rouge_l(*rows, **recipe)


@pytest.mark.usefixtures("another_thread")
def test_beside_another_thread_fresh_interpreters_do_the_work(rows: tuple[list[str], list[list[str]]]) -> None:
    assert rouge_l(*rows, processes=2) == rouge_l(*rows)


def test_reading_only_the_first_scores_leaves_no_process_behind(rows: tuple[list[str], list[list[str]]]) -> None:
    scores = iter_rouge_l(*rows, "rouge-score", "rouge_score", 2)
    assert next(scores) == rouge_l(rows[0][:1], rows[1][:1])[0]
    assert multiprocessing.active_children()
    del scores
    assert not multiprocessing.active_children()


def _fails(first: int, second: int) -> int:
    if first == 3000:
        raise ArithmeticError("row 3000")
    return second


def test_an_error_in_any_process_reaches_the_caller() -> None:
    with pytest.raises(ArithmeticError, match="row 3000"):
        list(map_rows(_fails, range(5000), range(5000), processes=2))
