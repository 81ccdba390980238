"""The layouts in which scripts name their speakers, by layouts.yaml; what is refused, and what is said of a reading."""

import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest
import yaml

from rolellm.characters.scripts.parse import detect_format, parse_script
from rolellm.characters.scripts.reading import ReaderHints
from rolellm.characters.scripts.source import make_source
from rolellm.core.errors import ScriptError, SettingsError

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
