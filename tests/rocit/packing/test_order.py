"""The order of examples: every one once an epoch, like lengths together, batches in no order of length."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from rolellm.rocit.packing.plan import grouped


@given(lengths=st.lists(st.integers(1, 500), max_size=200), batch=st.integers(1, 9), seed=st.integers(0, 3))
def test_every_example_comes_once_and_the_order_hangs_on_seed_and_epoch_alone(
    lengths: list[int], batch: int, seed: int
) -> None:
    first = grouped(lengths, batch, seed)
    assert sorted(first) == list(range(len(lengths)))
    assert grouped(lengths, batch, seed) == first
    assert grouped(lengths, batch, seed, 1) == grouped(lengths, batch, seed, 1)


def test_batches_hold_like_lengths_and_do_not_come_in_order_of_length() -> None:
    lengths = [(number * 37) % 101 for number in range(1000)]
    indices = grouped(lengths, 4, 0)
    batches = [[lengths[index] for index in indices[at : at + 4]] for at in range(0, len(indices), 4)]
    spread = sum(max(batch) - min(batch) for batch in batches) / len(batches)
    assert spread < 10
    means = [sum(batch) / 4 for batch in batches]
    rises = sum(later > earlier for earlier, later in pairwise(means))
    assert 0.4 < rises / len(means) < 0.6


def test_an_epoch_has_its_own_order() -> None:
    assert grouped(list(range(50)), 4, 0, 1) != grouped(list(range(50)), 4, 0)
