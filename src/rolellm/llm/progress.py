"""What the progress of a run of requests says: done, in flight, failed and spent."""

from __future__ import annotations

from collections.abc import Callable

from rolellm.llm.task import Counts
from rolellm.progress import Progress


def shown(label: str, total: int | None, read: Callable[[], tuple[Counts, float]], *, show: bool) -> Progress:
    """Progress to show while a ``with`` block runs.

    Args:
        label: What the requests are for.
        total: How many requests there are, where that is known.
        read: Gives counts and US dollars spent so far; called from another thread.
        show: Whether to show anything.
    """

    def look(progress: Progress) -> None:
        counts, spent = read()
        progress.update(done=counts.done, state=state_of(counts, spent))

    return Progress(label or "asking", total, look=look, show=show)


def state_of(counts: Counts, spent: float) -> str:
    """What is shown after the counts.

    >>> state_of(Counts(done=10, failed=1, in_flight=4), 0.0123)
    '4 in flight, 1 failed, $0.0123'
    """
    return f"{counts.in_flight} in flight, {counts.failed} failed, ${spent:.4f}"
