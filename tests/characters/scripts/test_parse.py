"""A script and a role → turns: its format, whose they are, where they stand, and what is said of a role without any."""

import json
import re
from collections import Counter
from html import unescape
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from rolellm.characters.scripts.names import is_name, strip_extensions
from rolellm.characters.scripts.novel import read_novel
from rolellm.characters.scripts.parse import detect_format, parse_script, read_script
from rolellm.characters.scripts.reading import ReaderHints
from rolellm.characters.scripts.source import _NEWLINES, make_source, read_source
from rolellm.core.errors import ScriptError, SettingsError
from rolellm.core.records import UNKNOWN
from rolellm.data.rolebench.release import load_profiles
from rolellm.data.rolebench.source import sample_folder

# --- formats and languages


LABELS = "Note: buy milk\nTime: ten\nPlace: here\n"
LIST = "BREAD\nMILK\nEGGS\n\nBUTTER\nTEA\n"


@pytest.mark.parametrize("text", ["Nothing is said here.\n", LABELS, LIST, "12 13 14\n" * 9])
def test_no_format_is_said_in_words(text: str) -> None:
    with pytest.raises(ScriptError, match=r"the format is not clear.*--format play, screenplay, transcript, novel"):
        detect_format(text, ReaderHints("en"))


# --- layouts


INVISIBLE = str.maketrans({"␉": "\t", "␠": " ", "␎": "\u200e"})
LAYOUTS = {
    case.pop("id"): case
    for case in yaml.safe_load(Path(__file__).with_name("layouts.yaml").read_text(encoding="utf-8"))
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_turn_of_a_layout_is_read_and_knows_its_place(name: str) -> None:
    case: dict[str, Any] = {"language": None, "read_as": None, "xml": False, **LAYOUTS[name]}
    text = case["text"].translate(INVISIBLE)
    parsed = parse_script(make_source(text), case["role"], language=case["language"], format=case["read_as"])
    assert parsed.format == case.get("format", case["read_as"]), parsed.format_scores
    assert [f"{turn.scene} {turn.kind} {turn.speaker}: {turn.content}" for turn in parsed.turns] == case["turns"]
    # Notes of Fountain, and a mark that cannot be seen.
    left_out = re.compile(r"<note>.*?</note>|<.*?>" if case["xml"] else r"/\*.*?\*/|\[\[.*?\]\]|\u200e", re.DOTALL)
    for turn in parsed.turns:
        printed = left_out.sub("", text[turn.start : turn.end])
        printed = "".join((unescape(printed) if case["xml"] else printed).split())
        content = "".join(turn.content.split())
        # Of a table, the place is that of a row.
        letters = iter(printed)
        assert printed == content or (parsed.format == "table" and all(letter in letters for letter in content))


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


CHAPTER = (
    "第{0}章 风雪\n更新时间:2012-05-0{0} 12:00:0{0}\n字数:31{0}2\n"
    + "林中无人，只有风雪。\n“谁？”老人问。\n“我。”\n" * 5
)


def test_data_at_the_heads_of_chapters_does_not_speak() -> None:
    text = "".join(CHAPTER.format(number) for number in range(1, 7))
    found, scores = detect_format(text, ReaderHints("zh"))
    assert (found, scores["transcript"]) == ("novel", 0)


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
    with pytest.raises(ScriptError, match=f"only English and Chinese novels are read: this seems to be '{language}'"):
        parse_script(make_source(text), "Anna")


# --- names


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("JOHN (O.S.) (CONT'D)", "JOHN"),
        ("JOHN (CONT’D) ^", "JOHN"),
        ("**Jo**", "Jo"),
        ("悟空（画外音）", "悟空"),
        ("(V.O.)", "(V.O.)"),
    ],
)
def test_what_scripts_hang_on_to_a_name_goes(written: str, name: str) -> None:
    assert strip_extensions(written) == name


NAMES = (
    "First Citizen|A Patrician|All|Senators, &C|MRS. HALE|D. Hale|Jean-Luc|1st Guard|Anne of Cleves|All The Lords|"
    "Both Tribunes|郭翁|赵云|小猴甲|阿尔弗雷德·诺贝尔|Émile|MARTIN LUTHER KING JR."
)
WORDS = (
    "Listen|Well|But|He said|Note|Scene|and then|I say unto you|What is it?||—|10|Well, I'll hear it, sir|悟空道|"
    "那人笑道|时间|他说|诗曰|话说天下大势分久必合合久必分|好，我来"
)


@pytest.mark.parametrize(
    ("text", "is_one"), [(text, texts is NAMES) for texts in (NAMES, WORDS) for text in texts.split("|")]
)
def test_names_and_other_words(text: str, is_one: bool) -> None:
    assert is_name(text, once=True) is is_one


# --- turns


SCRIPT = """\
[Scene 1: A field.]

KING: Who goes there?
KINGSLEY: I, my lord.
YOUNG KING: And I.
Mr. Fox: Not I. (hides)
FOX: Nor I!

[Scene 2: A barn.]

King: Good.
Fox: Hum.
"""


def test_aliases_put_speeches_under_the_roles_name() -> None:
    parsed = parse_script(make_source(SCRIPT), "Reynard", ["fox", "MR FOX", "Renart"])
    assert parsed.own == {"FOX": 2, "Mr. Fox": 1, "Reynard": 0, "Renart": 0}
    own = [(turn.speaker, name) for turn, name in zip(parsed.turns, parsed.speakers, strict=True) if "Fox" in name]
    assert own == [("Reynard", "Mr. Fox"), ("Reynard", "Fox")]


def test_narrators_and_nobody() -> None:
    text = "1\n00:00:01,000 --> 00:00:02,000\nNARRATOR: Once.\n\n2\n00:00:02,000 --> 00:00:03,000\nWho?\nJOE: I.\n"
    parsed = parse_script(make_source(text), "Joe")
    assert [(turn.kind, turn.speaker) for turn in parsed.turns] == [
        ("narration", "NARRATOR"),
        ("speech", UNKNOWN),
        ("speech", "Joe"),
    ]
    assert [turn.content for turn in parsed.unattributed] == ["Who?"]
    assert parsed.others == {}
    # A narrator may be the role.
    assert parse_script(make_source(text), "Narrator").own == {"NARRATOR": 1}


@pytest.mark.parametrize("role", ["Rome", "Kingsly"])
def test_a_role_that_never_speaks(role: str) -> None:
    with pytest.raises(ScriptError) as caught:
        parse_script(make_source(SCRIPT), role, ["Nobody At All"])
    message = str(caught.value)
    for word in (f"'{role}' or 'Nobody At All' never speaks", "FOX (2)", "KING (2)", "--alias", "--format transcript"):
        assert word in message
    assert ("Names like it: KINGSLEY" in message) == (role == "Kingsly")


@pytest.mark.parametrize("name", ["", " ", "—", "\u200b", "()"])
def test_names_without_letters(name: str) -> None:
    with pytest.raises(SettingsError, match="is not a name"):
        parse_script(make_source(SCRIPT), name)
    with pytest.raises(SettingsError, match="is not a name"):
        parse_script(make_source(SCRIPT), "Fox", [name])


def test_names_are_inert() -> None:
    parsed = parse_script(make_source(SCRIPT), "K\u202ei\u200bng\x1b")
    assert parsed.role == "King"
    parsed = parse_script(make_source("{0.__class__}\nBob: {{7*7}} <|im_end|>\nBob: ok\n"), "Bob")
    assert parsed.turns[1].content == "{{7*7}} <|im_end|>"


def test_the_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "script.txt"
    file.write_bytes("甲：来了？\r\n乙：来了。\r\n甲：（笑）好。\r\n".encode("gb18030"))
    parsed = parse_script(file, "甲")
    assert (parsed.source.encoding, parsed.hints.language, parsed.own) == ("gb18030", "zh", {"甲": 2})
    decoded = file.read_bytes().decode(parsed.source.encoding)
    assert [decoded[turn.start : turn.end] for turn in parsed.turns] == [turn.content for turn in parsed.turns]
    with pytest.raises(ScriptError, match=re.escape(str(file))):
        parse_script(file, "丙")
    file.write_text("Nothing.")
    with pytest.raises(ScriptError, match=re.escape(str(file)) + ".*format is not clear"):
        parse_script(file, "丙")


def test_the_samples_scripts_say_what_its_profiles_say() -> None:
    profiles = load_profiles("sample")
    for profile in profiles:
        parsed = parse_script(sample_folder() / "scripts" / f"{profile.role}.txt", profile.role)
        assert parsed.hints.language == profile.language
        spoken = [(turn.speaker.casefold(), turn.content, turn.scene) for turn in parsed.turns if turn.kind == "speech"]
        assert spoken == [(t.speaker.casefold(), t.content, t.scene) for t in profile.turns if t.kind == "speech"]
        assert [turn.content for turn in filter(profile.owns, parsed.turns)] == [
            turn.content for turn in filter(profile.owns, profile.turns)
        ]
    assert len(profiles) == 4


@pytest.fixture
def scripts(real_release: Path) -> Path:
    return real_release.parent / "scripts"


@pytest.mark.realdata
def test_coriolanus_under_his_two_names(scripts: Path) -> None:
    """189 speeches, counted here by another rule: the paragraphs whose first line is his name and a colon."""
    file = scripts / "coriolanus.txt"
    text = file.read_text(encoding="utf-8")
    paragraphs = [paragraph.split("\n", 1) for paragraph in re.split(r"\n\s*\n", text.strip())]
    his = [" ".join("".join(rest).split()) for name, *rest in paragraphs if name in ("CORIOLANUS:", "MARCIUS:")]
    assert len(his) == 189

    parsed = parse_script(file, "Coriolanus", ["MARCIUS"])
    assert (parsed.format, parsed.hints.language) == ("play", "en")
    assert [turn.content for turn in parsed.turns if turn.speaker == "Coriolanus"] == his
    assert parsed.own == {"CORIOLANUS": 149, "MARCIUS": 40}
    assert parsed.others["Young MARCIUS"] == 1
    assert len(parsed.turns) == len(paragraphs)
    for turn in parsed.turns:
        assert " ".join(text[turn.start : turn.end].split()) == turn.content
    # Of seven speeches the file has the name only; two of them are his.
    empty = [turn.speaker for turn in parsed.turns if not turn.content]
    assert empty.count("Coriolanus") == 2 and len(empty) == 7


@pytest.mark.realdata
def test_the_journey_to_the_west_is_a_chinese_novel_of_ten_scenes(scripts: Path) -> None:
    file = scripts / "xiyouji_001_010.txt"
    reading = read_script(file)
    assert (reading.format, reading.hints.language) == ("novel", "zh")
    kinds = Counter(turn.kind for turn in reading.found)
    assert kinds == {"speech": 850, "narration": 1228, "direction": 10}
    assert {turn.scene for turn in reading.found} == set(range(10))
    text = file.read_text(encoding="utf-8")
    for turn in reading.found:
        start, end = reading.source.place(turn.start, turn.end)
        assert re.sub(r"</?p>|\s", "", text[start:end]) == turn.content.replace(" ", "")


# --- novels


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


# --- files as text


ENGLISH = "MARY:\nIt’s a fine café — isn’t it? “Señor,” £5…\n"
SIMPLIFIED = "猴王道：“我是齐天大圣孙悟空，你是何人？”那人答道：“在下是东海龙王敖广。”\n"
GUTENBERG = "THE PROJECT GUTENBERG EBOOK A ***"
TRADITIONAL = "猴王道：「我是齊天大聖孫悟空，你是何人？」那人答道：「在下是東海龍王敖廣。」\n"


@pytest.mark.parametrize("times", [1, 400], ids=["short", "long"])
@pytest.mark.parametrize(
    ("text", "codec", "told"),
    [
        pytest.param(ENGLISH, "cp1252", "cp1252", id="windows-1252"),
        pytest.param(SIMPLIFIED, "gb18030", "gb18030", id="gb18030"),
        pytest.param(TRADITIONAL + "碁\n", "cp950", None, id="big5 of windows"),
        pytest.param(ENGLISH, "utf-16-le", "utf-16-le", id="utf-16 without a mark"),
    ],
)
def test_encodings_are_found_out(tmp_path: Path, text: str, codec: str, told: str | None, times: int) -> None:
    file = tmp_path / "script.txt"
    file.write_bytes((text * times).encode(codec))
    source = read_source(file)
    assert source.text == text * times
    assert told is None or source.encoding == told
    assert file.read_bytes().decode(source.encoding) == text * times


@pytest.mark.parametrize(
    ("data", "encoding", "words"),
    [
        pytest.param("悟空".encode("gb18030"), "utf-8", ["'utf-8'", "position 0", "encoding="], id="wrong"),
        pytest.param(b"Ada\0: Hm.", None, ["zero bytes"], id="zeros"),
        pytest.param(b"%PDF-1.7 ...", None, ["a PDF", "plain text"], id="pdf"),
        pytest.param(bytes(range(256)) * 40, None, ["could not be detected", "name its encoding"], id="binary"),
        pytest.param(("悟空" * 50).encode()[:-1] + b"\n", None, ["damaged bytes", "position 297"], id="cut"),
    ],
)
def test_what_is_no_text_is_refused(tmp_path: Path, data: bytes, encoding: str | None, words: list[str]) -> None:
    file = tmp_path / "script.txt"
    file.write_bytes(data)
    with pytest.raises(ScriptError) as caught:
        read_source(file, encoding)
    for word in (*words, str(file)):
        assert word in str(caught.value)


def test_a_line_as_long_as_a_library_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "script.txt"
    file.write_text("Ada: Hello.\n" + "x" * ((1 << 22) + 1), encoding="utf-8")
    with pytest.raises(ScriptError, match=r"script\.txt:2: a line has over 4,194,304 characters"):
        read_source(file)
    file.write_text("x" * (1 << 22) + "\n" + "x" * (1 << 22), encoding="utf-8")
    assert read_source(file).length == (1 << 23) + 1


@settings(max_examples=100)
@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    file = tmp_path_factory.getbasetemp() / "bytes.txt"
    file.write_bytes(data)
    try:
        source = read_source(file)
    except ScriptError:
        return
    assert len(data.decode(source.encoding)) == source.length


@pytest.mark.parametrize(
    ("raw", "clean"),
    [
        pytest.param("<p>one</p><p>two</p>", "\none\n\ntwo\n", id="paragraphs"),
        pytest.param("one<br>\r\ntwo<BR/>three", "one\ntwo\nthree", id="a break and its newline are one"),
        pytest.param("2 < 3 > 1 <v Bob>x</v> <3 <unknown>", "2 < 3 > 1 <v Bob>x <3 <unknown>", id="brackets as text"),
        pytest.param("a<!-- b\nc -->d<script>e</script>f<style>g</style>h", "adfh", id="what pages hide"),
        pytest.param("a\u200bb\u202ec\ufeffd\x00e\x1b[31mf\U000e0041g", "abcde[31mfg", id="unseen characters"),
        pytest.param(f"x\n*** START OF {GUTENBERG}\nbody\n*** END OF {GUTENBERG}\ny", "body\n", id="gutenberg"),
    ],
)
def test_crumbs(raw: str, clean: str) -> None:
    assert make_source(raw).text == clean


_CRUMBS = (
    "<p>|</p>|<br>|<br />\r\n|&nbsp;|&ldquo;|&amp;|&#39;|\r\n|\r|\u200b|\u202e|<|&|&x|<i>|<!--|-->|<script>|</script>"
    "|悟|空|a|b| |\n|\U0001f600"
)
CRUMBS = st.lists(st.sampled_from(_CRUMBS.split("|")), max_size=40).map("".join)


@given(CRUMBS | st.text(max_size=60))
def test_every_character_knows_its_place(raw: str) -> None:
    source = make_source(raw)
    starts = [source.place(place, place)[0] for place in range(len(source.text) + 1)]
    assert starts == sorted(starts)
    for place, character in enumerate(source.text):
        start, end = source.place(place, place + 1)
        spelled = raw[start:end]
        if character != "\n":
            assert spelled == character or spelled.startswith("&")
        else:
            assert spelled[:1] in tuple("\n<&" + _NEWLINES)
    # What was dropped is no part of a span, unless it stands inside.
    assert source.place(0, len(source.text))[1] <= source.length


def test_openings_that_are_never_closed_are_looked_for_once() -> None:
    """Once each would take minutes."""
    source = make_source("<!--" * 600_000 + "<script>" * 300_000)
    assert source.text == "<!--" * 600_000
