"""Progress bars on standard error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def bars(shown: bool) -> Iterator[Callable[..., Callable[[int], None]]]:
    """Progress bars in rows: ``bar(title, total, already)`` opens one and gives what advances it.

    Args:
        shown: Whether they are drawn at all.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

    def rate(progress: Progress, task: TaskID) -> str:
        speed = progress.tasks[task].speed
        return "" if speed is None else f"{speed:.1f} rows/s"

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True, force_jupyter=False), disable=not shown) as progress:

        def bar(title: str, total: int, already: int = 0) -> Callable[[int], None]:
            task = progress.add_task(title, total=total, completed=already, rate="")

            def advance(count: int) -> None:
                progress.advance(task, count)
                progress.update(task, rate=rate(progress, task))

            return advance

        yield bar
