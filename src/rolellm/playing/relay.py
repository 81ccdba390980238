"""The relay of a request to the other server: its answer passes through as it comes, streamed or not, errors included.

Only the model is called by the name that the client knows. A client that leaves takes its request with it. Keys are
kept apart: the client's is not sent on, and the other server's is not shown, nor is its address.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import urljoin, urlsplit

import aiohttp
import anyio
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from rolellm.core.scrub import HIDDEN, hide
from rolellm.core.typed_json import map_strings
from rolellm.llm.endpoint import Endpoint, find_proxy
from rolellm.llm.openai_format import UNREADABLE, encode_body, parse_body

#: The longest answer of the other server that is read, and the longest line of a stream, in bytes.
_MOST_BYTES: Final = 8 << 20
#: Seconds to connect, and those that an error may take.
_SECONDS: Final = 15.0
_PASSED = ("retry-after", "retry-after-ms")
_MODEL = re.compile(r'"model"\s*:\s*"(?:[^"\\]|\\.)*"')


def build_error(message: str, kind: str = "invalid_request_error", code: str | None = None) -> dict[str, Any]:
    """Build the body of an error as OpenAI has it."""
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


async def start_stream(send: Send) -> None:
    """Begin a response that is a stream of events."""
    headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})


async def send_part(send: Send, content: bytes, *, more: bool = True) -> None:
    """Send a part of a stream; without ``more`` it is the last."""
    await send({"type": "http.response.body", "body": content, "more_body": more})


class Upstream:
    """The server that answers, asked by aiohttp: for a stream of small events it takes half the time of httpx2.

    Args:
        endpoint: Where it is.

    Attributes:
        endpoint: The same.
        continuing: Fields that make it go on with an assistant's turn.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        settings = endpoint.settings
        base_url = settings.base_url or ""
        self._base_url = base_url
        self.continuing: Mapping[str, Any] = {}
        self._key = endpoint.find_key()
        address = "|".join(map(re.escape, (base_url, urlsplit(base_url).netloc)))
        model = re.escape(settings.model or "")
        self._own = re.compile(rf"{address}|(?<!\w)(?P<model>{model})(?!\w)")
        self._proxy = find_proxy(base_url)
        self._headers = {"Accept-Encoding": "identity", "User-Agent": "rolellm"}
        if self._key:
            self._headers["Authorization"] = f"Bearer {self._key}"

    def open_session(self) -> aiohttp.ClientSession:
        """Open the HTTP session; once, within the loop that uses it."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_SECONDS)
        connector = aiohttp.TCPConnector(limit=0)
        jar = aiohttp.DummyCookieJar()
        self._session = aiohttp.ClientSession(connector=connector, cookie_jar=jar, timeout=timeout)
        return self._session

    def ask(self, path: str, body: Mapping[str, Any]) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        """Its answer to this body at this path; nothing of the client's headers goes there."""
        headers = {"Content-Type": "application/json", **self._headers}
        content = encode_body(body)
        url = f"{self._base_url}/{path}"
        return self._session.post(url, data=content, headers=headers, proxy=self._proxy, allow_redirects=False)

    async def list_loras(self) -> dict[str, int]:
        """List the adapters that llama.cpp's server was started with: their numbers, by the names of their files."""
        url = urljoin(self.endpoint.settings.base_url or "", "/lora-adapters")
        try:
            async with self._session.get(url, headers=self._headers, proxy=self._proxy) as response:
                loras = await response.json(content_type=None)
            return {Path(lora["path"]).name: int(lora["id"]) for lora in loras}
        except (aiohttp.ClientError, TimeoutError, ValueError, TypeError, KeyError):
            return {}

    async def calls_tools(self) -> bool:
        """Tell whether it takes a client's tools; to vLLM that was not started for them, they are an error."""
        tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
        talk = [{"role": "user", "content": "?"}]
        body = {"model": self.endpoint.settings.model, "messages": talk, "tools": [tool], "max_tokens": 1}
        with suppress(aiohttp.ClientError, TimeoutError):
            async with self.ask("chat/completions", body) as response:
                return response.status != 400
        return True

    def clean(self, value: dict[str, Any], name: str) -> dict[str, Any]:
        """A reply, a part of one or an error as the client gets it: the model under this name, and no secret."""
        error = value.get("error")
        # Servers name themselves in errors.
        if "choices" in value:
            value["model"] = name
        elif isinstance(error, dict) and isinstance(error.get("message"), str):
            error["message"] = self._replace_names(error["message"], name)
        elif isinstance(error, str):
            value["error"] = self._replace_names(error, name)
        cleaned: dict[str, Any] = map_strings(value, self._hide)
        return cleaned

    def _hide(self, text: str) -> str:
        return hide(text, self._key)

    def _replace_names(self, text: str, name: str) -> str:
        return self._own.sub(lambda match: name if match["model"] else HIDDEN, text)

    def clean_lines(self, lines: bytes, name: str) -> bytes:
        """Lines of a stream of events, cleaned in the same way."""
        # Most need not be parsed, which would take longer than all else that is done with them.
        if b'"error"' in lines or b"\\u" in lines:
            return b"\n".join(self._clean_line(line, name) for line in lines.split(b"\n"))
        field = f'"model":{json.dumps(name)}'
        text = _MODEL.sub(lambda _: field, lines.decode(errors="replace"))
        return self._hide(text).encode()

    def _clean_line(self, line: bytes, name: str) -> bytes:
        value = parse_body(line[5:]) if line.startswith(b"data:") else {UNREADABLE: True}
        if UNREADABLE in value:
            return self._hide(line.decode(errors="replace")).encode()
        return b"data: " + encode_body(self.clean(value, name))

    def clean_error(self, status: int, content: bytes, name: str) -> bytes:
        """An error as OpenAI has it, whatever form the server gave it."""
        value = parse_body(content)
        if not value.get("error"):
            words = content[:1000].decode(errors="replace").strip() or "no reason given"
            value = build_error(f"the model's server answered with status {status:03}: {words}", "upstream_error")
        return encode_body(self.clean(value, name))


class AnswerError(Exception):
    """An answer of the other server that cannot be passed on."""


#: What went wrong, without hosts and headers.
_FAILURES: Final[Mapping[type[Exception], str]] = {
    aiohttp.ClientConnectorCertificateError: "its certificate is not valid",
    aiohttp.ClientSSLError: "no secure connection could be made",
    aiohttp.ClientHttpProxyError: "the proxy refused the connection",
    aiohttp.ClientConnectorError: "nothing answers at the address",
    TimeoutError: f"no connection within {_SECONDS:g} seconds",
    aiohttp.ClientResponseError: "the answer is not HTTP",
    aiohttp.ClientError: "the connection broke before the answer was complete",
}


class Relay:
    """An answer that is the other server's, as it comes; when the client leaves, the request there ends.

    Args:
        upstream: The other server.
        body: What to ask there.
        name: What the client calls the model.
        path: Where to ask.
    """

    def __init__(self, upstream: Upstream, body: dict[str, Any], name: str, path: str = "chat/completions") -> None:
        self._upstream = upstream
        self._path = path
        self._body = body
        self._name = name

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer."""
        async with anyio.create_task_group() as tasks:

            async def work() -> None:
                await self._send_answer(scope, receive, send)
                tasks.cancel_scope.cancel()

            tasks.start_soon(work)
            while (await receive())["type"] != "http.disconnect":
                pass
            tasks.cancel_scope.cancel()

    async def _send_answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        upstream, streams = self._upstream, False
        try:
            async with upstream.ask(self._path, self._body) as response:
                if response.status != 200:
                    answer = await self._make_error(response)
                    return await answer(scope, receive, send)
                streams = "event-stream" in response.headers.get("Content-Type", "")
                if streams:
                    return await self._stream(response, send)
                answer = await self._make_reply(response)
                await answer(scope, receive, send)
        except (aiohttp.ClientError, TimeoutError, AnswerError) as error:
            reason = next((words for kind, words in _FAILURES.items() if isinstance(error, kind)), str(error))
            failure = build_error(f"the model's server: {reason}", "upstream_error")
            if streams:
                await send_part(send, self._write_failure(failure), more=False)
            else:
                await JSONResponse(failure, 502)(scope, receive, send)

    def _write_failure(self, failure: dict[str, Any]) -> bytes:
        """Write an error as servers report it in a stream."""
        return f"data: {json.dumps(failure)}\n\n".encode()

    async def _make_reply(self, response: aiohttp.ClientResponse) -> Response:
        content = await _read(response)
        value = parse_body(content)
        if UNREADABLE in value:
            raise AnswerError("its answer is not JSON")
        return self._build_reply(value)

    def _build_reply(self, value: dict[str, Any]) -> Response:
        return make_json_response(encode_body(self._upstream.clean(value, self._name)))

    async def _make_error(self, response: aiohttp.ClientResponse) -> Response:
        content = b""
        with suppress(TimeoutError, aiohttp.ClientError, AnswerError):
            async with asyncio.timeout(_SECONDS):
                content = await _read(response)
        headers: dict[str, str] = {}
        for name in _PASSED:
            value = response.headers.get(name, "")
            if value and value.isascii() and value.isprintable():
                headers[name] = value
        status = response.status if 400 <= response.status < 600 else 502
        error = self._upstream.clean_error(response.status, content, self._name)
        return make_json_response(error, status, headers)

    async def _stream(self, response: aiohttp.ClientResponse, send: Send) -> None:
        await start_stream(send)
        async for lines in self._iterate_lines(response):
            await send_part(send, self._upstream.clean_lines(lines, self._name))
        await send_part(send, b"", more=False)

    async def _iterate_lines(self, response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
        """Yield whole lines of a stream, those that come together as one; what ends without an end comes last."""
        partial = b""
        async for chunk in response.content.iter_any():
            lines, end, partial = (partial + chunk).rpartition(b"\n")
            if len(partial) > _MOST_BYTES:
                raise AnswerError(f"a line of its answer is longer than {_MOST_BYTES:,} bytes")
            if end:
                yield lines + end
        if partial:
            yield partial


def make_json_response(content: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Make a response of JSON."""
    return Response(content, status, headers, media_type="application/json")


async def _read(response: aiohttp.ClientResponse) -> bytes:
    content = bytearray()
    async for chunk in response.content.iter_any():
        content += chunk
        if len(content) > _MOST_BYTES:
            raise AnswerError(f"its answer is longer than {_MOST_BYTES:,} bytes")
    return bytes(content)
