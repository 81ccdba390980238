"""Progress of long work, on standard error: a live bar on a terminal, elsewhere a plain line every few seconds.

Work that takes under two seconds shows nothing.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

from rolellm.core.sanitize import label as one_line

if TYPE_CHECKING:
    from rich.console import Console

_Item = TypeVar("_Item")
# In seconds: delay before anything is shown, time between frames of a bar, and between plain lines.
_PATIENCE, _FRAME, _EVERY = 2.0, 0.25, 10.0
# In terminal columns.
_WIDE, _LABEL, _SHORT_LABEL = 112, 36, 12


@dataclass(eq=False)
class Progress:
    """Progress of some work, shown by a thread of its own within a ``with`` block, or between `start` and `stop`.

    Attributes:
        label: What is being done; control characters in it are not printed.
        total: How much there is to do, where that is known.
        done: How much was done before; it does not count for the speed.
        unit: What is counted, such as ``rows``; shows how many a second.
        look: Called before each drawing, from another thread, to call `update`.
        show: Whether to show anything.
        state: Shown after the counts, such as ``loss 2.31``.
    """

    label: str
    total: int | None = None
    done: int = field(default=0, kw_only=True)
    unit: str = field(default="", kw_only=True)
    look: Callable[[Progress], None] | None = field(default=None, kw_only=True)
    show: bool = field(default=True, kw_only=True)
    state: str = field(default="", init=False)

    def __post_init__(self) -> None:
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._since, self._before = time.monotonic(), self.done

    def update(self, *, done: int | None = None, total: int | None = None, state: str | None = None) -> None:
        """Set what changed.

        Args:
            done: How much is done.
            total: How much there is to do.
            state: Shown after the counts, such as ``loss 2.31``.
        """
        self.done = self.done if done is None else done
        self.total = self.total if total is None else total
        self.state = self.state if state is None else state

    def advance(self, count: int = 1) -> None:
        """Count what was done since the last call."""
        self.done += count

    def start(self) -> None:
        """Begin to show it; the clock starts now."""
        self._since, self._before = time.monotonic(), self.done
        if self.show:
            self._thread = threading.Thread(target=self._draw, daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Show how far it came, unless it was quick, and no more; may be called twice."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def __enter__(self) -> Progress:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _format_numbers(self) -> str:
        of = "" if self.total is None else f"/{self.total}"
        return " ".join(part for part in (f"{self.done}{of}" if of or self.done else "", self.state) if part)

    def _format_pace(self) -> str:
        seconds = time.monotonic() - self._since
        speed = (self.done - self._before) / seconds if seconds else 0.0
        rate = f"{speed:.1f} {self.unit}/s " if self.unit and speed else ""
        if self.total is None:
            return f"{rate}{_format_clock(seconds)}"
        remaining = _format_clock((self.total - self.done) / speed) if speed else "-:--:--"
        return f"{rate}{_format_clock(seconds)} ETA {remaining}"

    def _draw(self) -> None:
        if self._ended.wait(_PATIENCE):
            return
        from rich.console import Console

        screen = Console(stderr=True, force_jupyter=False)
        if screen.is_terminal and not screen.is_dumb_terminal:
            self._draw_bar(screen)
            return
        printed = None
        for _ in self._wait_frames(_EVERY):
            numbers = self._format_numbers()
            if numbers != printed:
                # A line a time and no more: what is redirected is read later, or by another program.
                line = " ".join(filter(None, (numbers, self._format_pace())))
                sys.stderr.write(f"{one_line(self.label, 80)}: {line}\n")
            printed = numbers

    def _draw_bar(self, screen: Console) -> None:
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as Bar

        wide = screen.width >= _WIDE
        # What a narrow terminal has no room for is the bar, not the numbers.
        columns = (
            TextColumn("{task.description}", markup=False),
            *([BarColumn()] if wide else []),
            TextColumn("{task.fields[text]}", markup=False),
        )
        with Bar(*columns, console=screen, auto_refresh=False) as bar:
            task = bar.add_task("", text="")
            for _ in self._wait_frames(_FRAME):
                name = one_line(self.label, _LABEL if wide else _SHORT_LABEL)
                text = f"{self._format_numbers()} {self._format_pace()}"
                bar.update(task, description=name, completed=self.done, total=self.total, text=text, refresh=True)

    def _wait_frames(self, seconds: float) -> Iterator[None]:
        """The moments to draw at: now, at every interval, and at the end."""
        over = False
        while True:
            if self.look is not None:
                self.look(self)
            yield
            if over:
                return
            over = self._ended.wait(seconds)


def _format_clock(seconds: float) -> str:
    return str(timedelta(seconds=int(max(0.0, seconds))))


def track_progress(items: Iterable[_Item], label: str, unit: str = "") -> Iterator[_Item]:
    """The items, and on standard error how many were taken.

    >>> list(track_progress("ab", "reading"))
    ['a', 'b']
    """
    with Progress(label, len(items) if isinstance(items, Sized) else None, unit=unit) as progress:
        for item in items:
            yield item
            progress.advance()
