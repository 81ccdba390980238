"""Tables: CSV with any delimiter, TSV, JSON and JSON Lines, with a column for the speaker and one for what is said.

In JSON, every object with both is a row, however deep it is, and every list of such objects is a scene: so exports of
chats (``{"messages": [...]}``) and conversations (``[{"conversations": [{"from": ..., "value": ...}]}]``) are read. The
events of Advanced SubStation Alpha (.ass, .ssa) are a table, too.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator, Mapping
from itertools import chain, islice
from typing import Any, Final, NamedTuple

from rolellm.characters.scripts.reading import ReaderHints, ScriptLine, ScriptSource, ScriptTurn, iterate_lines
from rolellm.core.errors import ScriptError, SettingsError
from rolellm.core.settings import load_words
from rolellm.core.text import fold, replace_surrogates

#: What the columns are called where `Hints.columns` does not say.
USUAL: Final = {column: load_words(f"column_{column}") for column in ("speaker", "text", "scene")}
# Of two that a head has equally often, the first: commas are found in names of columns, too.
_DELIMITERS: Final = "\t|;,"
_DECODER: Final = json.JSONDecoder()
# Objects are parted by lines, and by commas in an array.
_BEGIN: Final = re.compile(r"[^\s\[\],]")
_EVENTS: Final = re.compile(r"^\[Events\]\s*^Format:(?P<names>.*)$", re.MULTILINE)
_EVENT: Final = re.compile(r"^Dialogue:(.*)$", re.MULTILINE)
# Breaks of lines, and what is not shown.
_HIDDEN: Final = re.compile(r"\\[Nnh]|\{[^{}]*\}")
# What says something in an object that a field is, such as an author's name.
_SAYING: Final = ("text", "nickname", "name", "value")


class _TableRow(NamedTuple):
    fields: Mapping[str, str]
    start: int
    end: int
    #: Which list of a JSON file it is in.
    group: object = None


def read_table(source: ScriptSource, hints: ReaderHints) -> list[ScriptTurn]:
    """The turns of a table, a row each; a turn's place is its row's. Where the scene's value changes, a new one begins.

    Raises:
        ScriptError: When it is not a table, or has no column for the speaker or the text; names its columns.
        SettingsError: When a column asked for is not in it.
    """
    rows, head = _read_rows(source.text, frozenset(hints.columns.values())), []
    for row in rows:
        head.append(row)
        # A chat's first line may say who chats.
        if len(_find_usual(row.fields).keys() | hints.columns.keys()) > 1:
            break
    if not head:
        raise ScriptError("not a table: no JSON, and no rows with one delimiter (, ; tab |)", path=source.path)
    named = _name_columns(row.fields, hints.columns, source)
    turns: list[ScriptTurn] = []
    scene, before = 0, None
    for fields, start, end, group in chain(head, rows):
        speaker, content = (" ".join(fields.get(named[column], "").split()) for column in ("speaker", "text"))
        part = group, fields.get(named.get("scene", ""))
        scene, before = scene + (bool(turns) and part != before), part
        if content:
            turns.append(ScriptTurn(speaker or None, content, "speech", scene, start, end))
    return turns


def is_table(text: str) -> bool:
    """Tell whether a text is a table that calls the columns of speaker and text as usual."""
    try:
        return any({"speaker", "text"} <= _find_usual(row.fields).keys() for row in islice(_read_rows(text), 3))
    except ScriptError:
        return False


def _find_usual(fields: Mapping[str, object]) -> dict[str, str]:
    matches = {column: [name for name in fields if fold(name) in names] for column, names in USUAL.items()}
    return {column: names[0] for column, names in matches.items() if names}


def _name_columns(fields: Mapping[str, str], columns: Mapping[str, str], source: ScriptSource) -> Mapping[str, str]:
    column_list = ", ".join(f"{name!r:.60}" for name in fields)
    for column, name in columns.items():
        if column not in USUAL or name not in fields:
            raise SettingsError(
                f"--set columns={column}={name}: there are speaker=, text= and scene=, and the table has {column_list}"
            )
    named = {**_find_usual(fields), **columns}
    if missing := [column for column in ("speaker", "text") if column not in named]:
        raise ScriptError(
            f"no column that is usually called {' or '.join(missing)}; name them with --set columns=speaker=…,text=…. "
            f"The table has {column_list}",
            path=source.path,
        )
    return named


def _read_rows(text: str, columns: frozenset[str] = frozenset()) -> Iterator[_TableRow]:
    if re.match(r"\s*(?:\[\s*)?\{", text):
        yield from _read_objects(text, columns)
        return
    if events := _EVENTS.search(text):
        names = [name.strip() for name in events["names"].split(",")]
        rows = [
            _TableRow(
                dict(zip(names, _HIDDEN.sub(" ", event[1]).split(",", len(names) - 1), strict=False)), *event.span()
            )
            for event in _EVENT.finditer(text, events.end())
        ]
        # Where speakers are named, what has no name is a song or a sign.
        yield from [row for row in rows if row.fields.get("Name", "").strip()] or rows
        return
    head = next((line.text for line in iterate_lines(text) if not line.blank), "")
    # R parts quoted fields by spaces.
    delimiter = " " if re.fullmatch(r'"[^"]*"(?: "[^"]*")+\s*', head) else max(_DELIMITERS, key=head.count)
    if delimiter not in head:
        return
    last = ScriptLine(0, -1, "")

    def fed() -> Iterator[str]:
        nonlocal last
        for last in iterate_lines(text):
            yield last.text + "\n"

    reader = csv.reader(fed(), delimiter=delimiter, escapechar="\\" if delimiter == " " else None)
    names = []
    row_start, number = 0, 1
    try:
        for fields in reader:
            if not names:
                names = [name.strip() for name in fields]
            elif any(fields):
                if delimiter == " " and len(fields) > len(names):
                    names.insert(0, "row")
                yield _TableRow(dict(zip(names, fields, strict=False)), row_start, last.end)
            row_start, number = last.end + 1, reader.line_num + 1
    except csv.Error as error:
        raise ScriptError(f"the row at line {number} cannot be read ({error}); fix it") from error


def _read_objects(text: str, columns: frozenset[str]) -> Iterator[_TableRow]:
    """The rows of JSON: of each line, of each item of an array, or of the one object that the file is."""
    end = 0
    while match := _BEGIN.search(text, end):
        at = match.start()
        try:
            value, end = _DECODER.raw_decode(text, at)
            if not isinstance(value, dict):
                raise ValueError("no object")
        except (ValueError, RecursionError) as error:
            line = text.count("\n", 0, at) + 1
            raise ScriptError(f"line {line} is not a JSON object as what is above it is; fix it") from error
        # What has no row is one, so that the message can say what there is.
        for fields, group in list(_walk_value(value, columns, None)) or [(value, None)]:
            yield _TableRow(
                {name: _flatten_value(item) for name, item in fields.items()}, at, end, group and (at, group)
            )


def _walk_value(
    value: object, columns: frozenset[str], group: int | None
) -> Iterator[tuple[dict[str, Any], int | None]]:
    """The objects in a value that are rows, and which list each is in."""
    if isinstance(value, dict) and (
        columns <= value.keys() if columns else {"speaker", "text"} <= _find_usual(value).keys()
    ):
        yield value, group
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _walk_value(item, columns, id(value) if isinstance(value, list) else group)


def _flatten_value(value: object) -> str:
    """Flatten a field to text: parts one after the other, somebody's data to the name."""
    if isinstance(value, list):
        return "".join(map(_flatten_value, value))
    if isinstance(value, dict):
        return next((_flatten_value(value[name]) for name in _SAYING if value.get(name)), "")
    return "" if value is None else replace_surrogates(str(value))
