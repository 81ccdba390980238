"""How commands print: one JSON object for machines, a table for people, and the line that goes on after a stop."""

from __future__ import annotations

import io
import json
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_WIDTH_OF_FILES = 160
_ROOM = 1_000
_CUT, _CORNER = "…", "┓"
#: What stands where there is no figure. Never 0, which would be one.
ABSENT = "–"
_NOTHING = ("", ABSENT)
_NOT_PLAIN = re.compile(r"[^\n -~]")


def print_json(value: Any) -> None:
    """Print one JSON object to standard output; characters that steer a display stand in it as their escapes."""
    typer.echo(_NOT_PLAIN.sub(_escaped, json.dumps(value, ensure_ascii=False, indent=2)))


def _escaped(found: re.Match[str]) -> str:
    from rolellm.core.sanitize import visible

    character = found.group()
    if visible(character) == character and _can_be_printed(character):
        return character
    return f"\\u{ord(character):04x}" if character.isascii() else json.dumps(character)[1:-1]


def _can_be_printed(character: str) -> bool:
    try:
        character.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return False
    return True


def console() -> Console:
    """Where tables go: standard output, as wide as the terminal.

    In a file or a pipe nothing limits the width, and a table cut at 80 columns is hard to read.
    """
    from rich.console import Console

    found = Console()
    return found if found.is_terminal else Console(width=_WIDTH_OF_FILES)


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table to standard output; the first column is a name, the others are flush right.

    Args:
        title: Above the table.
        columns: Headings, shown as they are.
        rows: Texts, shown as they are: markup inside them is not interpreted.
    """
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(title), title_justify="left")
    for index, column in enumerate(columns):
        table.add_column(Text(column), justify="right" if index else "left")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    show_table(table)


def show_table(table: Table) -> None:
    """Print a table to standard output; where a terminal is too narrow for its figures, a block of lines for each row.

    Args:
        table: Of texts; its first column names the rows. In a file it is as wide as it needs to be.
    """
    from rich.console import Console

    found = console()
    if _fits(table, found.width):
        found.print(table)
    elif found.is_terminal:
        _show_rows(found, table)
    else:
        wide = (width for width in range(found.width, _ROOM, 20) if _fits(table, width))
        Console(width=next(wide, _ROOM)).print(table)


def _fits(table: Table, width: int) -> bool:
    """Whether no word is cut, and no column falls off the edge: rich narrows columns without a look at their words."""
    from rich.console import Console
    from rich.measure import Measurement

    drawn = Console(width=width, file=io.StringIO(), color_system=None, force_terminal=False, legacy_windows=False)
    if Measurement.get(drawn, drawn.options.update(width=_ROOM), table).minimum > width:
        return False
    with drawn.capture() as kept:
        drawn.print(table)
    own = sum(str(cell).count(_CUT) for column in table.columns for cell in (column.header, *column.cells))
    whole = any(line.rstrip().endswith(_CORNER) for line in kept.get().splitlines())
    return whole and kept.get().count(_CUT) <= own + str(table.title).count(_CUT)


def _show_rows(found: Console, table: Table) -> None:
    from rich.text import Text

    if table.title:
        found.print(table.title, style="bold")
    columns = [(_line(column.header), [_line(cell) for cell in column.cells]) for column in table.columns]
    for row in range(table.row_count):
        found.print(Text(columns[0][1][row], style="bold"))
        for head, cells in columns[1:]:
            if cells[row] not in _NOTHING:
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
    """The command line that goes on: what the user gave, without ``--overwrite``, which would begin again, and more."""
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
    """Have a run that stops short name the command line that goes on, in place of "the same command".

    Raises:
        StoppedShortError: The one that the block raised, with that line; one for a disk that has no room for the files
            that a run ends with.
    """
    from rolellm.core.errors import StoppedShortError
    from rolellm.core.files import NO_ROOM

    try:
        yield
    except StoppedShortError as error:
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
    from rolellm.core.errors import StoppedShortError

    allowed = context.params["allow_missing"]
    if missing <= allowed * asked:
        return
    more = () if context.params["retry_failed"] else ("--retry-failed",)
    raise StoppedShortError(
        f"{missing:,} of {asked:,} requests have no answer ({missing / asked:.1%}); --allow-missing is {allowed:.1%}. "
        "The answers are written; failed.jsonl says why the others failed",
        resume=resume_line(context, *more),
    )
