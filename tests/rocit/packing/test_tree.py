"""A pack is its rows: every token is predicted from exactly the text before it, and nothing shared is in it twice."""

from itertools import takewhile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolellm.rocit.packing.examples import Example, Examples
from rolellm.rocit.packing.tree import pack, shared

from .trees import as_list, example_lists, predictions, predictions_by_row, role_rows, trie_size, visible


def examples_of(*rows: tuple[list[int], list[int]]) -> list[Example]:
    return [Example(f"row-{number}", tuple(prompt), tuple(reply)) for number, (prompt, reply) in enumerate(rows)]


SHAPES = [
    pytest.param(examples_of(([1], [9])), id="one-token-each"),
    pytest.param(examples_of(([1, 2], [9]), ([1, 2], [8]), ([1, 2], [9])), id="equal-prompts-of-rows"),
    pytest.param(examples_of(([1, 2, 3], [9, 9]), ([1], [8, 8]), ([1, 2], [7, 7])), id="prompts-within-prompts"),
    pytest.param(examples_of(([1], [2, 3]), ([1, 2], [3])), id="a-reply-like-another-s-prompt"),
    pytest.param(examples_of(([1, 2], [9]), ([3, 4], [9])), id="nothing-in-common"),
    pytest.param(examples_of(([1, 2, 3], [9]), ([1, 5, 3], [9])), id="alike-again-after-a-difference"),
    pytest.param(role_rows(2, 3, 5), id="roles"),
]


def check(made: list[Example], chosen: list[int]) -> None:
    tree = pack(Examples.of(made), chosen)
    taken = [made[place] for place in chosen]
    assert predictions(tree) == predictions_by_row(taken)
    paths = {tuple(example.input_ids[:length]) for example in taken for length in range(1, len(example.input_ids) + 1)}
    for place in range(len(tree.ids)):
        seen = visible(tree, place)
        assert tuple(tree.ids[seen].tolist()) in paths
        assert tree.positions[seen].tolist() == list(range(len(seen)))
    tokens = trie_size([example.prompt_ids for example in taken]) + sum(len(example.reply_ids) for example in taken)
    assert len(tree.ids) == len(tree.positions) == len(tree.ends) == tokens


@given(example_lists(), st.data())
def test_every_token_is_predicted_from_its_own_row_s_text_alone(made: list[Example], data: st.DataObject) -> None:
    check(made, data.draw(st.permutations(range(len(made)))))


@given(example_lists(), st.data())
def test_some_of_the_examples_make_a_pack_of_those(made: list[Example], data: st.DataObject) -> None:
    check(made, data.draw(st.lists(st.sampled_from(range(len(made))), unique=True)))


@pytest.mark.parametrize("made", SHAPES)
def test_shapes(made: list[Example]) -> None:
    check(made, list(range(len(made))))


def test_a_small_pack_to_the_letter() -> None:
    made = examples_of(([1, 2, 3], [7, 8]), ([1, 2], [9]), ([1, 2, 3], [6]))
    tree = pack(Examples.of(made), [0, 1, 2])
    assert as_list(tree.ids) == [1, 2, 9, 3, 7, 8, 6]
    assert as_list(tree.positions) == [0, 1, 2, 2, 3, 4, 3]
    assert as_list(tree.ends) == [7, 7, 3, 7, 6, 6, 7]
    assert as_list(tree.scored) == [1, 3, 4, 3]
    assert as_list(tree.targets) == [9, 7, 8, 6]


def test_a_prompt_s_last_token_is_trained_once_for_each_of_its_replies() -> None:
    tree = pack(Examples.of(role_rows(1, 1, 5)), range(5))
    assert as_list(tree.scored).count(23) == 5
    assert len(tree.scored) == 5 * 4


def test_no_examples_make_an_empty_pack() -> None:
    tree = pack(Examples.of(role_rows(1, 1, 1)), [])
    assert [len(part) for part in (tree.ids, tree.positions, tree.ends, tree.scored, tree.targets)] == [0] * 5


@given(st.lists(st.integers(0, 1), max_size=6), st.lists(st.integers(0, 1), max_size=6))
def test_how_far_two_prompts_begin_alike(one: list[int], other: list[int]) -> None:
    alike = list(takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
    assert shared(np.asarray(one, np.int32), np.asarray(other, np.int32)) == len(alike)
