"""Examples as flat arrays: what comes out is what went in, and a prompt is held once."""

import numpy as np
import pytest
from hypothesis import given

from rolellm.rocit.packing.examples import IGNORED, Example, Examples, Ragged

from .trees import example_lists


@given(example_lists())
def test_what_goes_in_comes_out_in_order(made: list[Example]) -> None:
    held = Examples.of(made)
    assert len(held) == len(made)
    assert [(item.row_id, item.prompt_ids, item.reply_ids, item.reference) for item in held] == [
        (item.row_id, item.prompt_ids, item.reply_ids, item.reference) for item in made
    ]
    assert held.lengths.tolist() == [len(item.input_ids) for item in made]
    # The names of families are not kept; which prompts are of one family is.
    pairs = {(item.family, back.family) for item, back in zip(made, held, strict=True)}
    assert len(pairs) == len({item.family for item in made}) == len({back.family for back in held})


@given(example_lists())
def test_a_row_s_replies_share_its_prompt_and_rows_do_not(made: list[Example]) -> None:
    held = Examples.of(made)
    assert held.row_ids == tuple(dict.fromkeys(item.row_id for item in made))
    assert len(held.prompts) == len(held.row_ids)
    assert len(held.prompts.flat) == sum({item.row_id: len(item.prompt_ids) for item in made}.values())


def test_it_is_a_sequence() -> None:
    made = [Example("a", (1, 2), (3,)), Example("a", (1, 2), (4,), 1), Example("b", (5,), (6, 7))]
    held = Examples.of(made)
    assert held[-1].reply_ids == (6, 7)
    assert held[1:] == [held[1], held[2]]
    assert held[::-2] == [held[2], held[0]]
    assert held.index(held[1]) == 1
    assert held[0] in held
    with pytest.raises(IndexError):
        held[3]
    assert Examples.of(held) is held
    assert list(Examples.of(list(held))) == list(held)


def test_tokens_are_plain_integers() -> None:
    (example,) = Examples.of([Example("a", (1,), (2, 3))])
    assert {type(token) for token in example.input_ids} == {int}
    assert example.labels == [IGNORED, 2, 3]


def test_prompts_of_one_row_under_two_families_are_two() -> None:
    held = Examples.of([Example("a", (1,), (2,), family="x"), Example("a", (1,), (3,), family="y")])
    assert held.families.tolist() == [0, 1]
    assert held.prompt_of.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("prompts", "replies"),
    [
        pytest.param([(1, 2), (3,)], [(4,), (5, 7)], id="a-token"),
        pytest.param([(1,), (3,)], [(2, 4), (5, 6)], id="a-token-trained-instead-of-read"),
        pytest.param([(1, 2), (3,)], [(5, 6), (4,)], id="replies-exchanged"),
        pytest.param([(1, 2), (1, 2)], [(4,), (5, 6)], id="another-prompt"),
    ],
)
def test_the_hash_is_of_what_is_read_and_what_is_trained(
    prompts: list[tuple[int, ...]], replies: list[tuple[int, ...]]
) -> None:
    def held(prompts: list[tuple[int, ...]], replies: list[tuple[int, ...]]) -> Examples:
        return Examples.of(
            [Example(str(number), *pair) for number, pair in enumerate(zip(prompts, replies, strict=True))]
        )

    first = held([(1, 2), (3,)], [(4,), (5, 6)])
    assert first.hash == Examples.of(list(first)).hash
    assert held(prompts, replies).hash != first.hash


def test_nothing_is_no_examples() -> None:
    held = Examples.of([])
    assert (len(held), list(held), held.lengths.tolist()) == (0, [], [])


def test_a_token_takes_four_bytes_and_a_shared_prompt_none() -> None:
    prompt, reply = tuple(range(250)), tuple(range(40))
    held = Examples.of(Example(f"row {n}", prompt, reply, reference) for n in range(100) for reference in range(5))
    assert held.prompts.flat.nbytes + held.replies.flat.nbytes == 4 * 100 * (250 + 5 * 40)


def test_sequences_of_unequal_lengths_lie_end_to_end() -> None:
    ragged = Ragged.of([np.asarray(ids, np.int32) for ids in ([1], [], [2, 3], [4])])
    assert [ragged[place].tolist() for place in range(len(ragged))] == [[1], [], [2, 3], [4]]
    assert ragged.lengths.tolist() == [1, 0, 2, 1]
