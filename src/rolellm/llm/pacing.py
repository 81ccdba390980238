"""How fast an endpoint can be asked: pauses when it says so, and an end when nothing will do with it."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from rolellm.fingerprint import hash_json
from rolellm.llm.model import CallError, FailureKind, Model

#: So many refusals of the endpoint's own (a key, a model's name, nobody there) without an answer, and it is given up
#: (our choice).
_HOPELESS = 8
_LONGEST_BACKOFF = 30.0
_FIRST_BACKOFF = 0.5


@dataclass(slots=True)
class Pace:
    """What a run knows of one model.

    Attributes:
        model: The model.
        index: Its place among all.
        paused_until: Nothing is sent before, by `time.monotonic`.
        alive: Whether it is asked at all.
        ever_answered: Whether it has given a reply in this run.
        last: How its last call failed, if one did.
    """

    model: Model
    index: int
    paused_until: float = 0.0
    alive: bool = True
    ever_answered: bool = False
    last: tuple[FailureKind, str] | None = None
    _turned_away: int = 0
    _refused: int = 0

    @property
    def is_hopeless(self) -> bool:
        """Whether all that came of it in this run were refusals of its own: a key, a model's name, nobody there."""
        return self._refused > 0 and not self.ever_answered

    def answered(self) -> None:
        """Note a reply."""
        self.ever_answered = True
        self._turned_away = self._refused = 0

    def failed(self, error: CallError, wait: float) -> None:
        """Note a failure.

        One request over the limit, or a server's one slip, waits alone; several in a row mean that the endpoint is full
        or down, and all wait.
        """
        self.last = error.kind, error.reason
        if error.kind in ("rate_limited", "server_error"):
            self._turned_away += 1
            if self._turned_away >= max(3, self.model.concurrency // 8):
                self.paused_until = max(self.paused_until, time.monotonic() + wait)
        elif is_of_the_endpoint(error):
            self._refused += 1
            if self._refused >= _HOPELESS and self.is_hopeless:
                self.alive = False


def is_of_the_endpoint(error: CallError) -> bool:
    """Whether no other request to the endpoint will do better: its key, its model, or nobody there to connect to."""
    nobody = error.kind == "connection" and not error.billed
    return nobody or error.kind in ("unauthorized", "forbidden", "not_found")


def delay_of(error: CallError, tries: int, key: str, longest: float) -> float:
    """Seconds until a call that failed is tried again: what the server asks for, or twice as long each time.

    A wait that is no number, or below 0, counts as not given; one above `longest` is cut to it. Without one it is half
    a second doubled with each try, up to 30, and between half and one and a half of that by the request's key, so that
    calls that failed together do not come back together (our choice).
    """
    after = error.after
    if after is not None and math.isfinite(after) and after >= 0:
        return min(after, longest)
    spread = 0.5 + int(hash_json([key, tries])[:8], 16) / 0xFFFFFFFF
    return min(_FIRST_BACKOFF * 2.0 ** (tries - 1), _LONGEST_BACKOFF) * spread
