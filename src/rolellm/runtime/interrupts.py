"""Runs asynchronous work to its end from ordinary code, in a script as in a notebook, and stops it on Ctrl-C."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from types import FrameType

# Ctrl-C, and what systems and clusters send some time before they kill.
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def run_to_end(work: Callable[[], Awaitable[None]], stop: Callable[[], None]) -> None:
    """Run work from here, or, where a loop runs already as in a notebook, from a thread of its own.

    The first Ctrl-C asks the work to stop, and is waited for; the second cuts it off. Neither raises anything here.

    Args:
        work: Starts the work, within a loop.
        stop: Asks it to stop; called within that loop.
    """
    interruptible = _Interruptible(work, stop)
    if not _in_a_loop():
        asyncio.run(interruptible.run())
        return
    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(lambda: asyncio.run(interruptible.run()))
        while True:
            try:
                ended.result()
            except KeyboardInterrupt:
                # Python raises it in the main thread, which only waits here.
                interruptible.heard_outside()
            else:
                return


def _in_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class _Interruptible:
    """Work that hears of Ctrl-C: from the system, or from the thread that waits for it."""

    def __init__(self, work: Callable[[], Awaitable[None]], stop: Callable[[], None]) -> None:
        self._work = work
        self._stop = stop
        self._asked = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """The work, cut off without an error where that was asked for."""
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        try:
            with _listening(self._loop, self._heard):
                await self._work()
        except asyncio.CancelledError:
            if self._asked < 2:
                raise

    def heard_outside(self) -> None:
        """Pass a Ctrl-C on from another thread."""
        # A loop that is closed has nothing left to stop.
        with suppress(RuntimeError):
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._heard)

    def _heard(self) -> None:
        self._asked += 1
        self._stop()
        if self._asked > 1 and self._task is not None:
            self._task.cancel()


@contextmanager
def handling(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Within the block, a handler hears of signals to stop; only in the main thread."""
    before = {number: signal.signal(number, handler) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier or signal.SIG_DFL)


@contextmanager
def _listening(loop: asyncio.AbstractEventLoop, heard: Callable[[], None]) -> Iterator[None]:
    """Have a loop hear of signals within the block; only the main thread does, and not on Windows."""
    before = {}
    if threading.current_thread() is threading.main_thread():
        with suppress(NotImplementedError):
            for number in _SIGNALS:
                handler = signal.getsignal(number)
                loop.add_signal_handler(number, heard)
                before[number] = handler
    try:
        yield
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler or signal.SIG_DFL)
