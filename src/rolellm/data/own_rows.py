"""Rows of one's own as dialogues: the columns tell their form, and each problem names its row.

``load_own_rows`` opens a file, a repository on the Hub or a dataset; iterating reads it from the start, row by row, so
that a million rows take no memory.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from rolellm.core.errors import DataError
from rolellm.core.row_files import SUFFIXES, NumberedRow, stream_rows
from rolellm.models.find import is_hub_id

Item = TypeVar("Item")
Turn = dict[str, Any]
#: Rows whose columns tell the form; a column may be missing in the first ones.
_PROBED: Final = 100
# Names of speakers in the data sets of the Hub, and what chat templates call them.
_SPEAKERS: Final = {
    "system": "system",
    "developer": "developer",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "model": "assistant",
    "tool": "tool",
    "observation": "tool",
}
_MEDIA: Final = ("image", "images", "video", "videos", "audio", "audios")
# No chat template reads the calls of an older interface.
_REFUSED: Final = ("functions", *_MEDIA)


@dataclass(frozen=True, slots=True)
class Dialogue:
    """A row of one's own.

    Attributes:
        id: The row's ``id``, else ``row/N``.
        messages: All turns, as chat templates take them: ``role``, ``content``, and what else they have.
        replies: Numbers of the assistant's turns that are trained or answered, in order; one at least.
        role: Who replies, where the row says so.
        options: What the chat template gets besides the turns: ``tools`` and what is in ``chat_template_kwargs``.
    """

    id: str
    messages: tuple[Turn, ...]
    replies: tuple[int, ...]
    role: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RowForm(Generic[Item]):
    """A form of rows.

    Attributes:
        name: What people call it.
        columns: The columns that tell it.
        read: Reads a row; its id is there.
        is_whole: Read all rows of a file as one.
    """

    name: str
    columns: tuple[str, ...]
    read: Callable[[Mapping[str, Any]], Item]
    is_whole: bool = False


def read_messages_row(row: Mapping[str, Any]) -> Dialogue:
    """Read ``messages``, or ``conversations`` of ShareGPT."""
    messages = row["messages"] if "messages" in row else row["conversations"]
    if isinstance(messages, str):
        # A cell of a CSV file.
        messages = read_objects("messages", messages)
    # The first turn has none before it to answer.
    return _make_dialogue(row, read_messages(messages, "user"), first=1)


def read_prompt_row(row: Mapping[str, Any]) -> Dialogue:
    """Read ``prompt`` and ``completion``."""
    prompt = read_messages(row["prompt"], "user")
    return _make_dialogue(row, [*prompt, *read_messages(row["completion"], "assistant")], first=len(prompt))


def read_alpaca_row(row: Mapping[str, Any]) -> Dialogue:
    """Read ``instruction``, ``input`` and ``output``, after the pairs of ``history``."""
    turns: list[Turn] = []
    for question, answer in row.get("history") or ():
        turns += [{"role": "user", "content": question}, {"role": "assistant", "content": answer, "weight": 0}]
    prompt = row["instruction"]
    if row.get("input"):
        prompt = f"{prompt}\n\n{row['input']}"
    turns.append({"role": "user", "content": prompt})
    turns.append({"role": "assistant", "content": row["output"]})
    return _make_dialogue(row, read_messages(turns, "user"), first=1)


def read_tavern_chat(chat: Mapping[str, Any]) -> Dialogue:
    """Read the lines of an exported chat of SillyTavern; a reply's swipes are those that were not chosen."""
    lines = [line for line in chat["rows"] if isinstance(line.get("mes"), str) and not line.get("is_system")]
    names = dict.fromkeys(str(line.get("name")) for line in lines if not line.get("is_user"))
    if len(names) > 1:
        raise DataError(f"a group chat of {', '.join(names)}; expected a chat with one character")
    turns: list[Turn] = []
    for line in lines:
        speaker = "user" if line.get("is_user") else "assistant"
        if turns and turns[-1]["role"] == speaker:
            # Chat templates want speakers to take turns.
            turns[-1]["content"] += f"\n\n{line['mes']}"
        else:
            turns.append({"role": speaker, "content": line["mes"]})
    return _make_dialogue({"id": chat["id"], "role": next(iter(names), None)}, turns, first=1)


MESSAGES: Final = RowForm("messages", ("messages",), read_messages_row)
PROMPTS: Final = RowForm("prompt and completion", ("prompt", "completion"), read_prompt_row)
TAVERN: Final = RowForm("a SillyTavern chat", ("name", "is_user", "mes"), read_tavern_chat, is_whole=True)
#: The forms of dialogues.
DIALOGUES: Final = (
    MESSAGES,
    PROMPTS,
    RowForm("ShareGPT", ("conversations",), read_messages_row),
    RowForm("Alpaca", ("instruction", "output"), read_alpaca_row),
    TAVERN,
)


class OwnRows(Generic[Item]):
    """Rows of one's own, read from the start at each iteration.

    Attributes:
        name: The file, repository or argument that they come from.
        form: Their form.
        skip_bad: Skip bad rows.
        skipped: With ``skip_bad``, the problems of rows that the last iteration skipped.
    """

    def __init__(
        self, source: _Source, names: Sequence[str], form: RowForm[Item], columns: Mapping[str, str], *, skip_bad: bool
    ) -> None:
        self._source, self._names, self._columns, self.skip_bad = source, names, columns, skip_bad
        self.name, self.form = source.name, form
        self.skipped: list[DataError] = []

    def __iter__(self) -> Iterator[Item]:
        """Read the rows.

        Raises:
            DataError: At a bad row, unless bad rows are skipped; and without a single good one.
        """
        self.skipped = []
        count = 0
        for place, row in self.read_columns():
            try:
                item = self._read_row(row)
            except DataError as problem:
                error = DataError(f"{place}: {problem}")
                if not self.skip_bad:
                    raise error from problem
                self.skipped.append(error)
            else:
                count += 1
                yield item
        if count == 0:
            skipped = f": all {len(self.skipped):,} are bad, the first: {self.skipped[0]}" if self.skipped else ""
            raise DataError(f"{self.name} has no rows{skipped}")

    def read_columns(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Read the rows as they are, each with its place in words; columns have the names that the form expects."""
        bad = self.skipped if self.skip_bad else None
        for file, numbered in self._source.read_tables(bad):
            if self.form.is_whole:
                name = Path(file).stem
                yield file, {"id": name, "rows": [row for _, row in numbered]}
                continue
            for number, row in numbered:
                renamed = {name: row.get(column) for name, column in self._columns.items()}
                # A stream's first rows may lack a column that later ones have.
                columns = {**dict.fromkeys(self._names), "id": f"row/{number}"}
                columns |= _remove_missing(row)
                columns |= _remove_missing(renamed)
                yield f"{file}, row {number}", columns

    def _read_row(self, row: dict[str, Any]) -> Item:
        media = [name for name in _REFUSED if row.get(name)]
        if media:
            raise DataError(f"found a value in the column {', '.join(media)}; expected text only: remove the column")
        missing = [name for name in self.form.columns if row.get(name) is None and not self.form.is_whole]
        if missing:
            raise DataError(f"found no {' and no '.join(missing)}; expected {', '.join(self.form.columns)}")
        return self.form.read(row)

    def __repr__(self) -> str:
        return f"OwnRows({self.name}, {self.form.name})"


def load_own_rows(
    data: Any,
    forms: Sequence[RowForm[Item]],
    *,
    columns: Mapping[str, str] | None = None,
    split: str = "train",
    skip_bad: bool = False,
) -> OwnRows[Item]:
    """Open rows of one's own and tell their form by their columns.

    Args:
        data: A file (JSON Lines, JSON, CSV, Parquet), a folder of them, an id on the Hub, a dataset of `datasets`, or
            rows as mappings.
        forms: The forms to choose from, such as `DIALOGUES`.
        columns: The columns of a form, by the names that it gives them: ``{"prompt": "question"}``.
        split: Of several splits, the one to read.
        skip_bad: Skip bad rows and count them.

    Raises:
        DataError: When there are no rows, or their columns fit no form or several; says what to name.
    """
    source = _open_source(data, split)
    columns = columns or {}
    names = source.list_columns(skip_bad=skip_bad)
    lacking = sorted(set(columns.values()) - set(names))
    if lacking:
        raise DataError(f"{source.name} has no column {', '.join(lacking)}; it has {', '.join(names)}")
    matching = [form for form in forms if set(form.columns) <= {*names, *columns}]
    if len(matching) > 1 and columns:
        # What is named decides.
        matching = [form for form in matching if set(form.columns) & set(columns)]
    if len(matching) != 1:
        raise DataError(_explain_choice(source.name, names, matching or forms, is_open=bool(matching)))
    return OwnRows(source, names, matching[0], columns, skip_bad=skip_bad)


def parse_columns(pairs: Iterable[str]) -> dict[str, str]:
    """Parse ``prompt=question,completion=answer``.

    Raises:
        DataError: For a part without an equals sign.
    """
    columns = {}
    for pair in filter(None, ",".join(pairs).split(",")):
        name, equals, column = pair.partition("=")
        if not (name.strip() and equals and column.strip()):
            raise DataError(f"--columns: found {pair!r}; expected NAME=COLUMN, such as prompt=question")
        columns[name.strip()] = column.strip()
    return columns


def _explain_choice(name: str, columns: Sequence[str], forms: Sequence[RowForm[Any]], *, is_open: bool) -> str:
    names = [", ".join(form.columns) for form in forms]
    example = ",".join(f"{column}=COLUMN" for column in forms[0].columns)
    if is_open:
        example = ",".join(f"{column}={column}" for column in forms[0].columns)
        return f"{name} has the columns of {len(forms)} forms: {'; '.join(names)}. Choose one: --columns {example}"
    return (
        f"{name} has the columns {', '.join(columns) or '(none)'}, which are of no known form; expected "
        f"{'; or '.join(names)}. Say which columns they are: --columns {example}"
    )


@dataclass(frozen=True, slots=True)
class _Source:
    """Tables of rows that can be read again and again.

    Attributes:
        name: What messages call it.
        files: Files of rows, or
        rows: rows as mappings.
    """

    name: str
    files: Sequence[Path] = ()
    rows: Iterable[Mapping[str, Any]] = ()

    def read_tables(self, bad: list[DataError] | None) -> Iterator[tuple[str, Iterator[NumberedRow]]]:
        """Yield each table's name and its numbered rows."""
        for file in self.files:
            # Whatever its size: no more than a row of it is in memory.
            yield str(file), stream_rows(file, most_bytes=1 << 40, bad=bad)
        if not self.files:
            yield self.name, iter(enumerate(self.rows, start=1))

    def list_columns(self, *, skip_bad: bool) -> list[str]:
        """The columns of the first rows."""
        bad: list[DataError] | None = [] if skip_bad else None
        _, numbered = next(self.read_tables(bad))
        names: dict[str, None] = {}
        for number, row in islice(numbered, _PROBED):
            if not isinstance(row, Mapping):
                raise DataError(f"{self.name}, row {number}: found {type(row).__name__}; expected a mapping of columns")
            names |= dict.fromkeys(row)
        if not names:
            raise DataError(f"{self.name} has no rows")
        return list(names)


def _open_source(data: Any, split: str) -> _Source:
    if not isinstance(data, str | Path):
        return _open_dataset(data, "train_dataset", split)
    path = Path(data)
    if path.is_file():
        return _Source(str(path), files=[path])
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.suffix.lower() in SUFFIXES)
        if not files:
            raise DataError(f"no rows in this folder; expected files ending in {', '.join(SUFFIXES)}", path=path)
        return _Source(str(path), files=files)
    if not is_hub_id(str(data)):
        raise DataError(f"no file at {data}, and it is not an id on the Hub, OWNER/NAME")
    return _open_dataset(_load_from_hub(str(data)), str(data), split)


def _load_from_hub(name: str) -> Any:
    import datasets

    try:
        return datasets.load_dataset(name)
    except (OSError, ValueError, RuntimeError) as error:
        raise DataError(f"no file at {name}, and the Hub gave no such data set: {error}") from error


def _open_dataset(data: Any, name: str, split: str) -> _Source:
    if isinstance(data, Mapping):
        # A DatasetDict; a single split needs no name.
        if split not in data and len(data) != 1:
            raise DataError(f"{name} has the splits {', '.join(map(str, data))}; expected {split}")
        data = data[split] if split in data else next(iter(data.values()))
    features = getattr(data, "features", None) or {}
    media = [column for column, kind in features.items() if type(kind).__name__ in ("Image", "Audio", "Video")]
    if media:
        raise DataError(f"{name}: the columns {', '.join(media)} are pictures or sound; expected text: remove them")
    # What can be read only once is kept.
    rows = list(data) if isinstance(data, Iterator) else data
    return _Source(name, rows=rows)


def _make_dialogue(row: Mapping[str, Any], turns: list[Turn], first: int) -> Dialogue:
    """Make a dialogue that trains the assistant's turns from the first one on, except those of weight 0."""
    weights = [turn.pop("weight", turn["role"] == "assistant") for turn in turns]
    replies = [number for number, weight in enumerate(weights) if weight and number >= first]
    if not replies:
        speakers = ", ".join(turn["role"] for turn in turns) or "no turns"
        raise DataError(f"found {speakers}; expected an assistant's turn after another one, with a weight of 1")
    for number in replies:
        turn = turns[number]
        if not turn["content"].strip() and "tool_calls" not in turn:
            raise DataError(f"found an empty reply in turn {number + 1}; expected text")
    system = row.get("system")
    if system and turns[0]["role"] != "system":
        turns = [{"role": "system", "content": str(system)}, *turns]
        replies = [number + 1 for number in replies]
    return Dialogue(str(row["id"]), tuple(turns), tuple(replies), row.get("role"), read_options(row))


def read_options(row: Mapping[str, Any]) -> dict[str, Any]:
    """Read the columns that go to the chat template.

    Raises:
        DataError: When one has another shape.
    """
    options = row.get("chat_template_kwargs") or {}
    if not isinstance(options, dict):
        raise DataError("chat_template_kwargs is not an object")
    # An empty list would make Llama's template write about tools.
    if row.get("tools"):
        options = {"tools": read_objects("tools", row["tools"]), **options}
    return options


def read_messages(value: Any, role: str) -> list[Turn]:
    """Read turns, or a text as one turn of a role.

    Raises:
        DataError: For turns of another shape.
    """
    if isinstance(value, str):
        return [{"role": role, "content": value}]
    if not isinstance(value, list | tuple) or not all(isinstance(turn, Mapping) for turn in value):
        raise DataError(f"found {value!a:.80}; expected a text, or a list of turns")
    return [_read_turn(turn) for turn in value]


def _read_turn(value: Mapping[str, Any]) -> Turn:
    """Read a turn, without what it leaves empty."""
    turn: Turn = {}
    for name, item in _remove_missing(value).items():
        if item or name in ("content", "value", "weight"):
            turn[name] = item
    if "from" in turn:
        turn["role"], turn["content"] = turn.pop("from"), turn.pop("value", None)
    if "tool_calls" in turn:
        turn["content"] = turn.get("content") or ""
        turn["tool_calls"] = read_objects("tool_calls", turn["tool_calls"])
    turn["content"] = _join_parts(turn.get("content"))
    if not isinstance(turn["content"], str) or not isinstance(turn.get("role"), str):
        raise DataError(f"found the turn {turn!a:.80}; expected a role and a text as content")
    try:
        turn["content"].encode()
    except UnicodeEncodeError as error:
        raise DataError(f"found half a character at {error.start} of a turn's text; expected whole ones") from error
    if turn["role"] not in _SPEAKERS:
        raise DataError(f"found a turn of {turn['role']!a:.40}; expected one of {', '.join(_SPEAKERS)}")
    turn["role"] = _SPEAKERS[turn["role"]]
    weights = (0, 1) if turn["role"] == "assistant" else (0,)
    if turn.get("weight", 0) not in weights:
        raise DataError(
            f"a weight of {turn['weight']!r:.20} on a turn of {turn['role']!r}; an assistant turn takes 1 (train it) "
            "or 0 (only read it), others 0"
        )
    return turn


def _join_parts(content: Any) -> Any:
    """Join content that is a list of texts; anything else stays."""
    if not isinstance(content, list):
        return content
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
        if kind != "text":
            raise DataError(f"found content of type {kind}; expected text only")
    return "".join(part["text"] for part in content)


def read_objects(name: str, value: Any) -> list[dict[str, Any]]:
    """Read a list of objects, or one written as JSON."""
    try:
        objects = json.loads(value) if isinstance(value, str) else value
    except ValueError:
        objects = None
    if not isinstance(objects, list) or not all(isinstance(item, dict) for item in objects):
        raise DataError(f"{name} is neither a list of objects nor its JSON")
    return objects


def _remove_missing(value: Any) -> Any:
    """Remove what is None, which `datasets` writes where a row lacks a key that others have."""
    if isinstance(value, Mapping):
        return {name: _remove_missing(item) for name, item in value.items() if item is not None}
    if isinstance(value, list):
        return list(map(_remove_missing, value))
    return value
