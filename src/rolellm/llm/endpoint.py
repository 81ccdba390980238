"""A model behind an OpenAI-compatible HTTP endpoint, asked through the `openai` SDK.

The SDK retries nothing here, sends no header of its own from the environment, and follows no redirect; retries are the
run's. No key gets into what is returned or raised.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from functools import partial
from importlib import import_module
from inspect import signature
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from openai import (
    APIConnectionError,
    APIStatusError,
    AsyncOpenAI,
    AsyncStream,
    DefaultAsyncHttpxClient,
    Omit,
    OpenAIError,
    Timeout,
    omit,
)
from openai.types.chat import ChatCompletionChunk

from rolellm.core.errors import SettingsError
from rolellm.core.scrub import hide
from rolellm.core.typed_json import map_strings
from rolellm.llm.model import CallError, Finish, Json, Reply, Request, T, UnacceptableError
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
from rolellm.llm.settings import ModelSettings, find_key, is_near
from rolellm.version import __version__

# openai 2 speaks HTTP with httpx and openai 3 with httpx2, by the same names.
httpx: Any = import_module(DefaultAsyncHttpxClient.__base__.__module__.partition(".")[0])
# How it takes bytes; early releases of openai 2 take them as the body.
_BODY = "content" if "content" in signature(AsyncOpenAI.post).parameters else "body"

_FORMS: tuple[Structured, ...] = ("json_schema", "json_object", "none")
_CONNECT_SECONDS = 15.0
_CHAT = "/chat/completions"
#: What servers call their context in their list of models.
_CONTEXTS = ("max_model_len", "n_ctx", "context_length", "max_context_length")


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
        self._sdk: AsyncOpenAI | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

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
            work = partial(self.post, _CHAT, self.make_body(request, attempt, form), cast_to=httpx.Response)
            try:
                response = await self.send(work, self.settings.timeout)
            except CallError as error:
                next_form = self.get_next_form(form, error)
                if request.schema is None or next_form is None:
                    raise
                form = next_form
                continue
            raw = self.clean_body(parse_body(response.content), request)
            self.keep_form(form)
            return raw

    async def stream(self, request: Request, ended: Callable[[Finish], object] | None = None) -> AsyncGenerator[str]:
        """Ask once, and give the reply's text as it arrives; in one piece, where the server does not stream.

        Args:
            request: What to ask.
            ended: Called with how the reply ended.

        Raises:
            CallError: When no reply came, or it broke off.
            UnacceptableError: When the answer is not a chat completion.
            SettingsError: When the server needs a key and none is set.
        """
        seconds = self.settings.timeout
        body = {**self.make_body(request), "stream": True}
        work = partial(
            self.post,
            _CHAT,
            body,
            cast_to=ChatCompletionChunk,
            stream=True,
            stream_cls=AsyncStream[ChatCompletionChunk],
        )
        chunks: AsyncStream[ChatCompletionChunk] = await self.send(work, seconds)
        async with aclosing(chunks.response):
            if "json" in chunks.response.headers.get("Content-Type", ""):
                content = await self.send(chunks.response.aread, seconds)
                reply = self.read(self.clean_body(parse_body(content), request))
                finish = reply.finish
                yield reply.text
            else:
                reader = _StreamReader()
                # The SDK's own reading hides whether the end came.
                events = chunks._iter_events()
                while not reader.is_done:
                    event = await self.send(partial(anext, events, None), seconds)
                    if event is None:
                        break
                    if event.data.startswith("[DONE]"):
                        reader.is_done = True
                        continue
                    chunk = self.clean_body(parse_body(event.data.encode()), None)
                    text = reader.read_chunk(chunk)
                    if text:
                        yield text
                finish = reader.get_finish()
        if ended is not None:
            ended(finish)

    async def context(self) -> int | None:
        """The most tokens of prompt and reply, where the server's list of models says so (vLLM, llama.cpp and others).

        Raises:
            SettingsError: When the server needs a key and none is set.
        """
        listing = await self.list_models()
        entry = listing.get(self._model, {})
        if len(listing) == 1:
            # llama.cpp lists its one model by the file's path, and answers to any name.
            entry = next(iter(listing.values()))
        meta = entry.get("meta")
        facts = {**entry, **meta} if isinstance(meta, dict) else entry
        for name in _CONTEXTS:
            tokens = facts.get(name)
            if isinstance(tokens, int) and tokens > 0:
                return tokens
        return None

    async def list_models(self) -> dict[str, dict[str, Any]]:
        """Get the server's list of models, by name; empty if it has none.

        Raises:
            SettingsError: When the server needs a key and none is set.
        """
        try:
            response = await self.send(lambda: self.get_sdk().get("/models", cast_to=httpx.Response), _CONNECT_SECONDS)
        except CallError:
            return {}
        # The SDK fails on an answer that is not such a list.
        listing = parse_body(response.content).get("data")
        models = {}
        for entry in listing if isinstance(listing, list) else ():
            if isinstance(entry, dict) and isinstance(entry.get("id"), str):
                models[entry["id"]] = entry
        return models

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
        error = make_status_error(status, headers or {}, content, self._hide)
        if status in (404, 405) and not urlsplit(self._base_url).path:
            error.reason += "; most servers' base_url ends in /v1"
        return error

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
        """A parsed body as what is kept of it: the key taken out, and tokens counted where the server does not.

        Args:
            raw: The body.
            request: What was asked, for the count.

        Raises:
            CallError: For an error where a reply should be.
        """
        key = self.find_key()
        try:
            raw = map_strings(raw, lambda text: hide(text, key))
        except RecursionError:
            return {UNREADABLE: "nested too deeply"}
        error = raw.get("error")
        if error and not raw.get("choices"):
            status = error.get("code") if isinstance(error, dict) else None
            if not isinstance(status, int) or not 400 <= status < 600:
                status = 500
            refused = self.make_error(status, encode_body(raw))
            # It broke off at some point behind the server's back; what was said until then may be charged.
            raise CallError(refused.kind, refused.reason, retry=refused.retry, billed=True)
        return raw if request is None else add_usage(raw, request)

    async def close(self) -> None:
        """Close connections; the next call opens new ones."""
        sdk, self._sdk = self._sdk, None
        if sdk is not None and self._loop is asyncio.get_running_loop():
            await sdk.close()

    def get_sdk(self) -> AsyncOpenAI:
        """The SDK's client for the running event loop."""
        loop = asyncio.get_running_loop()
        if self._sdk is None or self._loop is not loop:
            limits = httpx.Limits(max_connections=self.concurrency, max_keepalive_connections=self.concurrency)
            http_client = DefaultAsyncHttpxClient(
                trust_env=False, follow_redirects=False, limits=limits, proxy=find_proxy(self._base_url)
            )
            self._loop, self._sdk = loop, _Client(self, http_client)
        return self._sdk

    def find_key(self) -> str:
        """Find the key, as `rolellm.llm.settings.find_key`."""
        return find_key(self._base_url, self.settings.api_key_env, plain_http=self.settings.allow_plain_http)

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
        except APIConnectionError as error:
            failure = self._make_connection_error(error.__cause__ or error)
        except httpx.HTTPError as error:
            failure = self._make_connection_error(error)
        except (OpenAIError, ValueError) as error:
            reason = f"the answer cannot be read ({type(error).__name__})"
            failure = CallError("malformed", reason, retry=True, billed=True)
        # Outside of the handlers: what the SDK raised holds headers, and would become part of this.
        raise failure

    def _make_connection_error(self, error: BaseException) -> CallError:
        reason = self._hide(str(error) or type(error).__name__)
        if isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout, httpx.ProxyError)):
            return CallError("connection", f"no connection ({reason})", retry=True)
        return CallError("connection", f"the connection broke ({reason})", retry=True, billed=True)

    def _hide(self, text: str) -> str:
        return hide(text, self.find_key())

    async def post(self, path: str, body: Json, **options: Any) -> Any:
        """Post a body by the SDK; to be sent by `send`."""
        # The overloads of the SDK do not take keyword arguments in a dict.
        post: Any = self.get_sdk().post
        return await post(path, **{_BODY: encode_body(body)}, **options)


class _StreamReader:
    """Reads the chunks of one streamed reply.

    Attributes:
        is_done: Whether the server said that it was the last.
    """

    def __init__(self) -> None:
        self.is_done = False
        self._text = ""
        self._reason: str | None = None

    def read_chunk(self, chunk: Json) -> str:
        """Note a chunk; return its text.

        Raises:
            UnacceptableError: With the kind ``malformed``, for one that is not a chat completion's.
        """
        added = ""
        try:
            for choice in chunk.get("choices") or ():
                self._reason = choice.get("finish_reason") or self._reason
                delta = choice.get("delta") or {}
                added += read_content(delta.get("content"))
        except (AttributeError, TypeError):
            raise UnacceptableError("the stream is not a chat completion", "malformed") from None
        self._text += added
        return added

    def get_finish(self) -> Finish:
        """Return how the reply ended.

        Raises:
            CallError: When it broke off.
        """
        finish = read_finish({"finish_reason": self._reason}, {}, self._text)
        has_end = self._reason is not None or self.is_done
        if not has_end or (self._text.strip() and finish == "empty"):
            raise CallError("connection", "the reply broke off", retry=True, billed=True)
        return finish


def find_proxy(url: str) -> str | None:
    """The proxy that the environment names for an address; none for this machine."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if is_near(host, this_machine=True) or proxy_bypass(host):
        return None
    proxies = getproxies()
    return proxies.get(parts.scheme) or proxies.get("all")


class _Client(AsyncOpenAI):
    """The SDK's client, without the headers that it takes from the environment and makes up of the machine."""

    def __init__(self, endpoint: Endpoint, http_client: Any) -> None:
        self._endpoint = endpoint
        super().__init__(
            base_url=endpoint.settings.base_url,
            api_key="none",
            max_retries=0,
            timeout=Timeout(None, connect=_CONNECT_SECONDS),
            http_client=http_client,
        )

    @property
    def default_headers(self) -> dict[str, str | Omit]:
        """The headers of every request, with the key as the environment has it now."""
        key = self._endpoint.find_key()
        return {
            "Authorization": f"Bearer {key}" if key else omit,
            "Content-Type": "application/json",
            "User-Agent": f"rolellm/{__version__}",
        }

    def _validate_headers(self, *_: object) -> None:
        """Many servers need no key."""
