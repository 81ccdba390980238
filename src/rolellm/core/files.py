"""Writing files so that a reader finds them complete, or finds the old ones, and never half of one."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final, TextIO

from rolellm.core.errors import RoleLLMError, SettingsError

#: What the system says when a disk, a quota or a limit on files is full.
NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


@contextmanager
def open_atomic(path: str | Path) -> Iterator[TextIO]:
    """Open a text file for writing; it takes its place when the block ends, and not at all when the block fails.

    UTF-8 with LF on every system; the folder is made where needed.
    """
    with _replace_when_done(Path(path)) as partial, partial.open("w", encoding="utf-8", newline="\n") as stream:
        yield stream


@contextmanager
def open_atomic_binary(path: str | Path) -> Iterator[BinaryIO]:
    """Open a file of bytes in the same way."""
    with _replace_when_done(Path(path)) as partial, partial.open("wb") as stream:
        yield stream


@contextmanager
def fill_folder(path: str | Path) -> Iterator[Path]:
    """A folder to fill; it takes its place when the block ends, and not at all when the block fails.

    Its place must be free by then, or an empty folder.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        partial.mkdir()
        yield partial
        if target.is_dir():
            target.rmdir()
        partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def _replace_when_done(target: Path) -> Iterator[Path]:
    if target.exists() and not (target.is_file() or target.is_dir()):
        # Taking its place would leave a plain file where /dev/null was.
        raise SettingsError(f"{target} is not a regular file; name a file to write")
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        yield partial
        partial.replace(target)
    except OSError as error:
        if error.filename in (None, str(partial)):
            # A full disk names no file, and nobody knows the partial one.
            error.filename = str(target)
        raise
    finally:
        partial.unlink(missing_ok=True)


def write_json(path: str | Path, value: Mapping[str, Any]) -> None:
    """Write a JSON object, indented, complete or not at all."""
    with open_atomic(path) as stream:
        stream.write(json.dumps(value, ensure_ascii=False, indent=2) + "\n")


def is_disk_full(error: BaseException) -> bool:
    """Tell whether an error, or one that it came from, says that a file could not be written for want of room."""
    if isinstance(error, RoleLLMError):
        return False  # It has its own words.
    number = error.errno if isinstance(error, OSError) else None
    # Libraries in C++ and Rust: torch gives no reason, safetensors the system's number.
    match = re.search(r"os error ([0-9]+)", str(error))
    if match is not None:
        number = int(match[1])
    if number in NO_ROOM or re.search("PytorchStreamWriter|unexpected pos", str(error)):
        return True
    cause = error.__cause__
    if cause is None and not error.__suppress_context__:
        cause = error.__context__
    return cause is not None and is_disk_full(cause)
