"""HTTP/1.1 as `local_llm` needs it: whole requests in, answers out, also those that go wrong on the way."""

from __future__ import annotations

import asyncio
import socket
from typing import Any, Protocol

from llm_faults import Answer

_HEADERS_END = b"\r\n\r\n"
_MOST_HEADERS = 1 << 16
_REASONS = {200: "OK", 307: "Temporary Redirect", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found"}


class Tally(Protocol):
    """What a connection counts."""

    in_flight: int
    at_once: int
    delivered: int


class Server(Protocol):
    """What a connection needs of its server."""

    counts: Any
    connections: set[Any]

    def route(self, method: str, target: str, headers: dict[str, str], body: bytes) -> tuple[Answer, float]:
        """The answer to a request, and how many seconds it takes."""


class Connection(asyncio.Protocol):
    """One connection: requests in, answers out, one after the other."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.buffer = bytearray()
        self.head: tuple[str, str, dict[str, str], int, int] | None = None
        self.busy = False

    def connection_made(self, transport: Any) -> None:
        """Note the way back."""
        self.transport: asyncio.Transport = transport
        self.loop = asyncio.get_running_loop()
        self.server.connections.add(self)

    def connection_lost(self, _: Exception | None) -> None:
        """Forget it."""
        self.server.connections.discard(self)

    def data_received(self, data: bytes) -> None:
        """Take what came; answer when a request is whole."""
        self.buffer += data
        if not self.busy:
            self._next()

    def _next(self) -> None:
        if self.head is None and not self._read_head():
            return
        assert self.head is not None
        method, target, headers, start, length = self.head
        if len(self.buffer) < start + length:
            return
        body = bytes(self.buffer[start : start + length])
        del self.buffer[: start + length]
        self.head, self.busy = None, True
        counts = self.server.counts
        counts.in_flight += 1
        counts.at_once = max(counts.at_once, counts.in_flight)
        answer, seconds = self.server.route(method, target, headers, body)
        if seconds:
            self.loop.call_later(seconds, self._send, answer, counts)
        else:
            self._send(answer, counts)

    def _read_head(self) -> bool:
        end = self.buffer.find(_HEADERS_END)
        if end < 0:
            if len(self.buffer) > _MOST_HEADERS:
                self.transport.abort()
            return False
        first, *lines = self.buffer[:end].decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        try:
            method, target, _ = first.split(" ")
            length = int(headers.get("content-length", 0))
        except ValueError:
            self.transport.abort()
            return False
        self.head = method, target, headers, end + len(_HEADERS_END), length
        return True

    def _send(self, answer: Answer, counts: Tally) -> None:
        counts.in_flight -= 1
        if answer.delivery == "silent":
            return
        if answer.delivery == "reset":
            self._abort()
            return
        headers = {"Content-Type": "application/json", "Content-Length": str(len(answer.body)), **answer.headers}
        lines = (f"{name}: {value}\r\n" for name, value in headers.items())
        head = f"HTTP/1.1 {answer.status} {_REASONS.get(answer.status, 'Error')}\r\n{''.join(lines)}\r\n".encode()
        if answer.delivery == "drip":
            self.transport.write(head)
            self._drip(answer.body)
        elif answer.delivery == "cut":
            self.transport.write(head + answer.body[: len(answer.body) // 2])
            self.loop.call_later(0.001, self._abort)
        else:
            counts.delivered += not self.transport.is_closing()
            self.transport.write(head + answer.body)
            self.busy = False
            if self.buffer:
                self._next()

    def _drip(self, rest: bytes) -> None:
        if rest and not self.transport.is_closing():
            self.transport.write(rest[:1])
            self.loop.call_later(1.0, self._drip, rest[1:])

    def _abort(self) -> None:
        """Close with a reset instead of the polite way."""
        raw = self.transport.get_extra_info("socket")
        if raw is not None and not self.transport.is_closing():
            # Lingering for no time makes the system send a reset.
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.transport.abort()
