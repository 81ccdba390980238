"""JSON values: read as typed objects, which is refused in words that name the place, and changed text by text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from rolellm.core.errors import DataError

_T = TypeVar("_T")
_adapter: Callable[[Any], TypeAdapter[Any]] = cache(TypeAdapter)


def read_as(kind: type[_T], value: Any, subject: str, *, path: str | Path | None = None, line: int | None = None) -> _T:
    """A JSON value as an object of a dataclass; keys that the class does not have are ignored.

    Args:
        kind: The dataclass.
        value: What `json.loads` returned.
        subject: What is being read, such as ``the manifest``.
        path: The file, where there is one.
        line: The line in it, counted from 1.

    Raises:
        DataError: When the value does not fit; names the first place that does not.
    """
    try:
        result: _T = _adapter(kind).validate_python(value)
    except ValidationError as error:
        first = error.errors()[0]
        location = ".".join(map(str, first["loc"]))
        at = f" at {location}" if location else ""
        problem = f"{first['msg'].removeprefix('Value error, ')} (found {first['input']!r:.80})"
        raise DataError(f"{subject} is not valid{at}: {problem}", path=path, line=line) from error
    return result


def map_strings(value: Any, change: Callable[[str], str]) -> Any:
    """A JSON value with each text in it changed, keys included.

    >>> map_strings({"a": ["b", 1, None]}, str.upper)
    {'A': ['B', 1, None]}
    """
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {map_strings(key, change): map_strings(item, change) for key, item in value.items()}
    if isinstance(value, list):
        return [map_strings(item, change) for item in value]
    return value


def strip_folders(value: Any) -> Any:
    """A JSON value whose absolute paths, places on this machine, are cut down to their last part.

    >>> strip_folders({"base": "/home/me/model", "split": "train"})
    {'base': 'model', 'split': 'train'}
    """
    return map_strings(value, _strip_folder)


def _strip_folder(text: str) -> str:
    path = PureWindowsPath(text)
    return path.name if path.is_absolute() or PurePosixPath(text).is_absolute() else text
