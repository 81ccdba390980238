import random

from hypothesis import given, settings
from hypothesis import strategies as st

from rolellm.making.duplicates import find_repeats

OTHERS = [
    f"Ada, tell me about the {thing} in the harbour." for thing in ("lamp", "crane", "fog", "bell", "gull", "rope")
]


def test_english() -> None:
    first, second = (f"Ada, what do you think {word} the lamps on the quay?" for word in ("of", "about"))
    assert find_repeats([first, *OTHERS, second], "en", 0.8)[7][0] == 0
    assert find_repeats(["Ada, who found the jam?", *OTHERS, "Ada, where did you hide the jam?"], "en", 0.8) == {}
    # A short one within a long one is another question.
    assert find_repeats([f"{first[:-1]} that a sailor painted white?", *OTHERS, first], "en", 0.8) == {}


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
