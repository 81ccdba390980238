"""Folding rows: every row reads along its own path of the tree, and nothing is in it twice."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolellm.models.prefix_sharing import fold_rows

ROWS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=7), min_size=1, max_size=8)


def pad(rows: list[list[int]], side: str) -> tuple[Any, Any]:
    width = max(map(len, rows)) + 1
    ids, mask = np.full((len(rows), width), 9), np.zeros((len(rows), width), bool)
    for number, row in enumerate(rows):
        columns = slice(0, len(row)) if side == "right" else slice(width - len(row), width)
        ids[number, columns], mask[number, columns] = row, True
    return ids, mask


@settings(deadline=None)
@given(ROWS, st.sampled_from(["left", "right"]))
def test_each_row_is_a_path_of_the_tree(rows: list[list[int]], side: str) -> None:
    ids, mask = pad(rows, side)
    tree = fold_rows(ids, mask)
    assert len(tree.ids) == len({tuple(row[: stop + 1]) for row in rows for stop in range(len(row))})
    for number, row in enumerate(rows):
        path = tree.index[number][mask[number]]
        assert tree.ids[path].tolist() == row
        assert tree.positions[path].tolist() == list(range(len(row)))
        for depth, token in enumerate(path):
            seen = [other for other in range(token + 1) if token < tree.ends[other]]
            assert seen == path[: depth + 1].tolist()


def test_padding_inside_a_row_is_skipped() -> None:
    tree = fold_rows(np.array([[5, 0, 6], [5, 6, 0]]), np.array([[True, False, True], [True, True, False]]))
    assert tree.ids.tolist() == [5, 6]
    assert tree.index[0, [0, 2]].tolist() == tree.index[1, [0, 1]].tolist()


def test_large_tokens_are_told_apart() -> None:
    tree = fold_rows(np.array([[1, 256], [1, 65536], [257, 1]]), np.ones((3, 2), bool))
    assert len(tree.ids) == 5


def test_a_row_of_padding_is_named() -> None:
    with pytest.raises(ValueError, match="row 1 of the batch is all padding"):
        fold_rows(np.array([[1, 2], [0, 0]]), np.array([[True, True], [False, False]]))
