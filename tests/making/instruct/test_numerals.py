from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolellm.core.records import Language
from rolellm.making.instruct.grounding import extract_names, extract_numbers


@pytest.mark.parametrize(
    ("language", "text", "values"),
    [
        pytest.param("en", "three tarts, the third hoop, 3 balls", {3}, id="one number in three forms"),
        pytest.param("en", "twenty-two parrots", {22}, id="hyphen"),
        pytest.param("en", "two hundred and 5 men", {200, 5}, id="hundreds"),
        pytest.param("en", "one hundred fifty thousand", {150_000}, id="thousands"),
        pytest.param("en", "1,500 crumbs in 1606", {1500, 1606}, id="digits with comma"),
        pytest.param("en", "a hundred times, a dozen", set(), id="phrases without a number"),
        pytest.param("en", "twice, first, one, two eyes", set(), id="below three"),
        pytest.param("en", "often canine tensions", set(), id="numbers within words"),
        pytest.param("en", "three, four", {3, 4}, id="two in a row"),
        pytest.param("en", "", set(), id="nothing"),
        pytest.param("zh", "三日的粮", {3}, id="zh: days"),
        pytest.param("zh", "三百六十五天", {365}, id="zh: hundreds"),
        pytest.param("zh", "一万五千人", {15_000}, id="zh: ten thousands"),
        pytest.param("zh", "十万八千里", {108_000}, id="zh: the somersault"),
        pytest.param("zh", "二十文钱和４０头牛", {20, 40}, id="zh: full-width digits"),
        pytest.param("zh", "千万小心，万一三思，百姓十分高兴", set(), id="zh: phrases"),
        pytest.param("zh", "一把剑，两只手", set(), id="zh: below three"),
    ],
)
def test_numbers(language: Language, text: str, values: set[int]) -> None:
    assert set(extract_numbers(text, language).values()) == values


def test_loose_takes_what_may_be_meant() -> None:
    assert {1, 2} <= set(extract_numbers("one or two", "en", loose=True).values())
    assert 3 in extract_numbers("三思", "zh", loose=True).values()


@given(st.text(st.sampled_from("0123456789零〇一二两三十百千万亿 ,.人"), max_size=40))
def test_any_row_of_digits_has_a_value(text: str) -> None:
    for loose in (True, False):
        for language in get_args(Language):
            assert all(value >= 0 for value in extract_numbers(text, language, loose=loose).values())


@pytest.mark.parametrize(
    ("language", "text", "names"),
    [
        pytest.param("en", "I told Zebulon's mother. Bring tea!", ["Zebulon"], id="within a sentence"),
        pytest.param("en", "Bring tea! Never! So it is.", [], id="sentence starts"),
        pytest.param("en", 'He said: "Mercy on us" and left', [], id="quotation starts"),
        pytest.param("en", "Off with HIS head, my Lord, on Monday", [], id="shouting, titles, days"),
        pytest.param("en", "I met Jean-Luc and O'Brien", ["Jean-Luc", "O'Brien"], id="hyphen and apostrophe"),
        pytest.param("zh", "张飞与刘备饮酒", ["张飞", "刘备"], id="zh: in the dictionary"),
        pytest.param("zh", "石彪怕诸葛瑾", ["诸葛瑾"], id="zh: long surname"),
        pytest.param("zh", "关心孙女，陶醉其中", [], id="zh: words that begin with a surname"),
        pytest.param("zh", "我读过《青石谷》", ["青石谷"], id="zh: title marks"),
    ],
)
def test_names(language: Language, text: str, names: list[str]) -> None:
    assert extract_names(text, language) == names
