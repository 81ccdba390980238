from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolellm.making.instruct.grounding import extract_names, extract_numbers


@pytest.mark.parametrize(
    ("text", "values"),
    [
        pytest.param("three tarts, the third hoop, 3 balls", {3}, id="one number in three forms"),
        pytest.param("twenty-two parrots", {22}, id="hyphen"),
        pytest.param("two hundred and 5 men", {200, 5}, id="hundreds"),
        pytest.param("one hundred fifty thousand", {150_000}, id="thousands"),
        pytest.param("1,500 crumbs in 1606", {1500, 1606}, id="digits with comma"),
        pytest.param("a hundred times, a dozen", set(), id="phrases without a number"),
        pytest.param("twice, first, one, two eyes", set(), id="below three"),
        pytest.param("often canine tensions", set(), id="numbers within words"),
        pytest.param("three, four", {3, 4}, id="two in a row"),
        pytest.param("", set(), id="nothing"),
    ],
)
def test_english(text: str, values: set[int]) -> None:
    assert set(extract_numbers(text, "en").values()) == values


@pytest.mark.parametrize(
    ("text", "values"),
    [
        pytest.param("三日的粮", {3}, id="days"),
        pytest.param("三百六十五天", {365}, id="hundreds"),
        pytest.param("一万五千人", {15_000}, id="ten thousands"),
        pytest.param("十万八千里", {108_000}, id="the somersault"),
        pytest.param("二十文钱和４０头牛", {20, 40}, id="full-width digits"),
        pytest.param("千万小心，万一三思，百姓十分高兴", set(), id="phrases"),
        pytest.param("一把剑，两只手", set(), id="below three"),
    ],
)
def test_chinese(text: str, values: set[int]) -> None:
    assert set(extract_numbers(text, "zh").values()) == values


def test_loose_takes_what_may_be_meant() -> None:
    assert {1, 2} <= set(extract_numbers("one or two", "en", loose=True).values())
    assert 3 in extract_numbers("三思", "zh", loose=True).values()


@given(st.text(st.sampled_from("0123456789零〇一二两三十百千万亿 ,.人"), max_size=40))
def test_any_row_of_digits_has_a_value(text: str) -> None:
    for loose in (True, False):
        for language in ("en", "zh"):
            found = extract_numbers(text, language, loose=loose)  # type: ignore[arg-type]
            assert all(value >= 0 for value in found.values())


@pytest.mark.parametrize(
    ("text", "names"),
    [
        pytest.param("I told Zebulon's mother. Bring tea!", ["Zebulon"], id="within a sentence"),
        pytest.param("Bring tea! Never! So it is.", [], id="sentence starts"),
        pytest.param('He said: "Mercy on us" and left', [], id="quotation starts"),
        pytest.param("Off with HIS head, my Lord, on Monday", [], id="shouting, titles, days"),
        pytest.param("I met Jean-Luc and O'Brien", ["Jean-Luc", "O'Brien"], id="hyphen and apostrophe"),
    ],
)
def test_english_names(text: str, names: list[str]) -> None:
    assert extract_names(text, "en") == names


@pytest.mark.parametrize(
    ("text", "names"),
    [
        pytest.param("张飞与刘备饮酒", ["张飞", "刘备"], id="in the dictionary"),
        pytest.param("石彪怕诸葛瑾", ["诸葛瑾"], id="long surname"),
        pytest.param("关心孙女，陶醉其中", [], id="words that begin with a surname"),
        pytest.param("我读过《青石谷》", ["青石谷"], id="title marks"),
    ],
)
def test_chinese_names(text: str, names: list[str]) -> None:
    assert extract_names(text, "zh") == names
