"""Tables: CSV with any delimiter, TSV, JSON and JSON Lines, with a column for the speaker and one for what is said.

In JSON, a row is an object of its own, or one in the list ``conversations`` or ``messages`` of an object (ShareGPT),
which is a scene.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final, NamedTuple

from rolellm.characters.scripts.reading import ReaderHints, ScriptSource, ScriptTurn, iterate_lines
from rolellm.core.errors import ScriptError, SettingsError
from rolellm.core.settings import load_words
from rolellm.core.text import fold, replace_surrogates

#: What the columns are called where `Hints.columns` does not say.
USUAL: Final = {column: load_words(f"column_{column}") for column in ("speaker", "text", "scene")}
# Of two that a head has equally often, the first: commas are found in names of columns, too.
_DELIMITERS: Final = "\t|;,"
_DECODER: Final = json.JSONDecoder()
_JSON: Final = re.compile(r"\s*(?:\[\s*)?\{")
# Objects are parted by lines, and by commas in an array.
_BEGIN: Final = re.compile(r"[^\s\[\],]")
_TALKS: Final = ("conversations", "messages")


class _TableRow(NamedTuple):
    fields: Mapping[str, str]
    start: int
    end: int
    #: Where the talk that it is in begins, in a file of talks.
    talk: int | None = None


def read_table(source: ScriptSource, hints: ReaderHints) -> list[ScriptTurn]:
    """The turns of a table, a row each; a turn's place is its row's. Where the scene's value changes, a new one begins.

    Raises:
        ScriptError: When it is not a table, or has no column for the speaker or the text; names its columns.
        SettingsError: When a column asked for is not in it.
    """
    rows = list(_read_rows(source.text))
    if not rows:
        raise ScriptError("not a table: no JSON, and no rows with one delimiter (, ; tab |)", path=source.path)
    head = rows[-1].fields
    for row in rows:
        # A chat's first line may say who chats.
        if len(_find_usual(row.fields).keys() | hints.columns.keys()) > 1:
            head = row.fields
            break
    named = _name_columns(head, hints.columns, source)
    turns: list[ScriptTurn] = []
    scene, last_part = 0, None
    for row in rows:
        speaker = " ".join(row.fields.get(named["speaker"], "").split())
        content = " ".join(row.fields.get(named["text"], "").split())
        part = row.talk, row.fields.get(named.get("scene", ""))
        if turns and part != last_part:
            scene += 1
        last_part = part
        if content:
            turns.append(ScriptTurn(speaker or None, content, "speech", scene, row.start, row.end))
    return turns


def is_table(text: str) -> bool:
    """Tell whether a text is a table that calls the columns of speaker and text as usual."""
    try:
        rows = list(islice(_read_rows(text), 3))
    except ScriptError:
        return False
    return any({"speaker", "text"} <= _find_usual(row.fields).keys() for row in rows)


def _find_usual(fields: Mapping[str, object]) -> dict[str, str]:
    """Find the first field that is usually called so, by column."""
    named: dict[str, str] = {}
    for name in fields:
        for column, names in USUAL.items():
            if fold(name) in names:
                named.setdefault(column, name)
    return named


def _name_columns(fields: Mapping[str, str], columns: Mapping[str, str], source: ScriptSource) -> Mapping[str, str]:
    column_list = ", ".join(f"{name!r:.60}" for name in fields)
    for column, name in columns.items():
        if column not in USUAL or name not in fields:
            raise SettingsError(
                f"--set columns={column}={name}: there are speaker=, text= and scene=, and the table has {column_list}"
            )
    named = {**_find_usual(fields), **columns}
    missing = [column for column in ("speaker", "text") if column not in named]
    if missing:
        raise ScriptError(
            f"no column that is usually called {' or '.join(missing)}; name them with --set columns=speaker=…,text=…. "
            f"The table has {column_list}",
            path=source.path,
        )
    return named


def _read_rows(text: str) -> Iterator[_TableRow]:
    if _JSON.match(text):
        return _read_objects(text)
    return _read_delimited(text)


def _read_delimited(text: str) -> Iterator[_TableRow]:
    head = next((line.text for line in iterate_lines(text) if not line.blank), "")
    delimiter = max(_DELIMITERS, key=head.count)
    if delimiter not in head:
        return
    lines = list(iterate_lines(text))
    reader = csv.reader((line.text + "\n" for line in lines), delimiter=delimiter)
    names: list[str] = []
    start, number = 0, 1
    try:
        for fields in reader:
            end = lines[reader.line_num - 1].end
            if not names:
                names = [name.strip() for name in fields]
            elif any(fields):
                yield _TableRow(dict(zip(names, fields, strict=False)), start, end)
            start, number = end + 1, reader.line_num + 1
    except csv.Error as error:
        raise ScriptError(f"the row at line {number} cannot be read ({error}); fix it") from error


def _read_objects(text: str) -> Iterator[_TableRow]:
    """The rows of JSON: of each line, of each item of an array, or of the one object that the file is."""
    end = 0
    while match := _BEGIN.search(text, end):
        start = match.start()
        try:
            value, end = _DECODER.raw_decode(text, start)
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            line = text.count("\n", 0, start) + 1
            raise ScriptError(f"line {line} is not a JSON object as what is above it is; fix it")
        if value.get("is_system") is True:
            # SillyTavern hides it from the model.
            continue
        talks = [value[name] for name in _TALKS if isinstance(value.get(name), list)]
        if not talks:
            yield _TableRow(_read_fields(value), start, end)
            continue
        for item in talks[0]:
            if isinstance(item, dict):
                yield _TableRow(_read_fields(item), start, end, start)


def _read_fields(value: Mapping[str, Any]) -> dict[str, str]:
    return {name: replace_surrogates(_spell(item)) for name, item in value.items() if item is not None}


def _spell(value: Any) -> str:
    """Spell a value as text: an author's name, or the parts of a message."""
    parts = value if isinstance(value, list) else [value]
    texts = []
    for part in parts:
        if isinstance(part, dict):
            part = part.get("nickname") or part.get("name") or part.get("text")
        texts.append(str(part))
    return "".join(texts)
