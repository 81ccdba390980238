"""Stopping a run on request: the step is finished, a checkpoint is written, and the way to go on is named."""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from rolellm.errors import RoleLLMError, StoppedShortError
from rolellm.files import NO_ROOM
from rolellm.rocit import checkpoints
from rolellm.rocit.run_folder import RECIPE

# Ctrl-C, and what clusters send some time before they kill.
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
# How libraries in C++ and Rust say that a write failed: torch gives no reason, safetensors the system's number.
_TORCH = re.compile(r"PytorchStreamWriter|unexpected pos")
_NUMBER = re.compile(r"os error ([0-9]+)")
_HEARD = b"\nstopping after this step, with a checkpoint%b\n"


class StopRequest:
    """Whether this process was asked to stop."""

    def __init__(self) -> None:
        self.made = False


@contextmanager
def heeding(*, alone: bool) -> Iterator[StopRequest]:
    """Within the block, a request to stop (Ctrl-C, SIGTERM) is noted and interrupts nothing.

    Args:
        alone: A second request interrupts at once. Not so where several processes train together: a launcher passes
            on what the terminal has sent already, and one that leaves early keeps the others waiting.

    Yields:
        Where the request is noted. Outside the main thread, which alone hears signals, none ever is.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return

    def note(_number: int, _frame: FrameType | None) -> None:
        if request.made and alone:
            raise KeyboardInterrupt
        if not request.made:
            # Not print: a signal may come in the middle of another one.
            os.write(2, _HEARD % (b"; once more stops at once" if alone else b""))
        request.made = True

    before = {number: signal.signal(number, note) for number in _SIGNALS}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)


@contextmanager
def stopped_short(run: Path, *, again: str, resume: str) -> Iterator[None]:
    """Turn an interrupt or a full disk within the block into an error that says what is kept and how to go on.

    Args:
        run: The run's folder.
        again: The command that begins as this one did, for as long as nothing was done.
        resume: The command that goes on.

    Raises:
        StoppedShortError: On KeyboardInterrupt, and on a write that found no room.
    """
    before = _begun(run)
    try:
        yield
    except (KeyboardInterrupt, Exception) as error:
        full = _found_no_room(error)
        if not (full or isinstance(error, KeyboardInterrupt)):
            raise
        room = f"no room left on the disk of {run}; free some, then resume: " if full else ""
        if _begun(run) == before:
            raise StoppedShortError(f"{room}nothing was done yet", resume=again) from None
        step = checkpoints.last_step(run)
        kept = (
            f"step {step} is the last that {run} keeps" if step else f"{run} has no checkpoint yet, so it begins anew"
        )
        raise StoppedShortError(f"{room}{kept}", resume=resume) from None


def _found_no_room(error: BaseException) -> bool:
    """Whether an error, or one that it came from, says that a file could not be written for want of room."""
    if isinstance(error, RoleLLMError):
        return False  # It has its own words.
    number = error.errno if isinstance(error, OSError) else None
    if numbered := _NUMBER.search(str(error)):
        number = int(numbered[1])
    if number in NO_ROOM or _TORCH.search(str(error)):
        return True
    cause = error.__cause__ or error.__context__
    return cause is not None and _found_no_room(cause)


def _begun(run: Path) -> int:
    """Tells one beginning of a run, resumed ones included, from another."""
    recipe = run / RECIPE
    return recipe.stat().st_mtime_ns if recipe.is_file() else 0
