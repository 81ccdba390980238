from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ...commands import Command

CARD: dict[str, Any] = {
    "spec": "chara_card_v2",
    "spec_version": "2.0",
    "data": {
        "name": "Ada\x1b[31m\u202e [bold]Fenn[/bold]",
        "description": "{{char}} keeps a lighthouse. {{7*7}} {0.__class__}",
        "first_mes": "Who's there?",
        "mes_example": "<START>\n{{user}}: hi\n{{char}}: Count.",
        "alternate_greetings": [],
        "creator": "\x1b]0;title\x07",
        "tags": 5,
        "extensions": {"\x9b2J": 1.0},
        "character_book": {"entries": [{"keys": ["lamp"], "content": "The lamp.", "name": "\u202e[red]x"}]},
    },
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ada.json").write_text(json.dumps(CARD), encoding="utf-8")
    return tmp_path


def test_what_was_changed_is_named(folder: Path, command: Command) -> None:
    assert command("role", "card", "ada.json", "--out", "ada").code == 0
    value = json.loads((folder / "ada" / "profile.json").read_text(encoding="utf-8"))
    value["description"] = "You keep a lighthouse."
    (folder / "ada" / "profile.json").write_text(json.dumps(value), encoding="utf-8")
    done = command("role", "card", "ada", "--out", "new.json")
    assert (done.code, done.err) == (0, "")
    assert "Changed since it was imported: description." in done.out


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        pytest.param(["card", "nameless.json", "--out", "x"], 1, "give one with --set role=NAME", id="no name"),
        pytest.param(["card", "escape.json", "--out", "x"], 1, "'\\x1b[2J\\u202e'", id="a wrong type"),
        pytest.param(["card", "ada.json", "--out", "full"], 2, "holds other files", id="a folder in use"),
        pytest.param(["card", "full", "--out", "a.json"], 1, "no profile.json here", id="no character"),
        pytest.param(["card", "full", "--out", "a.gif"], 2, "a .json, .png or .charx file", id="another ending"),
    ],
)
def test_bad_input_ends_in_words(words: list[str], code: int, says: str, folder: Path, command: Command) -> None:
    (folder / "nameless.json").write_text(json.dumps({"name": "", "description": "d"}))
    (folder / "escape.json").write_text(
        json.dumps({"spec": "\x1b[2J\u202e", "data": {"name": "A", "description": "d"}})
    )
    (folder / "deep.json").write_text('{"name": "A", "description": ' + "[" * 10_000 + "]" * 10_000 + "}")
    (folder / "full").mkdir()
    (folder / "full" / "mine.txt").write_text("x")
    printed = command("role", *words)
    assert (printed.code, printed.out) == (code, "")
    assert says in printed.err
    assert "\x1b[2J" not in printed.err and "\u202e" not in printed.err
    assert not (folder / "x").exists()
    assert sorted(path.name for path in (folder / "full").iterdir()) == ["mine.txt"]
