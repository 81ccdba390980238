"""JSON values as typed objects: read once, checked in full, and refused in words that name the place."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
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
        location = "".join([" at ", ".".join(map(str, first["loc"]))] if first["loc"] else [])
        problem = f"{first['msg'].removeprefix('Value error, ')} (found {first['input']!r:.80})"
        raise DataError(f"{subject} is not valid{location}: {problem}", path=path, line=line) from error
    return result
