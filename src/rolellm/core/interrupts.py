"""Runs asynchronous work to its end from ordinary code, in a script as in a notebook, and stops it on Ctrl-C."""

from __future__ import annotations

import asyncio
import os
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
    runner = _Runner(work, stop)
    if not _is_in_loop():
        asyncio.run(runner.run())
        return None
    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(lambda: asyncio.run(runner.run()))
        while True:
            try:
                return ended.result()
            except KeyboardInterrupt:
                # Python raises it in the main thread, which only waits here.
                runner.pass_interrupt()


class _Runner:
    """Runs work in a loop of its own, and stops it on signals.

    Args:
        work: Starts the work.
        stop: Asks it to stop.
    """

    def __init__(self, work: Callable[[], Awaitable[None]], stop: Callable[[], None]) -> None:
        self._work, self._stop = work, stop
        self._presses = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None

    async def run(self) -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        try:
            with handle_signals(lambda *_: self.pass_interrupt()):
                await self._work()
        except asyncio.CancelledError:
            if self._presses < 2:
                raise

    def pass_interrupt(self) -> None:
        """Tell the loop of a signal."""
        # A closed loop has nothing left to stop.
        with suppress(RuntimeError):
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._handle_signal)

    def _handle_signal(self) -> None:
        self._presses += 1
        self._stop()
        if self._presses > 1 and self._task is not None:
            self._task.cancel()


def _is_in_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


@contextmanager
def handle_signals(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Within the block, a handler hears of signals to stop; outside the main thread, which alone hears any, of none."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier or signal.SIG_DFL)


@contextmanager
def note_stop_requests(plan: str, *, is_single: bool) -> Iterator[threading.Event]:
    """Within the block, a request to stop (Ctrl-C, SIGTERM) is noted and interrupts nothing.

    Args:
        plan: What the first request leads to, for people.
        is_single: A second request interrupts at once. Not so where several processes work together: a launcher passes
            on what the terminal has sent already, and one that leaves early keeps the others waiting.

    Yields:
        Where the request is noted. Outside the main thread, which alone hears signals, none ever is.
    """
    request = threading.Event()
    sentence = f"{plan}; once more stops at once" if is_single else plan

    def handle_signal(_number: int, _frame: FrameType | None) -> None:
        if request.is_set() and is_single:
            raise KeyboardInterrupt
        if not request.is_set():
            # Not print: a signal may come in the middle of another one.
            os.write(2, f"\n{sentence}\n".encode())
        request.set()

    with handle_signals(handle_signal):
        yield request
