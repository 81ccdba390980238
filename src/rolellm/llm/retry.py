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
from rolellm.core.sanitize import show_on_line
from rolellm.llm.model import CallError, FailureKind, Model

#: This many refusals in a row (a key, a model's name, nobody there, requests given up without any reply), and the
#: endpoint is given up.
_HOPELESS = 8
_LONGEST_BACKOFF = 30.0
# As the SDK has it.
_FIRST_BACKOFF = 0.5
# A request over the rate limit comes back sooner: the rate has slowed down by then.
_LIMITED_SHARE = 1 / 8
#: The rate after a refusal, and what each answer adds to it, as shares of the rate; after more than this many answers
#: in a row each adds more. `benchmarks/client.py --limits` measures them.
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
    multiplies it by 0.8, or brings it down to what was answered in fact, where that is more (AIMD).
    A rate holds a limit on concurrency too, while no number of calls at once holds 5 a second where a call
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
        is_refused = is_of_the_endpoint(error)
        # A server that answered before may be starting again.
        is_restarting = is_refused and error.retry and self.ever_answered
        if error.kind in ("rate_limited", "server_error") or is_restarting:
            self._turned_away += 1
            is_full = self._turned_away >= max(3, self.model.concurrency // 8)
            if error.kind == "rate_limited" and (is_full or math.isfinite(self._rate)):
                self._reduce_rate(sent)
            if is_full:
                self.paused_until = max(self.paused_until, time.monotonic() + wait)
        is_unanswered = silent and error.kind not in _OF_THE_REQUEST
        if (is_refused and not is_restarting) or is_unanswered:
            self._refused += 1
            self.alive = self.alive and self._refused < _HOPELESS

    def _reduce_rate(self, sent: float) -> None:
        """Once for all the calls that were under way; not at all while nothing is answered, which pauses deal with."""
        now = time.monotonic()
        if sent < self._slowed:
            return
        seconds, least = _FIRST_MEASURED, float(self.model.concurrency)
        if math.isfinite(self._rate):
            if not self._answers:
                return
            seconds, least = _MEASURED, _SLOWER * self._rate
        measured = self._answers / max(now - self._slowed, seconds)
        self._rate = max(measured, least)
        self._step = _FASTER * self._rate
        self._slowed, self._answers = now, 0


def is_of_the_endpoint(error: CallError) -> bool:
    """Tell whether every request to the endpoint would fail: its key, its model, or nobody there to connect to."""
    if error.kind == "connection":
        return not error.billed
    return error.kind in ("unauthorized", "forbidden", "not_found")


def compute_delay(error: CallError, tries: int, key: str, longest: float) -> float:
    """Seconds until a call that failed is tried again: what the server asks for, or twice as long each time.

    A wait above `longest` is cut to it. Without one it is half a second, doubled with each try up to 30 (after a 429 an
    eighth of that), between half and one and a half times over. After a 429 this is also the least. Up to a tenth is
    added to what the server asks for. How much depends on the request's key, so that calls that failed together do not
    come back together.
    """
    spread = int(hash_json([key, tries])[:8], 16) / 0xFFFFFFFF
    is_limited = error.kind == "rate_limited"
    backoff = _FIRST_BACKOFF * 2.0 ** min(tries - 1, 30)
    if is_limited:
        backoff *= _LIMITED_SHARE
    own = min(backoff, _LONGEST_BACKOFF, longest) * (0.5 + spread)
    if error.after is None:
        return own
    requested = min(error.after, longest) * (1 + spread / 10)
    return max(requested, own) if is_limited else requested


def retry_after(headers: Mapping[str, str], now: Callable[[], float] = time.time) -> float | None:
    """Seconds to wait by ``retry-after-ms``, else by ``retry-after``, which gives seconds or an HTTP date.

    Args:
        headers: Of the response; names in lower case, or a mapping that does not mind.
        now: The time, in seconds since 1970; a date is counted from it.

    Returns:
        ``None`` where nothing usable is said: no number, no date, below zero, not finite. A date in the past is 0.
    """
    wait = headers.get("retry-after") or ""
    for number, unit in ((headers.get("retry-after-ms") or "", 1000), (wait, 1)):
        with suppress(ValueError):
            seconds = float(number) / unit
            if math.isfinite(seconds) and seconds >= 0:
                return seconds
    try:
        return max(parsedate_to_datetime(wait).timestamp() - now(), 0.0)
    except (ValueError, TypeError, OverflowError, IndexError):
        return None


#: What is not here is the server's error from 500 on, else the request's.
_STATUSES: Mapping[int, FailureKind] = {
    401: "unauthorized",
    402: "forbidden",
    403: "forbidden",
    404: "not_found",
    408: "timeout",
    409: "server_error",
    424: "server_error",
    425: "server_error",
    429: "rate_limited",
    504: "timeout",
    524: "timeout",
}
_SHOWN = 300
_READ = 1 << 16
#: Codes of a 429 that no waiting helps with.
_OUT_OF_MONEY = frozenset({"insufficient_quota", "billing_hard_limit_reached"})
# What errors say, in lower case, with spaces for punctuation; the tests have real servers' words for each.
_FORM = re.compile(r"response format|json (schema|object|mode)|structured output|\bguided\b|grammar")
_NO_MODEL = re.compile(r"\b(model|endpoint)\b.{0,80}?\bnot (exist|found|available|running)\b")
_TOO_LONG = re.compile(r"\b(exceeds?|longer than|maximum)\b.{0,80}?\bcontext (length|size|window)")
_TAG = re.compile(r"<[^<>]*>")
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
    # Only then is it cut: half a key would not be found.
    excerpt = show_on_line(hide(message))[:_SHOWN]
    reason = f"HTTP {status}: {excerpt}" if excerpt else f"HTTP {status}"
    if 300 <= status < 400:
        return CallError("not_found", f"{reason}; the server redirects; use its target as base_url", retry=False)
    kind = _STATUSES.get(status, "server_error" if status >= 500 else "bad_request")
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
    may_retry = kind in ("timeout", "server_error", "rate_limited") and status != 501
    return CallError(
        kind,
        reason,
        retry=may_retry,
        after=retry_after(headers) if may_retry else None,
        # After a gateway's timeout the server behind it may have answered all the same.
        billed=kind == "timeout",
        wants_other_form=wants_other_form,
        too_long=too_long,
    )


def _read_error_body(content: bytes) -> tuple[str, list[str]]:
    """The message of an error's body, in the forms that servers give it, and what it names: a code, a parameter."""
    text = content[:_READ].decode("utf-8", errors="replace")
    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError):
        # A proxy's page.
        return _TAG.sub(" ", text), []
    if isinstance(value, list) and value:
        value = value[0]
    error = value
    if isinstance(value, dict):
        error = value.get("error") or value
    if not isinstance(error, dict):
        return str(error), []
    message = error.get("message") or error.get("detail") or error.get("msg") or text
    if not isinstance(message, str):
        message = _join_errors(message)
    names = [error.get(key) for key in ("code", "type", "param")]
    return message, [name for name in names if isinstance(name, str)]


def _join_errors(errors: Any) -> str:
    """Errors as FastAPI lists them, in words: without the request, which each of them repeats."""
    sentences = []
    try:
        for error in errors:
            sentence = str(error["msg"])
            location = error.get("loc")
            if isinstance(location, list):
                sentence = f"{'.'.join(map(str, location))}: {sentence}"
            sentences.append(sentence)
    except (KeyError, TypeError):
        return json.dumps(errors)
    return "; ".join(sentences)
