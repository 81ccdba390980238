"""Files of rows in any of the usual forms: JSON, JSON Lines, CSV, Parquet."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, Final

from rolellm.core.errors import DataError
from rolellm.core.foreign import MOST_BYTES, MOST_ROWS, read_parquet, read_text
from rolellm.core.jsonl import read_jsonl

SUFFIXES: Final = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet")

_BEGINNING: Final = 1024

NumberedRow = tuple[int, Mapping[str, Any]]


def read_rows(path: Path, *, most_rows: int = MOST_ROWS, most_bytes: int = MOST_BYTES) -> list[NumberedRow]:
    """Read the rows of a file.

    Args:
        path: The file.
        most_rows: Maximum rows.
        most_bytes: Maximum bytes of the file, and of the rows of a Parquet file in memory.

    Returns:
        Each row with its number, as `stream_rows` has it.

    Raises:
        DataError: For a file that cannot be read, has no rows, or too many.
    """
    size = path.stat().st_size
    if size > most_bytes:
        raise DataError(f"{size:,} bytes; at most {most_bytes:,} are read; split it", path=path)
    rows = list(islice(stream_rows(path, most_bytes=most_bytes), most_rows + 1))
    if len(rows) > most_rows:
        raise DataError(f"over {most_rows:,} rows, the maximum; split it", path=path)
    if not rows:
        raise DataError("no rows in it", path=path)
    return rows


def stream_rows(
    path: Path, *, most_bytes: int = MOST_BYTES, bad: list[DataError] | None = None
) -> Iterator[NumberedRow]:
    """Read the rows of a file one after the other; only JSON is read as a whole.

    Args:
        path: The file.
        most_bytes: Maximum bytes of the rows of a Parquet file.
        bad: When given, broken rows of JSON Lines and CSV are appended here and skipped.

    Yields:
        The row's number, counted from 1 (in JSON Lines, that of its line), and the row.

    Raises:
        DataError: For a file that cannot be read, and at a broken row.
    """
    suffix = path.suffix.lower()
    rows: Iterable[NumberedRow]
    if suffix in (".jsonl", ".ndjson") and not _is_array(path):
        rows = read_jsonl(path, bad=bad)
    elif suffix in (".json", ".jsonl", ".ndjson"):
        rows = _read_json_rows(path, bad)
    elif suffix in (".csv", ".tsv"):
        rows = _read_csv_rows(path, bad)
    elif suffix == ".parquet":
        rows = enumerate(read_parquet(path, most_bytes=most_bytes), start=1)
    else:
        raise DataError(f"cannot tell what kind of file this is; known are {', '.join(SUFFIXES)}", path=path)
    yield from rows


def _is_array(path: Path) -> bool:
    with path.open("rb") as stream:
        return stream.read(_BEGINNING).removeprefix(b"\xef\xbb\xbf").lstrip()[:1] == b"["


def _read_json_rows(path: Path, bad: list[DataError] | None) -> Iterable[NumberedRow]:
    text = read_text(path)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        if getattr(error, "msg", None) == "Extra data":
            # JSON Lines go by this name, too.
            return read_jsonl(path, bad=bad)
        raise DataError(f"not valid JSON ({error})", path=path) from error
    if isinstance(value, Mapping):
        lists = [item for item in value.values() if isinstance(item, list)]
        is_dialogue = "messages" in value or "conversations" in value
        value = [value] if is_dialogue or len(lists) != 1 else lists[0]
    if not isinstance(value, list) or not all(isinstance(row, Mapping) for row in value):
        raise DataError("expected a list of objects, or an object that holds one", path=path)
    return enumerate(value, start=1)


def _read_csv_rows(path: Path, bad: list[DataError] | None) -> Iterator[NumberedRow]:
    """Read texts as they are: "N/A" is an answer, and 007 is not 7. The delimiter is what the header has most."""
    number = 0
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            first_line = stream.readline()
            stream.seek(0)
            delimiter = max(",;\t", key=first_line.count)
            reader = csv.reader(stream, delimiter=delimiter)
            header = [name.strip() for name in next(reader, [])]
            # An empty line is no row.
            for number, fields in enumerate(filter(None, reader), start=1):
                if len(fields) == len(header):
                    yield number, dict(zip(header, fields, strict=True))
                    continue
                problem = f"row {number} has {len(fields)} fields; expected {len(header)}: {', '.join(header)}"
                error = DataError(f"{problem}. A text with {delimiter!r} in it needs quotation marks", path=path)
                if bad is None:
                    raise error
                bad.append(error)
    except UnicodeDecodeError as error:
        raise DataError("not UTF-8; save it so, in Excel as “CSV UTF-8”", path=path) from error
    except (OSError, csv.Error) as error:
        raise DataError(f"not valid CSV after row {number} ({error})", path=path) from error
