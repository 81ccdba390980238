import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolellm.core.sanitize import label, make_visible, measure_width, truncate

any_text = st.text(st.characters(), max_size=60)  # lone surrogates included


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        pytest.param("plain 李白 é\n\tkept", "plain 李白 é\n\tkept", id="plain-text-is-kept"),
        pytest.param("\x1b[31mred\x1b[0m", "␛[31mred␛[0m", id="ansi-colour"),
        pytest.param("\x9b31m", "⟨U+009B⟩31m", id="c1-escape"),
        pytest.param("a\r\nb\rc", "a\nb␍c", id="carriage-returns"),
        pytest.param("pay\u202egnp.exe", "pay⟨U+202E⟩gnp.exe", id="bidi-override"),
        pytest.param("ze\u200bro\ufeff", "ze⟨U+200B⟩ro⟨U+FEFF⟩", id="zero-width"),
        pytest.param("\ud800", "⟨U+D800⟩", id="lone-surrogate"),
        pytest.param("\uffff\ufdd0", "⟨U+FFFF⟩⟨U+FDD0⟩", id="noncharacters"),
    ],
)
def test_visible(text: str, shown: str) -> None:
    assert make_visible(text) == shown


@given(any_text)
def test_nothing_hidden_is_left_and_once_is_enough(text: str) -> None:
    shown = make_visible(text)
    assert not {unicodedata.category(one) for one in shown if one not in "\n\t"} & {"Cc", "Cf", "Cs", "Zl", "Zp"}
    assert make_visible(shown) == shown
    shown.encode("utf-8")


@given(any_text, st.integers(3, 30))
def test_label_is_one_line_within_its_width(text: str, columns: int) -> None:
    short = label(text, columns)
    assert measure_width(short) <= columns
    assert "\n" not in short and make_visible(short) == short


def test_label_keeps_what_fits_and_marks_what_does_not() -> None:
    assert label("Dr. Frank-N-Furter", 18) == "Dr. Frank-N-Furter"
    assert label("孙悟空大圣", 7) == "孙悟空…"
    assert label("x" * 10_000_000, 5) == "xxxx…"


def test_shorten_counts_what_it_leaves_out() -> None:
    assert truncate("abc", 3) == "abc"
    assert truncate("x" * 10_000_000, 10) == "x" * 10 + " … [9,999,990 more characters]"
