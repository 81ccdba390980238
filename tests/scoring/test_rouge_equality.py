"""Rouge-L against the two packages that define it, on open-ended text and on named traps."""

import random
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rouge import Rouge
from rouge_score.rouge_scorer import RougeScorer

from rolellm.scoring.rouge import rouge_l

GOOGLE = RougeScorer(["rougeL"])
PYPI = Rouge(metrics=["rouge-l"])

#: Few words, so that they repeat within and across sentences, and every kind of sentence break.
PIECES = ["a", "b", "c", "d", "the", "The", "a.b", ".", "..", " ", "\n", "\t.", ". ", "\u3000", "\x1c", "e", "é", "3.5"]
REPETITIVE = st.lists(st.sampled_from(PIECES), max_size=30).map(" ".join)
GLUED = st.lists(st.sampled_from(PIECES), max_size=30).map("".join)
LONG = st.lists(st.sampled_from("abcdefgh.xyz"), min_size=30, max_size=120).map(" ".join)
TEXTS = st.one_of(REPETITIVE, GLUED, LONG, st.text(max_size=60))


def assert_as_rouge_score(prediction: str, reference: str) -> None:
    expected = GOOGLE.score(reference, prediction)["rougeL"]
    (found,) = rouge_l([prediction], [reference])
    assert (found.precision, found.recall, found.f1) == (expected.precision, expected.recall, expected.fmeasure)


def assert_as_rouge(prediction: str, reference: str, *, language: str = "en") -> None:
    (found,) = rouge_l([prediction], [reference], protocol="paper", language=language)
    if language == "zh":
        prediction, reference = " ".join(prediction), " ".join(reference)
    try:
        expected = PYPI.get_scores(prediction, reference)[0]["rouge-l"]
    except ValueError:
        expected = {"p": 0.0, "r": 0.0, "f": 0.0}
    assert {"p": found.precision, "r": found.recall, "f": found.f1} == expected


@settings(max_examples=200)
@given(prediction=TEXTS, reference=TEXTS)
def test_rouge_score_agrees_to_the_last_bit(prediction: str, reference: str) -> None:
    assert_as_rouge_score(prediction, reference)


@pytest.mark.slow
@settings(max_examples=400)
@given(prediction=TEXTS, reference=TEXTS)
def test_paper_agrees_with_rouge_to_the_last_bit(prediction: str, reference: str) -> None:
    assert_as_rouge(prediction, reference)


@settings(max_examples=75)
@given(prediction=TEXTS, reference=TEXTS)
def test_paper_agrees_with_rouge_on_spaced_characters(prediction: str, reference: str) -> None:
    assert_as_rouge(prediction, reference, language="zh")


PAIRS = [
    pytest.param("b a b a", "a b a b", id="ties-between-two-longest"),
    pytest.param("a b c a b c", "c b a c b a", id="many-longest"),
    pytest.param("x a x b x", "a x b", id="words-missing-in-the-reference"),
    pytest.param("a b a", "a x a x b x a", id="gaps-in-the-reference-between-repeats"),
    pytest.param("a a a", "x a", id="match-where-the-table-does-not-rise"),
    pytest.param("a b. b a. c", "b c a. a c b", id="sentences-crossed"),
    pytest.param("a. .b", "a. .b", id="sentence-of-white-space-holds-an-empty-word"),
    pytest.param("a.  .", "b.\t.c", id="empty-word-is-all-there-is-in-common"),
    pytest.param("a...b", "b. . .a", id="runs-of-full-stops"),
    pytest.param(".", "a", id="full-stop-only"),
    pytest.param(" . ", " . ", id="white-space-round-a-full-stop"),
    pytest.param("3.5 km", "3.5 km", id="decimal-is-two-sentences"),
    pytest.param("a\u00a0b\u2003c\u3000d", "a b c d", id="unicode-white-space-separates"),
    pytest.param("a\u200bb", "a b", id="zero-width-space-does-not"),
    pytest.param("İSTANBUL \u212a ſ ß", "i\u0307stanbul k s ss", id="lower-casing-that-changes-length"),
    pytest.param("naïve café", "naive cafe", id="accents"),
    pytest.param("人 a 工 b", "a b", id="latin-between-chinese"),
    pytest.param("lone \ud800 surrogate", "lone surrogate \udfff", id="lone-surrogates"),
    pytest.param("a\x00b c", "a b c", id="nul"),
    pytest.param("a_b a-b a'b", "a b", id="underscore-hyphen-apostrophe"),
    pytest.param("٣ ३ 3", "3", id="digits-of-other-scripts"),
]


@pytest.mark.parametrize(("prediction", "reference"), PAIRS)
def test_named_traps(prediction: str, reference: str) -> None:
    assert_as_rouge_score(prediction, reference)
    assert_as_rouge(prediction, reference)
    assert_as_rouge(reference, prediction)
    assert_as_rouge(prediction, reference, language="zh")


def test_texts_longer_than_the_packages_recursion() -> None:
    draw, limit = random.Random(900), sys.getrecursionlimit()
    prediction, reference = (" ".join(draw.choices([f"w{number}" for number in range(300)], k=900)) for _ in range(2))
    (score,) = rouge_l([prediction], [reference], protocol="paper")
    sys.setrecursionlimit(20_000)
    try:
        assert score.recall == PYPI.get_scores(prediction, reference)[0]["rouge-l"]["r"]
    finally:
        sys.setrecursionlimit(limit)
