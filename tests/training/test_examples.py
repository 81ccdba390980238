"""Examples: their tokens, the hash that names them, and the memory that they take."""

import pytest

from rolellm.training.examples import Example, hash_examples

Pairs = list[tuple[tuple[int, ...], tuple[int, ...]]]
PAIRS: Pairs = [((1, 2), (4,)), ((3,), (5, 6))]


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param([((1, 2), (4,)), ((3,), (5, 7))], id="a-token"),
        pytest.param([((1,), (2, 4)), ((3,), (5, 6))], id="a-token-trained-instead-of-read"),
        pytest.param([((1, 2), (5, 6)), ((3,), (4,))], id="replies-exchanged"),
    ],
)
def test_the_hash_is_of_what_is_read_and_what_is_trained(changed: Pairs) -> None:
    first, again, other = (
        hash_examples([Example(str(number), *pair) for number, pair in enumerate(pairs)])
        for pairs in (PAIRS, PAIRS, changed)
    )
    assert first == again != other
    assert hash_examples([Example("a", (1,), (2,))]) != hash_examples([Example("a", (1,), (2,), row={"label": True})])
