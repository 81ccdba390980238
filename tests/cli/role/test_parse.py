"""`rolellm role parse`, as a user runs it."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rolellm.cli.app import app
from rolellm.core.errors import SettingsError

SCRIPT = """\
ACT I

KING:
Who [bold]goes[/bold] there?

KINGSLEY:
I, my lord!

SIR KING:
And I.

KING:

KING:
Good.
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    file = tmp_path / "play.txt"
    file.write_text(SCRIPT, encoding="utf-8")
    return file


def run(*words: str | Path) -> str:
    result = CliRunner().invoke(app, ["role", "parse", *map(str, words)], catch_exceptions=True)
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


def test_named_rather_than_found_out(tmp_path: Path) -> None:
    file = tmp_path / "script.txt"
    file.write_bytes("Jo: 你好。\nAl: Hi.\nJo: 好。\n".encode("big5"))
    out = tmp_path / "turns.jsonl"
    options = ["--format", "transcript", "--set", "language=en", "--set", "encoding=big5", "--json"]
    summary = json.loads(run(file, "--role", "Jo", "--out", out, *options))
    assert (summary["format"], summary["format_scores"], summary["language"]) == ("transcript", {}, "en")
    assert (summary["encoding"], summary["own"]) == ("big5", {"Jo": 2})


def test_terminal_codes_in_scripts_and_names_are_inert(tmp_path: Path) -> None:
    file = tmp_path / "script.txt"
    file.write_text("Jo: \x1b[31mred\nE\u202evil\x1b[2J: [red]x[/red]\nJo: ok\n", encoding="utf-8")
    shown = run(
        file, "--role", "\x1b]0;x\x07Jo", "--alias", "Jo", "--out", tmp_path / "turns.jsonl", "--format", "transcript"
    )
    assert not any(character in shown for character in "\x1b\x07\u202e")


def test_the_script_is_not_written_over(script: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="is the script itself"):
        run(script, "--role", "King", "--out", script)
    with pytest.raises(SettingsError, match="is a folder"):
        run(script, "--role", "King", "--out", tmp_path)
    assert script.read_text(encoding="utf-8") == SCRIPT
