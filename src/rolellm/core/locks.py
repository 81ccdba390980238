"""One run, one folder, one process group at a time."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from rolellm.core.errors import DataError, RunInUseError, SettingsError
from rolellm.core.files import NO_ROOM
from rolellm.core.jsonl import read_json

# Processes that start together look at the same moment, and must not take each other for another run.
_PATIENCE = 0.5
_LOCK = ".lock"


@contextmanager
def lock_folder(folder: Path, name: str = _LOCK) -> Iterator[None]:
    """Hold a folder; the system lets go of it however the process ends.

    Args:
        folder: Created if missing.
        name: The lock file's name; the file says who holds the folder.

    Raises:
        RunInUseError: When another process holds it; names that one.
        SettingsError: For a folder that cannot be written.
    """
    from filelock import FileLock, Timeout

    path = folder / name
    lock = FileLock(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=_PATIENCE, poll_interval=_PATIENCE / 10)
    except Timeout as error:
        held = folder
        kind = "folder"
        if name != _LOCK:
            # That of a file.
            held = path.with_name(name.removeprefix(".").removesuffix(".lock"))
            kind = "file"
        raise RunInUseError(
            f"{held} is in use by another run{_describe_holder(path)}; wait for it, or choose another {kind}"
        ) from error
    except OSError as error:
        if error.errno in NO_ROOM:
            raise
        raise SettingsError(
            f"{folder} cannot be written ({error.strerror}); name a folder to which you may write (--out)"
        ) from error
    try:
        # A lock that cannot say who holds it, on a full disk say, is still a lock.
        with suppress(OSError):
            since = datetime.now(UTC).isoformat(timespec="seconds")
            holder = {"pid": os.getpid(), "host": socket.gethostname(), "since": since}
            path.write_text(json.dumps(holder), encoding="utf-8")
        yield
    finally:
        # Unlinked while still held: filelock refuses a lock whose file is gone, so no second run slips in.
        with suppress(OSError):
            path.unlink()
        lock.release()


def check_unlocked(folder: Path) -> None:
    """Refuse a folder that is in use, without writing to it.

    Raises:
        RunInUseError: When another process holds it; names that one.
    """
    if (folder / _LOCK).is_file():
        with lock_folder(folder):
            pass


def _describe_holder(path: Path) -> str:
    try:
        holder = read_json(path)
        return f" (process {holder['pid']} on {holder['host']}, since {holder['since']})"
    except (DataError, KeyError):
        return ""
