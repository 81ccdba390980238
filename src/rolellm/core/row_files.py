"""Files of rows in any of the usual forms: JSON, JSON Lines, CSV, Parquet."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, Final

from rolellm.core.errors import DataError
from rolellm.core.foreign import MOST_BYTES, MOST_ROWS, read_limited, read_parquet, read_text
from rolellm.core.jsonl import read_jsonl

SUFFIXES: Final = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet")


def read_rows(
    path: Path, *, most_rows: int = MOST_ROWS, most_bytes: int = MOST_BYTES
) -> list[tuple[int, Mapping[str, Any]]]:
    """Read the rows of a file.

    Args:
        path: The file.
        most_rows: Maximum rows.
        most_bytes: Maximum bytes of the file, and of the rows of a Parquet file in memory.

    Returns:
        Each row with its number, counted from 1; in JSON Lines, that of its line.

    Raises:
        DataError: For a file that cannot be read, has no rows, or too many.
    """
    size = path.stat().st_size
    if size > most_bytes:
        raise DataError(f"{size:,} bytes; at most {most_bytes:,} are read; split it", path=path)
    suffix = path.suffix.lower()
    numbered: Iterable[tuple[int, Mapping[str, Any]]]
    if suffix in (".jsonl", ".ndjson"):
        numbered = read_jsonl(path)
    elif suffix == ".json":
        numbered = enumerate(_read_json_rows(path), start=1)
    elif suffix in (".csv", ".tsv"):
        numbered = enumerate(_read_csv_rows(path), start=1)
    elif suffix == ".parquet":
        numbered = enumerate(read_parquet(path, most_bytes=most_bytes), start=1)
    else:
        raise DataError(f"cannot tell what kind of file this is; known are {', '.join(SUFFIXES)}", path=path)
    rows = list(islice(numbered, most_rows + 1))
    if len(rows) > most_rows:
        raise DataError(f"over {most_rows:,} rows, the maximum; split it", path=path)
    if not rows:
        raise DataError("no rows in it", path=path)
    return rows


def _read_json_rows(path: Path) -> list[Mapping[str, Any]]:
    text = read_text(path)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        if getattr(error, "msg", None) == "Extra data":
            # JSON Lines go by this name, too.
            return [row for _, row in read_jsonl(path)]
        raise DataError(f"not valid JSON ({error})", path=path) from error
    if isinstance(value, Mapping):
        lists = [item for item in value.values() if isinstance(item, list)]
        value = lists[0] if len(lists) == 1 else [value]
    if not isinstance(value, list) or not all(isinstance(row, Mapping) for row in value):
        raise DataError("expected a list of objects, or an object that holds one", path=path)
    return value


def _read_csv_rows(path: Path) -> Iterator[Mapping[str, Any]]:
    """Read texts as they are: "N/A" is an answer, and 007 is not 7."""
    separator = "\t" if path.suffix.lower() == ".tsv" else ","
    try:
        text = read_limited(path).decode("utf-8-sig")
        yield from csv.DictReader(io.StringIO(text, newline=""), delimiter=separator)
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"not valid CSV in UTF-8 ({error})", path=path) from error
