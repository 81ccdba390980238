"""Share work on rows among processes, this one included, and keep the order."""

from __future__ import annotations

import functools
import multiprocessing
import signal
import sys
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from typing import Any, TypeVar

A = TypeVar("A")
B = TypeVar("B")
R = TypeVar("R")

_Share = Callable[[int, int], list[R]]

#: Chunks are long enough to be worth the message that hands them out, and many enough to be shared evenly.
_CHUNKS_A_PROCESS = 32
_SHORTEST_CHUNK, _LONGEST_CHUNK = 64, 1024
#: Chunks that lie ready for each helper, so that none waits while this process is busy with a chunk of its own.
_AHEAD = 4

_helper_share: _Share[Any]


def map_chunks(
    work: Callable[[Sequence[A], Sequence[B]], list[R]], first: Sequence[A], second: Sequence[B], *, processes: int
) -> Iterator[R]:
    """Yield what ``work`` makes of each row, in order; chunk by chunk, as the iterator is read.

    Helpers get the columns once, when they start: by fork, at no cost, or else as a copy each. Only the bounds of
    chunks and the results travel afterwards.

    Args:
        work: Takes a chunk of both columns and returns one result a row; must be picklable for several processes, as
            must its results.
        first: A column.
        second: A column of the same length.
        processes: How many processes work, this one included; no more are started than there are chunks.

    Yields:
        One result a row.
    """
    size = min(max(len(first) // (processes * _CHUNKS_A_PROCESS), _SHORTEST_CHUNK), _LONGEST_CHUNK)
    starts = range(0, len(first), size)
    share: _Share[R] = functools.partial(_apply, work, first, second)
    helpers = min(processes, len(starts)) - 1
    if helpers < 1:
        for start in starts:
            yield from share(start, start + size)
        return
    with _start_helpers(helpers, share) as pool:
        underway: deque[Future[list[R]]] = deque()
        for start in starts:
            if sum(not future.done() for future in underway) < _AHEAD * helpers:
                underway.append(pool.submit(_apply_in_helper, start, start + size))
            else:
                underway.append(Future())
                underway[-1].set_result(share(start, start + size))
            while underway and underway[0].done():
                yield from underway.popleft().result()
        for future in underway:
            yield from future.result()


def _apply(
    work: Callable[[Sequence[A], Sequence[B]], list[R]], first: Sequence[A], second: Sequence[B], start: int, stop: int
) -> list[R]:
    return work(first[start:stop], second[start:stop])


def _start_helpers(count: int, share: _Share[Any]) -> ProcessPoolExecutor:
    """Fork where that is safe, since it takes milliseconds and copies nothing; else start fresh interpreters.

    A fork keeps only the thread that calls it: a lock that another thread holds would stay shut in the child for ever.
    """
    fork = sys.platform == "linux" and threading.active_count() == 1
    pool = ProcessPoolExecutor(count, multiprocessing.get_context("fork" if fork else "spawn"), _hold, (share,))
    if fork:
        with warnings.catch_warnings():
            # Python 3.12 warns of native threads too (numpy's); those libraries prepare for a fork by themselves.
            warnings.filterwarnings("ignore", category=DeprecationWarning, message=".*multi-threaded.*fork")
            pool.submit(int).result()
    return pool


def _hold(share: _Share[Any]) -> None:
    """Runs first in each helper: tasks cannot carry what was inherited, so it is kept by name."""
    global _helper_share
    _helper_share = share
    # Ctrl-C reaches helpers too; only the process that started them is to answer it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _apply_in_helper(start: int, stop: int) -> list[Any]:
    return _helper_share(start, stop)
