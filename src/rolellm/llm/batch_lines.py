"""The lines of a batch: a request on its way into a file, files as large as servers take, and what comes back."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass

from rolellm.llm.model import Json, Request

#: What OpenAI takes in one batch; the bytes a little less than its 200 MB.
MOST_REQUESTS = 50_000
MOST_BYTES = 190_000_000


@dataclass(frozen=True, slots=True)
class BatchItem:
    """A request on its way into a batch.

    Attributes:
        key: What its reply is kept under: `rolellm.llm.model.request_key`, 64 hexadecimal digits.
        attempt: The how-many-th reply to it this is to be, from 1.
        request: What is asked.
    """

    key: str
    attempt: int
    request: Request

    @property
    def custom_id(self) -> str:
        """Key and attempt in the 64 characters that servers take."""
        return f"{base64.b32encode(bytes.fromhex(self.key)).decode().rstrip('=')}-{self.attempt}"


def chunks(lines: Iterable[str]) -> Iterator[list[str]]:
    """Lines in as many at a time as one batch takes."""
    chunk: list[str] = []
    size = 0
    for line in lines:
        length = len(line.encode("utf-8"))
        if chunk and (len(chunk) == MOST_REQUESTS or size + length > MOST_BYTES):
            yield chunk
            chunk, size = [], 0
        chunk.append(line)
        size += length
    if chunk:
        yield chunk


def key_and_attempt(custom_id: str) -> tuple[str, int]:
    """Key and attempt of a custom id of ours."""
    key, _, attempt = custom_id.rpartition("-")
    return base64.b32decode(key + "=" * (-len(key) % 8)).hex(), int(attempt)


async def objects(pieces: AsyncIterator[bytes], most: int) -> AsyncIterator[Json]:
    """The objects of a JSON Lines file that comes in pieces; what is none, or longer than `most`, is passed over."""
    rest = b""
    async for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            if (found := _object(line)) is not None:
                yield found
        if len(rest) > most:
            rest = b""
    if (found := _object(rest)) is not None:
        yield found


def _object(line: bytes) -> Json | None:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
