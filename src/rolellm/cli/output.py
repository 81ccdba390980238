"""How commands print: one JSON object for machines, a table for people, and the line that continues after a stop."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import typer

from rolellm.core.errors import StoppedShortError
from rolellm.core.files import NO_ROOM
from rolellm.core.sanitize import make_visible
from rolellm.core.settings import dump

if TYPE_CHECKING:
    from rich.console import Console

    from rolellm.core.result import Result
    from rolellm.llm.llm import ModelOptions


#: What has requests sent again that an earlier run gave up on.
RETRY: Final = "retry_failed=true"
_WIDTH_OF_FILES: Final = 160
_NOT_PLAIN = re.compile(r"[^\n -~]")


def print_json(value: Any) -> None:
    """Print one JSON object to standard output; characters that steer a display are escaped."""
    typer.echo(_NOT_PLAIN.sub(_escape, json.dumps(value, ensure_ascii=False, indent=2)))


def print_result(result: Result, as_json: bool, *, is_done: bool = True) -> None:
    """Print a result: as one JSON object, or its notes, sentences, tables, page and the command lines to go on with."""
    for note in result.notes():
        say(note, err=True)
    if as_json:
        print_json(result.to_dict())
        return
    print_sentences(result.remarks())
    console = make_console()
    for table in result.tables():
        table.print_to(console)
    page = getattr(result, "page", None)
    if page is not None:
        say(f"Report: {page}")
    lines = result.continues_with if is_done else ()
    if len(lines) == 1:
        say(f"Go on with: {lines[0]}")
    elif lines:
        say("\n  ".join(["Go on with:", *lines]))


def print_sentences(sentences: Iterable[str]) -> None:
    """Print sentences, a line each."""
    for sentence in sentences:
        say(sentence)


def _escape(match: re.Match[str]) -> str:
    character = match.group()
    try:
        character.encode(sys.stdout.encoding or "utf-8")
        if make_visible(character) == character:
            return character
    except UnicodeEncodeError:
        pass
    if character.isascii():
        return f"\\u{ord(character):04x}"
    return json.dumps(character)[1:-1]


def say(text: str, *, err: bool = False) -> None:
    """Print a line; characters in it that steer a display are spelled out."""
    typer.echo(make_visible(text), err=err)


def make_console() -> Console:
    """Return where tables go: standard output, as wide as the terminal, or as ``COLUMNS`` says.

    In a file or a pipe nothing else limits the width, and a table cut at 80 columns is hard to read.
    """
    from rich.console import Console

    terminal = Console()
    return terminal if _is_screen(terminal) else Console(width=_WIDTH_OF_FILES)


def _is_screen(console: Console) -> bool:
    return console.is_terminal or os.environ.get("COLUMNS", "").isdigit()


def build_resume_line(context: typer.Context, *more: str) -> str:
    """Return the line that continues: what the user gave without ``--overwrite``, which would start over, and more."""
    command = context.command_path.split(" ")
    return shlex.join([*command, *_list_words(context), *more])


def build_next_line(model: ModelOptions, *words: str) -> str:
    """Return the command line of the next stage, with the model that the user named for this one."""
    named: list[str] = []
    for name, value in dump(model).items():
        if value in (None, "auto"):
            continue
        is_option = name != "api_key_env"
        named += [f"--{name}", str(value)] if is_option else ["--set", f"{name}={value}"]
    return shlex.join([*words, *(named or ["--llm", "FILE.yaml"])])


def _list_words(context: typer.Context) -> list[str]:
    """Return the user's words for all parameters but ``--overwrite``."""
    words: list[str] = []
    for parameter in context.command.params:
        value = context.params.get(str(parameter.name))
        if parameter.name == "overwrite" or value in (None, [], (), parameter.default):
            continue
        flags = [] if parameter.param_type_name == "argument" else [parameter.opts[0]]
        if isinstance(value, bool):
            words += flags if value else parameter.secondary_opts[:1]
            continue
        for item in value if isinstance(value, list | tuple) else [value]:
            words += [*flags, str(item)]
    return words


@contextmanager
def resumable(context: typer.Context) -> Iterator[None]:
    """Have a command that stops short name the command line that continues, in place of "the same command".

    Raises:
        StoppedShortError: The one that the block raised, with that line where it has none; one for a full disk.
    """
    try:
        yield
    except StoppedShortError as error:
        if error.resume.startswith(context.find_root().command_path):
            raise
        # The same command would stop as this one did.
        if "a larger --budget" in str(error):
            context.params["budget"] = "MORE"
        if RETRY in str(error):
            overrides = context.params.get("overrides") or []
            context.params["overrides"] = [*dict.fromkeys([*overrides, RETRY])]
        raise error.name_command(build_resume_line(context)) from error
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        where = f" of {error.filename}" if error.filename else ""
        message = f"no room left on the disk{where}; free some space. What was paid for is kept"
        raise StoppedShortError(message, resume=build_resume_line(context)) from error
