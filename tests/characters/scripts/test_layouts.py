"""The layouts in which scripts name their speakers: each as it is found in the wild, in a few lines of our own."""

import csv
import json
import re
from pathlib import Path

import pytest

from rolellm.characters.scripts.parse import detect_format, parse_script
from rolellm.characters.scripts.reading import Format, ReaderHints
from rolellm.characters.scripts.source import make_source
from rolellm.core.errors import ScriptError, SettingsError

WILDE = """\
FIRST ACT

The garden of Mr. Pell's house.  Evening.

[Mabel is cutting roses, and her aunt enters.]

Mabel.  Have you seen the kettle, Aunt Ada?

Mrs. Pell.  [Looking about her.]  I never see kettles.  A lady looks past
them.

Mabel.  Then who will see to the tea?

Silence.  She waits for an answer, in silence, and in the silence of the house.

Merton.  The kettle, miss.

Mrs. Pell.  Merton!  You were not rung for.

Mabel (taking the kettle out of his hands, and
putting it on the grass).  Thank you, Merton.  (She pours.)
"""

FOLGER = """\
ACT 1
=====

Scene 1
=======
[Enter Watt and Hob, two carters, with lanterns,
and a dog.]


WATT  Who has the oats?

HOB  Not I.

WATT, [aside to the dog]  Then it is thou.

HOB
The night is long, the mare is old,
And all the oats are eaten.
WATT  Soft!

FIRST DROVER  Who speaks?
[They exit.]
"""

TABULATED = "Anna\tWer kommt?\nBruno\tNiemand.\nAnna\tAlso wer?\nBruno\tDer Wind.\n"

PRINTED = """\
第一幕

〔幕启：一家小药铺。掌柜的在算账。
何掌柜　谁在敲门？
伙　计　（开门）没有人。
何掌柜　再看看！
〔风声。伙计出去，又进来。
伙　计　是风，掌柜的。
"""

COLONS = """\
时间：冬夜。
〔幕启：一家小药铺。
何掌柜：谁在敲门？
小伙计（开门）：没有人。
〔风声。
何掌柜：再看看！
小伙计：是风。
"""

ABBREVIATED = """\
Enter Osbert and a Sexton.

  Osr. Is this the spade?
  Sex. It is a spade Sir,
and none too new.
  Osr. Whose is it?
  Sex. Hers that asks last.
  Osr. Farewell.
"""

FRENCH = """\
ACTE PREMIER

SCÈNE I.

GÉRAULT, à Lison.

Où est ma tasse ?

LISON.

Sur la table, monsieur.

GÉRAULT.

Eh bien, va.

SCÈNE II.

LISON, seule.

Il dort.
"""

GERMAN = """\
ERSTER AUFZUG

MÜLLER:
Wer ist im Haus?

GRETE (leise):
Niemand, Vater.

MÜLLER:
Ich höre Schritte.
"""

RUSSIAN = "ДЕЙСТВИЕ ПЕРВОЕ\n\nАнна. Кто там?\n\nПётр. Никого.\n\nАнна. Я слышу шаги.\n\nПётр. Это ветер.\n"

WHATSAPP = """\
[05/05/23, 5:28:24 PM] Ada L.: Who has the keys?

I looked everywhere (twice).
[05/05/23, 5:29:00 PM] ~ bo: in the door: where else
[05/05/23, 5:29:30 PM] \u200e+44 20 7946 0000 joined using an invite link
[05/05/23, 5:29:40 PM] Ada L.: \u200eimage omitted
[05/05/23, 5:30:01 PM] Ada L.: Thanks
"""

ANDROID = """\
20/06/19, 15:59 - Ada created group “Keys”
20/06/19, 15:59 - Ada L.: Who has the keys?

I looked everywhere (twice).
20/06/19, 16:00 - ~ bo: in the door: where else
20/06/19, 16:01 - Ada L.: <Media omitted>
20/06/19, 16:02 - Ada L.: Thanks
"""

IRC = """\
=== zoe has joined #keys
[10:20] <ada_l> bo: who has the keys?
[10:20] <@bo> in the door: where else
[10:21] * bo grins
[10:21] <ada_l> thanks (twice)
"""

XCHAT = """\
**** BEGIN LOGGING AT Mon May 20 10:19:00 2013
May 20 10:20:00 <ada_l>\tbo: who has the keys?
May 20 10:20:30 <@bo>\tin the door: where else
May 20 10:21:00 <ada_l>\tthanks (twice)
"""

RUN_IN = """\
ACTE I

ADA Qui est là ?

LE MEUNIER, ouvrant la porte Personne, mon amie !

ADA, bas J'entends des pas.

LE MEUNIER Non, c'est le vent.
"""

MARKDOWN = """\
ADA: ¿Quién tiene las llaves?

BO *(sin mirarla)*: En la puerta.

ADA: Gracias.

BO: De nada.
"""

DISCORD = """\
==============================
Guild: Keys
Channel: general
==============================

[06-Jan-20 12:34 PM] ada_l
Who has the keys?
I looked everywhere (twice).

[06-Jan-20 12:35 PM] bo#1234
in the door: where else

[06-Jan-20 12:36 PM] ada_l
thanks
"""

COPIED = """\
ada_l — Today at 12:34
Who has the keys?
bo — Today at 12:35
in the door: where else
ada_l — Today at 12:36
thanks
"""

OTTER = """\
Ada Lind  0:03\x20
Who has the keys?
I looked everywhere.

Bo  0:12
In the door: where else

Ada Lind  1:00:20
Thanks.
"""

WECHAT = """\
2020-01-06 12:34:10 阿达
谁拿了钥匙？
2020-01-06 12:35:02 小波
在门上。
2020-01-06 12:36:40 阿达
谢谢
"""

RENPY = """\
define a = Character("Ada")
label start:
    scene hall with dissolve
    $ keys = 2
    "It rains."
    a "Who has the keys?"
    "The Miller" "Not I."
    a "Then who?"
    "The Miller" "The wind."
    jump .next
"""

YUAN = """\
〔净扮店主上，诗云〕来了。
从来如此。〔老汉云〕谁？〔店主云〕是我。〔老汉做看科，云〕是你。〔唱〕你来了。〔下〕
〔老汉上，云〕去罢。〔店主做拜科，老汉云〕好。
"""

Spoken = list[tuple[str, str]]
_KEYS: Spoken = [("bo", "in the door: where else")]

LAYOUTS = [
    pytest.param(
        WILDE,
        "Mabel",
        "play",
        [
            ("Mabel", "Have you seen the kettle, Aunt Ada?"),
            ("Mrs. Pell", "I never see kettles. A lady looks past them."),
            (
                "Mabel",
                "Then who will see to the tea? Silence. She waits for an answer, in silence, and in the silence of the "
                "house.",
            ),
            ("Merton", "The kettle, miss."),
            ("Mrs. Pell", "Merton! You were not rung for."),
            ("Mabel", "Thank you, Merton."),
        ],
        id="a name, a full stop and two spaces",
    ),
    pytest.param(
        FOLGER,
        "Watt",
        "play",
        [
            ("Watt", "Who has the oats?"),
            ("HOB", "Not I."),
            ("Watt", "Then it is thou."),
            ("HOB", "The night is long, the mare is old, And all the oats are eaten."),
            ("Watt", "Soft!"),
            ("FIRST DROVER", "Who speaks?"),
        ],
        id="capitals and two spaces, or on a line of their own",
    ),
    pytest.param(
        TABULATED,
        "Anna",
        "play",
        [("Anna", "Wer kommt?"), ("Bruno", "Niemand."), ("Anna", "Also wer?"), ("Bruno", "Der Wind.")],
        id="tabs",
    ),
    pytest.param(
        PRINTED,
        "何掌柜",
        "play",
        [("何掌柜", "谁在敲门？"), ("伙计", "没有人。"), ("何掌柜", "再看看！"), ("伙计", "是风，掌柜的。")],
        id="printed Chinese drama",
    ),
    pytest.param(
        COLONS,
        "何掌柜",
        "transcript",
        [("何掌柜", "谁在敲门？"), ("小伙计", "没有人。"), ("何掌柜", "再看看！"), ("小伙计", "是风。")],
        id="Chinese drama with colons",
    ),
    pytest.param(
        ABBREVIATED,
        "Osr",
        "play",
        [
            ("Osr", "Is this the spade?"),
            ("Sex", "It is a spade Sir, and none too new."),
            ("Osr", "Whose is it?"),
            ("Sex", "Hers that asks last."),
            ("Osr", "Farewell."),
        ],
        id="abbreviated names",
    ),
    pytest.param(
        FRENCH,
        "Gérault",
        "play",
        [
            ("Gérault", "Où est ma tasse ?"),
            ("LISON", "Sur la table, monsieur."),
            ("Gérault", "Eh bien, va."),
            ("LISON", "Il dort."),
        ],
        id="French",
    ),
    pytest.param(
        GERMAN,
        "Grete",
        "play",
        [("MÜLLER", "Wer ist im Haus?"), ("Grete", "Niemand, Vater."), ("MÜLLER", "Ich höre Schritte.")],
        id="German",
    ),
    pytest.param(
        RUSSIAN,
        "Анна",
        "play",
        [("Анна", "Кто там?"), ("Пётр", "Никого."), ("Анна", "Я слышу шаги."), ("Пётр", "Это ветер.")],
        id="Russian",
    ),
    pytest.param(
        WHATSAPP,
        "Ada L.",
        "transcript",
        [("Ada L.", "Who has the keys? I looked everywhere (twice)."), *_KEYS, ("Ada L.", "Thanks")],
        id="WhatsApp of iOS",
    ),
    pytest.param(
        ANDROID,
        "Ada L.",
        "transcript",
        [("Ada L.", "Who has the keys? I looked everywhere (twice)."), *_KEYS, ("Ada L.", "Thanks")],
        id="WhatsApp of Android",
    ),
    pytest.param(
        IRC,
        "ada_l",
        "transcript",
        [("ada_l", "bo: who has the keys?"), *_KEYS, ("ada_l", "thanks (twice)")],
        id="IRC",
    ),
    pytest.param(
        DISCORD,
        "ada_l",
        "transcript",
        [
            ("ada_l", "Who has the keys? I looked everywhere (twice)."),
            ("bo#1234", "in the door: where else"),
            ("ada_l", "thanks"),
        ],
        id="Discord, exported",
    ),
    pytest.param(
        COPIED,
        "ada_l",
        "transcript",
        [("ada_l", "Who has the keys?"), *_KEYS, ("ada_l", "thanks")],
        id="Discord, copied",
    ),
    pytest.param(
        OTTER,
        "Ada Lind",
        "transcript",
        [
            ("Ada Lind", "Who has the keys? I looked everywhere."),
            ("Bo", "In the door: where else"),
            ("Ada Lind", "Thanks."),
        ],
        id="Otter",
    ),
    pytest.param(
        XCHAT,
        "ada_l",
        "transcript",
        [("ada_l", "bo: who has the keys?"), *_KEYS, ("ada_l", "thanks (twice)")],
        id="XChat, dates without a year",
    ),
    pytest.param(
        RUN_IN,
        "Ada",
        "play",
        [
            ("Ada", "Qui est là ?"),
            ("LE MEUNIER", "Personne, mon amie !"),
            ("Ada", "J'entends des pas."),
            ("LE MEUNIER", "Non, c'est le vent."),
        ],
        id="nothing between name and speech",
    ),
    pytest.param(
        MARKDOWN,
        "Ada",
        "transcript",
        [("Ada", "¿Quién tiene las llaves?"), ("BO", "En la puerta."), ("Ada", "Gracias."), ("BO", "De nada.")],
        id="italic directions before the colon",
    ),
    pytest.param(
        WECHAT,
        "阿达",
        "transcript",
        [("阿达", "谁拿了钥匙？"), ("小波", "在门上。"), ("阿达", "谢谢")],
        id="WeChat",
    ),
    pytest.param(
        RENPY,
        "Ada",
        "transcript",
        [
            ("Ada", "Who has the keys?"),
            ("The Miller", "Not I."),
            ("Ada", "Then who?"),
            ("The Miller", "The wind."),
        ],
        id="Ren'Py",
    ),
    pytest.param(
        YUAN,
        "老汉",
        "transcript",
        [
            ("店主", "来了。 从来如此。"),
            ("老汉", "谁？"),
            ("店主", "是我。"),
            ("老汉", "是你。"),
            ("老汉", "你来了。"),
            ("老汉", "去罢。"),
            ("老汉", "好。"),
        ],
        id="Yuan drama",
    ),
]


@pytest.mark.parametrize(("text", "role", "format", "spoken"), LAYOUTS)
def test_layouts(text: str, role: str, format: Format, spoken: Spoken) -> None:
    parsed = parse_script(make_source(text), role)
    said: Spoken = []
    for turn in parsed.turns:
        assert "".join(text[turn.start : turn.end].replace("\u200e", "").split()) == "".join(turn.content.split())
        if turn.kind == "speech":
            said.append((turn.speaker.replace("\u3000", ""), turn.content))
    assert parsed.format == format, parsed.format_scores
    assert said == spoken


def test_directions_are_told() -> None:
    parsed = parse_script(make_source(WILDE), "Mabel")
    directions = [turn.content for turn in parsed.turns if turn.kind == "direction"]
    assert directions[1:] == [
        "Looking about her.",
        "taking the kettle out of his hands, and putting it on the grass",
        "She pours.",
    ]
    parsed = parse_script(make_source(PRINTED), "何掌柜")
    assert [turn.content for turn in parsed.turns if turn.kind == "direction"] == [
        "幕启：一家小药铺。掌柜的在算账。",
        "开门",
        "风声。伙计出去，又进来。",
    ]


def test_a_speech_goes_on_over_a_blank_line_in_the_midst_of_a_sentence() -> None:
    parsed = parse_script(make_source("Ada: Who has\n\nthe keys?\nBo: Not I.\n\nThe wind blows.\n\nAda: Oh.\n"), "Ada")
    assert [(turn.speaker, turn.content) for turn in parsed.turns] == [
        ("Ada", "Who has the keys?"),
        ("Bo", "Not I."),
        ("narrator", "The wind blows."),
        ("Ada", "Oh."),
    ]


def test_what_a_chat_program_says_is_a_direction() -> None:
    text = "[10:20] * Ada joined\n[10:21] <Ada> Who?\n[10:22] <Bo> I.\n[10:23] <Ada> Oh.\n"
    kinds = [(turn.kind, turn.content) for turn in parse_script(make_source(text), "Ada").turns]
    assert kinds == [("direction", "[10:20] * Ada joined"), ("speech", "Who?"), ("speech", "I."), ("speech", "Oh.")]


def test_plays_of_the_text_encoding_initiative() -> None:
    text = """<?xml version="1.0"?><TEI xmlns="http://www.tei-c.org/ns/1.0">
      <teiHeader><title>No &lt;speech&gt;</title></teiHeader><text><body>
      <div type="act"><head>ACT I</head>
        <div type="scene"><head>2</head>
          <stage>Enter Watt and Hob.</stage>
          <sp who="#watt">
            <speaker xml:id="a">Watt. </speaker>
            <l n="1">Who has the oats<note>Food.</note></l>
            <l n="2">&amp; the <hi>hay</hi>?</l>
          </sp>
          <sp><speaker>FIRST DROVER </speaker><p><lb n="3"/>Not I. <stage>Aside.</stage> The mare. </p></sp>
        </div>
        <div><head>3</head><sp><speaker>Watt.</speaker><p>Then who?</p></sp></div>
      </div></body></text></TEI>"""
    parsed = parse_script(make_source(text), "Watt")
    assert parsed.format == "play"
    assert [(turn.speaker, turn.scene, turn.content) for turn in parsed.turns if turn.speaker != "scene"] == [
        ("narrator", 0, "2"),
        ("stage direction", 0, "Enter Watt and Hob."),
        ("Watt", 0, "Who has the oats & the hay?"),
        ("FIRST DROVER", 0, "Not I."),
        ("stage direction", 0, "Aside."),
        ("FIRST DROVER", 0, "The mare."),
        ("narrator", 1, "3"),
        ("Watt", 1, "Then who?"),
    ]
    assert text[parsed.turns[-1].start : parsed.turns[-1].end] == "Then who?"


def test_a_chinese_play_with_names_above_speeches_and_its_list_of_persons() -> None:
    text = """一个故事
　　剧中人物
　　郭翁
　　磨坊主人，六十岁
　　小满
　　他的女儿
　　第一幕
　　第一场　磨坊
　　郭翁及小满上。
　　郭翁
　　谁动了我的秤？（环顾）秤砣也不见了。
　　小满
　　爹，我没有――
　　郭翁
　　那就是鬼了。（同下。）
　　第二幕
　　小满
　　秤在这里。
"""
    parsed = parse_script(make_source(text), "小满", language="zh")
    assert parsed.format == "play"
    assert [(turn.speaker, turn.content) for turn in parsed.turns if turn.kind == "speech"] == [
        ("郭翁", "谁动了我的秤？"),
        ("郭翁", "秤砣也不见了。"),
        ("小满", "爹，我没有――"),
        ("郭翁", "那就是鬼了。"),
        ("小满", "秤在这里。"),
    ]


def test_chinese_labels_that_tell_what_somebody_does() -> None:
    text = """第三场：磨坊，日，内
郭翁：谁动了我的秤？
小满：我没有。

郭翁皱了皱眉头：你没有？
小满：没有就是没有。

小满放下簸箕，抬头看着他：爹，你看那边。
郭翁：哪边？

特写：秤杆上的星。

郭翁夫人：是我拿的。
郭翁：你拿它做什么？
小满：是呀，娘。

郭翁、小满：娘！
"""
    parsed = parse_script(make_source(text), "小满", language="zh")
    assert [(turn.speaker, turn.kind[0], turn.content) for turn in parsed.turns][1:] == [
        ("郭翁", "s", "谁动了我的秤？"),
        ("小满", "s", "我没有。"),
        ("舞台提示", "d", "皱了皱眉头"),
        ("郭翁", "s", "你没有？"),
        ("小满", "s", "没有就是没有。"),
        ("舞台提示", "d", "放下簸箕，抬头看着他"),
        ("小满", "s", "爹，你看那边。"),
        ("郭翁", "s", "哪边？"),
        ("旁白", "n", "特写：秤杆上的星。"),
        ("郭翁夫人", "s", "是我拿的。"),
        ("郭翁", "s", "你拿它做什么？"),
        ("小满", "s", "是呀，娘。"),
        ("郭翁、小满", "s", "娘！"),
    ]


@pytest.mark.parametrize("mark", ["- ", "* ", "> "])
def test_scripts_as_lists_and_quotations_of_markdown(mark: str) -> None:
    lines = [
        "郭翁：谁动了我的秤？",
        "[小满放下簸箕。",
        "小满：我没有。",
        "郭翁：那就是鬼了。",
        "# 第二场",
        "小满：爹！",
    ]
    parsed = parse_script(make_source("\n".join(mark + line for line in lines)), "小满", language="zh")
    assert [(turn.speaker, turn.scene, turn.content) for turn in parsed.turns if turn.speaker != "场景"] == [
        ("郭翁", 0, "谁动了我的秤？"),
        ("舞台提示", 0, "[小满放下簸箕。"),
        ("小满", 0, "我没有。"),
        ("郭翁", 0, "那就是鬼了。"),
        ("小满", 1, "爹！"),
    ]


def test_screenplays_of_final_draft() -> None:
    text = """<?xml version="1.0" encoding="UTF-8" standalone="no" ?>
      <FinalDraft DocumentType="Script" Template="No" Version="5"><Content>
        <Paragraph Number="1" Type="Scene Heading">
          <SceneProperties Page="1"><ArcBeats><Paragraph><Text>Beat</Text></Paragraph></ArcBeats></SceneProperties>
          <Text>INT. BARN - NIGHT</Text>
        </Paragraph>
        <Paragraph Type="Action"><Text>HOB</Text></Paragraph>
        <Paragraph Type="Action"><Text>is </Text><Text Style="Italic">asleep</Text><Text>.</Text></Paragraph>
        <Paragraph Type="Character">
          <Text>wATT </Text>
          <Text>(V.O.</Text><Text>)</Text>
        </Paragraph>
        <Paragraph Type="Parenthetical"><Text>(softly)</Text></Paragraph>
        <Paragraph Type="Dialogue"><Text>Who has</Text><Text/> <Text> the oats &amp; the hay?</Text></Paragraph>
        <Paragraph Alignment="Left" Type="Character"><Text>HOB</Text></Paragraph>
        <Paragraph Type="Dialogue"><Text>Not I.</Text></Paragraph>
        <Paragraph Type="Transition"><Text>CUT TO:</Text></Paragraph>
        <Paragraph Type="Scene Heading"><Text>A field.</Text></Paragraph>
        <Paragraph StartsNewPage="No" Type="Character"><Text>Watt</Text></Paragraph>
        <Paragraph Type="Dialogue"><Text>Then who?</Text></Paragraph>
      </Content>
      <TitlePage><Content><Paragraph Type="Dialogue"><Text>Oats</Text></Paragraph></Content></TitlePage></FinalDraft>"""
    parsed = parse_script(make_source(text), "Watt")
    assert parsed.format == "screenplay"
    assert [(turn.speaker, turn.scene, turn.content) for turn in parsed.turns] == [
        ("scene", 0, "INT. BARN - NIGHT"),
        ("narrator", 0, "HOB"),
        ("narrator", 0, "is asleep."),
        ("stage direction", 0, "softly"),
        ("Watt", 0, "Who has the oats & the hay?"),
        ("HOB", 0, "Not I."),
        ("stage direction", 0, "CUT TO:"),
        ("scene", 1, "A field."),
        ("Watt", 1, "Then who?"),
    ]
    assert text[parsed.turns[-1].start : parsed.turns[-1].end] == "Then who?"


def test_several_books_in_one_file() -> None:
    mark = "*** {} OF THE PROJECT GUTENBERG EBOOK A ***\n"
    book = "x\n" + mark.format("START") + "{0}\n" + mark.format("END") + "free\n"
    assert make_source(book.format("A") + book.format("B")).text == "A\nB\n"
    # The first lost its START line, the last its END line.
    long = "A: Hm.\n" * 10_000
    assert make_source(long + book.format("B")).text == long + "x\nB\n"
    assert make_source(book.format("A") + mark.format("START") + "C\n").text == "A\nC\n"


TABLE = [["name", "line"], ["Ada", 'Who has the "keys"; you?'], ["Bo", "In the door,\nwhere else"], ["Ada", "Thanks"]]


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_tables(delimiter: str, tmp_path: Path) -> None:
    file = tmp_path / "lines.csv"
    with file.open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream, delimiter=delimiter).writerows(TABLE)
    parsed = parse_script(file, "Ada")
    assert parsed.format == "table"
    assert [(turn.speaker, turn.content) for turn in parsed.turns] == [
        (name, " ".join(line.split())) for name, line in TABLE[1:]
    ]
    text = file.read_bytes().decode()
    assert [text[turn.start : turn.end].split(delimiter)[0] for turn in parsed.turns] == ["Ada", "Bo", "Ada"]


def test_a_table_of_r() -> None:
    text = '"name" "line"\n"1" "Ada" "Who \\"has\\" the keys?"\n"2" "Bo" "In the door."\n'
    parsed = parse_script(make_source(text), "Ada")
    assert [(turn.speaker, turn.content) for turn in parsed.turns] == [
        ("Ada", 'Who "has" the keys?'),
        ("Bo", "In the door."),
    ]


def test_events_of_substation_alpha() -> None:
    text = """[Script Info]
Title: Keys

[V4+ Styles]
Format: Name, Fontname, Fontsize
Style: Default,Arial,20

[Events]
Format: Layer, Start, End, Style, Name, MarginL, MarginR, MarginV, Effect, Text
Dialogue: 0,0:00:01.00,0:00:02.00,Default,Ada,0,0,0,,{\\an8}Who has,\\Nthe keys?
Comment: 0,0:00:01.00,0:00:02.00,Default,Ada,0,0,0,,not shown
Dialogue: 0,0:00:02.00,0:00:03.00,Default,Bo,0,0,0,,{to check}In the door.
Dialogue: 0,0:00:02.00,0:00:03.00,Sign,,0,0,0,,{\\p1}m 43 4 b 43 5
"""
    parsed = parse_script(make_source(text), "Ada")
    assert [(turn.speaker, turn.content) for turn in parsed.turns] == [
        ("Ada", "Who has, the keys?"),
        ("Bo", "In the door."),
    ]
    nobody = re.sub(r"(Default|Sign),\w*,", r"\1,,", text)
    with pytest.raises(ScriptError, match="nobody is named"):
        parse_script(make_source(nobody), "Ada")


def test_json_lines_and_columns(tmp_path: Path) -> None:
    file = tmp_path / "lines.jsonl"
    rows = [
        {"von": "Ada", "satz": "Wer?", "akt": 1},
        {"von": "Bo", "satz": "Ich.", "akt": 1},
        {"von": "Ada", "satz": "So.", "akt": 2},
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    columns = {"speaker": "von", "text": "satz", "scene": "akt"}
    parsed = parse_script(file, "Ada", columns=columns)
    assert [(turn.speaker, turn.content, turn.scene) for turn in parsed.turns] == [
        ("Ada", "Wer?", 0),
        ("Bo", "Ich.", 0),
        ("Ada", "So.", 1),
    ]
    with pytest.raises(ScriptError, match=r"no column that is usually called speaker or text.*'von', 'satz', 'akt'"):
        parse_script(file, "Ada")
    with pytest.raises(SettingsError, match=r"text=line.*the table has 'von', 'satz', 'akt'"):
        parse_script(file, "Ada", columns={"speaker": "von", "text": "line"})
    file.write_text('{"name": "Ada", "text": "Hm."}\nAda: Hm.\n')
    with pytest.raises(ScriptError, match="line 2 is not a JSON object"):
        parse_script(file, "Ada")


def test_names_in_small_letters_on_lines_of_their_own() -> None:
    scene = "Scène {0}\nArbate\nMais à quoi bon, Seigneur {0} ?\nDone Elvire\nJe ne sais {0}\npas encore {0}.\n"
    parsed = parse_script(make_source("".join(scene.format(number * "I") for number in range(1, 4))), "Arbate")
    assert parsed.format == "play"
    assert (parsed.own, parsed.others) == ({"Arbate": 3}, {"Done Elvire": 3})
    assert parsed.turns[2].content == "Je ne sais I pas encore I."


def test_captions_with_short_times() -> None:
    text = "WEBVTT\n\n0:0:0.0 --> 0:0:3.330\n<v Ada>Who has them?</v>\n\n0:0:4.430 --> 0:0:22.400\n<v Bo>Not I.</v>\n"
    parsed = parse_script(make_source(text), "Ada")
    assert (parsed.format, parsed.own, parsed.others) == ("subtitles", {"Ada": 1}, {"Bo": 1})


def test_a_screenplay_quotes_in_names() -> None:
    text = 'INT. MILL - DAY\n\nPORTER "THE WHEEL"\nWho is it?\n\nADA\nIt is I.\n\n' * 3
    parsed = parse_script(make_source(text), "Ada")
    assert (parsed.own, parsed.others) == ({"ADA": 3}, {'PORTER "THE WHEEL"': 3})


def test_names_with_underscores() -> None:
    parsed = parse_script(make_source("Ada_Pell: Tea?\nBo: No.\n_Ada_Pell_: (SIGHS) Why?\nBo: Well.\n"), "Ada Pell")
    assert (parsed.format, parsed.own, parsed.others) == ("transcript", {"Ada_Pell": 2}, {"Bo": 2})
    parsed = parse_script(make_source("C._Pell: Tea?\nGuard_#1: No.\n" * 3), "C. Pell")
    assert (parsed.own, parsed.others) == ({"C._Pell": 3}, {"Guard_#1": 3})


def test_a_screenplay_shortens_names() -> None:
    text = (
        "INT. ROOM - DAY\n\nRADAR TECH.\nLook.\n\nBOSS\nWhat?\n\nSTOP.\nThe kettle falls.\n\n"
        "RADAR TECH.\nThat.\n\nBOSS\nNo.\n"
    )
    for role, other in (("Radar Tech", "BOSS"), ("Boss", "RADAR TECH.")):
        parsed = parse_script(make_source(text), role)
        assert (parsed.format, sum(parsed.own.values()), parsed.others) == ("screenplay", 2, {other: 2})


def test_names_where_words_are_not_so_indented() -> None:
    """A crowd's names are words, too."""
    scene = "  Other. Who goes?\n    It is late; other men\n    sleep all.\n  Wat. One, and all his oats.\n    All.\n"
    parsed = parse_script(make_source("ACT I\n" + scene * 4), "Wat.")
    assert (parsed.own, parsed.others) == ({"Wat": 4}, {"Other": 4})


@pytest.mark.parametrize(
    ("value", "scenes"),
    [
        pytest.param([{"speaker": "Ada", "text": "Who?"}, {"speaker": "Bo", "text": "I."}], [0, 0], id="array"),
        pytest.param(
            [
                {"id": "1", "conversations": [{"from": "Ada", "value": "Who?"}]},
                {"id": "2", "conversations": [{"from": "Bo", "value": "I."}]},
            ],
            [0, 1],
            id="conversations",
        ),
        pytest.param(
            {
                "guild": {"name": "Mill"},
                "messages": [
                    {"author": {"id": "7", "name": "Ada"}, "content": "Who?"},
                    {"author": {"id": "8", "name": "Bo"}, "content": "I."},
                ],
            },
            [0, 0],
            id="chat-with-authors",
        ),
        pytest.param(
            {"messages": [{"sender_name": "Ada", "content": "Who?"}, {"sender_name": "Bo", "content": "I."}]},
            [0, 0],
            id="Messenger",
        ),
        pytest.param(
            {"name": "Mill", "messages": [{"from": "Ada", "text": ["Wh", {"type": "bold", "text": "o?"}]}]}
            | {"other": [{"from": "Bo", "text": "I."}]},
            [0, 1],
            id="text-in-parts",
        ),
    ],
)
@pytest.mark.parametrize("indent", [None, 2])
def test_json(value: object, scenes: list[int], indent: int | None, tmp_path: Path) -> None:
    file = tmp_path / "export.json"
    file.write_text(json.dumps(value, indent=indent))
    parsed = parse_script(file, "Ada")
    assert [(turn.speaker, turn.content) for turn in parsed.turns] == [("Ada", "Who?"), ("Bo", "I.")]
    assert [turn.scene for turn in parsed.turns] == scenes
    assert parsed.format == "table"


def test_a_chat_log_opens_with_what_is_no_turn(tmp_path: Path) -> None:
    file = tmp_path / "chat.jsonl"
    lines = [{"user_name": "Bo"}, {"name": "Ada", "mes": "Who?"}, {"name": "Bo", "mes": "I."}]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert [(turn.speaker, turn.content) for turn in parse_script(file, "Ada").turns] == [("Ada", "Who?"), ("Bo", "I.")]


def test_names_in_paragraphs_of_their_own() -> None:
    lines = (
        "INT. MILL - NIGHT|ADA|Who has the keys?|BO|Not I.|The door opens.|ADA|(low) It is the wind.|MILLER|It is I."
    )
    text = f"{lines}|".replace("|", "\n\n") * 3
    parsed = parse_script(make_source(text), "Ada")
    spoken = [(turn.speaker, turn.content) for turn in parsed.turns if turn.kind == "speech"][:4]
    assert spoken == [
        ("Ada", "Who has the keys?"),
        ("BO", "Not I."),
        ("Ada", "It is the wind."),
        ("MILLER", "It is I."),
    ]
    said = [turn for turn in parsed.turns if turn.content == "The door opens."]
    assert [turn.kind for turn in said] == ["narration"] * 3
    assert text[said[0].start : said[0].end] == "The door opens."


def test_chinese_names_and_directions_in_paragraphs_of_their_own() -> None:
    lines = "INT. 磨坊 - 夜|老磨工|谁拿了钥匙？|ADA|（低声）|是风。|老磨工|(站起来)|再看看！|门开了。"
    parsed = parse_script(make_source(f"{lines}|".replace("|", "\n\n") * 3), "Ada")
    assert parsed.format == "screenplay"
    assert [(turn.speaker, turn.kind, turn.content) for turn in parsed.turns][1:7] == [
        ("老磨工", "speech", "谁拿了钥匙？"),
        ("舞台提示", "direction", "低声"),
        ("Ada", "speech", "是风。"),
        ("舞台提示", "direction", "站起来"),
        ("老磨工", "speech", "再看看！"),
        ("旁白", "narration", "门开了。"),
    ]


CHAPTER = (
    "第{0}章 风雪\n更新时间:2012-05-0{0} 12:00:0{0}\n字数:31{0}2\n"
    + "林中无人，只有风雪。\n“谁？”老人问。\n“我。”\n" * 5
)


def test_data_at_the_heads_of_chapters_does_not_speak() -> None:
    text = "".join(CHAPTER.format(number) for number in range(1, 7))
    found, scores = detect_format(text, ReaderHints("zh"))
    assert (found, scores["transcript"]) == ("novel", 0)


def test_what_is_half_a_format_is_refused_with_a_preview() -> None:
    text = "JOHN: Hi.\nMARY: Ho.\nJOHN: Hum.\n\n" + "The rain fell on the roofs of the town.\n" * 200
    with pytest.raises(ScriptError) as caught:
        parse_script(make_source(text), "John")
    assert "With --format transcript it would begin:\n  JOHN: Hi.\n  MARY: Ho.\n  JOHN: Hum." in str(caught.value)
    assert "--format" in str(caught.value)
    assert parse_script(make_source(text), "John", format="transcript").own == {"JOHN": 2}


def test_health() -> None:
    text = "".join(f"甲：{'好' * 10}。\n乙：来了。\n" for _ in range(20)) + f"丙丁：{'说' * 1500}。\n\n没有人说的话。\n"
    parsed = parse_script(make_source(text), "丙丁")
    health = parsed.health
    assert health["long_speeches"]["turns"] == 1
    assert health["long_speeches"]["first"][0]["speaker"] == "丙丁"
    assert health["one_character_speakers"] == {"甲": 20, "乙": 20}
    assert 0 < health["text_in_no_turn"] < 0.1
    assert health["language"] == "zh"
    assert health["unaddressed_speakers"] == {"甲": 20, "乙": 20}


def test_who_is_named_by_others_is_addressed() -> None:
    text = "MARTHA: Well, Jonathan?\nJON: Well, Aunt Martha.\nUPDATED: Again.\n" * 30
    assert parse_script(make_source(text), "Martha").unaddressed == {"UPDATED": 30}


LONG_GERMAN = "".join(
    f"ANNA: Ich weiß nicht, ob der Wind heute noch einmal über die alten Dächer geht, Bruder {number}.\n"
    f"BRUNO: Dann schließen wir die Fenster, damit das Licht nicht ausgeht und niemand uns hören kann.\n"
    for number in range(20)
)


def test_other_languages_are_reported() -> None:
    parsed = parse_script(make_source(LONG_GERMAN), "Anna")
    assert (parsed.spoken_in, parsed.own) == ("de", {"ANNA": 20})


@pytest.mark.parametrize(
    ("text", "language"),
    [
        (
            "„Komm herein“, sagte Anna leise. Sie öffnete die Tür und wartete.\n\n„Nein“, rief Karl. „Ich bleibe.“\n",
            "de",
        ),
        ("« Entrez », dit Anna doucement. Elle ouvrit la porte et attendit.\n\n« Non », dit Charles.\n", "fr"),
    ],
)
def test_novels_in_other_languages_are_refused_by_their_language(text: str, language: str) -> None:
    with pytest.raises(ScriptError, match=f"only English and Chinese ones are read: this seems to be '{language}'"):
        parse_script(make_source(text), "Anna")
