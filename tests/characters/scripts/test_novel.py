"""Who speaks in a novel, read without a model: a name and a verb of saying next to the quotation, and nothing else."""

import pytest

from rolellm.characters.scripts.novel import read_novel
from rolellm.characters.scripts.parse import parse_script
from rolellm.characters.scripts.reading import ReaderHints
from rolellm.characters.scripts.source import make_source
from rolellm.core.errors import ScriptError


def said(text, language, *names):
    found = read_novel(make_source(text), ReaderHints(language, names))
    return [(turn.speaker, turn.content) for turn in found if turn.kind == "speech"]


@pytest.mark.parametrize(
    ("language", "text", "speaker"),
    [
        pytest.param("en", '"Come in," said Alice.', "Alice", id="after, inverted"),
        pytest.param("en", '"Come in," Alice said.', "Alice", id="after"),
        pytest.param("en", '"Come in!" cried out the White Rabbit, who was late.', "the White Rabbit", id="an article"),
        pytest.param("en", '"Come in," said Mrs. Hale to Mr. Black.', "Mrs. Hale", id="title and addressee"),
        pytest.param("en", '"Come in," said the King of Hearts.', "the King of Hearts", id="of"),
        pytest.param("en", 'Then Alice said to the Cat, "Come in."', "Alice", id="before"),
        pytest.param("en", 'Alice softly answered: "Come in."', "Alice", id="before, with a manner"),
        pytest.param("en", 'George replied:\n\n"Come in."', "George", id="a paragraph of its own"),
        pytest.param("en", '"I knocked twice," I said.', "I", id="first person"),
        pytest.param("en", '"Twice," said I. "No more."', "I", id="first person, at the end"),
        pytest.param("en", '"Come in," said Alice--"come in!"', "Alice", id="a dash"),
        pytest.param("en", "'Come in,' said Alice.", "Alice", id="British"),
        pytest.param("en", '"Come in," said she to Alice.', None, id="a pronoun"),
        pytest.param("en", '"Come in," said the old man.', None, id="a description"),
        pytest.param("en", '"Come in," said Tom\'s mother softly.', None, id="possessive"),
        pytest.param("en", '"Come in," said Tom and Ann together.', None, id="two"),
        pytest.param("en", '"Come in." Alice said nothing.', None, id="another sentence"),
        pytest.param("en", '"Come in!" Suddenly Alice turned.', None, id="no verb of saying"),
        pytest.param("en", '"Come in!" Nobody answered.', None, id="nobody"),
        pytest.param("en", 'The sister of Tom said, "Come in."', None, id="a name inside the subject"),
        pytest.param("en", 'Alice opened the door. "Come in."', None, id="what is done"),
        pytest.param("zh", "小明说：“走吧。”", "小明", id="zh: before"),
        pytest.param("zh", "“走吧。”小明说。", "小明", id="zh: after"),
        pytest.param("zh", '孔明曰："走。"', "孔明", id="zh: classical"),
        pytest.param("zh", "孔明大怒曰：“走。”", "孔明", id="zh: angrily"),
        pytest.param("zh", "孔明冷笑答道：“走。”", "孔明", id="zh: manner and a longer verb"),
        pytest.param("zh", "王先生忙道：“走。”", "王先生", id="zh: a title"),
        pytest.param("zh", "林黛玉道：「走。」", "林黛玉", id="zh: three characters"),
        pytest.param("zh", "王道士歎道：「走。」", "王道士", id="zh: traditional"),
        pytest.param("zh", "小明对老王说：“走吧。”", "小明", id="zh: spoken to"),
        pytest.param(
            "zh", "小明放下书，慢慢抬起头，轻声说：“走吧。”", "小明", id="zh: the subject is two clauses before"
        ),
        pytest.param("zh", "小明的妈妈说：“走吧。”", None, id="zh: possessive"),
        pytest.param("zh", "小明和小红说：“走吧。”", None, id="zh: two speakers"),
        pytest.param("zh", "小明放下书，对小红说：“走吧。”", "小明", id="zh: to whom"),
        pytest.param("zh", "小明说：“走吧。”小红听罢，点头说，“好。”", "小明", id="zh: another answers"),
        pytest.param("zh", "他道：“走吧。”小红点头说。", None, id="zh: a pronoun before, a name behind"),
        pytest.param("zh", "小明进来，操曰：“走。”", None, id="zh: another subject of one character"),
        pytest.param("zh", "小明进来，只见小红笑道：“走。”", None, id="zh: another subject behind a verb"),
        pytest.param("zh", "“走吧。”小明听说，站了起来。", None, id="zh: hears"),
        pytest.param("zh", "他道：“走。”", None, id="zh: a pronoun"),
        pytest.param("zh", "皱了皱眉，冷笑道：“走。”", None, id="zh: no subject"),
        pytest.param("zh", "只见小明道：“走。”", None, id="zh: more than a name"),
        pytest.param("zh", "小明指着小红道：“走。”", "小明", id="zh: two names"),
        pytest.param("zh", "常言道：“远亲不如近邻。”", None, id="zh: a saying"),
        pytest.param("zh", "墙上写着：“禁止吸烟。”", None, id="zh: an inscription"),
    ],
)
def test_who_speaks(language, text, speaker):
    assert said(text, language)[0][0] == speaker


def test_the_names_asked_for_may_be_of_any_length() -> None:
    text = "操大怒曰：“走。”孙悟空听了，齐天大圣笑道：“来。”"
    assert said(text, "zh") == [(None, "走。"), ("齐天大圣", "来。")]
    assert said(text, "zh", "操", "齐天大圣") == [("操", "走。"), ("齐天大圣", "来。")]


def test_names_that_paragraphs_begin_with_are_known_elsewhere() -> None:
    labeled = "周三家的：“谁？”\n磨工：“我。”\n" * 5
    told = "周三家的点点头：“请。”\n磨工急切地：“快！”\n磨工站起，对周三家的：“走。”\n" * 2
    speakers = [name for name, _ in said(labeled + told, "zh")]
    assert speakers[-3:] == ["周三家的", "磨工", "磨工"]
    # Two labels in a long book name nobody.
    assert {name for name, _ in said("注云：“好。”\n" * 2 + "“啊。”\n" * 50, "zh")} == {None}


def test_a_narrator_may_be_the_role() -> None:
    with pytest.raises(ScriptError, match="If the role is the narrator, add --alias I"):
        parse_script(make_source('"Twice," said I.\n\n"Never," said Ann.\n'), "Bob", format="novel")


def test_a_speech_that_goes_on_keeps_its_speaker() -> None:
    text = "“Let me tell it,” began Anna, “if I may. There was a fox.\n\n“And here it ends,” she added. “Ann?”\n"
    assert [speaker for speaker, _ in said(text, "en")] == ["Anna", "Anna", "Anna", None]
    assert said("“走吧，”小明低声说，“天黑了。”", "zh") == [("小明", "走吧，"), ("小明", "天黑了。")]
    assert said('"Yes," said Tom. Ann came in. "No."', "en") == [("Tom", "Yes,"), (None, "No.")]


def test_a_long_book_does_not_change_what_a_short_text_gives() -> None:
    short = "孔明大怒曰：“走。”\n操指地图曰：“来。”\n"
    filler = "大道：“好。”\n操指道：“好。”\n忽然笑道：“好。”\n" * 300
    assert said(filler + short, "zh", "孔明")[-2:] == said(short, "zh", "孔明") == [("孔明", "走。"), (None, "来。")]
    short = '"Go," said Tom. "Stay!" Softly she smiled.\n'
    filler = '"Well." Softly said nobody.\n\nSuddenly Ann came.\n\n' * 300
    assert said(filler + short, "en")[-2:] == said(short, "en") == [("Tom", "Go,"), ("Tom", "Stay!")]


def test_adverbs_are_nobody() -> None:
    lines = [f"{manner}道：“啊。”" for manner in ("忽然", "连忙", "大声", "大笑", "又", "责之", "大")]
    assert {speaker for speaker, _ in said("\n".join(lines * 9), "zh")} == {None}
    assert {speaker for speaker, _ in said('"Ah!" Suddenly, said quietly. Then said, "Oh."\n' * 9, "en")} == {None}


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("en", 'The so-called "hero" of the day went home.'),
        ("en", 'They sang "God Save the King" twice.'),
        ("zh", "他们都称他为“大王”，不敢怠慢。"),
        ("zh", "所谓的“朋友”，不过如此。"),
    ],
)
def test_words_quoted_in_a_sentence_stay_narration(language, text):
    found = read_novel(make_source(text), ReaderHints(language))
    assert [(turn.kind, turn.speaker, turn.content) for turn in found] == [("narration", "narrator", text)]


def test_straight_closing_quotes_swallow_nobody() -> None:
    text = '宝玉道：“我去。"\n黛玉冷笑道：“你去罢！"宝玉道：“真的？”\n'
    parsed = parse_script(make_source(text * 9), "宝玉", format="novel")
    assert parsed.own == {"宝玉": 18} and parsed.others == {"黛玉": 9}
    assert {turn.content for turn in parsed.turns if turn.kind == "speech"} == {"我去。", "你去罢！", "真的？"}


@pytest.mark.parametrize(
    ("language", "text", "speeches"),
    [
        pytest.param("en", "“One,” said Tom. “Two.”", ["One,", "Two."], id="whole"),
        pytest.param("en", "“One.\n\n“Two,” said Tom.", ["One.", "Two,"], id="goes on"),
        pytest.param("en", "“One.\n\nTom left. “Two,” he said.", ["One.", "Two,"], id="never closed"),
        pytest.param("en", '“One," said Tom.', ["One,"], id="mixed"),
        pytest.param("zh", "甲道：“我先去。乙道：“我后去。”", ["我先去。", "我后去。"], id="the next opens"),
        pytest.param("zh", "甲道：”我先去。”", ["我先去。"], id="turned, the same at both ends"),
    ],
)
def test_what_is_missing_of_a_pair_of_marks(language, text, speeches):
    found = [turn for turn in read_novel(make_source(text), ReaderHints(language)) if turn.kind == "speech"]
    assert [turn.content for turn in found] == speeches
