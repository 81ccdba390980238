"""Rouge-L's contract: which reference is chosen, what empty texts score, what is refused and in which words."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolellm.core.errors import DataError, SettingsError
from rolellm.scoring.rouge import RougeScore, rouge_l

RECIPES = [
    pytest.param({"protocol": "rouge-score"}, id="rouge-score-en"),
    pytest.param({"protocol": "rouge-score", "language": "zh"}, id="rouge-score-zh-jieba"),
    pytest.param({"language": "zh", "tokenizer": "characters"}, id="rouge-score-zh-characters"),
    pytest.param({"protocol": "paper"}, id="paper-en"),
    pytest.param({"protocol": "paper", "language": "zh"}, id="paper-zh"),
]
WORDS = st.lists(
    st.sampled_from(["the", "a", "raven", "Raven", "sits", "李白", "酒", "3", ".", ". ", "\n"]), max_size=14
)
TEXTS = WORDS.map(" ".join) | st.text(max_size=20)


def one(prediction: str, *references: str, **recipe: Any) -> RougeScore:
    (score,) = rouge_l([prediction], [list(references)], **recipe)
    return score


def test_two_protocols_give_two_figures_for_one_pair() -> None:
    prediction, reference = "The old raven sits. It sits still.", "the old raven still sits"
    google, paper = one(prediction, reference), one(prediction, reference, protocol="paper")
    # Google: the old raven sits, of 7 and 5 words. rouge: old, raven (case and ending count) and of two tables no more.
    assert (google.precision, google.recall) == (4 / 7, 4 / 5)
    assert paper.recall == 3 / 5
    assert paper.f1 == pytest.approx(2 * (3 / 6) * (3 / 5) / (3 / 6 + 3 / 5), abs=1e-7)


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize(
    ("prediction", "reference"),
    [
        pytest.param("", "a raven 李白", id="empty-prediction"),
        pytest.param("a raven 李白", "", id="empty-reference"),
        pytest.param("...", "a raven 李白", id="full-stops-only"),
        pytest.param("a raven 李白", ".", id="reference-of-a-full-stop"),
    ],
)
def test_texts_without_tokens_score_zero(recipe: dict[str, Any], prediction: str, reference: str) -> None:
    assert one(prediction, reference, **recipe) == RougeScore(0, 0, 0, 0)
    # They lose to any reference that has something in common, and never hide it.
    assert one("a raven 李白", min(prediction, reference, key=len), "raven 李白", **recipe).reference == 1


@pytest.mark.parametrize("recipe", RECIPES)
@given(prediction=TEXTS, references=st.lists(TEXTS, min_size=1, max_size=4))
def test_scores_lie_between_0_and_1_and_do_not_hang_on_the_order_of_references(
    recipe: dict[str, Any], prediction: str, references: list[str]
) -> None:
    forward, backward = one(prediction, *references, **recipe), one(prediction, *references[::-1], **recipe)
    assert all(0 <= value <= 1 for value in (forward.precision, forward.recall, forward.f1))
    key = "recall" if recipe.get("protocol") == "paper" else "f1"
    assert getattr(forward, key) == getattr(backward, key)
    alone = [one(prediction, reference, **recipe) for reference in references]
    values = [getattr(score, key) for score in alone]
    assert forward.reference == values.index(max(values))
    assert forward == alone[forward.reference]._replace(reference=forward.reference)


def test_a_mixed_column_of_texts_lists_and_tuples_is_read() -> None:
    scores = rouge_l(("a b", "a b", "a b"), iter(["a b", ["a b"], ("x", "a b")]))
    assert [(score.f1, score.reference) for score in scores] == [(1, 0), (1, 0), (1, 1)]
    assert rouge_l([], []) == []


@pytest.mark.parametrize(
    ("predictions", "references", "words"),
    [
        pytest.param(["a"], [[]], "references is not valid at 0.*at least 1", id="no-reference"),
        pytest.param(["a", "b"], ["a"], "2 predictions but 1 rows of references", id="unequal"),
        pytest.param("a", ["a"], "list of predictions is not valid: .*found 'a'", id="bare-prediction"),
    ],
)
def test_bad_rows_are_named(predictions: Any, references: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        rouge_l(predictions, references)
    assert isinstance(caught.value, DataError)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        pytest.param({"protocol": "rouge_score"}, "did you mean rouge-score", id="protocol-underscore"),
        pytest.param({"language": "zh", "tokenizer": "jeiba"}, "did you mean jieba", id="tokenizer"),
        pytest.param(
            {"language": "zh", "protocol": "paper", "tokenizer": "jieba"},
            "tokenizer for Chinese under protocol 'paper': 'jieba'; known: spaced-characters",
            id="tokenizer-protocol",
        ),
    ],
)
def test_unknown_options_name_the_valid_ones(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        rouge_l(["a"], ["a"], **options)
    assert isinstance(caught.value, SettingsError)
