"""`rolellm role parse`, as a user runs it."""

from functools import partial
from pathlib import Path

import pytest

from ...commands import Command, inert


@pytest.fixture
def parse(command: Command, tmp_path: Path) -> Command:
    file, out = tmp_path / "script.txt", tmp_path / "turns.jsonl"
    return partial(command, "role", "parse", file, "--out", out, "--format", "transcript")


def test_named_rather_than_found_out(tmp_path: Path, parse: Command) -> None:
    (tmp_path / "script.txt").write_bytes("Jo: 你好。\nAl: Hi.\nJo: 好。\n".encode("big5"))
    summary = parse("--role", "Jo", "--set", "language=en", "--set", "encoding=big5", "--json").result
    assert (summary["format"], summary["format_scores"], summary["language"]) == ("transcript", {}, "en")
    assert (summary["encoding"], summary["own"]) == ("big5", {"Jo": 2})


def test_terminal_codes_in_scripts_and_names_are_inert(tmp_path: Path, parse: Command) -> None:
    text = "Jo: \x1b[31mred\nE\u202evil\x1b[2J: [red]x[/red]\nJo: ok\n"
    (tmp_path / "script.txt").write_text(text, encoding="utf-8")
    done = parse("--role", "\x1b]0;x\x07Jo", "--alias", "Jo", "--alias", "Joe")
    assert done.code == 0 and inert(done.out + done.err)
