import pytest

from rolellm.construct.scripts.novel import read_novel
from rolellm.construct.scripts.reading import Hints
from rolellm.construct.scripts.source import source_of


def said(text, *names):
    found = read_novel(source_of(text), Hints("zh", names))
    return [(turn.speaker, turn.content) for turn in found if turn.kind == "speech"]


@pytest.mark.parametrize(
    ("text", "speaker"),
    [
        pytest.param("小明说：“走吧。”", "小明", id="before"),
        pytest.param("“走吧。”小明说。", "小明", id="after"),
        pytest.param("“走吧，”小明低声说，“天黑了。”", "小明", id="between"),
        pytest.param("小明笑着对老王说：“走吧。”", "小明", id="addressee"),
        pytest.param("林红摇了摇头，叹了口气，说：“走吧。”林红说：“走。”", "林红", id="subject some clauses before"),
        pytest.param("“走吧！”小明的妈妈喊道。", "小明的妈妈", id="possessive"),
        pytest.param("「走吧。」老人慢慢地说。", "老人", id="corner brackets"),
        pytest.param('却说那张天师大怒道："走了！"', "张天师", id="story-teller's lead"),
        pytest.param('忽见林中跳出一个大汉，厉声高叫道："留下买路钱！"', "大汉", id="who appears"),
        pytest.param('唬得众人一齐跪下道："饶命！"', "众人", id="whom something happens to"),
        pytest.param('正说话间，有人来报："门外有客。"', "有人", id="somebody"),
        pytest.param('张三、李四都道："不敢。"', "张三、李四", id="two"),
        pytest.param("“走吧。”", None, id="nobody"),
        pytest.param('他道："走吧。"', None, id="a pronoun for nobody"),
    ],
)
def test_who_says_it(text, speaker):
    assert said(text)[0][0] == speaker


def test_a_subject_left_out_goes_on():
    text = (
        '那行者听说，满心欢喜。拔下一根毫毛，吹口仙气，叫"变！"就变做一个童子。'
        '又道："师父，你看如何？"长老道："好！好！"行者道："走罢。"'
    )
    assert said(text, "行者") == [
        ("行者", "变！"),
        ("行者", "师父，你看如何？"),
        ("长老", "好！好！"),
        ("行者", "走罢。"),
    ]


def test_whoever_is_spoken_to_is_not_the_speaker():
    text = '悟空正在打坐。忽被师父看见，叫悟空道："你过来。"悟空道："来了。"师父道："坐。"'
    assert [speaker for speaker, _ in said(text, "悟空")] == ["师父", "悟空", "师父"]


def test_who_asked_asks_again():
    text = '猴王问道："此官是几品？"众人道："没有品从。"又问："怎么没有？"众人道："就是没有。"'
    assert [speaker for speaker, _ in said(text, "猴王")] == ["猴王", "众人", "猴王", "众人"]


def test_modern_dialogue_with_turns():
    text = """第一章 雨夜

小明推开门，雨水顺着他的头发往下滴。“你怎么才来？”林红问。

“路上堵车。”小明说，“你等了很久吗？”

“也没有很久。”

“那就好。”

林红摇了摇头：“坐吧，茶都凉了。”

这时，老王走了进来。他看了看两人，说：“外面雨真大！”

“是啊。”两个人一起回答。

“老王，你带伞了吗？”

“带了。”
"""
    assert [speaker for speaker, _ in said(text)] == [
        *("林红", "小明", "小明", "林红", "小明", "林红", "老王", "两个人", None, "老王")
    ]


def test_traditional_characters_in_corner_brackets():
    lines = [
        "「你是誰？」老人問。",
        "「我是旅人。」年輕人回答道。「我從北方來。」",
        "「北方？」",
        "老人點點頭：「進來吧。」他又說：「外面冷。」",
    ]
    text = "\n".join(lines)
    assert [speaker for speaker, _ in said(text)] == ["老人", "年輕人", "年輕人", "老人", "老人", "老人"]


def test_names_within_names_are_kept_apart():
    text = '悟空道："你是谁？"悟空道人冷笑道："你不认得我？"悟空却说："不认得。"悟空道："报名来！"'
    assert [speaker for speaker, _ in said(text, "悟空")] == ["悟空", "悟空道人", "悟空", "悟空"]
    text = "“安娜，”安说，“你看见我的猫了吗？”安娜回答：“没有。”安说：“真的？”"
    assert [speaker for speaker, _ in said(text, "安")] == ["安", "安", "安娜", "安"]


@pytest.mark.parametrize(
    "text",
    [
        "他们都称他为“大王”，不敢怠慢。",
        '山前有一石碑，上写着"花果山福地，水帘洞洞天。"',
        "墙上写着：“禁止吸烟。”",
        '诗曰："云淡风轻近午天。"',
        "常言道：“远亲不如近邻。”",
        "所谓的“朋友”，不过如此。",
    ],
)
def test_what_nobody_says_stays_narration(text):
    found = read_novel(source_of(text), Hints("zh"))
    assert [(turn.kind, turn.speaker, turn.content) for turn in found] == [("narration", "narrator", text)]


def test_a_speech_over_paragraphs_is_one_turn():
    text = '渔翁道："有诗为证：\n一叶小舟随所寓，\n万迭烟波无恐惧。"\n樵夫道："好诗！"'
    assert said(text) == [("渔翁", "有诗为证： 一叶小舟随所寓， 万迭烟波无恐惧。"), ("樵夫", "好诗！")]


def test_a_chapter_begins_a_scene_in_which_nobody_has_spoken():
    text = '第一回：起\n悟空道："来！"\n第二回：承\n又道："去！"'
    found = [turn for turn in read_novel(source_of(text), Hints("zh", ("悟空",))) if turn.kind == "speech"]
    assert [(turn.scene, turn.speaker) for turn in found] == [(0, "悟空"), (1, None)]
