import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolellm.core.records import Language
from rolellm.making.duplicates import Method, find_nearest, find_repeats

METHODS: tuple[Method, ...] = ("bm25", "minhash")
OTHERS = [
    f"Ada, tell me about the {thing} in the harbour." for thing in ("lamp", "crane", "fog", "bell", "gull", "rope")
]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        pytest.param(
            "Ada, what do you think of the new electric lamps on the quay?",
            "Ada, what do you think about the new electric lamps on the quay?",
            True,
            id="one small word",
        ),
        pytest.param("Ada, who found the jam?", "Ada, where did you hide the jam?", False, id="another question word"),
        pytest.param(
            "Ada, what do you think of thieves?", "Ada, what do you think of gardeners?", False, id="one frame"
        ),
    ],
)
def test_english(method: Method, first: str, second: str, same: bool) -> None:
    found = find_repeats([first, *OTHERS, second], "en", method)
    assert (7 in found) == same
    assert not same or found[7][0] == 0
    assert set(found) <= {7}


def test_a_short_question_is_no_repeat_of_a_long_one_that_holds_it() -> None:
    questions = [
        "Ada, what do you think of roses that a rabbit painted white with stolen paint before the queen came?",
        "Ada, what do you think of roses?",
        *OTHERS,
    ]
    assert find_repeats(questions, "en", "bm25") == {}


def test_nothing_makes_nothing() -> None:
    for method in METHODS:
        assert find_repeats([], "en", method) == {}
        assert find_repeats(["", " ", "?"], "en", method) == {1: (0, 1.0)}


WORDS = st.sampled_from(["ada", "bell", "crane", "dusk", "fog", "gull", "who", "what"])
QUESTIONS = st.lists(st.lists(WORDS, max_size=6).map(" ".join), max_size=12)


@settings(max_examples=30)
@given(QUESTIONS, st.sampled_from(METHODS))
def test_kept_ones_are_first_of_their_like_and_repeats_point_at_kept_ones(questions: list[str], method: Method) -> None:
    found = find_repeats(questions, "en", method)
    for place, (first, value) in found.items():
        assert first < place
        assert first not in found
        assert 0 < value <= 1
    kept = [question for place, question in enumerate(questions) if place not in found]
    assert len(kept) == len(set(kept))
    assert found == find_repeats(questions, "en", method)


@pytest.mark.parametrize("method", METHODS)
def test_the_repeats_among_thousands_are_found(method: Method) -> None:
    draw = random.Random(0)
    vocabulary = [f"word{number}" for number in range(3000)]
    questions = ["Ada, " + " ".join(draw.choices(vocabulary, k=12)) for _ in range(3000)]
    questions += questions[:100]
    found = find_repeats(questions, "en", method)
    assert len(found) == 100


def _replace(units: list[str], share: float, vocabulary: list[str], draw: random.Random) -> list[str]:
    edited = list(units)
    for place in draw.sample(range(len(units)), round(share * len(units))):
        edited[place] = draw.choice(vocabulary)
    return edited


@settings(max_examples=8)
@given(st.integers(0, 10**6), st.sampled_from(["en", "zh"]))
def test_planted_leaks_are_found_and_others_are_none(seed: int, language: Language) -> None:
    draw = random.Random(seed)
    join, vocabulary = " ".join, [f"{first}{second}" for first in "bdfglmnprt" for second in ("a", "en", "ilk", "ost")]
    if language == "zh":
        join, vocabulary = "".join, [chr(0x4E00 + 7 * number) for number in range(400)]
    texts = [draw.choices(vocabulary, k=draw.randint(8, 40)) for _ in range(300)]
    among = [join(text) + "." for text in texts]
    exact = among[:60]
    cased = [text.upper() for text in among[60:120]]
    pointed = [join([*text[:3], ",", *text[3:]]) + " !" for text in texts[120:180]]
    worded = [join(_replace(text, 0.1, vocabulary, draw)) for text in texts[180:300]]
    others = [join(_replace(text, 0.4, vocabulary, draw)) for text in texts if len(text) > 10]
    found = find_nearest([*exact, *cased, *pointed, *worded, *others], among, language)
    assert [found[place] for place in range(180)] == [(place, 1.0) for place in range(180)]
    assert sum(found.get(place, (None, 0))[0] == place for place in range(180, 300)) >= 0.95 * 120
    assert sum(place >= 300 for place in found) < 0.01 * len(others)


def test_what_several_frames_fit_equally_is_a_copy_of_none() -> None:
    among = ["What is the opposite of hot?", "What is the opposite of big?", "Who lit the lamp on the pier?"]
    texts = ["What is the opposite of long?", "Who lit the lamp on the quay?", "No!", "NO", "Yes?"]
    assert find_nearest(texts, [*among, "no"], "en") == {1: (2, pytest.approx(6 / 7)), 2: (3, 1.0), 3: (3, 1.0)}


@pytest.mark.parametrize(
    ("text", "known", "language"),
    [
        pytest.param(
            "What do you think of the lamps, Ada?", "Ada, what do you think of the lamps?", "en", id="address"
        ),
        pytest.param(
            "The fog came in, when I lit the lamp on the pier.",
            "When I lit the lamp on the pier, the fog came in.",
            "en",
            id="clauses",
        ),
        pytest.param(
            "Tomorrow the lamp on the pier is lit.", "The lamp on the pier is lit tomorrow.", "en", id="words"
        ),
        pytest.param("你怎麼離開花果山，孫悟空？", "孙悟空，你怎么离开花果山？", "zh", id="traditional and address"),
    ],
)
def test_moved_words_and_traditional_characters_are_light_edits(text: str, known: str, language: Language) -> None:
    others = {"en": ["Ada, who lit the lamp?", "The bell rang."], "zh": ["孙悟空，你吃桃子吗？", "师父在哪里？"]}
    found = find_nearest([text], [*others[language], known], language)
    assert found.keys() == {0} and found[0][0] == 2


@pytest.mark.parametrize(
    ("text", "known"),
    [
        pytest.param(
            "Did Ada see Brom before Cai met Dee?", "Did Dee see Cai before Brom met Ada?", id="other persons"
        ),
    ],
)
def test_the_same_words_in_another_order_are_another_text(text: str, known: str) -> None:
    assert find_nearest([text], ["The gull sleeps.", known], "en") == {}


def test_nothing_is_near_nothing() -> None:
    assert (
        find_nearest([], ["a"], "en") == find_nearest(["a"], [], "en") == find_nearest(["", "?"], ["", "!"], "zh") == {}
    )
