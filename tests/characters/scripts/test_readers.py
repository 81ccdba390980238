"""Each format as it is found in the wild: who speaks, what is directed, where scenes begin."""

import re

import pytest

from rolellm.characters.scripts.parse import parse_script
from rolellm.characters.scripts.reading import Format
from rolellm.characters.scripts.source import make_source

Expected = list[tuple[int, str, str, str]]


def read(text: str, role: str, format: Format | None = None) -> Expected:
    """Scene, kind, speaker and content of every turn; each stands in the source where it says, with notes."""
    parsed = parse_script(make_source(text), role, format=format)
    for turn in parsed.turns:
        printed = re.sub(r"/\*.*?\*/|\[\[.*?\]\]", "", text[turn.start : turn.end], flags=re.DOTALL)
        assert " ".join(printed.split()) == turn.content
    return [(turn.scene, turn.kind[0], turn.speaker, turn.content) for turn in parsed.turns]


NAMES_ALONE = """\
DRAMATIS PERSONAE

ANNE, a clerk

ACT I

SCENE I. An office. Morning.

Enter ANNE and BEA

{anne}
Verse that
ends in a colon:
and goes on.

A second verse. [_Aside._] Who is it?

{bea}
(_laughing_) I (that is, me).
[Exit ANNE]

{voice}
Come!

[She goes to the door
and opens it.]

SCENE II. The street.

{anne}

{bea}
Well?
Exeunt
"""
ALONE: Expected = [
    (0, "n", "narrator", "DRAMATIS PERSONAE"),
    (0, "n", "narrator", "ANNE, a clerk"),
    (0, "n", "scene", "ACT I"),
    (0, "n", "scene", "An office. Morning."),
    (0, "d", "stage direction", "Enter ANNE and BEA"),
    (0, "s", "ANNE", "Verse that ends in a colon: and goes on. A second verse."),
    (0, "d", "stage direction", "Aside."),
    (0, "s", "ANNE", "Who is it?"),
    (0, "d", "stage direction", "laughing"),
    (0, "s", "Bea", "I (that is, me)."),
    (0, "d", "stage direction", "Exit ANNE"),
    (0, "s", "A Voice", "Come!"),
    (0, "d", "stage direction", "She goes to the door and opens it."),
    (1, "n", "scene", "The street."),
    (1, "s", "ANNE", ""),
    (1, "s", "Bea", "Well?"),
    (1, "d", "stage direction", "Exeunt"),
]


@pytest.mark.parametrize("stop", [":", "."])
def test_a_play_with_names_on_lines_of_their_own(stop: str) -> None:
    text = NAMES_ALONE.format(anne=f"ANNE{stop}", bea=f"BEA{stop}", voice=f"A Voice{stop}")
    assert read(text, "Bea") == ALONE


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("ACT I\n\nANN. Ho. [Exit\nBEN. Who\ngoes?\nANN. I.\nBEN. [Aside] Oh.\n", id="full stops"),
        pytest.param("ACT I\n\nANN: Ho. [Exit\nBEN: Who\ngoes?\nANN: I.\nBEN: [Aside] Oh.\n", id="colons"),
        pytest.param(
            "ACT I\n\n_Ann._ Ho. [_Exit_\n\n_Ben._ Who\ngoes?\n\n_Ann._ I.\n\n_Ben._ [_Aside_] Oh.\n", id="italics"
        ),
        pytest.param("ACT I\n\nANN. Ho. [Exit\n\nBEN. Who\ngoes?\n\nANN. I.\n\nBEN [Aside]. Oh.\n", id="aside first"),
    ],
)
def test_a_play_with_names_in_front(text: str) -> None:
    spoken = [(kind, speaker.lower(), content) for _, kind, speaker, content in read(text, "Ann", "play")]
    assert spoken == [
        ("n", "scene", "ACT I"),
        ("s", "ann", "Ho."),
        ("d", "stage direction", "Exit"),
        ("s", "ben", "Who goes?"),
        ("s", "ann", "I."),
        ("d", "stage direction", "Aside"),
        ("s", "ben", "Oh."),
    ]


def test_shaws_way_of_naming() -> None:
    text = "HIGGINS [loudly] Well?\n\nLIZA. Ow!\n\nHIGGINS. What?\n\nHIGGINS [to her] Go.\n\nLIZA. No.\n"
    assert [row[2:] for row in read(text, "Liza", "play") if row[1] == "s"] == [
        ("HIGGINS", "Well?"),
        ("Liza", "Ow!"),
        ("HIGGINS", "What?"),
        ("HIGGINS", "Go."),
        ("Liza", "No."),
    ]


FOUNTAIN = """\
Title: The Kettle
Author: Nobody

FADE IN:

INT. KITCHEN - DAY #1#

A KETTLE boils. /* cut
for time */ It sings.

BANG!

JO (V.O.)
It sang [[check]] all night.
(beat)
All night.

.THE KETTLE'S VIEW

@McCoy
Tea?

JO (CONT'D) ^
(softly,
to the cup)
Yes.
{two}
Please.

# A section
= A synopsis

!SHOUTING IS ACTION
and so is this.

> SMASH CUT TO:

EXT. YARD - NIGHT

> THE END <
"""


def test_fountain() -> None:
    assert read(FOUNTAIN.replace("{two}", "  "), "Jo") == [
        (0, "d", "stage direction", "FADE IN:"),
        (0, "n", "scene", "INT. KITCHEN - DAY"),
        (0, "n", "narrator", "A KETTLE boils. It sings."),
        (0, "n", "narrator", "BANG!"),
        (0, "s", "Jo", "It sang all night."),
        (0, "d", "stage direction", "beat"),
        (0, "s", "Jo", "All night."),
        (1, "n", "scene", "THE KETTLE'S VIEW"),
        (1, "s", "McCoy", "Tea?"),
        (1, "d", "stage direction", "softly, to the cup"),
        (1, "s", "Jo", "Yes. Please."),
        (1, "n", "narrator", "SHOUTING IS ACTION and so is this."),
        (1, "d", "stage direction", "SMASH CUT TO:"),
        (2, "n", "scene", "EXT. YARD - NIGHT"),
        (2, "d", "stage direction", "THE END"),
    ]


INDENTED = """\
                              THE KETTLE

     1    INT. KITCHEN - DAY                                  1

          Jo comes in.

          BOOM!
          The door falls.

                         JO
                    (to the kettle)
               Are you
               done?

                         VOICE (O.S.)
               No!
                         (MORE)

     (CONTINUED)

     2.

                         VOICE (CONT'D)
               Not yet.

                                             CUT TO:

     A2   EXT. YARD - DAY                                     A2

                         JO
               Now?
"""


def test_the_indented_layout() -> None:
    assert read(INDENTED, "Jo") == [
        (0, "n", "narrator", "THE KETTLE"),
        (0, "n", "scene", "INT. KITCHEN - DAY"),
        (0, "n", "narrator", "Jo comes in."),
        (0, "n", "narrator", "BOOM! The door falls."),
        (0, "d", "stage direction", "to the kettle"),
        (0, "s", "Jo", "Are you done?"),
        (0, "s", "VOICE", "No!"),
        (0, "s", "VOICE", "Not yet."),
        (0, "d", "stage direction", "CUT TO:"),
        (1, "n", "scene", "EXT. YARD - DAY"),
        (1, "s", "Jo", "Now?"),
    ]


TRANSCRIPT = """\
[Scene: A kitchen, morning.]

**Jo:** (yawning) Who put the kettle (sniffs) on?
Not me.
Note: nothing.

Mrs. Hale [aside]: I did.

(A door slams. Everyone
looks up.)

The light goes out.

[00:12] Young Jo: At 10:30: tea!
Jo: See http://example.org/x: there.

***

Narrator: Years went by.
Jo:
Still here.
"""


def test_a_transcript() -> None:
    assert read(TRANSCRIPT, "Jo") == [
        (0, "n", "scene", "A kitchen, morning."),
        (0, "d", "stage direction", "yawning"),
        (0, "s", "Jo", "Who put the kettle"),
        (0, "d", "stage direction", "sniffs"),
        (0, "s", "Jo", "on? Not me. Note: nothing."),
        (0, "d", "stage direction", "aside"),
        (0, "s", "Mrs. Hale", "I did."),
        (0, "d", "stage direction", "A door slams. Everyone looks up."),
        (0, "n", "narrator", "The light goes out."),
        (0, "s", "Young Jo", "At 10:30: tea!"),
        (0, "s", "Jo", "See http://example.org/x: there."),
        (1, "n", "Narrator", "Years went by."),
        (1, "s", "Jo", "Still here."),
    ]


def test_a_chinese_transcript() -> None:
    text = (
        "《取经》\n\n【第一幕】\n\n人物：悟空、悟空道人\n\n（清晨，山中。）\n"
        "悟空：师父！（跪下）弟子来了。\n又是一句。\n"
        "悟空道人:谁是悟空？\n旁白：天亮了。\n悟空（笑）：我说：是我。\n\n"
        "第二场 水帘洞\n\n小猴甲：大王！\n悟空：\n好。\n"
    )
    assert read(text, "悟空") == [
        (0, "n", "旁白", "《取经》"),
        (0, "n", "场景", "第一幕"),
        (0, "n", "旁白", "人物：悟空、悟空道人"),
        (0, "d", "舞台提示", "清晨，山中。"),
        (0, "s", "悟空", "师父！"),
        (0, "d", "舞台提示", "跪下"),
        (0, "s", "悟空", "弟子来了。 又是一句。"),
        (0, "s", "悟空道人", "谁是悟空？"),
        (0, "n", "旁白", "天亮了。"),
        (0, "d", "舞台提示", "笑"),
        (0, "s", "悟空", "我说：是我。"),
        (1, "n", "场景", "水帘洞"),
        (1, "s", "小猴甲", "大王！"),
        (1, "s", "悟空", "好。"),
    ]


def caption(number: int, text: str) -> str:
    return f"{number}\n00:00:{number:02},000 --> 00:00:{number:02},900\n{text}\n\n"


SRT = "".join(
    caption(number, text)
    for number, text in enumerate(
        [
            "JOHN: Hello there.",
            "- MARY: Hi, John.\n- How are you?",
            "[door slams]",
            "[John] I am fine,\nthanks.",
            "(SIGHS) Well.",
            "Remember: nobody\nknows.",
            "[John, whispering] Hush.",
            "JOHN (on phone): Now.\n>> MARY: Yes [sobs] now.",
            "(Mary)\nDone.",
            "42",
            "(JOHN)",
            "♪ ♪",
        ],
        start=1,
    )
)


def test_subtitles() -> None:
    assert read(SRT, "John") == [
        (0, "s", "John", "Hello there."),
        (0, "s", "MARY", "Hi, John."),
        (0, "s", "?", "How are you?"),
        (0, "d", "stage direction", "door slams"),
        (0, "s", "John", "I am fine, thanks."),
        (0, "d", "stage direction", "SIGHS"),
        (0, "s", "?", "Well."),
        (0, "s", "?", "Remember: nobody knows."),
        (0, "s", "John", "Hush."),
        (0, "d", "stage direction", "on phone"),
        (0, "s", "John", "Now."),
        (0, "s", "MARY", "Yes"),
        (0, "d", "stage direction", "sobs"),
        (0, "s", "MARY", "now."),
        (0, "s", "Mary", "Done."),
        (0, "s", "?", "42"),
    ]


def test_captions_without_a_blank_line_between() -> None:
    text = "1\n00:00:01,000 --> 00:00:02,000\nJOHN: One.\n2\n00:00:02,000 --> 00:00:03,000\nTwo.\n"
    assert [row[2:] for row in read(text, "John")] == [("John", "One."), ("?", "Two.")]


def test_webvtt() -> None:
    text = (
        "WEBVTT\n\nNOTE nobody: hears this\n\n00:01.000 --> 00:04.000\n<v.loud Roger Bingham>We are\n\n"
        "intro\n00:05.000 --> 00:06.000\n<v neil>Yes: we are\n"
    )
    assert read(text, "Neil") == [(0, "s", "Roger Bingham", "We are"), (0, "s", "Neil", "Yes: we are")]
