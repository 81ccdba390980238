import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolellm.core.records import Language
from rolellm.making.profile.phrases import split_sentences


@pytest.mark.parametrize(
    ("language", "line", "expected"),
    [
        pytest.param("en", "Stop! Who goes there? A friend.", ["Stop!", "Who goes there?", "A friend"], id="marks"),
        pytest.param(
            "en", "Mr. Hand is late. So is Dr. Who.", ["Mr. Hand is late", "So is Dr. Who"], id="abbreviations"
        ),
        pytest.param("en", "Come (aside) here [exit] now", ["Come", "here", "now"], id="directions"),
        pytest.param("en", "I'll be back, Dave", ["I'll be back, Dave"], id="comma and apostrophe"),
        pytest.param("en", "3.5 percent of U.S. trade", ["3.5 percent of U.S. trade"], id="numbers and initials"),
        pytest.param("zh", "俺老孙来也！妖怪，哪里走？", ["俺老孙来也！", "妖怪，哪里走？"], id="zh: marks"),
        pytest.param("zh", "罢了……去吧。", ["罢了", "去吧"], id="zh: dots that fold into others"),
        pytest.param("zh", "说甚么'弼马温'！", ["说甚么", "弼马温"], id="zh: straight quotes"),
        pytest.param("zh", "我有３颗ＡＢ丹", ["我有３颗ＡＢ丹"], id="zh: wide letters"),
    ],
)
def test_sentences(language: Language, line: str, expected: list[str]) -> None:
    assert [sentence.shown(0, len(sentence.words)) for sentence in split_sentences(line, language)] == expected


@given(st.text(max_size=200), st.sampled_from(["en", "zh"]))
def test_any_text_has_its_words_where_it_says(line: str, language: Language) -> None:
    for sentence in split_sentences(line, language):
        assert len(sentence.words) == len(sentence.spans) == len(sentence.edges) - 1 > 0
        assert all(0 <= start < end <= len(sentence.text) for start, end in sentence.spans)
        assert list(sentence.spans) == sorted(sentence.spans)
