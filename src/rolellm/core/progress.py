"""Progress of long work on standard error, by tqdm: a bar on a terminal, elsewhere a plain line every few seconds.

Work that takes under two seconds shows nothing, in a file under ten. On a terminal, an import that takes over a second
is named while it lasts.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sized
from typing import Any, TypeVar

from rolellm.core.sanitize import label as make_label

_Item = TypeVar("_Item")
# Seconds before anything is shown, and between two lines in a file.
_DELAY, _BETWEEN_LINES = 2.0, 10.0
# Columns of a terminal.
_LABEL = 36


class _LineWriter:
    """Standard error where it is not a terminal: what is redirected is read later, so each state is a line."""

    def write(self, text: str) -> None:
        # tqdm moves the cursor between bars.
        line = text.replace("\x1b[A", "").strip("\r\n ")
        if line:
            sys.stderr.write(f"{line}\n")

    def flush(self) -> None:
        sys.stderr.flush()


def open_bar(label: str, total: int | None = None, *, done: int = 0, unit: str = "it", show: bool = True) -> Any:
    """Open a bar; a context manager.

    Args:
        label: What is being done; control characters in it are not printed.
        total: How much there is to do, where that is known.
        done: How much was done before; it does not count for the speed.
        unit: What is counted, such as ``rows``.
        show: Whether to show anything.
    """
    from tqdm import tqdm

    options: dict[str, Any] = {"file": _LineWriter(), "mininterval": _BETWEEN_LINES}
    if sys.stderr.isatty():
        options = {"dynamic_ncols": True}
    # A bar of one says nothing once it is done.
    options |= {"initial": done, "unit": f" {unit}", "disable": not show, "delay": _DELAY, "leave": total != 1}
    return tqdm(desc=make_label(label, _LABEL), total=total, **options)


def track_progress(items: Iterable[_Item], label: str, unit: str = "it") -> Iterator[_Item]:
    """The items, and on standard error how many were taken.

    >>> list(track_progress("ab", "reading"))
    ['a', 'b']
    """
    with open_bar(label, len(items) if isinstance(items, Sized) else None, unit=unit) as bar:
        for item in items:
            yield item
            bar.update()


# Seconds between two looks, until an import is named, and until nothing more is expected.
_LOOK, _SLOW_IMPORT, _QUIET = 0.2, 1.0, 60.0


def announce_imports() -> None:
    """Name packages whose import takes over a second, each once, on a terminal; nothing elsewhere."""
    if sys.stderr.isatty():
        threading.Thread(target=_watch_imports, name="imports", daemon=True).start()


def _watch_imports() -> None:
    announced: set[str] = set()
    package, since = find_importing(), time.monotonic()
    while True:
        time.sleep(_LOOK)
        current, now = find_importing(), time.monotonic()
        if current != package:
            package, since = current, now
        elif package is None and now - since > _QUIET:
            return
        elif package is not None and package not in announced and now - since > _SLOW_IMPORT:
            announced.add(package)
            sys.stderr.write(f"Loading {package} …\n")


def find_importing() -> str | None:
    """Find the package that is being imported, the outermost that is not ours; ``None`` where none is."""
    for name, module in list(sys.modules.items()):
        # Python's own mark of a module whose code still runs.
        if getattr(getattr(module, "__spec__", None), "_initializing", False):
            package = name.partition(".")[0]
            if package != __name__.partition(".")[0]:
                return package
    return None
