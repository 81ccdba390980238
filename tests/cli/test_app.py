"""What every command shares: its place in the list, errors of the system in words, and output that is inert."""

import json
import os
import resource
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from typer import Exit
from typer.main import get_command
from typer.testing import CliRunner

from rolellm.characters.folder import write_character
from rolellm.cli.app import _COMMANDS, app, main
from rolellm.core.records import Profile

from ..commands import Command, exit_code

ROLELLM = str(Path(sys.executable).parent / "rolellm")
RESPOND = ("respond", "fox", "--instructions", "asked.jsonl", "--llm", "llm.yaml")
STEERING = "\x1b[31mred\x07 \x7f\x9b2J \u202eevil\u202c \u200b [bold]"


def rolellm(
    folder: Path, *words: str, before: Callable[[], None] | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [ROLELLM, *words],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        preexec_fn=before,
    )
    assert "Traceback" not in done.stderr
    return done


def test_the_list_of_commands_says_what_each_one_says_and_imports_none() -> None:
    code = (
        "import sys; from typer.testing import CliRunner; from rolellm.cli.app import app\n"
        "print(CliRunner().invoke(app, ['--help']).output)\n"
        "print('imported', [name for name in sys.modules if name in ('pydantic', 'rolellm.cli.train')])"
    )
    wide = {**os.environ, "COLUMNS": "400", "TERM": "dumb"}
    shown = subprocess.run([sys.executable, "-c", code], env=wide, capture_output=True, text=True, check=True).stdout
    assert "imported []" in shown
    context = get_command(app).make_context("rolellm", ["--help"], resilient_parsing=True)
    for name in get_command(app).list_commands(context):
        own = get_command(app).get_command(context, name).help
        assert " ".join(own.partition("\n\n")[0].split()) in " ".join(shown.split()), name


def test_every_option_and_argument_says_what_it_is_for() -> None:
    commands = list(leaf_commands())
    assert len(commands) > 20
    assert [(name, one.name) for name, command in commands for one in command.params if not one.help] == []
    assert [name for name, command in commands if not all(command.callback.advanced.values())] == []


def test_a_group_says_what_each_of_its_commands_says() -> None:
    shown = {name: CliRunner().invoke(app, [name, "--help"], terminal_width=400).output for name in _COMMANDS}
    for name, command in leaf_commands():
        first = command.help.partition("\n")[0]
        assert first in " ".join(shown[name.partition(" ")[0]].split())


def leaf_commands() -> Iterator[tuple[str, Any]]:
    group: Any = get_command(app)
    context = group.make_context("rolellm", ["--help"], resilient_parsing=True)
    for name in _COMMANDS:
        command = group.get_command(context, name)
        if inner := getattr(command, "commands", None):
            yield from ((f"{name} {key}", one) for key, one in inner.items())
        else:
            yield name, command


def test_a_new_option_takes_the_place_of_another() -> None:
    visible = keys = 0
    for _, command in leaf_commands():
        shown = sum(item.param_type_name == "option" for item in command.params)
        visible, keys = visible + shown, keys + shown + len(command.callback.advanced)
    # 220 of 330 in the commands of the pruned house, those of `scene` and `export`, and what `chat` asks of a
    # talk and `serve` of a cast.
    assert (visible <= 247, keys <= 372) == (True, True), (visible, keys)


@pytest.mark.parametrize(("name", "command"), [pytest.param(*pair, id=pair[0]) for pair in leaf_commands()])
def test_the_help_of_a_command_fits_a_screen_and_the_rest_is_in_help_all(
    name: str, command: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    advanced = getattr(command.callback, "advanced", {})
    texts = []
    for flag in ("--help", "--help-all"):
        with pytest.raises(Exit):
            command.make_context(f"rolellm {name}", [flag])
        texts.append(capsys.readouterr().out)
    assert len(texts[0].splitlines()) <= 45
    assert ("--help-all" in texts[0]) == bool(advanced)
    assert all(name in texts[1] for name in advanced)


def no_file_over(size: int) -> Callable[[], None]:
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def test_no_room_on_the_disk_is_said(place: Path) -> None:
    (place / "script.txt").write_text("FOX: Who has the map?\n\nCROW: Nobody has.\n\n" * 9, encoding="utf-8")
    words = ("role", "parse", "script.txt", "--role", "Fox", "--out", "turns.jsonl")
    done = rolellm(place, *words, before=no_file_over(500))
    assert done.returncode == 3
    assert "stopped: no room left on the disk of turns.jsonl; free some space" in done.stderr
    assert not list(place.glob("*turns*"))
    assert exit_code(*words) == 0


@pytest.mark.slow
def test_no_room_for_the_files_that_a_run_ends_with(place: Path) -> None:
    lines = [{"instruction": f"Question {number}: who?", "kept": "x" * 30_000} for number in range(7)]
    (place / "asked.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    words = (*RESPOND, "--replies", "1")
    done = rolellm(place, *words, before=no_file_over(128 << 10))
    assert done.returncode == 3, done.stderr
    assert (
        "stopped: no room left on the disk of fox/respond/replies.jsonl; free some space. What was paid for is kept"
        in done.stderr
    )
    assert "Resume with: rolellm respond fox --instructions asked.jsonl --llm llm.yaml" in done.stderr
    again = json.loads(rolellm(place, *words, "--json").stdout)
    assert again["spent"]["calls"] == 0 and again["spent"]["from_journal"] == again["replies"] == 7


def test_json_does_nothing_to_a_terminal_and_loses_nothing(tmp_path: Path, command: Command) -> None:
    write_character(Profile("Fox", "en", description=f"You are a fox. {STEERING}"), tmp_path / "fox")
    done = command("role", "card", tmp_path / "fox", "--json")
    assert all(character == "\n" or character.isprintable() for character in done.out)
    assert done.json["description"] == f"You are a fox. {STEERING}"


_STARTS = [pytest.param((ROLELLM,), id="console-script"), pytest.param((sys.executable, "-m", "rolellm"), id="module")]


@pytest.mark.parametrize("start", _STARTS)
def test_ctrl_c_during_the_imports_of_a_command(tmp_path: Path, start: tuple[str, ...]) -> None:
    code = "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n"
    (tmp_path / "datasets.py").write_text(code, encoding="utf-8")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    words = ("data", "build", "--config", "sample", "--out", "x")
    done = subprocess.run([*start, *words], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "stopped\n")


def test_a_screen_that_knows_ascii_only(place: Path) -> None:
    write_character(Profile("狐狸", "zh", description="你是一只狐狸。\U0001f98a"), place / "fox")
    done = rolellm(place, "role", "card", "fox", PYTHONIOENCODING="ascii")
    assert done.returncode == 0 and "\\u72d0\\u72f8" in done.stdout
    done = rolellm(place, "role", "card", "fox", "--json", PYTHONIOENCODING="ascii")
    assert json.loads(done.stdout)["description"] == "你是一只狐狸。\U0001f98a"


def test_nothing_that_is_printed_holds_the_token_for_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import huggingface_hub

    token = "hf_Zq81vXw0LmT4cR7yPd2NhK9bQeWuJs"
    monkeypatch.setenv("HF_TOKEN", token)
    assert huggingface_hub.get_token() == token
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)
    monkeypatch.setattr(sys, "argv", ["rolellm", "role", "card", str(tmp_path / token)])
    with mock.patch.dict(os.environ), pytest.raises(SystemExit):
        main()
    shown = capsys.readouterr().err + warnings.formatwarning(UserWarning(f"it says {token}"), UserWarning, "", 0)
    assert shown.count("[hidden]") == 2 and token not in shown
    # The same warning once more, with Python's memory of it lost.
    assert warnings.formatwarning(UserWarning(f"it says {token}"), UserWarning, "", 0) == ""
