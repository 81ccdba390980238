"""Reads instruction data sets: files, folders or data sets of the Hub, whatever their columns are called."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from rolellm.errors import DataError, RecipeError
from rolellm.fingerprint import hash_file, hash_json
from rolellm.jsonl import read_jsonl

_SUFFIXES: Final = MappingProxyType(
    {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "json", ".csv": "csv", ".tsv": "csv", ".parquet": "parquet"}
)
_NAME: Final = re.compile(r"\w[\w.-]*/\w[\w.-]*(?::.+)?")
_INSTRUCTIONS: Final = ("instruction", "question", "prompt", "query", "definition", "problem", "input")
_INPUTS: Final = ("input", "inputs", "context")
_TARGETS: Final = ("target", "targets", "output", "outputs", "response", "answer", "answers", "completion", "solution")
_TALKS: Final = ("messages", "conversations", "conversation")
_SIDES: Final = MappingProxyType({"user": 0, "human": 0, "prompter": 0, "assistant": 1, "gpt": 1, "bot": 1})


@dataclass(frozen=True, slots=True)
class Columns:
    """Where the instruction and its answer stand.

    Attributes:
        instruction: The instruction's column; of conversations, their column.
        target: The answer's column; ``None`` with conversations.
        input: A column of what the instruction is about, which is put below it; blank in many rows.
    """

    instruction: str
    target: str | None
    input: str | None = None

    @property
    def names(self) -> list[str]:
        """Those there are."""
        return [name for name in (self.instruction, self.target, self.input) if name is not None]


@dataclass(frozen=True, slots=True)
class Source:
    """A data set as it was read.

    Attributes:
        name: As it was asked for; of a file or folder its own name only.
        split: Of which split, where it has splits.
        columns: Where instruction and answer were found.
        fingerprint: Of its content.
        rows: Instruction and answer of each row, in its order; an empty text where there is none.
    """

    name: str
    split: str | None
    columns: Columns
    fingerprint: str
    rows: Sequence[tuple[str, str]]

    def to_dict(self) -> dict[str, Any]:
        """For the manifest, without the rows."""
        columns = {"instruction": self.columns.instruction, "target": self.columns.target, "input": self.columns.input}
        return {"name": self.name, "split": self.split, "columns": columns, "fingerprint": self.fingerprint}


def read_source(
    dataset: str, *, split: str | None = None, instruction_column: str | None = None, target_column: str | None = None
) -> Source:
    """Read a data set of instructions.

    Args:
        dataset: A file (JSON, JSON Lines, CSV, Parquet), a folder of such files or one of ``save_to_disk``, or the name
            of a data set on the Hub, ``OWNER/NAME`` or ``OWNER/NAME:CONFIG``.
        split: By default ``train``; a single file has none.
        instruction_column: By default found by its usual names.
        target_column: By default found by its usual names.

    Raises:
        RecipeError: For a column that is not there, or none that is known by name; names the columns.
        DataError: When it cannot be read, or has no rows.
    """
    path = Path(dataset)
    if path.is_file():
        if split is not None:
            raise RecipeError(f"{dataset} is one file and has no splits; leave --split out")
        rows, fingerprint = _file_rows(path), hash_file(path)
        columns = _columns(_names(rows), instruction_column, target_column, dataset)
        return Source(path.name, None, columns, fingerprint, [_pair(row, columns) for row in rows])
    if not path.is_dir() and (_NAME.fullmatch(dataset) is None or path.suffix.lower() in _SUFFIXES):
        raise DataError("no such file or folder, and no name of a data set on the Hub (OWNER/NAME)", path=dataset)
    wanted = split or "train"
    with _loaded(dataset, wanted) as data:
        columns = _columns(data.column_names, instruction_column, target_column, dataset)
        held = data.select_columns(columns.names)
        texts = [_pair(row, columns) for row in held]
    name = path.resolve().name if path.is_dir() else dataset
    return Source(name, wanted, columns, hash_json(texts), texts)


def _file_rows(path: Path) -> list[Mapping[str, Any]]:
    kind = _SUFFIXES.get(path.suffix.lower())
    if kind is None:
        raise DataError(f"cannot tell what kind of file this is; known are {', '.join(_SUFFIXES)}", path=path)
    if kind == "jsonl":
        rows: list[Mapping[str, Any]] = [row for _, row in read_jsonl(path)]
    elif kind == "json":
        rows = _json_rows(path)
    elif kind == "csv":
        rows = _csv_rows(path)
    else:
        with _loaded(str(path), "train", kind=kind) as data:
            rows = list(data)
    if not rows:
        raise DataError("no rows in it", path=path)
    return rows


def _json_rows(path: Path) -> list[Mapping[str, Any]]:
    import json

    try:
        value = json.loads(path.read_text(encoding="utf-8-sig"))
    except json.JSONDecodeError as error:
        if error.msg == "Extra data":
            # JSON Lines go by this name, too.
            return [row for _, row in read_jsonl(path)]
        raise DataError(f"not valid JSON ({error})", path=path) from error
    except (UnicodeDecodeError, RecursionError) as error:
        raise DataError(f"not valid JSON in UTF-8 ({error})", path=path) from error
    if isinstance(value, Mapping):
        lists = [item for item in value.values() if isinstance(item, list)]
        value = lists[0] if len(lists) == 1 else [value]
    if not isinstance(value, list) or not all(isinstance(row, Mapping) for row in value):
        raise DataError("expected a list of objects, or an object that holds one", path=path)
    return value


def _csv_rows(path: Path) -> list[Mapping[str, Any]]:
    """Texts as they stand: "N/A" is an answer, and 007 is no 7."""
    import csv

    separator = "\t" if path.suffix.lower() == ".tsv" else ","
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            return list(csv.DictReader(stream, delimiter=separator))
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"not valid CSV in UTF-8 ({error})", path=path) from error


@contextmanager
def _loaded(dataset: str, split: str, *, kind: str | None = None) -> Iterator[Any]:
    """The split as `datasets` loads it; what it makes on the way of files on this machine is left nowhere."""
    import datasets

    path = Path(dataset)
    with tempfile.TemporaryDirectory(prefix="rolellm-") as cache:
        try:
            if kind is not None:
                data = datasets.load_dataset(kind, data_files=dataset, split=split, cache_dir=cache)
            elif (path / "state.json").is_file() or (path / "dataset_dict.json").is_file():
                held = datasets.load_from_disk(dataset)
                data = held if isinstance(held, datasets.Dataset) else held[split]
            elif path.is_dir():
                # datasets cannot name what "." is.
                data = datasets.load_dataset(str(path.resolve()), split=split, cache_dir=cache)
            else:
                name, _, config = dataset.partition(":")
                data = datasets.load_dataset(name, config or None, split=split)
        except Exception as error:
            # What datasets, pyarrow, pandas and the Hub's client raise has no one base.
            reason = (str(error).strip() or type(error).__name__).splitlines()[0][:300]
            expected = "a file, a folder or a data set on the Hub (OWNER/NAME)"
            raise DataError(f"cannot read split {split!r} of {dataset} ({reason}); expected {expected}") from error
        yield data


def _names(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    # Objects of JSON Lines need not all have the same keys.
    return list(dict.fromkeys(str(name) for row in rows[:1000] for name in row))


def _columns(names: Sequence[str], instruction: str | None, target: str | None, dataset: str) -> Columns:
    by_name = {name.casefold(): name for name in reversed(names)}
    for wanted in (instruction, target):
        if wanted is not None and wanted not in names:
            raise RecipeError(f"{dataset} has no column {wanted!r}; it has {', '.join(names)}")
    if instruction is None and target is None:
        talk = _first(by_name, _TALKS)
        if talk is not None:
            return Columns(talk, None)
    if instruction in by_name.values() and target is None and str(instruction).casefold() in _TALKS:
        return Columns(str(instruction), None)
    found = instruction or _first(by_name, _INSTRUCTIONS)
    answer = target or _first(by_name, _TARGETS)
    if found is None or answer is None:
        lacking = "instruction" if found is None else "target"
        raise RecipeError(
            f"cannot tell which column of {dataset} holds the {lacking}: it has {', '.join(names)}; name it with "
            f"--{lacking}-column"
        )
    # A column that the user named says all that is wanted.
    about = (
        None if instruction is not None else _first(by_name, [name for name in _INPUTS if by_name.get(name) != found])
    )
    return Columns(found, answer, about)


def _first(by_name: Mapping[str, str], wanted: Sequence[str]) -> str | None:
    return next((by_name[name] for name in wanted if name in by_name), None)


def _pair(row: Mapping[str, Any], columns: Columns) -> tuple[str, str]:
    if columns.target is None:
        return _talk(row.get(columns.instruction))
    parts = [_text(row.get(columns.instruction))]
    if columns.input is not None:
        parts.append(_text(row.get(columns.input)))
    return "\n".join(filter(None, parts)) if parts[0] else "", _text(row.get(columns.target))


def _text(value: Any) -> str:
    if isinstance(value, list) and value:
        # Several answers; the first is as good as any.
        value = value[0]
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return ""
    return str(value).strip()


def _talk(value: Any) -> tuple[str, str]:
    """The first question of a conversation with the answer to it; one that opens otherwise has neither."""
    if not isinstance(value, list):
        return "", ""
    turns: list[tuple[int | None, str]] = []
    for item in value:
        if not isinstance(item, Mapping):
            return "", ""
        side = _SIDES.get(str(item.get("role", item.get("from", ""))).casefold())
        if side is None and not turns:
            # A system message.
            continue
        turns.append((side, _text(item.get("content", item.get("value")))))
        if len(turns) == 2:
            break
    if [side for side, _ in turns] != [0, 1]:
        return "", ""
    return turns[0][1], turns[1][1]
