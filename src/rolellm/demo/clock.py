"""Wall time by stage, and the line that announces each."""

from __future__ import annotations

import time
from collections.abc import Callable


class Clock:
    """Wall time by stage.

    Args:
        say: Called with a line before each stage.
    """

    def __init__(self, say: Callable[[str], None] = lambda _: None) -> None:
        self._say = say
        self._seconds: dict[str, float] = {}
        self._begun: tuple[str, float] | None = None

    def start(self, stage: str, line: str) -> None:
        """End the stage before, and begin this one."""
        self.stop()
        self._say(line)
        self._begun = stage, time.monotonic()

    def stop(self) -> dict[str, float]:
        """End the stage; return the seconds of all."""
        if self._begun is not None:
            stage, begun = self._begun
            self._seconds[stage] = round(time.monotonic() - begun, 2)
            self._begun = None
        return self._seconds
