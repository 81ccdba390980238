"""Tables: CSV with any delimiter, TSV and JSON Lines, with a column for the speaker and one for what is said."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

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
        "text line dialogue dialog content message mes utterance quote speech words said sentence body "
        "台词 内容 对白 对话"
    ),
    "scene": words_of("scene scene_id episode act chapter 场景 场次 场"),
}
_DELIMITERS: Final = ",;\t|"
_SEEN: Final = 50


class _Row(NamedTuple):
    fields: Mapping[str, str]
    start: int
    end: int


def read_table(source: Source, hints: Hints) -> list[Found]:
    """The turns of a table, a row each; a turn's place is its row's. Where the scene's value changes, a new one begins.

    Raises:
        ScriptError: When it is not a table, or has no column for the speaker or the text; names its columns.
        SettingsError: When a column asked for is not in it.
    """
    rows = list(_rows(source.text))
    if not rows:
        raise ScriptError("not a table: no JSON Lines, and no rows with one delimiter (, ; tab |)", path=source.path)
    named = _named(rows[0].fields, hints.columns, source)
    found: list[Found] = []
    scene, before = 0, None
    for fields, start, end in rows:
        content = " ".join(fields.get(named["text"], "").split())
        part = fields.get(named.get("scene", ""))
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


def _usual(fields: Mapping[str, str]) -> dict[str, str]:
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


def _rows(text: str) -> Iterator[_Row]:
    lines = list(lines_of(text))
    full = [line for line in lines if not line.blank]
    if full and full[0].text.lstrip()[0] == "{":
        for number, line in enumerate(lines, start=1):
            if line.blank:
                continue
            yield _Row(_object(line.text, number), line.start, line.end)
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


def _object(text: str, number: int) -> dict[str, str]:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise ScriptError(f"line {number} is not a JSON object as the lines above it are; fix it")
    return {key: "" if item is None else whole_text(str(item)) for key, item in value.items()}


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
