"""Where a call works that was given no folder."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rolellm.core.errors import StoppedShortError


@contextmanager
def use_working_folder(stage: str, out: str | Path | None = None) -> Iterator[Path]:
    """The folder that a call works in: the one given, else a new temporary one, named on standard error.

    So its work can be found and continued; a call that fails before any work leaves no empty folder.

    Args:
        stage: What works there, such as ``generate``.
        out: The folder given.
    """
    if out is not None:
        yield Path(out)
        return
    folder = Path(tempfile.mkdtemp(prefix=f"rolellm-{stage}-"))
    sys.stderr.write(f"{stage}: working in {folder}; pass out=… to keep the files elsewhere\n")
    try:
        yield folder
    except BaseException:
        with suppress(OSError):
            folder.rmdir()
        raise


@contextmanager
def name_call(folder: Path) -> Iterator[None]:
    """Have whatever stops short within a call name this call, not the stage that it was in.

    Args:
        folder: What it was given as ``out``.
    """
    try:
        yield
    except StoppedShortError as error:
        raise error.name_command(f"the same call with out={str(folder)!r}") from error
