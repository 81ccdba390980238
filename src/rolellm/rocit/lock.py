"""One run, one folder, one process group at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rolellm.errors import RunInUseError

LOCK = ".rocit.lock"
# Processes that start together look at the same moment, and must not take each other for another run.
_PATIENCE = 0.5


@contextmanager
def locked(run: Path) -> Iterator[None]:
    """Hold a run's folder; the system lets go of it however the process ends.

    Raises:
        RunInUseError: When another process holds it.
    """
    from filelock import FileLock, Timeout

    run.mkdir(parents=True, exist_ok=True)
    lock = FileLock(run / LOCK)
    try:
        lock.acquire(timeout=_PATIENCE, poll_interval=_PATIENCE / 10)
    except Timeout as error:
        raise RunInUseError(f"{run} is in use by another run; wait for it, or choose another folder") from error
    try:
        yield
    finally:
        # Unlinked while still held: filelock refuses a lock whose file is gone, so no second run slips in.
        with suppress(OSError):
            (run / LOCK).unlink()
        lock.release()


def check_unlocked(run: Path) -> None:
    """Refuse a folder in use at once, without writing there where nobody has.

    Raises:
        RunInUseError: When another process holds it.
    """
    if (run / LOCK).is_file():
        with locked(run):
            pass
