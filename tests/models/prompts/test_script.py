"""Turns of a script as text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolellm.core.records import Turn
from rolellm.models.prompts.render import LONGEST, format_turn, shorten_turn


@pytest.mark.parametrize(
    ("turn", "language", "expected"),
    [
        pytest.param(Turn("King", "Begin!"), "en", "King: Begin!", id="speech"),
        pytest.param(Turn("柳老汉", "师父莫怪。"), "zh", "柳老汉：师父莫怪。", id="Chinese speech"),
        pytest.param(Turn("scene", "A trumpet sounds.", "narration"), "en", "(A trumpet sounds.)", id="narration"),
        pytest.param(Turn("旁白", "雪停了。", "narration"), "zh", "（雪停了。）", id="Chinese narration"),
        pytest.param(Turn("scene", "[Exit.]", "narration"), "en", "(Exit.)", id="brackets stand once"),
        pytest.param(Turn("旁白", "【雪停了】", "narration"), "zh", "（雪停了）", id="Chinese brackets"),
        pytest.param(Turn("scene", "(", "narration"), "en", "(()", id="one bracket is text"),
        pytest.param(Turn("King", "(aside) No."), "en", "King: (aside) No.", id="brackets in speech stay"),
    ],
)
def test_lines(turn: Turn, language: str, expected: str) -> None:
    assert format_turn(turn, language) == expected


def test_a_long_narration_keeps_its_brackets() -> None:
    shown = format_turn(Turn("scene", f"[{'word ' * 200}]", "narration"), "en")
    assert shown.startswith("(word word") and shown.endswith("word…)")


@pytest.mark.parametrize(
    ("text", "end"),
    [
        pytest.param("word " * 200, "word…", id="between words"),
        pytest.param("字" * 900, "字…", id="no spaces"),
        pytest.param("好 " + "字" * 900, "字字…", id="a space long before the cut"),
    ],
)
def test_a_long_text_is_cut(text: str, end: str) -> None:
    cut = shorten_turn(text)
    assert LONGEST - 40 < len(cut) <= LONGEST
    assert cut.endswith(end)


@given(st.text(max_size=3 * LONGEST))
def test_a_text_is_kept_or_cut_to_its_beginning(text: str) -> None:
    cut = shorten_turn(text)
    assert cut == text if len(text) <= LONGEST else len(cut) <= LONGEST and text.startswith(cut.removesuffix("…"))
