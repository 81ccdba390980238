"""A model behind an OpenAI-compatible HTTP endpoint, asked through the `openai` SDK.

The SDK retries nothing here, sends no header of its own from the environment, and follows no redirect; retries are the
run's. No key, header or environment value gets into what is returned or raised.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import time
import warnings
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from functools import partial
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import httpx2
from openai import APIStatusError, AsyncOpenAI, AsyncStream, DefaultAsyncHttpxClient, Omit, OpenAIError, omit
from openai.types.chat import ChatCompletionChunk

from rolellm.core.errors import RoleLLMWarning, SettingsError
from rolellm.core.scrub import Scrubber, make_scrubber
from rolellm.llm.model import CallError, Finish, Json, Reply, Request, T
from rolellm.llm.openai_format import (
    UNREADABLE,
    Structured,
    add_usage,
    encode_body,
    parse_body,
    read_body,
    read_content,
    read_finish,
    request_body,
)
from rolellm.llm.retry import make_status_error
from rolellm.llm.settings import ModelSettings, find_hidden_keys, find_key, is_near
from rolellm.version import __version__

_KEPT_HEADERS = ("content-type", "retry-after", "retry-after-ms")
_FORMS: tuple[Structured, ...] = ("json_schema", "json_object", "none")
# Replies of fewer tokens, and fewer replies, say nothing about the pace; a form that takes fewer seconds per token than
# this, or is fewer times slower than plain text, is not worth a warning (our choice).
_TOKENS_TO_COMPARE, _REPLIES_TO_COMPARE, _SLOW, _FAR_SLOWER = 16, 3, 0.1, 4


class Endpoint:
    """A `rolellm.llm.model.Model` at an endpoint. No socket is opened before the first call.

    Args:
        settings: Where it is.

    Attributes:
        name: Host and model.
        concurrency: Maximum calls at once.
        price: What its tokens cost.
        structured: How the next schema is asked for.
    """

    def __init__(self, settings: ModelSettings) -> None:
        self.settings = settings
        self.name, self.concurrency, self.price = settings.name, settings.concurrency, settings.price
        self._base_url, self._model = settings.base_url or "", settings.model or ""
        self.structured: Structured = "json_schema" if settings.structured == "auto" else settings.structured
        self._hidden = find_hidden_keys(self._base_url, settings.extra_body)
        self._sdk: AsyncOpenAI | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        # By whether the reply was constrained to a form: seconds a token, of the fastest calls.
        self._pace: dict[bool, list[float]] = {}
        self._warned = False

    def __repr__(self) -> str:
        return f"Endpoint({self.name})"

    def __reduce__(self) -> tuple[type[Endpoint], tuple[ModelSettings]]:
        # For a worker, which reads the key from its own environment.
        return Endpoint, (self.settings,)

    @property
    def identity(self) -> Json:
        """Address, model, and what else of the settings decides replies."""
        deciding = {name: getattr(self.settings, name) for name in ("base_url", "model", "structured")}
        return {"backend": "openai", **deciding, "extra_body": dict(self.settings.extra_body)}

    async def call(self, request: Request, attempt: int = 1) -> Json:
        """Ask once.

        A server that refuses the form in which a schema is asked for is asked again in the next form; that costs
        nothing, and does not count as an attempt. The first form that brings a reply is kept: an error may name the
        form only because it repeats the request.

        Raises:
            CallError: When no reply came.
            SettingsError: When the server needs a key and none is set.
        """
        form = self.structured
        while True:
            started = time.monotonic()
            try:
                body = self.make_body(request, attempt, form)
                work = partial(self._post, body, cast_to=httpx2.Response)
                response: httpx2.Response = await self.send(work, self.settings.timeout)
            except CallError as error:
                if request.schema is None:
                    raise
                if self.settings.structured == "auto" and error.kind == "timeout" and True not in self._pace:
                    # Under a grammar, some servers take minutes for a reply.
                    self.keep_form("none")
                if (lower := self.get_next_form(form, error)) is None:
                    raise
                form = lower
                continue
            raw = self.clean_body(parse_body(response.content), request)
            self.keep_form(form)
            self._compare_paces(raw, request.schema is not None and form != "none", time.monotonic() - started)
            return raw

    async def stream(self, request: Request, ended: Callable[[Finish], object] | None = None) -> AsyncGenerator[str]:
        """Ask once, and give the reply's text as it arrives; in one piece, where the server does not stream.

        Args:
            request: What to ask.
            ended: Called with how the reply ended.

        Raises:
            CallError: When no reply came, or it broke off.
            SettingsError: When the server needs a key and none is set.
        """
        seconds = self.settings.timeout
        how = {"cast_to": ChatCompletionChunk, "stream": True, "stream_cls": AsyncStream[ChatCompletionChunk]}
        work = partial(self._post, {**self.make_body(request), "stream": True}, **how)
        chunks: AsyncStream[ChatCompletionChunk] = await self.send(work, seconds)
        async with aclosing(chunks.response):
            if "json" in chunks.response.headers.get("Content-Type", ""):
                content = await self.send(chunks.response.aread, seconds)
                reply = self.read(self.clean_body(parse_body(content), request))
                full_text, finish = reply.text, reply.finish
                yield full_text
            else:
                # The SDK's own reading hides whether the end came.
                events, full_text, last, done = chunks._iter_events(), "", None, False
                while not done and (event := await self.send(partial(anext, events, None), seconds)) is not None:
                    done = event.data.startswith("[DONE]")
                    raw = {} if done else self.clean_body(parse_body(event.data.encode()), None)
                    for choice in raw.get("choices") or ():
                        last = choice.get("finish_reason") or last
                        if text := read_content((choice.get("delta") or {}).get("content")):
                            full_text += text
                            yield text
                finish = read_finish({"finish_reason": last}, {}, full_text)
                if (last is None and not done) or (full_text.strip() and finish == "empty"):
                    raise CallError("connection", "the reply broke off", retry=True, billed=True)
        if ended is not None:
            ended(finish)

    async def context(self) -> int | None:
        """The most tokens of prompt and reply, where the server's list of models says so (vLLM, llama.cpp and others).

        Raises:
            SettingsError: When the server needs a key and none is set.
        """
        listed = await self.list_models()
        # llama.cpp lists its one model by the file's path, and answers to any name.
        entry = next(iter(listed.values())) if len(listed) == 1 else listed.get(self._model, {})
        meta = entry.get("meta")
        facts = {**entry, **(meta if isinstance(meta, dict) else {})}
        tokens = next((facts[name] for name in _CONTEXTS if isinstance(facts.get(name), int)), 0)
        return tokens if tokens > 0 else None

    async def list_models(self) -> dict[str, dict[str, Any]]:
        """Get the server's list of models, by name; empty if it has none.

        Raises:
            SettingsError: When the server needs a key and none is set.
        """
        try:
            page = await self.send(
                partial(self.get_sdk().models.list, extra_headers=self.make_headers()), _CONNECT_SECONDS
            )
        except CallError:
            return {}
        return {item.id: item.to_dict() for item in page.data or ()}

    def _compare_paces(self, raw: Json, constrained: bool, seconds: float) -> None:
        """Say so once where a form that is asked for makes this server's replies far slower."""
        usage = raw.get("usage")
        tokens = usage.get("completion_tokens") if isinstance(usage, Mapping) else None
        # A short reply has no pace, but shows that the form works.
        paces = self._pace.setdefault(constrained, [])
        if isinstance(tokens, int) and tokens >= _TOKENS_TO_COMPARE:
            paces[:] = sorted([*paces, seconds / tokens])[:_REPLIES_TO_COMPARE]
        plain, formed = self._pace.get(False, []), self._pace.get(True, [])
        if self._warned or min(len(plain), len(formed)) < _REPLIES_TO_COMPARE:
            return
        if max(_SLOW, _FAR_SLOWER * plain[0]) < formed[0]:
            self._warned = True
            times = formed[0] / plain[0]
            warnings.warn(
                f"{self.name} is {times:.0f} times slower with `structured: {self.structured}` than without; "
                "`structured: none` in its settings asks for JSON in words alone, and reads that, too",
                RoleLLMWarning,
                stacklevel=2,
            )

    def get_next_form(self, form: Structured, error: CallError) -> Structured | None:
        """The form to ask in after one was refused; ``None`` where the form is not at fault, or there is no other."""
        if self.settings.structured != "auto" or form == "none" or not error.wants_other_form:
            return None
        return _FORMS[_FORMS.index(form) + 1]

    def keep_form(self, form: Structured) -> None:
        """Ask in this form from now on, unless one that asks for less is in use already."""
        self.structured = max(self.structured, form, key=_FORMS.index)

    def make_error(self, status: int, content: bytes, headers: Mapping[str, str] | None = None) -> CallError:
        """The error that an answer other than 2xx stands for, secrets taken out."""
        return make_status_error(status, headers or {}, content, self.get_scrubber().text)

    def make_body(self, request: Request, attempt: int = 1, form: Structured | None = None) -> dict[str, Any]:
        """The body of a call; in the form that is in use, if none is given."""
        return request_body(request, self.settings, attempt, form or self.structured)

    def read(self, raw: Json) -> Reply:
        """Read a raw reply.

        Raises:
            UnacceptableError: With the kind ``malformed``, for one that is no chat completion.
        """
        return read_body(raw, self._model, self.name)

    def clean_body(self, raw: dict[str, Any], request: Request | None) -> Json:
        """A parsed body as what is kept of it: secrets taken out, and tokens counted where the server's cannot be true.

        Args:
            raw: The body.
            request: What was asked, for the count.

        Raises:
            CallError: For an error where a reply should be.
        """
        try:
            raw = self.get_scrubber().json(raw)
        except RecursionError:
            return {UNREADABLE: "nested too deeply"}
        if raw.get("error") and not raw.get("choices"):
            error = raw["error"]
            code = error.get("code") if isinstance(error, dict) else None
            status = code if isinstance(code, int) and 400 <= code < 600 else 500
            refused = self.make_error(status, encode_body(raw))
            # It broke off at some point behind the server's back; what was said until then may be charged.
            raise CallError(refused.kind, refused.reason, retry=refused.retry, billed=True)
        return raw if request is None else add_usage(raw, request, self.settings.extra_body)

    async def close(self) -> None:
        """Close connections; the next call opens new ones."""
        sdk, self._sdk = self._sdk, None
        if sdk is not None and self._loop is asyncio.get_running_loop():
            await sdk.close()

    def get_sdk(self) -> AsyncOpenAI:
        """The SDK's client for the running event loop; every request needs `make_headers`."""
        loop = asyncio.get_running_loop()
        if self._sdk is None or self._loop is not loop:
            # At DEBUG, this logger prints the headers of responses, in which a server may echo the key.
            logging.getLogger("httpcore2.http11").addFilter(_has_no_headers)
            transport = make_transport(self._base_url, self.concurrency, self.settings.max_bytes)
            # What is given here is not looked up in the environment.
            unset: Any = dict.fromkeys(("admin_api_key", "organization", "project", "webhook_secret"), "")
            self._loop, self._sdk = (
                loop,
                _Plain(
                    base_url=self._base_url,
                    api_key="none",
                    max_retries=0,
                    timeout=httpx2.Timeout(None, connect=_CONNECT_SECONDS),
                    http_client=DefaultAsyncHttpxClient(transport=transport, trust_env=False, follow_redirects=False),
                    **unset,
                ),
            )
        return self._sdk

    def find_key(self) -> str:
        """Find the key, as `rolellm.llm.settings.find_key`."""
        return find_key(self._base_url, self.settings.api_key_env, plain_http=self.settings.allow_plain_http)

    def make_headers(self) -> dict[str, Any]:
        """Make the header that holds the key, as the SDK takes it for one request.

        Raises:
            SettingsError: When the server needs a key and none is set.
        """
        key = self.find_key()
        return {"Authorization": f"Bearer {key}" if key else omit}

    async def send(self, work: Callable[[], Awaitable[T]], seconds: float) -> T:
        """Send a request by the SDK and return its result.

        Args:
            work: Sends it.
            seconds: Allowed for all of it.

        Raises:
            CallError: For anything but a whole answer of status 2xx.
            SettingsError: When the server needs a key and none is set.
        """
        failure: CallError
        try:
            async with asyncio.timeout(seconds):
                return await work()
        except SettingsError:  # The key is missing.
            raise
        except APIStatusError as error:
            failure = self.make_error(error.status_code, error.response.content, error.response.headers)
        except TimeoutError:
            failure = CallError("timeout", f"no complete answer within {seconds:g} seconds", retry=True, billed=True)
        except CallError as error:
            failure = CallError(error.kind, error.reason, retry=error.retry, billed=error.billed)
        except (OpenAIError, httpx2.HTTPError, ValueError, RecursionError) as error:
            failure = _make_unreadable(f"the answer cannot be read ({type(error).__name__})")
        # Outside of the handlers: what the SDK raised holds headers, and would become part of this.
        raise failure

    def get_scrubber(self) -> Scrubber:
        """Get the scrubber of this endpoint's secrets."""
        return make_scrubber(self.find_key(), *self._hidden)

    async def _post(self, body: Json, **how: Any) -> Any:
        # The overloads of the SDK do not take keyword arguments in a dict.
        post: Any = self.get_sdk().post
        headers = {"headers": self.make_headers()}
        return await post("/chat/completions", content=encode_body(body), options=headers, **how)


_CONNECT_SECONDS = 15.0
#: What servers call their context in their list of models.
_CONTEXTS = ("max_model_len", "n_ctx", "context_length", "max_context_length")


def make_transport(base_url: str, connections: int | None, most_bytes: int | None) -> httpx2.AsyncBaseTransport:
    """The way to a server: by the proxy that the environment names, and with errors in our words.

    Args:
        base_url: The server's address.
        connections: The most that are open at once; ``None`` for no limit.
        most_bytes: The longest body that is read; ``None`` for no limit.
    """
    limits = httpx2.Limits(max_connections=connections, max_keepalive_connections=connections)
    return _Bounded(httpx2.AsyncHTTPTransport(trust_env=False, limits=limits, proxy=find_proxy(base_url)), most_bytes)


class _Bounded(httpx2.AsyncBaseTransport):
    """A transport that refuses compressed and overlong bodies, and words its errors without hosts or headers.

    Args:
        inner: What sends the requests.
        most_bytes: The longest body that is read; file downloads are streamed and have no limit here.

    Raises:
        CallError: From `handle_async_request`, when no response came or it was too long.
    """

    def __init__(self, inner: httpx2.AsyncBaseTransport, most_bytes: int | None) -> None:
        self._inner = inner
        self._most_bytes = most_bytes

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request."""
        failure = None
        try:
            response = await self._inner.handle_async_request(request)
        except httpx2.HTTPError as error:
            failure = _translate_error(error)
        if failure is not None:
            # Outside of the handler: the SDK's error holds the request with its headers.
            raise failure
        if response.headers.get("Content-Encoding", "").strip().casefold() not in ("", "identity"):
            await response.aclose()
            raise _make_unreadable("the body is compressed, although no compression was requested")
        headers = {name: response.headers[name] for name in _KEPT_HEADERS if name in response.headers}
        download = request.method == "GET" and request.url.path.endswith("/content") and response.status_code == 200
        body = _Body(response, None if download else self._most_bytes)
        return httpx2.Response(response.status_code, headers=headers, stream=body)

    async def aclose(self) -> None:
        """Close all connections."""
        await self._inner.aclose()


class _Body(httpx2.AsyncByteStream):
    """A body of limited length, with errors in our words."""

    def __init__(self, response: httpx2.Response, most_bytes: int | None) -> None:
        self._response = response
        self._most_bytes = most_bytes

    async def __aiter__(self) -> AsyncIterator[bytes]:
        failure, size = None, 0
        try:
            async for chunk in self._response.aiter_raw():
                size += len(chunk)
                if self._most_bytes is not None and size > self._most_bytes:
                    failure = _make_unreadable(f"the body is longer than {self._most_bytes:,} bytes")
                    break
                yield chunk
        except httpx2.HTTPError as error:
            failure = _translate_error(error)
        if failure is not None:
            raise failure

    async def aclose(self) -> None:
        await self._response.aclose()


def _make_unreadable(reason: str) -> CallError:
    return CallError("malformed", reason, retry=True, billed=True)


def _translate_error(error: httpx2.HTTPError) -> CallError:
    """Translate an error; the SDK's own messages name hosts, proxies and what the server sent."""
    causes: list[BaseException] = [error]
    while (cause := causes[-1].__cause__ or causes[-1].__context__) is not None:
        causes.append(cause)
    match error:
        case httpx2.ConnectError():
            if any(isinstance(cause, ssl.SSLCertVerificationError) for cause in causes):
                return CallError("connection", "the server's certificate is not valid", retry=False)
            if any(isinstance(cause, ssl.SSLError) for cause in causes):
                return CallError("connection", "no secure connection could be made", retry=True)
            if any(isinstance(cause, socket.gaierror) for cause in causes):
                return CallError("connection", "the host name is unknown", retry=True)
            return CallError("connection", "nothing answers at the address", retry=True)
        case httpx2.ProxyError():
            return CallError("connection", "the proxy refused the connection", retry=True)
        case httpx2.ConnectTimeout():
            return CallError("timeout", f"no connection within {_CONNECT_SECONDS:g} seconds", retry=True)
        case httpx2.RemoteProtocolError() if "disconnected" not in str(error) and "closed" not in str(error):
            return _make_unreadable("the answer is not HTTP")
    return CallError("connection", "the connection broke before the answer was complete", retry=True, billed=True)


def find_proxy(url: str) -> str | None:
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
        """The headers of every request."""
        return {
            "Accept-Encoding": "identity",
            "Content-Type": "application/json",
            "User-Agent": f"rolellm/{__version__}",
        }


def _has_no_headers(record: logging.LogRecord) -> bool:
    return "receive_response_headers" not in record.getMessage()
