"""The lines of a journal: records that prove themselves whole, and what is whole within a damaged piece."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator

from rolellm.llm.model import Json

_SUM = re.compile(rb',"sum":"([0-9a-f]{16})"\}')
_START = b'{"key":"'
_KEY = re.compile("[0-9a-f]{64}")
# US dollars for one call; sums of what is above it are no numbers any more.
_MOST = 1e9


def encode(value: Json) -> bytes:
    """A record as its line: JSON that ends in the checksum of what stands before it."""
    try:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
    except UnicodeEncodeError:
        # Half a surrogate pair, which servers do send, has no UTF-8.
        text = json.dumps(value, separators=(",", ":")).encode("ascii")
    body = text[:-1]
    return body + b',"sum":"' + _checksum(body) + b'"}\n'


def _checksum(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=8).hexdigest().encode("ascii")


def record(line: bytes) -> Json | None:
    """What a line, with its newline, holds; ``None`` if it is damaged, or not a record that a journal writes."""
    if not _is_whole(line):
        return None
    try:
        value: Json = json.loads(line)
    except (ValueError, RecursionError):
        return None
    key, kind = value.get("key"), value.get("kind")
    amount = value.get("worst" if kind == "sent" else "cost")
    # A checksum proves that a line is whole, not that this program wrote it.
    sound = (
        isinstance(key, str)
        and _KEY.fullmatch(key)
        and kind in ("sent", "reply", "lost")
        and isinstance(amount, int | float)
        and 0 <= amount <= _MOST
        and (kind != "reply" or isinstance(value.get("raw"), dict))
    )
    return value if sound else None


def _is_whole(line: bytes) -> bool:
    if not line.startswith(_START) or not line.endswith(b'"}\n'):
        return False
    end = len(line) - 1
    found = _SUM.fullmatch(line, end - 26, end)
    return found is not None and found.group(1) == _checksum(line[: end - 26])


def whole_records(piece: bytes) -> Iterator[bytes]:
    """The whole records within a damaged line, which may hold several where a line's end was damaged."""
    start = piece.find(_START)
    while start >= 0:
        following = piece.find(_START, start + 1)
        end = _SUM.search(piece, start)
        while end is not None:
            if record(piece[start : end.end()] + b"\n") is not None:
                yield piece[start : end.end()]
                following = piece.find(_START, end.end())
                break
            # A reply may hold what looks like the end of a record; the true one may come later.
            end = _SUM.search(piece, end.end()) if following < 0 or end.end() < following else None
        start = following
