"""JSON Lines: reading that names file and line when something is wrong, and appending that survives a kill."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from rolellm.core.errors import DataError
from rolellm.core.files import open_atomic
from rolellm.core.foreign import MOST_BYTES, read_limited


def read_jsonl(path: str | Path, *, bad: list[DataError] | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
    """Read the objects of a JSON Lines file; a BOM, CRLF and blank lines are accepted.

    Args:
        path: The file.
        bad: When given, broken lines are appended here (as errors that know their line) and skipped.

    Yields:
        The line number, counted from 1, and the object.

    Raises:
        DataError: On a line that is not one JSON object in UTF-8, unless ``bad`` collects it.
    """
    with Path(path).open("rb") as stream:
        lines = iter(partial(stream.readline, MOST_BYTES + 1), b"")
        for number, raw in enumerate(lines, start=1):
            if len(raw) > MOST_BYTES:
                raise DataError(f"the line has over {MOST_BYTES:,} bytes; is this JSON Lines?", path=path, line=number)
            if number == 1:
                raw = raw.removeprefix(b"\xef\xbb\xbf")
            if not raw.strip():
                continue
            try:
                yield number, parse_object(raw, path, number)
            except DataError as error:
                if bad is None:
                    raise
                bad.append(error)


def read_json(path: str | Path) -> dict[str, Any]:
    """Read the object of a JSON file.

    Raises:
        DataError: For a file that cannot be read, or is not one JSON object in UTF-8.
    """
    return parse_object(read_limited(path), path)


def parse_object(raw: bytes, path: str | Path, line: int | None = None) -> dict[str, Any]:
    """The object of a JSON text.

    Args:
        raw: The text, in UTF-8.
        path: What to call its source in messages.
        line: The line in it, counted from 1.

    Raises:
        DataError: When it is something else.
    """
    try:
        value = json.loads(raw)
    except UnicodeDecodeError as error:
        problem = f"not UTF-8 ({error.reason} at byte {error.start}); save it as UTF-8"
        raise DataError(problem, path=path, line=line) from error
    except (ValueError, RecursionError) as error:
        problem = f"not valid JSON ({error})"
        if line is not None:
            problem += "; expected one object on each line"
        if line is not None and not raw.endswith(b"\n"):
            problem += "; the line has no end, so the file may be cut off here"
        raise DataError(problem, path=path, line=line) from error
    if not isinstance(value, dict):
        raise DataError(f"expected a JSON object, found {type(value).__name__}", path=path, line=line)
    return value


def write_jsonl(path: str | Path, objects: Iterable[Mapping[str, Any]]) -> int:
    """Write objects as JSON Lines, complete or not at all; return how many."""
    count = 0
    with open_atomic(path) as stream:
        for item in objects:
            stream.write(json.dumps(item, ensure_ascii=False) + "\n")
            count += 1
    return count


class JsonlAppender:
    """Appends objects to a JSON Lines file so that a kill loses at most the line being written.

    A cut-off last line, left by an earlier kill, is removed on opening.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._stream = self.path.open("ab+")
        self._stream.seek(0)
        self._stream.truncate(self._stream.read().rfind(b"\n") + 1)

    def append(self, objects: Iterable[Mapping[str, Any]]) -> None:
        """Write objects and hand them to the operating system before returning."""
        data = "".join(json.dumps(item, ensure_ascii=False) + "\n" for item in objects)
        self._stream.write(data.encode("utf-8"))
        self._stream.flush()
        os.fsync(self._stream.fileno())

    def close(self) -> None:
        """Close the file."""
        self._stream.close()

    def __enter__(self) -> JsonlAppender:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
