import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolellm.making.duplicates import find_repeats

OTHERS = [
    f"Ada, tell me about the {thing} in the harbour." for thing in ("lamp", "crane", "fog", "bell", "gull", "rope")
]


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        pytest.param(
            "Ada, what do you think of the lamps on the quay?",
            "Ada, what do you think about the lamps on the quay?",
            True,
            id="one small word",
        ),
        pytest.param("Ada, who found the jam?", "Ada, where did you hide the jam?", False, id="another question word"),
        pytest.param(
            "Ada, what do you think of roses that a rabbit painted white with stolen paint before the queen came?",
            "Ada, what do you think of roses?",
            False,
            id="short one within a long one",
        ),
    ],
)
def test_english(first: str, second: str, same: bool) -> None:
    found = find_repeats([first, *OTHERS, second], "en", 0.8)
    assert (7 in found) == same
    assert not same or found[7][0] == 0
    assert set(found) <= {7}


WORDS = st.sampled_from(["ada", "bell", "crane", "dusk", "fog", "gull", "who", "what"])
QUESTIONS = st.lists(st.lists(WORDS, max_size=6).map(" ".join), max_size=12)


@settings(max_examples=30)
@given(QUESTIONS)
def test_kept_ones_are_first_of_their_like_and_repeats_point_at_kept_ones(questions: list[str]) -> None:
    found = find_repeats(questions, "en", 0.8)
    for place, (first, value) in found.items():
        assert first < place
        assert first not in found
        assert 0 < value <= 1
    kept = [question for place, question in enumerate(questions) if place not in found]
    assert len(kept) == len(set(kept))


def test_the_repeats_among_thousands_are_found() -> None:
    draw = random.Random(0)
    vocabulary = [f"word{number}" for number in range(3000)]
    questions = ["Ada, " + " ".join(draw.choices(vocabulary, k=12)) for _ in range(3000)]
    assert len(find_repeats([*questions, *questions[:100]], "en", 0.8)) == 100
