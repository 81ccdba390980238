"""Examples: their tokens, the hash that names them, and the memory that they take."""

import pytest

from rolellm.training.examples import Example, hash_examples


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
