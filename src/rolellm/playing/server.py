"""An OpenAI-compatible server in front of another one: ``model`` names a role, and the role's prompt goes in.

What the other server says passes through as it comes, streamed or not, errors included; only the model is called by the
name that the client knows. The other server's model answers as it is, too, under its own name. A client that leaves
takes its request with it. Keys are kept apart: the client's is not sent on, and the other server's is not shown, nor is
its address. With a guard, nothing of a reply is passed on before the guard has read it.
"""

from __future__ import annotations

import asyncio
import json
import re
import secrets
import socket
import time
import warnings
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp
import anyio
import uvicorn
from anyio.to_thread import run_sync
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from rolellm.characters.roles import suggest_names
from rolellm.characters.scripts.parse import detect_language
from rolellm.core.errors import ModelError, RoleLLMError, RoleLLMWarning, SettingsError
from rolellm.core.records import Language
from rolellm.core.scrub import HIDDEN
from rolellm.core.text import find_name, fold_name
from rolellm.llm.endpoint import Endpoint, find_proxy
from rolellm.llm.model import Message, UnacceptableError, strip_thoughts, user
from rolellm.llm.openai_format import UNREADABLE, encode_body, parse_body, read_content
from rolellm.llm.settings import find_key
from rolellm.llm.tokens import count_fewest_tokens
from rolellm.models.prompts.render import OPENING
from rolellm.playing.guarding import HeldReply, TalkGuard
from rolellm.playing.player import RolePlayer, play_roles

#: The longest request that is read, in bytes (our choice).
MAX_BODY: Final = 8 << 20
_MOST_ERROR = 1 << 20
_CONNECT_SECONDS: Final = 15.0
#: Seconds in which a request's headers have to arrive, and then its body, and an error of the other server's (our
#: choice).
_PATIENCE = 15.0
_ROLES = ("system", "developer", "user", "assistant", "tool")
_LIMITS = ("max_completion_tokens", "max_tokens")
_PASSED = ("retry-after", "retry-after-ms")
#: Servers that go on with an assistant's turn at the end only when told to; others do it by themselves, or cannot.
_TOLD_TO_CONTINUE: Final = ("vllm", "sglang")
_CONTINUE: Final = {"continue_final_message": True, "add_generation_prompt": False}
_STREAM_START: Final = {
    "type": "http.response.start",
    "status": 200,
    "headers": [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")],
}
_MODEL = re.compile(r'"model"\s*:\s*"(?:[^"\\]|\\.)*"')
_ORIGIN = re.compile(r"\*|null|[a-z][a-z0-9+.-]*://[^/\s]+")


def build_application(
    players: Mapping[str, RolePlayer],
    *,
    plain: str | None = None,
    key: str = "",
    hosts: tuple[str, ...] = ("*",),
    origins: Iterable[str] = (),
    guard: TalkGuard | None = None,
) -> Starlette:
    """The server as an ASGI application.

    Args:
        players: By name, roles that are played by one model behind an API.
        plain: The name under which that model answers without a role; by default its own.
        key: What clients have to send as their key; empty for none.
        hosts: The names by which it may be called; ``*`` for any.
        origins: Web pages of these origins may use it; ``*`` for all.
        guard: Reads each turn and reply, those of the model without a role included.

    Raises:
        SettingsError: For a model that is not behind an API, or an origin that cannot be one.
    """
    endpoint = next(iter(players.values())).model
    if not isinstance(endpoint, Endpoint):
        raise SettingsError("the server passes requests on to an OpenAI-compatible one; name it (--base-url)")
    for origin in origins:
        if not _ORIGIN.fullmatch(origin):
            raise SettingsError(f"{origin!r} is not an origin; give scheme and host, such as http://localhost:3000")
    plain = plain or endpoint.settings.model or ""
    plain = plain if find_name(plain, players) is None else f"{plain}-plain"
    pages = Middleware(CORSMiddleware, allow_origins=list(origins), allow_methods=["GET", "POST"], allow_headers=["*"])
    app = Starlette(
        routes=[
            Route("/health", _report_health),
            Route("/v1/models", _list_models),
            Route("/v1/models/{name:path}", _show_model),
            Route("/v1/chat/completions", _complete, methods=["POST"]),
        ],
        middleware=[pages] * bool(origins),
        exception_handlers={HTTPException: _explain_error, RoleLLMError: _explain_error},
        lifespan=_open_upstream,
    )
    app.state.upstream, app.state.players, app.state.names = _Upstream(endpoint), players, [*players, plain]
    app.state.key, app.state.hosts, app.state.guard = key, hosts, guard
    return app


@asynccontextmanager
async def _open_upstream(app: Starlette) -> AsyncIterator[None]:
    upstream: _Upstream = app.state.upstream
    listing = await upstream.endpoint.list_models()
    await upstream.endpoint.close()
    owner = listing.get(upstream.endpoint.settings.model or "", {}).get("owned_by")
    upstream.continuing = _CONTINUE if owner in _TOLD_TO_CONTINUE else {}
    async with upstream.open_session():
        yield
    if app.state.guard is not None:
        await app.state.guard.close()


async def _report_health(request: Request) -> Response:
    guard: TalkGuard | None = request.app.state.guard
    return JSONResponse({"status": "ok", **({} if guard is None else {"guard": guard.counts.to_dict()})})


async def _list_models(request: Request) -> Response:
    _check_access(request)
    return JSONResponse({"object": "list", "data": [_describe_model(name) for name in request.app.state.names]})


async def _show_model(request: Request) -> Response:
    _check_access(request)
    return JSONResponse(_describe_model(_find_model(request.path_params["name"], request.app.state.names)))


async def _complete(request: Request) -> _Relay:
    _check_access(request)
    upstream: _Upstream = request.app.state.upstream
    players: Mapping[str, RolePlayer] = request.app.state.players
    settings = upstream.endpoint.settings
    body = await _read_body(request)
    name = _find_model(body.get("model"), request.app.state.names)
    sent = {**body, **settings.extra_body, "model": settings.model}
    guard: TalkGuard | None = request.app.state.guard
    try:
        # It may count many tokens.
        if name in players:
            sent["messages"] = await run_sync(_play, players[name], body)
            if sent["messages"][-1]["role"] == "assistant":
                sent |= upstream.continuing
        else:
            await run_sync(_check_length, next(iter(players.values())), body)
        if guard is not None:
            return _GuardedRelay(upstream, sent, name, guard, _read_guarded_turn(body, players.get(name)))
    except RoleLLMError as error:
        code = "context_length_exceeded" if isinstance(error, ModelError) else None
        raise _InvalidRequestError(400, str(error), code) from error
    return _Relay(upstream, sent, name)


def _describe_model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "rolellm"}


def _build_error(message: str, kind: str = "invalid_request_error", code: str | None = None) -> dict[str, Any]:
    """An error as OpenAI has it."""
    return {"message": message, "type": kind, "param": None, "code": code}


class _InvalidRequestError(HTTPException):
    """A request that is not passed on."""

    def __init__(self, status: int, problem: str, code: str | None = None) -> None:
        super().__init__(status, problem)
        self.code = code


async def _explain_error(request: Request, error: Exception) -> Response:
    status, problem, headers = 500, str(error), None
    if isinstance(error, HTTPException):
        status, problem, headers = error.status_code, error.detail, error.headers
        if not isinstance(error, _InvalidRequestError):
            request_name = f"{request.method} {request.url.path[:100]}"
            problem = f"{request_name} is not served here; use POST /v1/chat/completions or GET /v1/models"
    return JSONResponse({"error": _build_error(problem, code=getattr(error, "code", None))}, status, headers)


def _check_access(request: Request) -> None:
    key, hosts = request.app.state.key, request.app.state.hosts
    # A page may have a name of its own pointed at this machine.
    host = re.sub(r":\d*$", "", request.headers.get("Host", "").lower())
    if "*" not in hosts and host not in hosts:
        raise _InvalidRequestError(
            400, "this host name is not served; use the address that `rolellm serve` printed, or --host"
        )
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    if key and not (scheme.lower() == "bearer" and secrets.compare_digest(token.strip().encode(), key.encode())):
        raise _InvalidRequestError(401, "wrong or missing API key; send the server's key", "invalid_api_key")


async def _read_body(request: Request) -> dict[str, Any]:
    # A page in a browser can send anything else to this machine without being asked.
    if request.headers.get("Content-Type", "").partition(";")[0].strip().lower() != "application/json":
        raise _InvalidRequestError(415, "send the request as application/json")
    content = bytearray()
    try:
        async with asyncio.timeout(_PATIENCE):
            async for chunk in request.stream():
                content += chunk
                if len(content) > MAX_BODY:
                    raise _InvalidRequestError(413, f"the request is longer than {MAX_BODY >> 20} MiB; send less")
        body = json.loads(content)
    except ClientDisconnect as error:
        raise _InvalidRequestError(400, "the client left") from error
    except TimeoutError as error:
        raise _InvalidRequestError(
            408, f"the request did not arrive within {_PATIENCE:g} seconds; send it again"
        ) from error
    except (ValueError, RecursionError) as error:
        raise _InvalidRequestError(400, "the request is not JSON") from error
    if not isinstance(body, dict):
        raise _InvalidRequestError(400, "the request is not a JSON object")
    return body


def _find_model(name: Any, names: list[str]) -> str:
    match = find_name(name, names) if isinstance(name, str) else None
    if match is None:
        found_name = repr(name[:100]) if isinstance(name, str) else "nothing"
        raise _InvalidRequestError(
            404, f"there is no role {found_name}{suggest_names(str(name), names)}", "model_not_found"
        )
    return match


def _check_length(player: RolePlayer, body: dict[str, Any]) -> None:
    """Refuse messages to the plain model that its context cannot hold, whatever else is in them."""
    fewest = 0
    # The other server says what is wrong with them.
    with suppress(AttributeError, TypeError, UnacceptableError):
        fewest = sum(count_fewest_tokens(read_content(item.get("content"))) for item in body["messages"])
    if player.context is not None and fewest > player.context:
        raise ModelError(f"the messages have over {fewest:,} tokens, too many for a context of {player.context:,}")


def _play(player: RolePlayer, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The messages with the role's prompt, tool calls and their results as they are.

    A client's system turns before the talk go after the role's. Those after it go at the end of the user's last message
    or, after a turn of the role, into a message of their own. A turn of the role that comes last is to be continued.
    """
    items = body.get("messages")
    if not isinstance(items, list) or not items:
        raise SettingsError("messages has to be a list of messages")
    turns = [_read_message(item, index, len(items)) for index, item in enumerate(items)]
    talk = [index for index, turn in enumerate(turns) if turn.role != "system"]
    first, end = (talk[0], talk[-1] + 1) if talk else (len(turns), len(turns))
    more, after = ("\n\n".join(turn.content for turn in part) for part in (turns[:first], turns[end:]))
    turns, items = turns[first:end], items[first:end]
    if not talk or (after and turns[-1].role != "user"):
        turns.append(user("" if after else OPENING[player.part.sheet.language]))
        items.append({})
    tools = json.dumps(body["tools"], ensure_ascii=False) if body.get("tools") else ""
    tool_tokens = player.count([user(tools)]) if tools else 0
    reply_tokens = next((body[name] for name in _LIMITS if isinstance(body.get(name), int) and body[name] > 0), None)
    prompt = player.prompt(turns, more=more, after=after, reply_tokens=reply_tokens, tool_tokens=tool_tokens)
    if prompt.warning:
        warnings.warn(f"{player.role}: {prompt.warning}", RoleLLMWarning, stacklevel=2)
    remaining = items[prompt.dropped :]
    before: list[dict[str, Any]] = [{} for _ in prompt.messages[len(remaining) :]]
    return [
        {**item, "role": turn.role, **({} if item.get("tool_calls") else {"content": turn.content})}
        for item, turn in zip(before + remaining, prompt.messages, strict=True)
    ]


def _read_message(item: Any, index: int, count: int) -> Message:
    """A client's message as a turn, tool calls as part of its text: they take tokens, too."""
    role = item.get("role") if isinstance(item, dict) else None
    if role not in _ROLES:
        raise SettingsError(f"messages[{index}]: expected a role of {', '.join(_ROLES)}")
    content, calls = item.get("content"), item.get("tool_calls")
    parts = content if isinstance(content, list) else []
    for kind in (part.get("type") if isinstance(part, dict) else None for part in parts):
        if kind != "text":
            content_kind = "images" if "image" in str(kind) else f"content parts of type {str(kind)[:50]!r}"
            raise SettingsError(f"messages[{index}]: {content_kind} are not supported; send text only")
    if not (isinstance(content, str | list) or (content is None and role == "assistant")):
        raise SettingsError(f"messages[{index}]: expected text as content")
    text = read_content(content)
    if calls:
        text += json.dumps(calls, ensure_ascii=False)
    elif role == "assistant" and "</think>" in text and index < count - 1:
        # Clients send back what a reasoning model thought.
        text = strip_thoughts(text)
    return Message("system" if role == "developer" else role, text)


class _Upstream:
    """The server that answers, asked by aiohttp: for a stream of small events it takes half the time of httpx2.

    Args:
        endpoint: Where it is.

    Attributes:
        endpoint: The same.
        continuing: Fields that make it go on with an assistant's turn.
        max_bytes: The longest answer that is read, and the longest line of a stream.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint, settings = endpoint, endpoint.settings
        base_url = settings.base_url or ""
        self.url = f"{base_url}/chat/completions"
        self.max_bytes = settings.max_bytes
        self.continuing: Mapping[str, Any] = {}
        self._key = find_key(base_url, settings.api_key_env)
        self._scrubber = endpoint.get_scrubber()
        own = (base_url, urlsplit(base_url).netloc)
        self._own = re.compile(
            rf"{'|'.join(map(re.escape, own))}|(?<!\w)(?P<model>{re.escape(settings.model or '')})(?!\w)"
        )
        self._proxy = find_proxy(base_url)

    def open_session(self) -> aiohttp.ClientSession:
        """Open the HTTP session; once, within the loop that uses it."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS)
        connector, jar = aiohttp.TCPConnector(limit=0), aiohttp.DummyCookieJar()
        self._session = aiohttp.ClientSession(connector=connector, cookie_jar=jar, timeout=timeout)
        return self._session

    def ask(self, body: dict[str, Any]) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        """Its answer to this body; nothing of the client's headers goes there."""
        headers = {"Content-Type": "application/json", "Accept-Encoding": "identity", "User-Agent": "rolellm"}
        headers |= {"Authorization": f"Bearer {self._key}"} if self._key else {}
        content = encode_body(body)
        return self._session.post(self.url, data=content, headers=headers, proxy=self._proxy, allow_redirects=False)

    def clean(self, value: dict[str, Any], name: str) -> bytes:
        """A reply, a part of one or an error as the client gets it: the model under this name, and no secret."""
        if "choices" in value:
            value["model"] = name
        elif isinstance(value.get("error"), dict) and isinstance(value["error"].get("message"), str):
            # Servers name themselves in errors.
            value["error"]["message"] = self._replace_names(value["error"]["message"], name)
        elif isinstance(value.get("error"), str):
            value["error"] = self._replace_names(value["error"], name)
        content = encode_body(value)
        text = content.decode()
        return content if self._scrubber.text(text) == text else encode_body(self._scrubber.json(value))

    def _replace_names(self, text: str, name: str) -> str:
        return self._own.sub(lambda match: name if match["model"] else HIDDEN, text)

    def clean_lines(self, lines: bytes, name: str) -> bytes:
        """Lines of a stream of events, cleaned in the same way."""
        # Most need not be parsed, which would take longer than all else that is done with them.
        if b'"error"' in lines or b"\\u" in lines:
            return b"\n".join(self._clean_line(line, name) for line in lines.split(b"\n"))
        field = f'"model":{json.dumps(name)}'
        text = _MODEL.sub(lambda _: field, lines.decode(errors="replace"))
        return self._scrubber.text(text).encode()

    def _clean_line(self, line: bytes, name: str) -> bytes:
        if not line.startswith(b"data:") or UNREADABLE in (value := parse_body(line[5:])):
            return self._scrubber.text(line.decode(errors="replace")).encode()
        return b"data: " + self.clean(value, name)

    def clean_error(self, status: int, content: bytes, name: str) -> bytes:
        """An error as OpenAI has it, whatever form the server gave it."""
        value = parse_body(content)
        if not value.get("error"):
            words = content[:1000].decode(errors="replace").strip() or "no reason given"
            value = {
                "error": _build_error(f"the model's server answered with status {status:03}: {words}", "upstream_error")
            }
        return self.clean(value, name)


class _AnswerError(Exception):
    """An answer of the other server that cannot be passed on."""


#: What went wrong, without hosts and headers.
_FAILURES: Final[Mapping[type[Exception], str]] = {
    aiohttp.ClientConnectorCertificateError: "its certificate is not valid",
    aiohttp.ClientSSLError: "no secure connection could be made",
    aiohttp.ClientProxyConnectionError: "the proxy refused the connection",
    aiohttp.ClientHttpProxyError: "the proxy refused the connection",
    aiohttp.ClientConnectorDNSError: "the host name is unknown",
    aiohttp.ClientConnectorError: "nothing answers at the address",
    TimeoutError: f"no connection within {_CONNECT_SECONDS:g} seconds",
    aiohttp.ClientResponseError: "the answer is not HTTP",
    aiohttp.ClientError: "the connection broke before the answer was complete",
}


class _Relay:
    """An answer that is the other server's, as it comes; when the client leaves, the request there ends.

    Args:
        upstream: The other server.
        body: What to ask there.
        name: What the client calls the model.
    """

    def __init__(self, upstream: _Upstream, body: dict[str, Any], name: str) -> None:
        self._upstream, self._body, self._name = upstream, body, name

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
            async with upstream.ask(self._body) as response:
                if response.status != 200:
                    return await (await self._make_error(response))(scope, receive, send)
                streams = "event-stream" in response.headers.get("Content-Type", "")
                if streams:
                    return await self._stream(response, send)
                value = parse_body(await _read(response, upstream.max_bytes))
                if UNREADABLE in value:
                    raise _AnswerError("its answer is not JSON")
                await self._send_reply(value, scope, receive, send)
        except (aiohttp.ClientError, TimeoutError, _AnswerError) as error:
            reason = next((words for kind, words in _FAILURES.items() if isinstance(error, kind)), str(error))
            failure = {"error": _build_error(f"the model's server: {reason}", "upstream_error")}
            if streams:
                # As servers report an error in a stream.
                await send({"type": "http.response.body", "body": f"data: {json.dumps(failure)}\n\n".encode()})
            else:
                await JSONResponse(failure, 502)(scope, receive, send)

    async def _send_reply(self, value: dict[str, Any], scope: Scope, receive: Receive, send: Send) -> None:
        await _make_json_response(self._upstream.clean(value, self._name))(scope, receive, send)

    async def _make_error(self, response: aiohttp.ClientResponse) -> Response:
        content = b""
        with suppress(TimeoutError, aiohttp.ClientError, _AnswerError):
            async with asyncio.timeout(_PATIENCE):
                content = await _read(response, _MOST_ERROR)
        passed = ((name, response.headers.get(name, "")) for name in _PASSED)
        headers = {name: value for name, value in passed if value.isascii() and value.isprintable() and value}
        status = response.status if 400 <= response.status < 600 else 502
        return _make_json_response(self._upstream.clean_error(response.status, content, self._name), status, headers)

    async def _stream(self, response: aiohttp.ClientResponse, send: Send) -> None:
        await send(_STREAM_START)
        partial = b""
        async for chunk in response.content.iter_any():
            lines, end, partial = (partial + chunk).rpartition(b"\n")
            self._check_line(partial)
            if end:
                content = self._upstream.clean_lines(lines + end, self._name)
                await send({"type": "http.response.body", "body": content, "more_body": True})
        await send({"type": "http.response.body", "body": self._upstream.clean_lines(partial, self._name)})

    def _check_line(self, line: bytes) -> None:
        if len(line) > self._upstream.max_bytes:
            raise _AnswerError(f"a line of its answer is longer than {self._upstream.max_bytes:,} bytes")


#: What a client is sent of an event of the other server, where a guard reads along.
_GUARDED: Final = ("id", "object", "created", "model", "choices", "usage", "system_fingerprint", "error")
#: OpenAI's limit of ``n``.
_MOST_CHOICES: Final = 128
#: What of a choice is not text.
_NOT_TEXT: Final = frozenset({"index", "role", "id", "type", "object", "finish_reason", "logprobs"})


@dataclass(frozen=True)
class _GuardedTurn:
    """What a guard needs to know of a request.

    Attributes:
        text: What the user and tools said since the last reply.
        begun: A reply that is to be continued.
        language: The language of the talk.
        choices: Number of replies.
        streams: Whether the client wants them as they arrive.
    """

    text: str
    begun: str
    language: Language
    choices: int
    streams: bool


def _read_guarded_turn(body: dict[str, Any], player: RolePlayer | None) -> _GuardedTurn:
    """Read what the guard has to see; `_play` has looked at the messages to a role, those to the plain model are new.

    Raises:
        SettingsError: For messages that are not text.
    """
    items, choices = body.get("messages"), body.get("n")
    if not isinstance(items, list) or not items:
        raise SettingsError("messages has to be a list of messages")
    turns = [_read_message(item, index, len(items)) for index, item in enumerate(items)]
    begun = turns.pop().content if turns[-1].role == "assistant" else ""
    replies = [index for index, turn in enumerate(turns) if turn.role == "assistant"]
    last_turns = turns[replies[-1] + 1 :] if replies else turns
    text = "\n\n".join(turn.content for turn in last_turns if turn.role in ("user", "tool"))
    language = detect_language(text) if player is None else player.part.sheet.language
    count = min(max(choices, 1), _MOST_CHOICES) if isinstance(choices, int) else 1
    return _GuardedTurn(text, begun, language, count, bool(body.get("stream")))


class _GuardedRelay(_Relay):
    """An answer that a guard reads before the client gets it.

    Args:
        upstream: The other server.
        body: What to ask there, once the guard has let the user's turn through.
        name: What the client calls the model.
        guard: The guard.
        turn: What it needs to know of the request.
    """

    def __init__(
        self, upstream: _Upstream, body: dict[str, Any], name: str, guard: TalkGuard, turn: _GuardedTurn
    ) -> None:
        super().__init__(upstream, body, name)
        self._guard, self._turn = guard, turn
        self._head: dict[str, Any] = {
            "id": f"chatcmpl-{secrets.token_hex(12)}",
            "object": "chat.completion.chunk" if turn.streams else "chat.completion",
            "created": int(time.time()),
            "model": name,
        }

    async def _send_answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        turn = self._turn
        words = await self._guard.check_turn(turn.text, turn.language) if turn.text.strip() else ""
        if not words:
            await super()._send_answer(scope, receive, send)
        elif turn.streams:
            await send(_STREAM_START)
            for index in range(turn.choices):
                await send(self._encode_stop(index, words))
            await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})
        else:
            choices = [_stop_choice(index, words) for index in range(turn.choices)]
            usage = dict.fromkeys(("prompt_tokens", "completion_tokens", "total_tokens"), 0)
            await JSONResponse({**self._head, "choices": choices, "usage": usage})(scope, receive, send)

    async def _send_reply(self, value: dict[str, Any], scope: Scope, receive: Receive, send: Send) -> None:
        for index, choice in enumerate(_list_choices(value)):
            held = self._hold()
            held.put(choice, _join_texts(choice))
            held.end()
            async for _ in held.release():
                pass
            if held.words:
                value["choices"][index] = _stop_choice(choice.get("index", index), held.words)
        await super()._send_reply({name: value[name] for name in _GUARDED if name in value}, scope, receive, send)

    def _hold(self) -> HeldReply[Any]:
        return HeldReply(self._guard, self._turn.text, self._turn.language, self._turn.begun)

    async def _stream(self, response: aiohttp.ClientResponse, send: Send) -> None:
        await send(_STREAM_START)
        replies: dict[int, HeldReply[dict[str, Any]]] = {}
        ending, problem, reading = b"", None, anyio.CancelScope()

        async def pass_on(index: int, reply: HeldReply[dict[str, Any]]) -> None:
            async for event in reply.release():
                await send(self._encode(event))
            if reply.words:
                await send(self._encode_stop(index, reply.words))
                if sum(bool(other.words) for other in replies.values()) >= self._turn.choices:
                    reading.cancel()

        async with anyio.create_task_group() as tasks:
            try:
                with reading:
                    async for event in self._iterate_events(response):
                        self._head |= {name: event[name] for name in ("id", "created") if name in event}
                        choices = _list_choices(event) if event.get("choices") else []
                        ending += b"" if choices else self._encode(event)["body"]
                        for choice in choices:
                            index = choice.get("index", 0)
                            if index not in replies:
                                replies[index] = self._hold()
                                tasks.start_soon(pass_on, index, replies[index])
                            replies[index].put({**event, "choices": [choice]}, _join_texts(choice))
            except (aiohttp.ClientError, TimeoutError, _AnswerError) as error:
                problem = error
            for reply in replies.values():
                reply.end()
        await send({"type": "http.response.body", "body": ending, "more_body": True})
        if problem is not None:
            raise problem
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})

    async def _iterate_events(self, response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
        """Events as far as a client may see them; comments and what else is in the stream are left out."""
        partial = b""
        async for chunk in response.content.iter_any():
            *lines, partial = (partial + chunk).split(b"\n")
            self._check_line(partial)
            for line in lines:
                if not line.startswith(b"data:") or line[5:].strip() == b"[DONE]":
                    continue
                event = parse_body(line[5:])
                if UNREADABLE in event:
                    raise _AnswerError("an event of its answer is not JSON")
                yield {name: event[name] for name in _GUARDED if name in event}

    def _encode(self, event: dict[str, Any]) -> dict[str, Any]:
        body = b"data: " + self._upstream.clean(event, self._name) + b"\n\n"
        return {"type": "http.response.body", "body": body, "more_body": True}

    def _encode_stop(self, index: int, words: str) -> dict[str, Any]:
        """The operator's words for a choice, and that a filter ended it."""
        choices = (
            {"index": index, "delta": {"role": "assistant", "content": words}, "finish_reason": None},
            {"index": index, "delta": {}, "finish_reason": "content_filter"},
        )
        events = [self._encode({**self._head, "choices": [choice]})["body"] for choice in choices]
        return {"type": "http.response.body", "body": b"".join(events), "more_body": True}


def _stop_choice(index: int, words: str) -> dict[str, Any]:
    message = {"role": "assistant", "content": words}
    return {"index": index, "message": message, "finish_reason": "content_filter"}


def _list_choices(value: dict[str, Any]) -> list[dict[str, Any]]:
    choices = value.get("choices")
    if not isinstance(choices, list) or not all(isinstance(choice, dict) for choice in choices):
        raise _AnswerError("its answer is not a chat completion")
    return choices


def _join_texts(value: Any) -> str:
    """All that a choice says, thoughts and arguments of tools included, whatever a server calls them."""
    if isinstance(value, dict):
        return "".join(_join_texts(part) for name, part in value.items() if name not in _NOT_TEXT)
    if isinstance(value, list):
        return "".join(map(_join_texts, value))
    return value if isinstance(value, str) else ""


def _make_json_response(content: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(content, status, headers, media_type="application/json")


async def _read(response: aiohttp.ClientResponse, most: int) -> bytes:
    content = bytearray()
    async for chunk in response.content.iter_any():
        content += chunk
        if len(content) > most:
            raise _AnswerError(f"its answer is longer than {most:,} bytes")
    return bytes(content)


def play_all(model: Any, roles: list[Any], **options: Any) -> dict[str, RolePlayer]:
    """Players of several roles by one model, by the roles' names.

    Raises:
        SettingsError: For an unknown role, or two that a client could not tell apart.
    """
    players: dict[str, RolePlayer] = {}
    for player in play_roles(model, roles, **options):
        if find_name(player.role, players) is not None or not fold_name(player.role):
            raise SettingsError(f"two roles are called {player.role!r}, or have no letter in their name; rename one")
        players[player.role] = player
    return players


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens.

    Raises:
        SettingsError: When the port cannot be used.
    """
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        opened = socket.create_server((host, port), family=family, backlog=2048)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SettingsError(f"cannot listen on {host}:{port} ({reason}); choose another port with --port") from error
    # asyncio sets it for sockets of its own alone: without it, the first token waits until the client acknowledges the
    # head of the response, 40 ms.
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return opened


def serve(listening: socket.socket, app: Starlette) -> None:
    """Serve until Ctrl-C.

    Args:
        listening: As `listen` gives it.
        app: As `build_application` gives it.
    """
    quiet: dict[str, Any] = {"log_level": "warning", "access_log": False, "server_header": False}
    protocol = type("_Protocol", (_HeaderTimeout, AutoHTTPProtocol), {})
    config = uvicorn.Config(app, timeout_graceful_shutdown=3, http=protocol, **quiet)
    uvicorn.Server(config).run(sockets=[listening])


class _HeaderTimeout(asyncio.Protocol):
    """Closes a connection on which a request's headers do not arrive in time; uvicorn would wait forever."""

    cycle: Any
    transport: asyncio.Transport
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._timer = asyncio.get_running_loop().call_later(_PATIENCE, transport.close)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_PATIENCE, self.transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        super().connection_lost(exc)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
