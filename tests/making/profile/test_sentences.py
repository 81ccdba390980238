import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolellm.core.records import Language
from rolellm.making.profile.phrases import split_sentences


def texts(line: str, language: Language) -> list[str]:
    return [sentence.shown(0, len(sentence.words)) for sentence in split_sentences(line, language)]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        pytest.param("Stop! Who goes there? A friend.", ["Stop!", "Who goes there?", "A friend"], id="marks"),
        pytest.param("Mr. Hand is late. So is Dr. Who.", ["Mr. Hand is late", "So is Dr. Who"], id="abbreviations"),
        pytest.param("Well -- no... perhaps", ["Well", "no", "perhaps"], id="dashes and dots"),
        pytest.param("Come (aside) here [exit] now", ["Come", "here", "now"], id="directions"),
        pytest.param("He said “Run!” twice", ["He said", "Run!", "twice"], id="quotation"),
        pytest.param("I'll be back, Dave", ["I'll be back, Dave"], id="comma and apostrophe"),
        pytest.param("3.5 percent of U.S. trade", ["3.5 percent of U.S. trade"], id="numbers and initials"),
        pytest.param("***", [], id="no word"),
    ],
)
def test_english(line: str, expected: list[str]) -> None:
    assert texts(line, "en") == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        pytest.param("俺老孙来也！妖怪，哪里走？", ["俺老孙来也！", "妖怪，哪里走？"], id="marks"),
        pytest.param("罢了……去吧。", ["罢了", "去吧"], id="dots that fold into others"),
        pytest.param("说甚么'弼马温'！", ["说甚么", "弼马温"], id="straight quotes"),
        pytest.param("（旁白）好！", ["好！"], id="direction"),
        pytest.param("我有３颗ＡＢ丹", ["我有３颗ＡＢ丹"], id="wide letters"),
    ],
)
def test_chinese(line: str, expected: list[str]) -> None:
    assert texts(line, "zh") == expected


def test_edges_are_where_clauses_begin_and_end() -> None:
    (sentence,) = split_sentences("I'm sorry, Dave, no", "en")
    assert sentence.words == ("i'm", "sorry", "dave", "no")
    assert sentence.edges == (True, False, True, True, True)
    assert sentence.shown(0, 3) == "I'm sorry, Dave"


@given(st.text(max_size=200), st.sampled_from(["en", "zh"]))
def test_any_text_has_its_words_where_it_says(line: str, language: Language) -> None:
    for sentence in split_sentences(line, language):
        assert len(sentence.words) == len(sentence.spans) == len(sentence.edges) - 1 > 0
        assert all(0 <= start < end <= len(sentence.text) for start, end in sentence.spans)
        assert list(sentence.spans) == sorted(sentence.spans)
