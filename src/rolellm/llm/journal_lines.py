"""The lines of a journal: records that prove themselves whole, and what is whole within a damaged piece."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator

from rolellm.llm.model import Json

_SUM = re.compile(rb',"sum":"([0-9a-f]{16})"\}')
_START = b'{"key":"'
#: The most US dollars that a record can hold.
MOST = 1e9


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
    """What a line, with its newline, holds; ``None`` if it is damaged, or is not a record that a journal writes."""
    end = len(line) - 1
    found = _SUM.fullmatch(line, end - 26, end) if line.startswith(_START) and line.endswith(b'"}\n') else None
    if found is None or found.group(1) != _checksum(line[: end - 26]):
        return None
    # A checksum proves that a line is whole, not that this program wrote it.
    try:
        value: Json = json.loads(line)
        kind = value["kind"]
        sound = len(bytes.fromhex(value["key"])) == 32 and kind in ("sent", "reply", "lost")
        sound &= 0 <= value["worst" if kind == "sent" else "cost"] <= MOST
        return value if sound and (kind != "reply" or isinstance(value["raw"], dict)) else None
    except (ValueError, RecursionError, KeyError, TypeError):
        return None


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
