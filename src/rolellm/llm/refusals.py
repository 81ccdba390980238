"""What an HTTP status means for a call: which kind of failure, and whether asking again may help."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from rolellm.llm.model import CallError, FailureKind
from rolellm.llm.retry_after import retry_after

_KINDS: dict[int, FailureKind] = {
    400: "bad_request",
    401: "unauthorized",
    402: "forbidden",
    403: "forbidden",
    404: "not_found",
    408: "timeout",
    409: "server_error",
    425: "server_error",
    429: "rate_limited",
    504: "timeout",
    524: "timeout",
}
_SHOWN = 300
_READ = 1 << 16
#: Codes of a 429 that no waiting helps with.
_OUT_OF_MONEY = ("insufficient_quota", "billing_hard_limit_reached")
_FORM_WORDS = ("response_format", "json_schema", "json_object", "structured output", "guided", "grammar")


def refusal(status: int, headers: Mapping[str, str], content: bytes, hide: Callable[[str], str]) -> CallError:
    """The error that a status other than 2xx stands for.

    Args:
        status: Of the response.
        headers: Of the response.
        content: Its body.
        hide: Takes secrets out of text.
    """
    message, code = _said(content)
    # Longer than what is shown, so that nothing that has to be hidden is cut in half before.
    shown = " ".join(_printable(hide(message)).split())[:_SHOWN]
    reason = f"HTTP {status}" + (f": {shown}" if shown else "")
    if 300 <= status < 400:
        return CallError("not_found", f"{reason}; the server sends elsewhere, give that as base_url", retry=False)
    kind = _KINDS.get(status, "server_error" if status >= 500 else "bad_request")
    if kind == "rate_limited" and code in _OUT_OF_MONEY:
        return CallError("forbidden", reason, retry=False)
    again = kind in ("timeout", "server_error", "rate_limited") and status != 501
    after = retry_after(headers) if again else None
    # After a gateway's timeout the server behind it may have answered all the same.
    return CallError(kind, reason, retry=again, after=after, billed=kind == "timeout")


def wants_other_form(status: int, content: bytes) -> bool:
    """Whether a server refuses a request for the way in which it asks for JSON."""
    said = _said(content)[0].casefold()
    return status in (400, 404, 415, 422, 501) and any(word in said for word in _FORM_WORDS)


def _said(content: bytes) -> tuple[str, str | None]:
    """The message of an error's body, in the forms that servers give it, and its code."""
    text = content[:_READ].decode("utf-8", errors="replace")
    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError):
        return text, None
    if isinstance(value, list) and value:
        value = value[0]
    error = value.get("error", value) if isinstance(value, dict) else value
    if not isinstance(error, dict):
        return str(error), None
    message = next((error[name] for name in ("message", "detail", "msg") if error.get(name)), text)
    code = error.get("code") or error.get("type")
    return message if isinstance(message, str) else json.dumps(message), code if isinstance(code, str) else None


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else " " for character in text)
