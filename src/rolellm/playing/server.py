"""An OpenAI-compatible server in front of another one: ``model`` names a role, and the role's prompt goes in.

What the other server says passes through as it comes, streamed or not, errors included. A client that leaves takes its
request with it. Keys are kept apart: the client's is not sent on, and the other server's is not shown.
"""

from __future__ import annotations

import json
import secrets
import shlex
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
import warnings
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final

import aiohttp
import anyio
import uvicorn
from anyio.to_thread import run_sync
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from rolellm.core.errors import ModelError, RoleLLMError, SettingsError
from rolellm.core.scrub import scrubber
from rolellm.core.text import find_name, squash
from rolellm.llm.endpoint import Endpoint, proxy_for
from rolellm.llm.model import Message, without_thoughts
from rolellm.llm.openai_format import content_text, encode_body
from rolellm.llm.settings import find_key, is_near
from rolellm.models.find import find_model
from rolellm.models.local_model import LocalModel
from rolellm.playing.player import ContextWarning, RolePlayer
from rolellm.playing.roles import nearest
from rolellm.prompts.encode import end_token_id
from rolellm.prompts.render import chat_template
from rolellm.rocit.publish import merge_adapter

#: The longest request that is read, in bytes (our choice).
MAX_BODY: Final = 8 << 20
_MOST_ERROR = 1 << 20
_CONNECT_SECONDS: Final = 15.0
_ROLES = ("system", "developer", "user", "assistant")
_PASSED = ("content-type", "retry-after", "retry-after-ms")


def application(players: Mapping[str, RolePlayer], *, key: str = "", hosts: tuple[str, ...] = ("*",)) -> Starlette:
    """The server as an ASGI application.

    Args:
        players: By name, roles that are played by one model behind an API.
        key: What clients have to send as their key; empty for none.
        hosts: The names by which it may be called; ``*`` for any.
    """
    endpoint = next(iter(players.values())).model
    if not isinstance(endpoint, Endpoint):
        raise SettingsError("the server passes requests on to an OpenAI-compatible one; name it (--upstream)")
    upstream = _Upstream(endpoint)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with upstream.session():
            yield

    async def models(request: Request) -> Response:
        _check_key(request, key)
        return JSONResponse({"object": "list", "data": [_listed(name) for name in players]})

    async def model(request: Request) -> Response:
        _check_key(request, key)
        return JSONResponse(_listed(_named(request.path_params["name"], players)))

    async def complete(request: Request) -> _Relay:
        _check_key(request, key)
        body = await _body(request)
        player = players[_named(body.get("model"), players)]
        try:
            # It may count many tokens.
            messages = await run_sync(_prompted, player, body.get("messages"))
        except RoleLLMError as error:
            code = "context_length_exceeded" if isinstance(error, ModelError) else None
            raise _RefusedError(400, str(error), code) from error
        return _Relay(upstream, {**body, "model": endpoint.settings.model, "messages": messages})

    return Starlette(
        routes=[
            Route("/v1/models", models),
            Route("/v1/models/{name:path}", model),
            Route("/v1/chat/completions", complete, methods=["POST"]),
        ],
        # No other name that is pointed at this machine gets in.
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts))],
        exception_handlers={HTTPException: _explained, RoleLLMError: _explained},
        lifespan=lifespan,
        max_body_size=MAX_BODY,
    )


def _listed(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "rolellm"}


def _told(message: str, kind: str = "invalid_request_error", code: str | None = None) -> dict[str, Any]:
    """An error as OpenAI has it."""
    return {"message": message, "type": kind, "param": None, "code": code}


class _RefusedError(HTTPException):
    """A request that is not passed on."""

    def __init__(self, status: int, problem: str, code: str | None = None) -> None:
        super().__init__(status, problem)
        self.code = code


async def _explained(_: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    problem = error.detail if isinstance(error, HTTPException) else str(error)
    return JSONResponse({"error": _told(problem, code=getattr(error, "code", None))}, status)


def _check_key(request: Request, key: str) -> None:
    given = request.headers.get("Authorization", "").removeprefix("Bearer ")
    if key and not secrets.compare_digest(given.encode(), key.encode()):
        raise _RefusedError(401, "wrong or missing API key; send the server's key", "invalid_api_key")


async def _body(request: Request) -> dict[str, Any]:
    # A page in a browser can send anything else to this machine without being asked.
    if request.headers.get("Content-Type", "").partition(";")[0].strip().lower() != "application/json":
        raise _RefusedError(415, "send the request as application/json")
    try:
        body = json.loads(await request.body())
    except ClientDisconnect as error:
        raise _RefusedError(400, "the client left") from error
    except (ValueError, RecursionError) as error:
        raise _RefusedError(400, "the request is not JSON") from error
    if not isinstance(body, dict):
        raise _RefusedError(400, "the request is not a JSON object")
    return body


def _named(name: Any, players: Mapping[str, RolePlayer]) -> str:
    found = find_name(name, players) if isinstance(name, str) else None
    if found is None:
        given = repr(name[:100]) if isinstance(name, str) else "nothing"
        raise _RefusedError(404, f"there is no role {given}{nearest(str(name), players)}", "model_not_found")
    return found


def _prompted(player: RolePlayer, given: Any) -> list[dict[str, str]]:
    """The messages with the role's prompt; a client's own system turns go after it, or after the last message."""
    if not isinstance(given, list) or not given:
        raise SettingsError("messages has to be a list of messages")
    turns = [_message(item, place) for place, item in enumerate(given)]
    first = next((place for place, turn in enumerate(turns) if turn.role != "system"), len(turns))
    last = next((place for place in reversed(range(len(turns))) if turns[place].role != "system"), -1)
    if last < first or turns[last].role != "user":
        raise SettingsError("the last message has to be the user's")
    more, after = ("\n\n".join(turn.content for turn in part) for part in (turns[:first], turns[last + 1 :]))
    prompt = player.prompt(turns[first : last + 1], more=more, after=after)
    if prompt.warning:
        warnings.warn(f"{player.role}: {prompt.warning}", ContextWarning, stacklevel=2)
    return [{"role": message.role, "content": message.content} for message in prompt.messages]


def _message(item: Any, place: int) -> Message:
    role = item.get("role") if isinstance(item, dict) else None
    if role not in _ROLES:
        raise SettingsError(f"messages[{place}]: expected a role of {', '.join(_ROLES)}")
    content = item.get("content")
    parts = content if isinstance(content, list) else []
    plain = all(isinstance(part, dict) and part.get("type") == "text" for part in parts)
    if not (isinstance(content, str) or parts) or not plain:
        raise SettingsError(f"messages[{place}]: expected text as content")
    text = content_text(content)
    # Clients send back what a reasoning model thought.
    text = without_thoughts(text) if role == "assistant" and "</think>" in text else text
    return Message("system" if role == "developer" else role, text)


class _Upstream:
    """The server that answers, asked by aiohttp: for a stream of small events it takes half the time of httpx2.

    Args:
        endpoint: Where it is.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        settings = endpoint.settings
        self.name = endpoint.name
        self.url = f"{settings.base_url}/chat/completions"
        self.key = find_key(settings.base_url or "", settings.api_key_env)
        self._proxy = proxy_for(settings.base_url or "")

    def session(self) -> aiohttp.ClientSession:
        """What asks it; once, within the loop that asks."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS)
        connector, jar = aiohttp.TCPConnector(limit=0), aiohttp.DummyCookieJar()
        self._session = aiohttp.ClientSession(connector=connector, cookie_jar=jar, timeout=timeout)
        return self._session

    def ask(self, body: dict[str, Any]) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        """Its answer to this body; nothing of the client's headers goes there."""
        headers = {"Content-Type": "application/json", "Accept-Encoding": "identity", "User-Agent": "rolellm"}
        headers |= {"Authorization": f"Bearer {self.key}"} if self.key else {}
        content = encode_body(body)
        return self._session.post(self.url, data=content, headers=headers, proxy=self._proxy, allow_redirects=False)


def _failure(error: Exception) -> str:
    """What went wrong, without hosts and headers."""
    match error:
        case aiohttp.ClientConnectorCertificateError():
            return "the server's certificate is not valid"
        case aiohttp.ClientSSLError():
            return "no secure connection could be made"
        case aiohttp.ClientProxyConnectionError() | aiohttp.ClientHttpProxyError():
            return "the proxy refused the connection"
        case aiohttp.ClientConnectorDNSError():
            return "the host name is unknown"
        case aiohttp.ClientConnectorError():
            return "nothing answers at the address"
        case TimeoutError():
            return f"no connection within {_CONNECT_SECONDS:g} seconds"
        case aiohttp.ClientResponseError():
            return "the answer is not HTTP"
    return "the connection broke before the answer was complete"


class _Relay:
    """An answer that is the other server's, as it comes; when the client leaves, the request there ends.

    Args:
        upstream: The other server.
        body: What to ask there.
    """

    def __init__(self, upstream: _Upstream, body: dict[str, Any]) -> None:
        self._upstream, self._body = upstream, body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer."""
        async with anyio.create_task_group() as tasks:

            async def work() -> None:
                await self._answer(scope, receive, send)
                tasks.cancel_scope.cancel()

            tasks.start_soon(work)
            while (await receive())["type"] != "http.disconnect":
                pass
            tasks.cancel_scope.cancel()

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        upstream, begun, streams = self._upstream, False, False
        try:
            async with upstream.ask(self._body) as response:
                known = response.headers
                headers = [(name.encode(), known[name].encode()) for name in _PASSED if name in known]
                start = {"type": "http.response.start", "status": response.status, "headers": headers}
                if response.status >= 400:
                    # Servers echo keys in their errors.
                    content = b""
                    async for chunk in response.content.iter_any():
                        content = (content + chunk)[:_MOST_ERROR]
                    await send(start)
                    said = scrubber(upstream.key).text(content.decode(errors="replace"))
                    await send({"type": "http.response.body", "body": said.encode()})
                    return
                await send(start)
                begun, streams = True, "event-stream" in known.get("content-type", "")
                async for chunk in response.content.iter_any():
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
                await send({"type": "http.response.body", "body": b""})
        except (aiohttp.ClientError, TimeoutError) as error:
            told = _told(f"{upstream.name}: {_failure(error)}", "upstream_error")
            if not begun:
                await JSONResponse({"error": told}, 502)(scope, receive, send)
            elif streams:
                # As servers report an error in a stream. Without one, the broken connection says it.
                event = f"data: {json.dumps({'error': told})}\n\n".encode()
                await send({"type": "http.response.body", "body": event})


def play_all(model: Any, roles: list[Any], **how: Any) -> dict[str, RolePlayer]:
    """Players of several roles by one model, by the roles' names.

    Raises:
        SettingsError: For an unknown role, or two that a client could not tell apart.
    """
    players: dict[str, RolePlayer] = {}
    for role in roles:
        player = next(iter(players.values())).as_role(role) if players else RolePlayer(model, role, **how)
        # Asked of the server once, for all roles.
        _ = player.context
        if find_name(player.role, players) is not None or not squash(player.role):
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
        return socket.create_server((host, port), family=family, backlog=2048)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SettingsError(f"cannot listen on {host}:{port} ({reason}); choose another port with --port") from error


def serve(listening: socket.socket, players: Mapping[str, RolePlayer], *, key: str = "") -> None:
    """Serve until Ctrl-C.

    Args:
        listening: As `listen` gives it.
        players: By name, roles that are played by one model behind an API.
        key: What clients have to send as their key; empty for none.
    """
    host = listening.getsockname()[0]
    near = ("localhost", "127.0.0.1", "[::1]") if is_near(host, this_machine=True) else ("*",)
    app = application(players, key=key, hosts=near)
    quiet: dict[str, Any] = {"log_level": "warning", "access_log": False, "server_header": False}
    config = uvicorn.Config(app, timeout_graceful_shutdown=3, **quiet)
    uvicorn.Server(config).run(sockets=[listening])


@contextmanager
def transformers_serve(model: str, adapter: str | None = None) -> Iterator[tuple[str, str]]:
    """Run ``transformers serve`` with a model while the block runs.

    It takes no adapters: one is merged into its base first, in a temporary folder.

    Yields:
        The server's base URL, and the model's name there.

    Raises:
        ModelError: When the model cannot be loaded, has no chat template, or the server does not start.
    """
    local = LocalModel(model, adapter=adapter)
    with tempfile.TemporaryDirectory(prefix="rolellm-serve-") as scratch:
        source, name = local.source, local.source.base
        if source.adapter is not None:
            name = str(Path(scratch) / "model")
            merge_adapter(source.base, Path(source.adapter), Path(name), end_token_id(local.tokenizer))
            local.tokenizer.chat_template = local.tokenizer.chat_template or chat_template()
            local.tokenizer.save_pretrained(name)
        elif not local.tokenizer.chat_template:
            raise ModelError(
                f"{model} has no chat template, which `transformers serve` needs; give it one "
                "(tokenizer.chat_template), or talk to it with `rolellm chat`, which uses the form that it was tuned on"
            )
        with listen("127.0.0.1", 0) as free:
            port = free.getsockname()[1]
        words = ["serve", name, "--host", "127.0.0.1", "--port", str(port)]
        words += ["--device", local.device, "--dtype", local.dtype]
        log = Path(scratch) / "log"
        with log.open("wb") as out:
            command = [sys.executable, "-m", "transformers.cli.transformers", *words]
            process = subprocess.Popen(command, stdout=out, stderr=out)
        try:
            _wait(process, f"http://127.0.0.1:{port}/health", log)
            yield f"http://127.0.0.1:{port}/v1", name
        finally:
            process.terminate()
            process.wait()


def _wait(process: subprocess.Popen[bytes], health: str, log: Path) -> None:
    while True:
        if process.poll() is not None:
            last = (log.read_text(errors="replace").strip().splitlines() or ["no message"])[-1]
            raise ModelError(f"`transformers serve` ended before it was ready: {last[:500]}")
        try:
            urllib.request.urlopen(health, timeout=1).close()
            return
        except OSError:
            time.sleep(0.2)


def vllm_command(model: str, adapter: str | None = None) -> str | None:
    """The command by which vLLM serves an adapter; ``None`` for a whole model."""
    source = find_model(model, adapter)
    if source.adapter is None:
        return None
    words = ["vllm", "serve", source.base, "--enable-lora", "--lora-modules", f"tuned={source.adapter}"]
    return f"{shlex.join(words)}  # then: --upstream http://localhost:8000/v1 --model tuned"
