"""How fast an endpoint can be asked: a rate that finds its limit, pauses when it says so, an end when nothing helps."""

from __future__ import annotations

import asyncio
import json
import math
import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any

from rolellm.core.fingerprint import hash_json
from rolellm.llm.model import CallError, FailureKind, Model

#: This many refusals in a row (a key, a model's name, nobody there, requests given up without any reply), and the
#: endpoint is given up (our choice).
_HOPELESS = 8
_LONGEST_BACKOFF = 30.0
_FIRST_BACKOFF = 0.5
# A request over the rate limit comes back sooner: the rate has slowed down by then.
_LIMITED_SHARE = 1 / 8
#: The rate after a refusal, and what each answer adds to it, as shares of the rate; after more than this many answers
#: in a row each adds more (our choice).
_SLOWER, _FASTER, _STREAK = 0.8, 0.01, 10
# Seconds over which a rate is measured at least; at first less, as a limit is found sooner from above than from below.
_MEASURED, _FIRST_MEASURED = 1.0, 0.1
# Seconds that a loop which runs late may catch up.
_CATCH_UP = 0.01
#: Failures that are the request's own, and say nothing of its endpoint.
_OF_THE_REQUEST: tuple[FailureKind, ...] = ("bad_request", "malformed")


@dataclass(slots=True)
class Pace:
    """The rate at which a run calls one model.

    Calls are unlimited until the first 429. From then on they are spaced by a rate: each answer adds to it, and a 429
    multiplies it by 0.8, or brings it down to what was answered in fact, where that is more (AIMD; the constants are
    our choice). A rate holds a limit on concurrency too, while no number of calls at once holds 5 a second where a call
    takes 50 ms.

    Attributes:
        model: The model.
        index: Its place among all.
        paused_until: Nothing is sent before, by `time.monotonic`.
        alive: Whether it is asked at all.
        ever_answered: Whether it has given a reply in this run.
        answered_at: When it gave its last reply.
        last: How its last call failed, if one did.
        gate: Held by the one worker that waits for the time of the next call.
    """

    model: Model
    index: int
    paused_until: float = 0.0
    alive: bool = True
    ever_answered: bool = False
    answered_at: float = -math.inf
    last: tuple[FailureKind, str] | None = None
    gate: asyncio.Lock = field(default_factory=asyncio.Lock)
    _rate: float = math.inf
    _step: float = 0.0
    _next: float = 0.0
    _slowed: float = field(default_factory=time.monotonic)
    _answers: int = 0
    _turned_away: int = 0
    _refused: int = 0

    @property
    def is_hopeless(self) -> bool:
        """True if all its calls in this run were refused: a key, a model's name, nobody there."""
        return self._refused > 0 and not self.ever_answered

    def wait(self) -> float:
        """Seconds until the next call may go out; 0 or less for now."""
        return max(self.paused_until, self._next) - time.monotonic()

    def record_sent(self) -> float:
        """Note a call; the time, which `record_failure` takes."""
        now = time.monotonic()
        self._next = max(self._next, now - _CATCH_UP) + 1 / self._rate
        return now

    def record_reply(self) -> None:
        """Note a reply."""
        self.ever_answered, self.answered_at = True, time.monotonic()
        self._turned_away = self._refused = 0
        self._answers += 1
        if self._next > self.answered_at:
            # A rate that holds nobody up is not being tried, and tells nothing about a higher one.
            self._rate += self._step * max(1.0, self._answers / _STREAK)

    def record_failure(self, error: CallError, wait: float, sent: float, *, silent: bool) -> None:
        """Note a failure.

        One request over the limit, or a server's one slip, waits alone; several in a row mean that the endpoint is full
        or down, and all wait.

        Args:
            error: What happened.
            wait: Seconds until the request may be sent again.
            sent: When the call went out, of `record_sent`.
            silent: Whether the request is given up, and nobody was answered since it was first sent.
        """
        self.last = error.kind, error.reason
        nobody = is_of_the_endpoint(error)
        # A server that answered before may be starting again.
        absent = nobody and error.retry and self.ever_answered
        if error.kind in ("rate_limited", "server_error") or absent:
            self._turned_away += 1
            full = self._turned_away >= max(3, self.model.concurrency // 8)
            if error.kind == "rate_limited" and (full or math.isfinite(self._rate)):
                self._reduce_rate(sent)
            if full:
                self.paused_until = max(self.paused_until, time.monotonic() + wait)
        if (nobody and not absent) or (silent and error.kind not in _OF_THE_REQUEST):
            self._refused += 1
            self.alive = self.alive and self._refused < _HOPELESS

    def _reduce_rate(self, sent: float) -> None:
        """Once for all the calls that were under way; not at all while nothing is answered, which pauses deal with."""
        now = time.monotonic()
        limited = math.isfinite(self._rate)
        if sent < self._slowed or (limited and not self._answers):
            return
        seconds = max(now - self._slowed, _MEASURED if limited else _FIRST_MEASURED)
        measured = self._answers / seconds
        self._rate = max(measured, _SLOWER * self._rate if limited else self.model.concurrency)
        self._step = _FASTER * self._rate
        self._slowed, self._answers = now, 0


def is_of_the_endpoint(error: CallError) -> bool:
    """Tell whether every request to the endpoint would fail: its key, its model, or nobody there to connect to."""
    nobody = error.kind == "connection" and not error.billed
    return nobody or error.kind in ("unauthorized", "forbidden", "not_found")


def compute_delay(error: CallError, tries: int, key: str, longest: float) -> float:
    """Seconds until a call that failed is tried again: what the server asks for, or twice as long each time.

    A wait that is not a number, or below 0, counts as not given; one above `longest` is cut to it. Without one it is
    half a second, doubled with each try up to 30 (after a 429 an eighth of that), between half and one and a half times
    over. After a 429 this is also the least. Up to a tenth is added to what the server asks for. How much depends on
    the request's key, so that calls that failed together do not come back together (our choice).
    """
    spread = int(hash_json([key, tries])[:8], 16) / 0xFFFFFFFF
    limited = error.kind == "rate_limited"
    first = _FIRST_BACKOFF * (_LIMITED_SHARE if limited else 1.0)
    own = min(first * 2.0 ** min(tries - 1, 30), _LONGEST_BACKOFF, longest) * (0.5 + spread)
    after = error.after
    if after is None or not math.isfinite(after) or after < 0:
        return own
    requested = min(after, longest) * (1 + spread / 10)
    return max(requested, own) if limited else requested


def retry_after(headers: Mapping[str, str], now: Callable[[], float] = time.time) -> float | None:
    """Seconds to wait by ``retry-after-ms``, else by ``retry-after``, which gives seconds or an HTTP date.

    Args:
        headers: Of the response; names in lower case, or a mapping that does not mind.
        now: The time, in seconds since 1970; a date is counted from it.

    Returns:
        ``None`` where nothing usable is said: no number, no date, below zero, not finite. A date in the past is 0.
    """
    for name, unit in (("retry-after-ms", 1000), ("retry-after", 1)):
        with suppress(ValueError, TypeError):
            seconds = float(headers.get(name) or "") / unit
            if math.isfinite(seconds) and seconds >= 0:
                return seconds
    try:
        return max(parsedate_to_datetime(headers.get("retry-after") or "").timestamp() - now(), 0.0)
    except (ValueError, TypeError, OverflowError, IndexError):
        return None


#: What is not here is the server's error from 500 on, else the request's.
_STATUSES: Mapping[FailureKind, tuple[int, ...]] = {
    "unauthorized": (401,),
    "forbidden": (402, 403),
    "not_found": (404,),
    "timeout": (408, 504, 524),
    "server_error": (409, 424, 425),
    "rate_limited": (429,),
}
_SHOWN = 300
_READ = 1 << 16
#: Codes of a 429 that no waiting helps with.
_OUT_OF_MONEY = frozenset({"insufficient_quota", "billing_hard_limit_reached"})
# What errors say, in lower case, with spaces for punctuation; the tests have real servers' words for each.
_FORM = re.compile(r"response format|json (schema|object|mode)|structured output|\bguided\b|grammar")
_NO_MODEL = re.compile(r"\b(model|endpoint)\b.{0,80}?\bnot (exist|found|available|running)\b")
_TOO_LONG = re.compile(r"\b(exceeds?|longer than|maximum)\b.{0,80}?\bcontext (length|size|window)")
_INVALID = re.compile(r"\bvalidation errors?\b")


def make_status_error(status: int, headers: Mapping[str, str], content: bytes, hide: Callable[[str], str]) -> CallError:
    """The error that a status other than 2xx stands for.

    Args:
        status: Of the response.
        headers: Of the response.
        content: Its body.
        hide: Takes secrets out of text.
    """
    message, names = _read_error_body(content)
    # Longer than what is shown, so that nothing that has to be hidden is cut in half before.
    excerpt = " ".join(_replace_unprintable(hide(message)).split())[:_SHOWN]
    reason = f"HTTP {status}" + (f": {excerpt}" if excerpt else "")
    if 300 <= status < 400:
        return CallError("not_found", f"{reason}; the server redirects; use its target as base_url", retry=False)
    default_kind: FailureKind = "server_error" if status >= 500 else "bad_request"
    kind = next((kind for kind, statuses in _STATUSES.items() if status in statuses), default_kind)
    if kind == "rate_limited" and not _OUT_OF_MONEY.isdisjoint(names):
        return CallError("forbidden", reason, retry=False)
    words = re.sub(r"[\W_]+", " ", " ".join((message, *names)).casefold())
    # Whatever the status: some servers answer 500 to a form that they do not know.
    wants_other_form = kind != "rate_limited" and _FORM.search(words) is not None
    too_long = _TOO_LONG.search(words) is not None
    if kind in ("forbidden", "server_error") and (too_long or _INVALID.search(words)):
        kind = "bad_request"
    elif kind == "bad_request" and not wants_other_form and _NO_MODEL.search(words):
        kind = "not_found"
    again = kind in ("timeout", "server_error", "rate_limited") and status != 501
    after = retry_after(headers) if again else None
    # After a gateway's timeout the server behind it may have answered all the same.
    error = CallError(kind, reason, retry=again, after=after, billed=kind == "timeout")
    error.wants_other_form, error.too_long = wants_other_form, too_long
    return error


def _read_error_body(content: bytes) -> tuple[str, list[str]]:
    """The message of an error's body, in the forms that servers give it, and what it names: a code, a parameter."""
    text = content[:_READ].decode("utf-8", errors="replace")
    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError):
        return text, []
    if isinstance(value, list) and value:
        value = value[0]
    error = value.get("error") or value if isinstance(value, dict) else value
    if not isinstance(error, dict):
        return str(error), []
    message = next((error[name] for name in ("message", "detail", "msg") if error.get(name)), text)
    names = [name for key in ("code", "type", "param") if isinstance(name := error.get(key), str)]
    return message if isinstance(message, str) else _join_errors(message), names


def _join_errors(errors: Any) -> str:
    """Errors as FastAPI lists them, in words: without the request, which each of them repeats."""
    if not isinstance(errors, list) or not all(isinstance(error, dict) and "msg" in error for error in errors):
        return json.dumps(errors)
    locations = [error["loc"] if isinstance(error.get("loc"), list) else [] for error in errors]
    parts = [
        [".".join(map(str, location)), str(error["msg"])] for location, error in zip(locations, errors, strict=True)
    ]
    return "; ".join(": ".join(filter(None, part)) for part in parts)


def _replace_unprintable(text: str) -> str:
    return "".join(character if character.isprintable() else " " for character in text)
