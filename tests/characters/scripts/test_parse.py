"""A script and a role → turns: whose they are, where they stand, and what is said when the role never speaks."""

import re
from collections import Counter
from pathlib import Path

import pytest

from rolellm.characters.scripts.parse import parse_script, read_script
from rolellm.characters.scripts.source import make_source
from rolellm.core.errors import ScriptError, SettingsError
from rolellm.core.records import UNKNOWN
from rolellm.data.rolebench.release import load_profiles
from rolellm.data.rolebench.source import sample_folder

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
