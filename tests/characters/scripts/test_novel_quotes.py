import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolellm.characters.scripts.novel import read_novel
from rolellm.characters.scripts.parse import parse_script
from rolellm.characters.scripts.reading import ReaderHints
from rolellm.characters.scripts.source import make_source
from rolellm.core.errors import ScriptError


def quoted(text, language):
    return [turn.content for turn in read_novel(make_source(text), ReaderHints(language)) if turn.kind == "speech"]


@pytest.mark.parametrize(
    ("language", "text", "expected"),
    [
        pytest.param("en", '"Come," he said, "come here."', ["Come,", "come here."], id="straight"),
        pytest.param("en", 'He said--"Never!"--and left.', ["Never!"], id="dashes on both sides"),
        pytest.param("en", "''Tis late,' said Nan.\n\n'It is,' said Ben.", ["'Tis late,", "It is,"], id="'tis"),
        pytest.param("en", "‘Did he say “no” to you?’ asked Nan.", ["Did he say “no” to you?"], id="double in single"),
        pytest.param("en", "“Long.\n\n“It ends,” he said.\n\n“So.”", ["Long.", "It ends,", "So."], id="paragraphs"),
        pytest.param("en", '"Ever.\n\nCHAPTER II\n\n"A day," said Tom.', ["Ever.", "A day,"], id="ended by a heading"),
        pytest.param("en", "“I am lost.\n\nHe left. “Stay,” she said.", ["I am lost.", "Stay,"], id="never closed"),
        pytest.param(
            "en", '"Sang:\n\nO rose,\nO me\n\nno more," he said.', ["Sang: O rose, O me no more,"], id="verse"
        ),
        pytest.param("zh", '众人道："好！"他道："不好！"', ["好！", "不好！"], id="straight, Chinese"),
        pytest.param("zh", "「你說『好』嗎？」他問。", ["你說『好』嗎？"], id="corner brackets"),
        pytest.param("zh", '甲道："我先去。乙道："我后去。"', ["我先去。", "我后去。"], id="no closing mark, Chinese"),
        pytest.param("zh", '他去了。"众人道："好！"他道："走。"', ["好！", "走。"], id="no opening mark, Chinese"),
        pytest.param("zh", '宝玉道：“我去。"\n黛玉道：“你去罢！"', ["我去。", "你去罢！"], id="mixed, Chinese"),
        pytest.param("zh", "甲道：”我先去。”", ["我先去。"], id="turned, the same at both ends"),
        pytest.param("en", 'The so-called "hero" of the day went home.', [], id="words in a sentence"),
        pytest.param("zh", "他们都称他为“大王”，不敢怠慢。", [], id="words in a sentence, Chinese"),
    ],
)
def test_what_is_quoted(language, text, expected):
    assert quoted(text, language) == expected


HEADINGS = (
    "CHAPTER I|Chapter Twelve|Chapter 3: The River|XIV.|IV. THE STORM|PART THE FIRST|EPILOGUE|第一回：灵根育孕源流出|"
    "第十二章|第3章 雨夜|楔子|番外 二|* * *|———|＊＊＊"
)
NO_HEADINGS = "Part of me was glad.|第一次见面是在雨天。|Book lovers came.|第二天，他走了。"


@pytest.mark.parametrize(
    ("line", "begins"), [(line, lines is HEADINGS) for lines in (HEADINGS, NO_HEADINGS) for line in lines.split("|")]
)
def test_headings_and_breaks_begin_a_scene(line, begins):
    text = f'Before.\n\n{line}\n\n"Hello," said Tom.\n\nAfter.'
    found = read_novel(make_source(text), ReaderHints("en"))
    assert {turn.scene for turn in found if turn.start < text.index(line)} == {0}
    assert {turn.scene for turn in found if turn.start >= text.index(line)} == {int(begins)}
    assert [turn.content for turn in found if turn.kind == "direction"] in ([line], [])


def test_a_novel_without_a_model_names_nobody():
    with pytest.raises(ScriptError, match=r"a novel names nobody.*--llm"):
        parse_script(make_source('"Never," said Ann.\n\n"Twice!" said I.\n'), "Ann", format="novel")


_PIECES = st.sampled_from(
    [
        *"\"'“”‘’「」『』«»„：，。！？ \n—-",
        *("said Tom", "悟空道", "他说", "Chapter 2", "第二回", "a man cried", "'tis", "goin’", "\n\n", "she asked"),
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
    assert told == re.sub(r"[\W_]", "", source.text)
