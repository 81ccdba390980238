"""The lock of a training run's folder, see `rolellm.locks`."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

from rolellm import locks

LOCK = ".rocit.lock"


def locked(run: Path) -> AbstractContextManager[None]:
    """Hold a run's folder.

    Raises:
        RunInUseError: When another process holds it; names that one.
    """
    return locks.locked(run, LOCK)


def check_unlocked(run: Path) -> None:
    """Refuse a folder in use at once, without writing there where nobody has.

    Raises:
        RunInUseError: When another process holds it; names that one.
    """
    locks.check_unlocked(run, LOCK)
