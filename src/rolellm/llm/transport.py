"""The HTTP below the `openai` SDK: over aiohttp, with a bound on what is read and nothing of it in any log.

The SDK's own way over httpx2 takes more CPU a call (`benchmarks/client.py`), reads bodies of any size into memory, and
unpacks compressed ones of any size. Errors come out as `CallError`, which the SDK lets pass, and which say
whether the request can have arrived.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
import httpx2
from openai import AsyncOpenAI, Omit

from rolellm.llm.address import is_near
from rolellm.llm.model import CallError
from rolellm.version import __version__

_CONNECT_SECONDS = 15.0
_KEPT_HEADERS = ("content-type", "retry-after", "retry-after-ms")


class BoundedClient(httpx2.AsyncClient):
    """What the SDK sends its requests with, all to one host: redirects, cookies and `.netrc` play no part.

    Requests with a body of bytes go past what httpx2 does to every request, which has nothing to add to them.

    Args:
        base_url: Of the host.
        most: The most bytes of a body; downloads of files are streamed, and have no bound here.
        connections: The most connections at once.

    Raises:
        CallError: From `send`, when no response came, or too much of one.
    """

    def __init__(self, base_url: str, most: int, connections: int) -> None:
        # A transport that is given spares making one with a TLS context of its own, which nothing uses.
        super().__init__(transport=httpx2.AsyncBaseTransport(), timeout=None, trust_env=False, follow_redirects=False)
        self._most = most
        self._connections = connections
        self._secure = base_url.startswith("https:")
        self._proxy = _proxy(base_url)
        self._session: aiohttp.ClientSession | None = None
        self._urls: dict[str, httpx2.URL] = {}

    def build_request(self, method: str, url: httpx2.URL | str, **parts: Any) -> httpx2.Request:
        """A request, as the SDK has it made."""
        if not isinstance(parts.get("content"), bytes):
            return super().build_request(method, url, **parts)
        known = self._urls.get(str(url))
        if known is None:
            known = self._urls[str(url)] = httpx2.URL(url)
        return httpx2.Request(method, known, headers=parts.get("headers"), content=parts["content"])

    async def send(self, request: httpx2.Request, **_: Any) -> httpx2.Response:
        """Send one request and read what comes back."""
        failure: CallError
        try:
            return await self._send(request)
        except CallError as error:
            failure = error
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            failure = _failure(error)
        # Outside of the handler, so that what aiohttp raised, which holds the headers, does not hang on it.
        raise failure

    async def aclose(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()
        await super().aclose()

    async def _send(self, request: httpx2.Request) -> httpx2.Response:
        session = self._session = self._session or self._open()
        try:
            data: bytes | httpx2.AsyncByteStream = request.content
        except httpx2.RequestNotRead:
            assert isinstance(request.stream, httpx2.AsyncByteStream)
            data = request.stream
        response = await session.request(
            request.method,
            str(request.url),
            headers=request.headers.multi_items(),
            data=data or None,
            allow_redirects=False,
            proxy=self._proxy,
        )
        headers = {name: response.headers[name] for name in _KEPT_HEADERS if name in response.headers}
        if request.method == "GET" and request.url.path.endswith("/content") and response.status == 200:
            return httpx2.Response(response.status, headers=headers, stream=_Download(response), request=request)
        try:
            content = await self._read(response)
        except BaseException:
            response.close()
            raise
        return httpx2.Response(response.status, headers=headers, content=content, request=request)

    def _open(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=self._connections, ssl=httpx2.create_ssl_context() if self._secure else True
            ),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            # A .netrc would put a password into requests to servers that want no key.
            trust_env=False,
        )

    async def _read(self, response: aiohttp.ClientResponse) -> bytes:
        packed = response.headers.get("Content-Encoding", "").strip()
        if packed.casefold() not in ("", "identity"):
            raise CallError("malformed", "the body is compressed, which was not asked for", retry=True, billed=True)
        if (response.content_length or 0) > self._most:
            raise self._too_long()
        chunks, size = [], 0
        async for chunk in response.content.iter_any():
            size += len(chunk)
            if size > self._most:
                raise self._too_long()
            chunks.append(chunk)
        return b"".join(chunks)

    def _too_long(self) -> CallError:
        return CallError("malformed", f"the body is longer than {self._most:,} bytes", retry=True, billed=True)


class _Download(httpx2.AsyncByteStream):
    """A body that is read in pieces, by whoever asked."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response

    async def __aiter__(self) -> AsyncIterator[bytes]:
        failure = None
        try:
            async for chunk in self._response.content.iter_any():
                yield chunk
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            failure = _failure(error)
        if failure is not None:
            raise failure

    async def aclose(self) -> None:
        self._response.close()


def _failure(error: Exception) -> CallError:
    """What went wrong, in words of ours: aiohttp's name hosts, proxies and what the server sent."""
    match error:
        case aiohttp.ClientConnectorCertificateError():
            return CallError("connection", "the server's certificate is not valid", retry=False)
        case aiohttp.ClientProxyConnectionError() | aiohttp.ClientHttpProxyError():
            return CallError("connection", "the proxy does not let it through", retry=True)
        case aiohttp.ClientConnectorDNSError():
            return CallError("connection", "the host's name is not known", retry=True)
        case aiohttp.ClientConnectorSSLError():
            return CallError("connection", "no secure connection came about", retry=True)
        case aiohttp.ClientConnectorError():
            return CallError("connection", "nothing answers at the address", retry=True)
        case aiohttp.ConnectionTimeoutError():
            return CallError("timeout", f"no connection within {_CONNECT_SECONDS:g} seconds", retry=True)
        case asyncio.TimeoutError():
            return CallError("timeout", "no answer in time", retry=True, billed=True)
        case aiohttp.ClientResponseError():
            return CallError("malformed", "what came back is not HTTP", retry=True, billed=True)
    return CallError("connection", "the connection broke before the answer was whole", retry=True, billed=True)


def _proxy(url: str) -> str | None:
    """The proxy that the environment names for an address; none for this machine."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if is_near(host, this_machine=True) or proxy_bypass(host):
        return None
    proxies = getproxies()
    return proxies.get(parts.scheme) or proxies.get("all")


class _Plain(AsyncOpenAI):
    """The SDK's client, without the headers that it takes from the environment and makes up of the machine."""

    @property
    def default_headers(self) -> dict[str, str | Omit]:
        """What every request has, whoever it goes to."""
        return {
            "Accept-Encoding": "identity",
            "Content-Type": "application/json",
            "User-Agent": f"rolellm/{__version__}",
        }


def sdk_client(base_url: str, most: int, connections: int) -> AsyncOpenAI:
    """The SDK's client for an address; each request has to bring its own ``Authorization``.

    Args:
        base_url: The address.
        most: The most bytes of a body.
        connections: The most connections at once.
    """
    return _Plain(
        base_url=base_url,
        api_key="none",
        # What is given here in so many words is not looked up in the environment.
        admin_api_key="",
        organization="",
        project="",
        webhook_secret="",
        max_retries=0,
        timeout=None,
        http_client=BoundedClient(base_url, most, connections),
    )
