import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolellm.characters.scripts.novel import read_novel
from rolellm.characters.scripts.quotes import find_quotations, read_paragraphs
from rolellm.characters.scripts.reading import ReaderHints
from rolellm.characters.scripts.source import make_source


def quoted(text, language="en"):
    return [
        " ".join(text[found.start : found.end].split())
        for found in find_quotations(text, read_paragraphs(text), language)
    ]


@pytest.mark.parametrize(
    ("language", "text", "expected"),
    [
        pytest.param("en", '"Come," he said, "come here."', ["Come,", "come here."], id="straight"),
        pytest.param("en", 'He said--"Never!"--and left.', ["Never!"], id="dashes on both sides"),
        pytest.param("en", "‘Come,’ he said, ‘come here.’", ["Come,", "come here."], id="British"),
        pytest.param(
            "en", "''Tis late,' said Nan.\n\n'It is,' said Ben.", ["'Tis late,", "It is,"], id="'tis after a mark"
        ),
        pytest.param("en", "‘Did he say “no” to you?’ asked Nan.", ["Did he say “no” to you?"], id="double in single"),
        pytest.param(
            "en",
            "“It is long.\n\n“It is very long.\n\n“Here it ends,” she said.\n\n“Good.”",
            ["It is long.", "It is very long.", "Here it ends,", "Good."],
            id="each paragraph opened, only the last closed",
        ),
        pytest.param("en", "“I am lost.\n\nHe left. “Stay,” she said.", ["I am lost.", "Stay,"], id="never closed"),
        pytest.param(
            "en",
            '"He sang:\n\nO rose,\nO rose of mine\n\nand no more," she said. "Well?"',
            ["He sang: O rose, O rose of mine and no more,", "Well?"],
            id="verse inside",
        ),
        pytest.param("en", "«Ici», said Marie.", ["Ici"], id="guillemets"),
        pytest.param("zh", '众人道："好！"他道："不好！"', ["好！", "不好！"], id="straight, Chinese"),
        pytest.param("zh", "「你說『好』嗎？」他問。", ["你說『好』嗎？"], id="corner brackets"),
        pytest.param(
            "zh", '甲道："我先去。乙道："我后去。"', ["我先去。", "我后去。"], id="closing mark missing, Chinese"
        ),
        pytest.param("zh", '他去了。"众人道："好！"他道："走。"', ["好！", "走。"], id="opening mark missing, Chinese"),
    ],
)
def test_what_is_quoted(language, text, expected):
    assert quoted(text, language) == expected


def test_a_heading_ends_what_was_left_open():
    text = '"I never end.\n\nCHAPTER II\n\n"A new day," said Tom.'
    assert quoted(text) == ["I never end.", "A new day,"]


@pytest.mark.parametrize(
    "heading",
    [
        "CHAPTER I",
        "Chapter Twelve",
        "Chapter 3: The River",
        "XIV.",
        "IV. THE STORM",
        "PART THE FIRST",
        "EPILOGUE",
        "第一回：灵根育孕源流出",
        "第十二章",
        "第3章 雨夜",
        "楔子",
        "番外 二",
        "* * *",
        "———",
        "＊＊＊",
    ],
)
def test_headings_and_breaks_begin_a_scene(heading):
    text = f'Before.\n\n{heading}\n\n"Hello," said Tom.\n\nAfter.'
    found = read_novel(make_source(text), ReaderHints("en"))
    assert {turn.scene for turn in found if turn.start < text.index(heading)} == {0}
    assert {turn.scene for turn in found if turn.start >= text.index(heading)} == {1}
    assert [turn.content for turn in found if turn.kind == "direction"] in ([heading], [])


@pytest.mark.parametrize(
    "line", ["Part of me was glad.", "I.", "第一次见面是在雨天。", "Book lovers came.", "第二天，他走了。"]
)
def test_what_is_no_heading(line):
    text = f"One.\n\n{line}\n\nTwo." if line != "I." else "I went.\n\nTwo."
    assert {turn.scene for turn in read_novel(make_source(text), ReaderHints("en"))} == {0}


_PIECES = st.sampled_from(
    [
        *list("\"'“”‘’「」『』«»„：，。！？ \n—-"),
        "said Tom",
        "悟空道",
        "他说",
        "Chapter 2",
        "第二回",
        "the old man cried",
        "'tis",
        "goin’",
        "\n\n",
        "she asked",
        "众猴",
    ]
) | st.text(max_size=4)


@given(st.lists(_PIECES, max_size=60).map("".join), st.sampled_from(["en", "zh"]))
def test_any_text_is_read_in_order_and_nothing_is_made_up(text, language):
    source = make_source(text)
    found = read_novel(source, ReaderHints(language, ("悟空", "Tom")))
    last = 0
    for turn in found:
        assert last <= turn.start < turn.end <= len(source.text)
        assert turn.content == " ".join(source.text[turn.start : turn.end].split()) != ""
        assert turn.speaker is None or turn.speaker.strip()
        assert turn.kind == "speech" or turn.speaker in ("narrator", "scene")
        last = turn.end
    told = re.sub(r"[\W_]", "", "".join(turn.content for turn in found))
    breaks_left_out = len(re.sub(r"[\W_]", "", source.text)) - len(told)
    assert breaks_left_out >= 0
    if not re.search(r"[_]", source.text):
        assert breaks_left_out == 0
