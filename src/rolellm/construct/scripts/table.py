"""Tables: CSV with any delimiter, TSV, JSON and JSON Lines, with a column for the speaker and one for what is said.

In JSON, every object with both is a row, however deep it is, and every list of such objects is a scene: so exports of
chats (``{"messages": [...]}``) and conversations (``[{"conversations": [{"from": ..., "value": ...}]}]``) are read.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from rolellm.construct.scripts.reading import Found, Hints, Source, lines_of, words_of
from rolellm.core.errors import ScriptError, SettingsError
from rolellm.core.text import fold, whole_text

#: What the columns are called where `Hints.columns` does not say.
USUAL: Final[Mapping[str, frozenset[str]]] = {
    "speaker": words_of(
        "speaker name character role who actor player author from sender user username nick person "
        "说话人 角色 人物 姓名 名字"
    ),
    "text": words_of(
        "text line dialogue dialog content message mes utterance quote speech words said sentence body value "
        "台词 内容 对白 对话"
    ),
    "scene": words_of("scene scene_id episode act chapter 场景 场次 场"),
}
_DELIMITERS: Final = ",;\t|"
_SEEN: Final = 50
_DECODER: Final = json.JSONDecoder()
# What parts the objects of JSON Lines, and those of an array.
_BETWEEN: Final = re.compile(r"[\s\[\],]*")
# What says something in an object that a field is, such as an author's name.
_SAYING: Final = ("text", "nickname", "name", "value")


class _Row(NamedTuple):
    fields: Mapping[str, str]
    start: int
    end: int
    #: Which list of a JSON file it is in.
    group: int = 0


def read_table(source: Source, hints: Hints) -> list[Found]:
    """The turns of a table, a row each; a turn's place is its row's. Where the scene's value changes, a new one begins.

    Raises:
        ScriptError: When it is not a table, or has no column for the speaker or the text; names its columns.
        SettingsError: When a column asked for is not in it.
    """
    rows = list(_rows(source.text, frozenset(hints.columns.values())))
    if not rows:
        raise ScriptError("not a table: no JSON, and no rows with one delimiter (, ; tab |)", path=source.path)
    named = _named(rows[0].fields, hints.columns, source)
    found: list[Found] = []
    scene = 0
    before: object = None
    for fields, start, end, group in rows:
        content = " ".join(fields.get(named["text"], "").split())
        part = group, fields.get(named.get("scene", ""))
        if found and part != before:
            scene += 1
        before = part
        if content:
            found.append(
                Found(" ".join(fields.get(named["speaker"], "").split()) or None, content, "speech", scene, start, end)
            )
    return found


def is_table(text: str) -> bool:
    """Whether a text is a table that calls the columns of speaker and text as usual."""
    try:
        first = next(_rows(text), None)
    except ScriptError:
        return False
    return first is not None and {"speaker", "text"} <= _usual(first.fields).keys()


def _usual(fields: Mapping[str, object]) -> dict[str, str]:
    found = {column: [name for name in fields if fold(name) in names] for column, names in USUAL.items()}
    return {column: names[0] for column, names in found.items() if names}


def _named(fields: Mapping[str, str], asked: Mapping[str, str], source: Source) -> Mapping[str, str]:
    columns = ", ".join(f"{name!r:.60}" for name in fields)
    for column, name in asked.items():
        if column not in USUAL or name not in fields:
            raise SettingsError(
                f"--columns {column}={name}: there are speaker=, text= and scene=, and the table has {columns}"
            )
    named = {**_usual(fields), **asked}
    if missing := [column for column in ("speaker", "text") if column not in named]:
        raise ScriptError(
            f"no column that is usually called {' or '.join(missing)}; name them with --columns speaker=…,text=…. "
            f"The table has {columns}",
            path=source.path,
        )
    return named


def _rows(text: str, asked: frozenset[str] = frozenset()) -> Iterator[_Row]:
    lines = lines_of(text)
    full = [line for line in lines[: _SEEN * _SEEN] if not line.blank]
    if re.match(r"\s*(?:\[\s*)?\{", text):
        yield from _objects(text, asked)
        return
    delimiter = _delimiter([line.text for line in full[:_SEEN]])
    reader = csv.reader((line.text + "\n" for line in lines), delimiter=delimiter or ",")
    head: list[str] = []
    begun = 0
    try:
        for fields in reader if delimiter else ():
            first, begun = begun, reader.line_num
            if not head:
                head = [name.strip() for name in fields]
            elif any(fields):
                yield _Row(dict(zip(head, fields, strict=False)), lines[first].start, lines[begun - 1].end)
    except csv.Error as error:
        raise ScriptError(f"the row at line {begun + 1} cannot be read ({error}); fix it") from error


def _objects(text: str, asked: frozenset[str]) -> Iterator[_Row]:
    """The rows of JSON: of each line, of each item of an array, or of the one object that the file is."""
    first: _Row | None = None
    found = False
    at, group = _past(text, 0), 0
    while at < len(text):
        try:
            value, end = _DECODER.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            raise _not_json(text, at) from error
        if not isinstance(value, dict):
            raise _not_json(text, at)
        first = first or _Row(value, at, end)
        for fields, begins in _walk(value, asked):
            group, found = group + begins, True
            yield _Row({name: _plain(item) for name, item in fields.items()}, at, end, group)
        at = _past(text, end)
    if first and not found:
        # So that the message can say what there is.
        yield first


def _past(text: str, at: int) -> int:
    between = _BETWEEN.match(text, at)
    return between.end() if between else at


def _not_json(text: str, at: int) -> ScriptError:
    return ScriptError(f"line {text.count(chr(10), 0, at) + 1} is not a JSON object as what is above it is; fix it")


def _walk(value: object, asked: frozenset[str]) -> list[tuple[dict[str, Any], bool]]:
    """The objects in a value that are rows, and whether each is the first of its list."""
    if isinstance(value, dict) and (asked <= value.keys() if asked else {"speaker", "text"} <= _usual(value).keys()):
        return [(value, False)]
    found: list[tuple[dict[str, Any], bool]] = []
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        inner = _walk(item, asked)
        if inner and isinstance(item, list):
            inner[0] = inner[0][0], True
        found += inner
    return found


def _plain(value: object) -> str:
    """What a field says: of parts, one after the other; of somebody's data, the name."""
    if isinstance(value, list):
        return "".join(map(_plain, value))
    if isinstance(value, dict):
        return next((_plain(value[name]) for name in _SAYING if value.get(name)), "")
    return "" if value is None else whole_text(str(value))


def _delimiter(lines: Sequence[str]) -> str | None:
    """The delimiter that gives most rows as many fields as the first has, and at least two."""
    best, most = None, 0.5
    for delimiter in _DELIMITERS:
        try:
            widths = [len(fields) for fields in csv.reader((line + "\n" for line in lines), delimiter=delimiter)]
        except csv.Error:
            continue
        share = sum(width == widths[0] for width in widths) / len(widths) if widths else 0
        if widths and widths[0] > 1 and share > most:
            best, most = delimiter, share
    return best
