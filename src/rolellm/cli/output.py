"""How commands print: one JSON object for machines, a table for people, and the line that continues after a stop."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

from rolellm.core.errors import StoppedShortError
from rolellm.core.files import NO_ROOM
from rolellm.core.sanitize import visible

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_WIDTH_OF_FILES = 160
_ROOM = 10_000
#: What stands where there is no figure. Never 0, which would be one.
ABSENT = "–"
_NOT_PLAIN = re.compile(r"[^\n -~]")


def print_json(value: Any) -> None:
    """Print one JSON object to standard output; characters that steer a display are escaped."""
    typer.echo(_NOT_PLAIN.sub(_escaped, json.dumps(value, ensure_ascii=False, indent=2)))


def _escaped(found: re.Match[str]) -> str:
    character = found.group()
    try:
        character.encode(sys.stdout.encoding or "utf-8")
        if visible(character) == character:
            return character
    except UnicodeEncodeError:
        pass
    return f"\\u{ord(character):04x}" if character.isascii() else json.dumps(character)[1:-1]


def say(text: str, *, err: bool = False) -> None:
    """Print a line; characters in it that steer a display are spelled out."""
    typer.echo(visible(text), err=err)


def console() -> Console:
    """Where tables go: standard output, as wide as the terminal.

    In a file or a pipe nothing limits the width, and a table cut at 80 columns is hard to read.
    """
    from rich.console import Console

    found = Console()
    return found if found.is_terminal else Console(width=_WIDTH_OF_FILES)


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str | float | None]]) -> None:
    """Print a table to standard output; the first column is a name, the others are flush right.

    Args:
        title: Above the table.
        columns: Headings.
        rows: Numbers, ``None``, and texts: markup in them is not interpreted, characters that steer a display are
            spelled out.
    """
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(visible(title)), title_justify="left")
    for index, column in enumerate(columns):
        table.add_column(Text(visible(column)), justify="right" if index else "left")
    for row in rows:
        table.add_row(*(Text(_cell(cell)) for cell in row))
    show_table(table)


def _cell(value: str | float | None) -> str:
    if value is None or isinstance(value, str):
        return ABSENT if value is None else visible(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.2f}"


def show_table(table: Table) -> None:
    """Print a table to standard output; where a terminal is too narrow for its figures, a block of lines for each row.

    Args:
        table: Of texts; its first column names the rows. In a file it is as wide as it needs to be.
    """
    from rich.console import Console
    from rich.measure import Measurement

    found = console()
    wide = Measurement.get(found, found.options.update(width=_ROOM), table).maximum
    if wide <= found.width:
        found.print(table)
    elif found.is_terminal:
        _show_rows(found, table)
    else:
        Console(width=wide).print(table)


def _show_rows(found: Console, table: Table) -> None:
    from rich.text import Text

    if table.title:
        found.print(table.title, style="bold")
    columns = [(_line(column.header), [_line(cell) for cell in column.cells]) for column in table.columns]
    for row in range(table.row_count):
        found.print(Text(columns[0][1][row], style="bold"))
        for head, cells in columns[1:]:
            if cells[row] not in ("", ABSENT):
                found.print(Text(f"  {head}: {cells[row]}" if head else f"  {cells[row]}"))
    if table.caption:
        found.print(table.caption, style="dim")


def _line(cell: object) -> str:
    return " ".join(str(cell).split())


def estimate_text(
    value: Mapping[str, Any] | None, *, digits: int = 2, scale: float = 1, unit: str = "", counted: bool = False
) -> str:
    """A mean with its 95 % interval, from the JSON object ``{"mean", "ci95", "n"}``; a dash where there is none.

    >>> estimate_text({"mean": 0.5, "ci95": [0.25, 0.75], "n": 8}, digits=0, scale=100, unit=" %", counted=True)
    '50 % [25, 75] n=8'
    """
    if value is None:
        return ABSENT
    ends = value["ci95"]
    interval = "" if ends is None else f" [{', '.join(f'{scale * end:.{digits}f}' for end in ends)}]"
    return f"{scale * value['mean']:.{digits}f}{unit}{interval}" + (f" n={value['n']}" if counted else "")


def resume_line(context: typer.Context, *more: str) -> str:
    """The command line that continues: what the user gave without ``--overwrite``, which would start over, and more."""
    return shlex.join([*context.command_path.split(" "), *_given(context), *more])


def next_line(context: typer.Context, *words: str) -> str:
    """The command line of the next stage, with the model that the user named for this one."""
    named = _given(context, ("llm_file", "base_url", "model", "api_key_env", "tokenizer"))
    return shlex.join([*words, *(named or ["--llm", "FILE.yaml"])])


def _given(context: typer.Context, names: Sequence[str] = ()) -> list[str]:
    """The user's words for these parameters; for all but ``--overwrite`` where none are named."""
    words: list[str] = []
    for parameter in context.command.params:
        if names and parameter.name not in names:
            continue
        value = context.params.get(str(parameter.name))
        if parameter.name == "overwrite" or value in (None, [], ()) or value == parameter.default:
            continue
        flags = [] if parameter.param_type_name == "argument" else [parameter.opts[0]]
        if isinstance(value, bool):
            words += flags if value else parameter.secondary_opts[:1]
            continue
        if parameter.name == "base_url":
            from rolellm.llm.settings import without_keys

            value = without_keys(value)
        for item in value if isinstance(value, list | tuple) else [value]:
            words += [*flags, str(item)]
    return words


@contextmanager
def resumable(context: typer.Context) -> Iterator[None]:
    """Have a run that stops short name the command line that continues, in place of "the same command".

    Raises:
        StoppedShortError: The one that the block raised, with that line; one for a disk that has no room for the files
            that a run ends with.
    """
    try:
        yield
    except StoppedShortError as error:
        if "a larger --budget" in str(error):
            # The same one would stop it again.
            context.params["budget"] = "MORE"
        raise error.resumed_by(resume_line(context)) from error
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        where = f" of {error.filename}" if error.filename else ""
        message = f"no room left on the disk{where}; every reply is kept in the journal, and it needs room to go on"
        raise StoppedShortError(message, resume=resume_line(context)) from error


def check_missing(context: typer.Context, missing: int, asked: int) -> None:
    """Refuse to call a run done in which more is missing than ``--allow-missing`` lets pass.

    Args:
        context: Of the command.
        missing: How many requests have no answer.
        asked: How many there are.

    Raises:
        StoppedShortError: With the command line that asks for what is missing.
    """
    allowed = context.params["allow_missing"]
    if missing <= allowed * asked:
        return
    more = () if context.params["retry_failed"] else ("--retry-failed",)
    raise StoppedShortError(
        f"{missing:,} of {asked:,} requests have no answer ({missing / asked:.1%}); --allow-missing is {allowed:.1%}. "
        "The answers are written; failed.jsonl says why the others failed",
        resume=resume_line(context, *more),
    )
