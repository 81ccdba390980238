"""Taking secrets out of what comes back: servers echo keys, whole, in part or encoded, in replies and in errors."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from functools import lru_cache
from itertools import takewhile
from typing import Any
from urllib.parse import quote

HIDDEN = "[hidden]"
_LEAST = 8
#: What people put where a server wants no key; no secrets, and some of them are words that replies use.
_PLACEHOLDERS = frozenset(
    {"-", "dummy", "empty", "fake", "key", "local", "no-key", "none", "not-needed", "null", "token"}
)
_DEPTH = 100


class Scrubber:
    """Finds secrets in text: the whole of one, and every part of 8 characters or more that begins or ends it.

    Parts within it count from 16 characters on. So do its URL encoding and base64, whatever stood before it. A part
    that is all lower or all upper case letters may be a word and stays. Placeholders that are no keys (``EMPTY``,
    ``none``, …) are left alone. (All this is our choice.)

    Args:
        secrets: The secrets; an empty one is never found.
    """

    def __init__(self, *secrets: str) -> None:
        real = [secret for secret in secrets if secret.casefold() not in _PLACEHOLDERS | {""}]
        short = "|".join(re.escape(secret) for secret in real if len(secret) < _LEAST)
        self._short = re.compile(rf"(?<!\w)({short})(?!\w)") if short else None
        forms = dict.fromkeys(form for secret in real for form in _list_forms(secret) if len(form) >= _LEAST)
        self._parts = [(part, form) for form in forms for part in _list_parts(form)]

    def text(self, text: str) -> str:
        """The text with every such part replaced by ``[hidden]``."""
        if self._short is not None:
            text = self._short.sub(HIDDEN, text)
        for part, form in self._parts:
            start = text.find(part)
            while start >= 0:
                begin, end = _expand_match(text, start, part, form)
                text = text[:begin] + HIDDEN + text[end:]
                start = text.find(part, begin + len(HIDDEN))
        return text

    def json(self, value: Any) -> Any:
        """A parsed JSON value with the same done to every text and every name in it; itself where nothing is found.

        Raises:
            RecursionError: For a value nested over 100 levels deep, which no model replies with.
        """
        hidden = self._scrub_nested(value, 0)
        return value if hidden == value else hidden

    def _scrub_nested(self, value: Any, depth: int) -> Any:
        if depth > _DEPTH:
            raise RecursionError("nested too deeply")
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self.text(name): self._scrub_nested(part, depth + 1) for name, part in value.items()}
        return [self._scrub_nested(part, depth + 1) for part in value] if isinstance(value, list) else value


@lru_cache(maxsize=64)
def make_scrubber(*secrets: str) -> Scrubber:
    """The scrubber of some secrets."""
    return Scrubber(*secrets)


def hide_hub_token(message: object, token: object = None) -> str:
    """A text or an error's words without the token for the Hub, which servers and proxies echo.

    Args:
        message: The text or error that repeats their words.
        token: Another token that was sent, as the Hub's client takes it.
    """
    from huggingface_hub import get_token

    return make_scrubber(get_token() or "", token if isinstance(token, str) else "").text(str(message))


def _list_forms(secret: str) -> Iterator[str]:
    """The ways in which a secret may be written."""
    data = secret.encode("utf-8")
    yield secret
    yield quote(secret, safe="")
    yield data.hex()
    # In base64, characters depend on the bytes' offset in groups of three; both ends mix with their neighbors.
    for before in range(3):
        plain = base64.b64encode(b"\0" * before + data).decode("ascii").rstrip("=")
        middle = plain[(0, 2, 3)[before] : -1]
        yield middle
        yield middle.replace("+", "-").replace("/", "_")


def _list_parts(form: str) -> Iterator[str]:
    """Parts one of which is in every echo that counts: the beginning, the end, and every eighth place between."""
    starts = {0, len(form) - _LEAST, *range(_LEAST, len(form) - _LEAST, _LEAST)}
    for start in sorted(starts):
        part = form[start : start + _LEAST]
        if not (part.isalpha() and (part.islower() or part.isupper())) or len(form) < 2 * _LEAST:
            yield part


def _expand_match(text: str, start: int, part: str, form: str) -> tuple[int, int]:
    """Find where the longest piece of the form around a part begins and ends in the text."""
    at = form.find(part)
    before = zip(reversed(text[max(start - at, 0) : start]), reversed(form[:at]), strict=False)
    after = zip(text[start : start + len(form)], form[at:], strict=False)
    before_length, after_length = (
        sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs)) for pairs in (before, after)
    )
    return start - before_length, start + after_length
