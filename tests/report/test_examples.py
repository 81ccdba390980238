import random
from collections import Counter
from dataclasses import replace

import pytest

from rolellm.core.records import Row
from rolellm.report.examples import pick_examples


def test_both_subsets_of_every_role(rows: list[Row]) -> None:
    picked = pick_examples(rows)
    assert Counter((row.role, row.subset) for row in picked) == {
        (role, subset): 1 for role in {row.role for row in rows} for subset in ("general", "role_specific")
    }
    assert [row.language for row in picked] == sorted(row.language for row in picked)


def test_the_order_of_the_data_does_not_matter(rows: list[Row]) -> None:
    shuffled = [*rows, replace(rows[0], id="a second row that asks the same")]
    random.Random(3).shuffle(shuffled)
    assert pick_examples(shuffled, per_role=4) == pick_examples([*rows, shuffled[-1]] * 2 + shuffled, per_role=4)


def test_the_rest_comes_from_the_other_subset(rows: list[Row]) -> None:
    scarce = [row for row in rows if row.subset == "general" or row.id.endswith("own-0")]
    picked = pick_examples(scarce, per_role=4)
    assert Counter(row.subset for row in picked) == {"general": 9, "role_specific": 3}


@pytest.mark.parametrize(
    ("per_role", "count"),
    [
        pytest.param(0, 0, id="none"),
        pytest.param(-1, 0, id="less"),
        pytest.param(3, 9, id="odd"),
        pytest.param(99, 18, id="all"),
    ],
)
def test_how_many(rows: list[Row], per_role: int, count: int) -> None:
    assert len(pick_examples(rows, per_role)) == count


def test_a_question_asked_twice_is_shown_once(rows: list[Row]) -> None:
    assert len(pick_examples([rows[0], replace(rows[0], id="again")], per_role=5)) == 1


def test_text_that_no_file_could_hold(rows: list[Row]) -> None:
    assert pick_examples([replace(rows[0], question="\ud800")])
    assert pick_examples([]) == []
