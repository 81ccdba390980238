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
from rolellm.core.settings import load_words
from rolellm.core.text import fold, join_names
from rolellm.models.find import is_hub_id

Item = TypeVar("Item")
Turn = dict[str, Any]
#: Rows whose columns tell the form; a column may be missing in the first ones.
_PROBED: Final = 100
# Columns in a message.
_LISTED: Final = 10
# What the columns of a form are called elsewhere.
_USUAL: Final = {name: load_words(f"column_{name}") for name in ("messages", "prompt", "completion", "output")}
# Names of speakers in the data sets of the Hub, and what chat templates call them.
_SPEAKERS: Final = {
    "system": "system",
    "developer": "developer",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bot": "assistant",
    "ai": "assistant",
    "model": "assistant",
    "tool": "tool",
    "observation": "tool",
}
_MAKE_INSTEAD: Final = "To play someone from a chat or a script: rolellm make FILE --role NAME"
# No chat template reads the calls of an older interface, and only texts are trained.
_REFUSED: Final = ("functions", "image", "images", "video", "videos", "audio", "audios")


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
    completion = read_messages(row["completion"], "assistant")
    return _make_dialogue(row, prompt + completion, first=len(prompt))


def read_alpaca_row(row: Mapping[str, Any]) -> Dialogue:
    """Read ``instruction``, ``input`` and ``output``, after the pairs of ``history``."""
    prompt = row["instruction"]
    # Dolly's name for it.
    material = row.get("input") or row.get("context")
    if material:
        prompt = f"{prompt}\n\n{material}"
    texts: list[Any] = []
    for pair in row.get("history") or ():
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise DataError(f"found {pair!a:.80} in history; expected pairs of texts")
        texts += pair
    texts += [prompt, row["output"]]
    turns = []
    for number, text in enumerate(texts):
        turns.append({"role": ("user", "assistant")[number % 2], "content": text})
    return _make_dialogue(row, read_messages(turns, "user"), first=len(turns) - 1)


def read_tavern_chat(chat: Mapping[str, Any]) -> Dialogue:
    """Read the lines of an exported chat of SillyTavern; a reply's swipes are those that were not chosen."""
    characters: dict[str, None] = {}
    turns: list[Turn] = []
    for line in chat["rows"]:
        text = line.get("mes")
        # The first line has no message, and what is hidden from the model is marked.
        if not isinstance(text, str) or line.get("is_system"):
            continue
        speaker = "user"
        if not line.get("is_user"):
            speaker = "assistant"
            characters[str(line.get("name"))] = None
        if turns and turns[-1]["role"] == speaker:
            # Chat templates want speakers to take turns.
            turns[-1]["content"] += f"\n\n{text}"
        else:
            turns.append({"role": speaker, "content": text})
    if len(characters) > 1:
        raise DataError(
            f"found a group chat of {', '.join(characters)}; expected a chat with one character. {_MAKE_INSTEAD}"
        )
    role = next(iter(characters), None)
    return _make_dialogue({"id": chat["id"], "role": role}, turns, first=1)


#: The forms of dialogues.
DIALOGUES: Final = (
    RowForm("messages", ("messages",), read_messages_row),
    RowForm("ShareGPT", ("conversations",), read_messages_row),
    RowForm("Alpaca", ("instruction", "output"), read_alpaca_row),
    RowForm("SillyTavern", ("name", "is_user", "mes"), read_tavern_chat, is_whole=True),
    RowForm("prompt and completion", ("prompt", "completion"), read_prompt_row),
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
        self.name = source.name
        self.form = form
        self.skip_bad = skip_bad
        self._source = source
        self._names = names
        self._columns = columns
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
                if not self.skip_bad:
                    raise DataError(f"{place}: {problem}. --skip-bad leaves bad rows out") from problem
                self.skipped.append(DataError(f"{place}: {problem}"))
            else:
                count += 1
                yield item
        if count == 0 and self.skipped:
            first = self.skipped[0]
            raise DataError(f"{self.name}: all {len(self.skipped):,} rows are bad, the first: {first}")
        if count == 0:
            raise DataError(f"{self.name} has no rows")

    def read_columns(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Read the rows as they are, each with its place in words; columns have the names that the form expects."""
        bad = self.skipped if self.skip_bad else None
        for file, numbered in self._source.read_tables(bad):
            if self.form.is_whole:
                rows = [row for _, row in numbered]
                yield file, {"id": Path(file).stem, "rows": rows}
                continue
            for number, row in numbered:
                # Each row has all columns, which a file of JSON Lines may leave out.
                columns: dict[str, Any] = dict.fromkeys(self._names)
                columns["id"] = f"row/{number}"
                columns |= _remove_missing(row)
                for name, column in self._columns.items():
                    columns[name] = columns.get(column)
                yield f"{file}, row {number}", columns

    def _read_row(self, row: dict[str, Any]) -> Item:
        media = [name for name in _REFUSED if row.get(name)]
        if media:
            raise DataError(f"found a value in the column {', '.join(media)}; expected text only: remove the column")
        if not self.form.is_whole:
            columns = {name: self._columns.get(name, name) for name in self.form.columns}
            missing = [column for name, column in columns.items() if row.get(name) is None]
            if missing:
                raise DataError(f"found no {' and no '.join(missing)}; expected {', '.join(columns.values())}")
        return self.form.read(row)

    @property
    def title(self) -> str:
        """The source, its form and, where they have other names, its columns."""
        form = self.form.name
        if self._columns:
            form += f" in {', '.join(self._columns.values())}"
        return f"{self.name} ({form})"

    def __repr__(self) -> str:
        return f"OwnRows({self.title})"


def load_own_rows(
    data: Any,
    forms: Sequence[RowForm[Item]],
    *,
    columns: Mapping[str, str] | None = None,
    splits: Sequence[str] = ("train",),
    skip_bad: bool = False,
    argument: str = "train_dataset",
) -> OwnRows[Item]:
    """Open rows of one's own and tell their form by their columns.

    Args:
        data: A file (JSON Lines, JSON, CSV, Parquet), a folder of them, an id on the Hub, a dataset of `datasets`, a
            frame of pandas, or rows as mappings.
        forms: The forms to choose from, such as `DIALOGUES`.
        columns: The columns of a form, by the names that it gives them: ``{"prompt": "question"}``.
        splits: Of several splits, the first of these that is there is read. Files of a folder are splits where
            their names say so, by the rules of `datasets`.
        skip_bad: Skip bad rows and count them.
        argument: The name of rows that are neither a file nor on the Hub.

    Raises:
        DataError: When there are no rows, or their columns fit no form or several; says what to name.
    """
    source = _open_source(data, splits, argument)
    columns = columns or {}
    names = source.list_columns(skip_bad=skip_bad)
    unknown = ", ".join(sorted(set(columns.values()) - set(names)))
    if unknown:
        raise DataError(f"{source.name} has no column {unknown}; it has {', '.join(names)}")
    all_names = {*names, *columns}
    matching = [form for form in forms if all_names.issuperset(form.columns)]
    if not matching:
        for form in forms:
            usual = _find_usual(form, names, columns)
            if usual is not None:
                return OwnRows(source, names, form, usual, skip_bad=skip_bad)
    if len(matching) > 1 and columns:
        # What is named decides.
        matching = [form for form in matching if not columns.keys().isdisjoint(form.columns)]
    if not matching:
        raise DataError(_explain_unknown(source.name, names, forms))
    if len(matching) > 1:
        raise DataError(_explain_ambiguous(source.name, matching))
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
            raise DataError(f"columns: found {pair!r}; expected NAME=COLUMN, such as prompt=question")
        columns[name.strip()] = column.strip()
    return columns


def _find_usual(form: RowForm[Any], names: Sequence[str], columns: Mapping[str, str]) -> dict[str, str] | None:
    """Find the column for each of a form's that is usually called so; None where one has none, or several."""
    chosen = dict(columns)
    for name in form.columns:
        if name in chosen or name in names:
            continue
        usual = _USUAL.get(name, {name})
        matches = [column for column in names if fold(column) in usual]
        if len(matches) != 1:
            return None
        chosen[name] = matches[0]
    return chosen


def _explain_unknown(name: str, names: Sequence[str], forms: Sequence[RowForm[Any]]) -> str:
    expected = "; or ".join(", ".join(form.columns) for form in forms)
    example = ",".join(f"{column}=COLUMN" for column in forms[-1].columns)
    return (
        f"{name} has the columns {join_names(names, _LISTED):.300}, which are of no known form; expected {expected}. "
        f"Say which they are: --columns {example}. {_MAKE_INSTEAD}"
    )


def _explain_ambiguous(name: str, forms: Sequence[RowForm[Any]]) -> str:
    choices = []
    for form in forms:
        pairs = ",".join(f"{column}={column}" for column in form.columns)
        choices.append(f"--columns {pairs}")
    return f"{name} has the columns of {len(forms)} forms; choose one: {' or '.join(choices)}"


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


def _open_source(data: Any, splits: Sequence[str], argument: str) -> _Source:
    if not isinstance(data, str | Path):
        return _open_dataset(data, argument, splits)
    path = Path(data)
    if (path / "state.json").is_file() or (path / "dataset_dict.json").is_file():
        from datasets import load_from_disk

        return _open_dataset(load_from_disk(path), str(path), splits)
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    row_files = [file for file in files if file.suffix.lower() in SUFFIXES]
    if path.exists() and not row_files:
        kinds = ", ".join(SUFFIXES)
        raise DataError(
            f"no rows here; expected files ending in {kinds}. Save a spreadsheet as CSV. {_MAKE_INSTEAD}", path=path
        )
    if path.exists():
        return _open_files(path, row_files, splits)
    if not is_hub_id(str(data)):
        raise DataError(f"no file at {data}, and it is not an id on the Hub, OWNER/NAME")
    return _open_dataset(_load_from_hub(str(data)), str(data), splits)


def _open_files(path: Path, files: Sequence[Path], splits: Sequence[str]) -> _Source:
    """Open a file, or those of a folder: of one split, where their names tell splits."""
    if len(files) > 1:
        from datasets.data_files import DataFilesDict, get_data_patterns

        by_split = DataFilesDict.from_patterns(get_data_patterns(str(path)), base_path=str(path))
        chosen = next((split for split in splits if split in by_split), None)
        if len(by_split) > 1 and chosen is not None:
            names = {Path(file).name for file in by_split[chosen]}
            files = [file for file in files if file.name in names]
            return _Source(f"{path}, split {chosen}", files=files)
    return _Source(str(path), files=files)


def _load_from_hub(name: str) -> Any:
    import datasets

    try:
        return datasets.load_dataset(name)
    except (OSError, ValueError, RuntimeError) as error:
        raise DataError(f"no file at {name}, and the Hub gave no such data set: {error}") from error


def _open_dataset(data: Any, name: str, splits: Sequence[str]) -> _Source:
    if hasattr(data, "iterrows"):
        import datasets

        data = datasets.Dataset.from_pandas(data)
    if isinstance(data, Mapping):
        # A DatasetDict; a single split needs no name.
        candidates = splits if len(data) > 1 else list(data)
        chosen = next((split for split in candidates if split in data), None)
        if chosen is None:
            raise DataError(f"{name} has the splits {', '.join(data)}; expected {' or '.join(splits)}")
        data = data[chosen]
    features = getattr(data, "features", None) or {}
    for column, kind in features.items():
        if type(kind).__name__ in ("Image", "Audio", "Video"):
            raise DataError(f"{name}: found pictures or sound in the column {column}; expected text: remove the column")
    if isinstance(data, Iterator):
        # It can be read only once.
        data = list(data)
    return _Source(name, rows=data)


def _make_dialogue(row: Mapping[str, Any], turns: list[Turn], first: int) -> Dialogue:
    """Make a dialogue that trains the assistant's turns from the first one on, except those of weight 0."""
    replies = []
    for number, turn in enumerate(turns):
        is_trained = turn.pop("weight", 1) and turn["role"] == "assistant"
        if not is_trained or number < first:
            continue
        if not turn["content"].strip() and "tool_calls" not in turn:
            raise DataError(f"found an empty reply in turn {number + 1}; expected text")
        replies.append(number)
    if not replies:
        speakers = ", ".join(turn["role"] for turn in turns) or "none"
        raise DataError(f"found turns of {speakers}; expected an assistant's turn after another, of weight 1 if any")
    system = row.get("system")
    if system and turns[0]["role"] != "system":
        turns.insert(0, {"role": "system", "content": str(system)})
        replies = [number + 1 for number in replies]
    role = row.get("role")
    if not isinstance(role, str):
        role = None
    options = read_options(row)
    return Dialogue(str(row["id"]), tuple(turns), tuple(replies), role, options)


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
    for name, item in value.items():
        if item or name in ("content", "value", "weight"):
            turn[name] = item
    if "from" in turn:
        turn["role"] = turn.pop("from")
        turn["content"] = turn.pop("value", None)
    if "tool_calls" in turn:
        turn["content"] = turn.get("content") or ""
        turn["tool_calls"] = read_objects("tool_calls", turn["tool_calls"])
    turn["content"] = _join_parts(turn.get("content"))
    if not isinstance(turn["content"], str) or not isinstance(turn.get("role"), str):
        raise DataError(f"found the turn {turn!a:.80}; expected a role and a text as content. {_MAKE_INSTEAD}")
    try:
        turn["content"].encode()
    except UnicodeEncodeError as error:
        raise DataError(f"found half a character at {error.start} of a turn's text; expected whole ones") from error
    speaker = _SPEAKERS.get(turn["role"].lower())
    if speaker is None:
        speakers = ", ".join(_SPEAKERS)
        raise DataError(f"found a turn of {turn['role']!a:.40}; expected one of {speakers}. {_MAKE_INSTEAD}")
    turn["role"] = speaker
    weight = turn.get("weight", 0)
    is_possible = weight == 0 or (weight == 1 and turn["role"] == "assistant")
    if not is_possible:
        raise DataError(f"found a weight of {weight!r:.20} on a turn of {speaker}; expected 0, or 1 for the assistant")
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
        objects = value
        if isinstance(value, str):
            objects = json.loads(value)
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
