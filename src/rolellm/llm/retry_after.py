"""How long a server asks to wait."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from email.utils import parsedate_to_datetime


def retry_after(headers: Mapping[str, str], now: Callable[[], float] = time.time) -> float | None:
    """Seconds to wait by ``retry-after-ms``, else by ``retry-after``, which gives seconds or an HTTP date.

    Args:
        headers: Of the response; names in lower case, or a mapping that does not mind.
        now: The time, in seconds since 1970; a date is counted from it.

    Returns:
        ``None`` where nothing usable is said: no number, no date, below zero, not finite. A date in the past is 0.
    """
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    said = headers.get("retry-after")
    seconds = _number(said)
    if seconds is not None or said is None:
        return seconds
    try:
        return max(parsedate_to_datetime(said).timestamp() - now(), 0.0)
    except (ValueError, TypeError, OverflowError, IndexError):
        return None


def _number(said: str | None) -> float | None:
    try:
        value = float(said) if said is not None else math.nan
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None
