"""What of a novel is speech: quotations, but for words quoted in a sentence; nobody is named as their speaker."""

import pytest

from rolellm.characters.scripts.novel import read_novel
from rolellm.characters.scripts.parse import parse_script
from rolellm.characters.scripts.reading import ReaderHints
from rolellm.characters.scripts.source import make_source
from rolellm.core.errors import ScriptError


@pytest.mark.parametrize(
    ("language", "text"),
    [("en", 'The so-called "hero" of the day went home.'), ("zh", "他们都称他为“大王”，不敢怠慢。")],
)
def test_words_quoted_in_a_sentence_stay_narration(language, text):
    found = read_novel(make_source(text), ReaderHints(language))
    assert [(turn.kind, turn.speaker, turn.content) for turn in found] == [("narration", "narrator", text)]


def test_a_novel_without_a_model_names_nobody() -> None:
    with pytest.raises(ScriptError, match=r"a novel names nobody.*--llm"):
        parse_script(make_source('"Never," said Ann.\n\n"Twice!" said I.\n'), "Ann", format="novel")


@pytest.mark.parametrize(
    ("language", "text", "speeches"),
    [
        pytest.param("en", '“One," said Tom.', ["One,"], id="mixed"),
        pytest.param(
            "zh",
            '宝玉道：“我去。"\n黛玉道：“你去罢！"宝玉道：“真的？”',
            ["我去。", "你去罢！", "真的？"],
            id="mixed, zh",
        ),
        pytest.param("zh", "甲道：”我先去。”", ["我先去。"], id="turned, the same at both ends"),
    ],
)
def test_what_is_missing_of_a_pair_of_marks(language, text, speeches):
    found = [turn for turn in read_novel(make_source(text), ReaderHints(language)) if turn.kind == "speech"]
    assert [turn.content for turn in found] == speeches
