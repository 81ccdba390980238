"""The bar of a run: done, in flight, failed, spent and what is left, on standard error."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rolellm.llm.task import Counts

_PATIENCE = 2.0
# In terminal columns.
_WIDTH_OF_FILES, _WIDE = 120, 112
_LABEL, _SHORT_LABEL = 36, 12


@contextmanager
def shown(label: str, total: int | None, read: Callable[[], tuple[Counts, float]], *, show: bool) -> Iterator[None]:
    """Show a bar while the block runs, once it has run for two seconds.

    Args:
        label: Before the bar.
        total: How many requests there are, where that is known.
        read: Gives counts and US dollars spent so far; called from another thread.
        show: Whether to show anything.
    """
    if not show:
        yield
        return
    ended = threading.Event()
    thread = threading.Thread(target=_draw, args=(label, total, read, ended), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _draw(label: str, total: int | None, read: Callable[[], tuple[Counts, float]], ended: threading.Event) -> None:
    if ended.wait(_PATIENCE):
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.table import Column
    from rich.text import Text

    screen = Console(stderr=True, force_jupyter=False)
    if not screen.is_terminal:
        screen = Console(stderr=True, force_jupyter=False, width=_WIDTH_OF_FILES)
    wide = screen.width >= _WIDE
    # What a narrow terminal has no room for is the bar, not the numbers.
    columns = (
        TextColumn("{task.description}", markup=False),
        *([BarColumn()] if wide else []),
        MofNCompleteColumn(table_column=Column(no_wrap=True)),
        TextColumn("{task.fields[state]}", markup=False),
        TimeElapsedColumn(table_column=Column(no_wrap=True)),
        TextColumn("ETA"),
        TimeRemainingColumn(table_column=Column(no_wrap=True)),
    )
    # The label may hold a role's name, which is anybody's text.
    name = Text("".join(character if character.isprintable() else " " for character in label or "asking"))
    name.truncate(_LABEL if wide else _SHORT_LABEL, overflow="ellipsis")
    with Progress(*columns, console=screen, refresh_per_second=4) as bar:
        task = bar.add_task(name.plain, total=total, state="")
        begun = time.monotonic()
        while True:
            counts, spent = read()
            bar.update(task, completed=counts.done, state=state_of(counts, spent))
            if ended.wait(0.25 if time.monotonic() - begun < 60 else 1.0):
                break
        counts, spent = read()
        bar.update(task, completed=counts.done, state=state_of(counts, spent))


def state_of(counts: Counts, spent: float) -> str:
    """What stands beside the bar.

    >>> state_of(Counts(done=10, failed=1, in_flight=4), 0.0123)
    '4 in flight, 1 failed, $0.0123'
    """
    return f"{counts.in_flight} in flight, {counts.failed} failed, ${spent:.4f}"
