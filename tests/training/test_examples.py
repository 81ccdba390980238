"""Examples: their tokens, the hash that names them, and the memory that they take."""

import sys
from array import array

import pytest

from rolellm.core.records import Row
from rolellm.training.examples import Example, hash_examples

from .examples import sample_examples
from .tokenizers import make_tokenizer


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
    def make_hash(prompts: list[tuple[int, ...]], replies: list[tuple[int, ...]]) -> str:
        return hash_examples(
            [Example(str(number), *pair) for number, pair in enumerate(zip(prompts, replies, strict=True))]
        )

    first = make_hash([(1, 2), (3,)], [(4,), (5, 6)])
    assert first == make_hash([(1, 2), (3,)], [(4,), (5, 6)])
    assert make_hash(prompts, replies) != first
    assert hash_examples([Example("a", (1,), (2,))]) != hash_examples([Example("a", (1,), (2,), row={"label": True})])


def test_a_token_takes_four_bytes_and_a_shared_prompt_none(sample_rows: list[Row]) -> None:
    rows = [row for row in sample_rows if len(row.references) > 1]
    examples = sample_examples(rows, make_tokenizer("bytes"))
    for example in examples:
        assert isinstance(example.reply_ids, array)
        assert sys.getsizeof(example.reply_ids) <= 80 + 4 * len(example.reply_ids)
    assert len({id(example.prompt_ids) for example in examples}) == len({example.row_id for example in examples})
