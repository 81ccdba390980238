"""An OpenAI-compatible server in front of another one: ``model`` names a role, and the role's prompt goes in.

The other server's model answers as it is, too, under its own name. `rolellm.playing.relay` passes on what it says.
"""

from __future__ import annotations

import asyncio
import json
import re
import secrets
import socket
import warnings
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import repeat
from pathlib import Path
from typing import Any, Final

import uvicorn
from anyio.to_thread import run_sync
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from rolellm.core.errors import ModelError, RoleLLMError, RoleLLMWarning, SettingsError
from rolellm.core.records import Language, Profile, Turn
from rolellm.core.settings import describe_alternatives
from rolellm.core.text import find_name, fold_name
from rolellm.llm.endpoint import Endpoint
from rolellm.llm.model import Message, assistant, strip_thoughts, user
from rolellm.llm.openai_format import parse_body, read_content
from rolellm.models.prompts.render import ONWARD, OPENING, format_turn
from rolellm.playing.player import RolePlayer, play_roles
from rolellm.playing.relay import Relay, Upstream, build_error
from rolellm.playing.responses import ResponseRelay, read_request
from rolellm.playing.thoughts import strip_inner_thoughts

#: The longest request that is read, in bytes: more than a long novel has.
MAX_BODY: Final = 8 << 20
_ROLES = ("system", "developer", "user", "assistant", "tool")
#: Where a message's images wait until its text is settled.
_IMAGES: Final = "images"
_LIMITS = ("max_completion_tokens", "max_tokens")
#: Servers that go on with an assistant's turn at the end only when told to; others do it by themselves, or cannot.
_TOLD_TO_CONTINUE: Final = ("vllm", "sglang")
# A vLLM that was not started for such an adapter, by its words.
_NO_ROOM = re.compile(r"LoRA is not enabled|LoRA rank \d+ is greater than max_lora_rank \d+")
_OPTIONAL_TOOLS: Final = (None, "auto", "none")
_CONTINUE: Final = {"continue_final_message": True, "add_generation_prompt": False}
#: A speaker's name at the beginning of a text.
_NAMED = re.compile(r"([^:：\n]{1,60})[:：]\s*")
#: What SillyTavern sends as ``_`` in a name.
_NOT_ENGLISH = re.compile(r"[^a-zA-Z0-9_]")
#: Another character who may be one of several.
_SOMEBODY: Final[Mapping[Language, str]] = {"en": "Somebody", "zh": "某人"}
_ORIGIN = re.compile(r"\*|null|[a-z][a-z0-9+.-]*://[^/\s]+")


def build_application(
    players: Mapping[str, RolePlayer],
    *,
    plain: str | None = None,
    key: str = "",
    hosts: tuple[str, ...] = ("*",),
    origins: Iterable[str] = (),
    served: Mapping[str, str] | None = None,
    base: str | None = None,
    has_tools: bool = True,
) -> Starlette:
    """The server as an ASGI application.

    Args:
        players: By name, roles that are played by one model behind an API.
        plain: The name under which that model answers without a role; by default its own.
        key: What clients have to send as their key; empty for none.
        hosts: The names by which it may be called; ``*`` for any.
        origins: Web pages of these origins may use it; ``*`` for all.
        served: By the name of a role or ``plain``, the model that answers there; by default the one behind the API.
        base: The model under the adapters, where it is on this machine.
        has_tools: Whether that server calls tools; otherwise those of a client that need not be called are left out.

    Raises:
        SettingsError: For a model that is not behind an API, or an origin that cannot be one.
    """
    first = next(iter(players.values()))
    endpoint = first.model
    if not isinstance(endpoint, Endpoint):
        raise SettingsError("the server passes requests on to an OpenAI-compatible one; name it (--llm URL)")
    for origin in origins:
        if not _ORIGIN.fullmatch(origin):
            raise SettingsError(f"{origin!r} is not an origin; give scheme and host, such as http://localhost:3000")
    served = dict(served or {})
    plain = plain or endpoint.settings.model or ""
    default = served.get(plain, endpoint.settings.model)
    if find_name(plain, players) is not None:
        plain = f"{plain}-plain"
    routes = [
        Route("/health", _report_health),
        Route("/v1/models", _list_models),
        Route("/v1/models/{name:path}", _show_model),
        Route("/v1/chat/completions", _complete, methods=["POST"]),
        Route("/v1/completions", _complete_text, methods=["POST"]),
        Route("/v1/responses", _respond, methods=["POST"]),
        Route("/v1/roles", _add_role, methods=["POST"]),
        Route("/v1/roles/{name:path}", _remove_role, methods=["DELETE"]),
    ]
    handlers: Any = {HTTPException: _explain_error, RoleLLMError: _explain_error}
    app = Starlette(routes=routes, exception_handlers=handlers, lifespan=_open_upstream)
    if origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=list(origins), allow_methods=["GET", "POST"], allow_headers=["*"]
        )
    state = app.state
    state.upstream = Upstream(endpoint)
    state.first = first
    state.players = dict(players)
    state.served = served
    state.default = default
    state.base = base
    # llama.cpp's server takes its adapters by number.
    state.loras = None
    # Changes of the cast wait for each other.
    state.changing = asyncio.Lock()
    state.names = [*players, plain]
    state.key = key
    state.hosts = hosts
    state.has_tools = has_tools
    return app


@asynccontextmanager
async def _open_upstream(app: Starlette) -> AsyncIterator[None]:
    upstream: Upstream = app.state.upstream
    listing = await upstream.endpoint.list_models()
    await upstream.endpoint.close()
    owner = listing.get(upstream.endpoint.settings.model or "", {}).get("owned_by")
    upstream.continuing = _CONTINUE if owner in _TOLD_TO_CONTINUE else {}
    async with upstream.open_session():
        if owner == "vllm" and app.state.has_tools:
            app.state.has_tools = await upstream.calls_tools()
        if any(model.get("owned_by") == "llamacpp" for model in listing.values()):
            app.state.loras = await upstream.list_loras()
        yield


async def _report_health(_: Request) -> Response:
    return JSONResponse({"status": "ok"})


async def _list_models(request: Request) -> Response:
    _check_access(request)
    return JSONResponse({"object": "list", "data": [_describe_model(name) for name in request.app.state.names]})


async def _show_model(request: Request) -> Response:
    _check_access(request)
    return JSONResponse(_describe_model(_find_model(request.path_params["name"], request.app.state.names)))


async def _complete(request: Request) -> Relay:
    _check_access(request)
    body = await _read_body(request)
    name, sent = await _prepare(request, body)
    return Relay(request.app.state.upstream, sent, name)


async def _complete_text(request: Request) -> Relay:
    """Pass a text on, which has no turns and so gets no role's prompt; not every server takes it."""
    _check_access(request)
    upstream: Upstream = request.app.state.upstream
    body = await _read_body(request)
    name = _find_model(body.get("model"), request.app.state.names)
    sent = {**body, **upstream.endpoint.settings.extra_body, **_name_model(request, name)}
    return Relay(upstream, sent, name, path="completions")


async def _respond(request: Request) -> Relay:
    _check_access(request)
    body = await _read_body(request)
    try:
        chat = read_request(body)
    except SettingsError as error:
        raise _InvalidRequestError(400, str(error)) from error
    name, sent = await _prepare(request, chat)
    return ResponseRelay(request.app.state.upstream, sent, name, body)


async def _prepare(request: Request, body: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Find the role that a request for a chat completion names, and make what the other server is asked.

    Returns:
        The role's name, and the body.
    """
    upstream: Upstream = request.app.state.upstream
    players: Mapping[str, RolePlayer] = request.app.state.players
    settings = upstream.endpoint.settings
    name = _find_model(body.get("model"), request.app.state.names)
    player = players.get(name)
    if body.get("tools") and not request.app.state.has_tools and body.get("tool_choice") in _OPTIONAL_TOOLS:
        # Clients such as Open WebUI offer theirs with each message.
        warnings.warn("this model's server calls no tools, so a client's are left out", RoleLLMWarning, stacklevel=2)
        body = {field: value for field, value in body.items() if field not in ("tools", "tool_choice")}
    sent = {**body, **settings.extra_body, **_name_model(request, name)}
    try:
        if player is not None:
            sent = {name: value for name, value in sent.items() if name not in _CONTINUE}
            # It may count many tokens.
            sent["messages"] = await run_sync(_play, player, body, list(players))
            if sent["messages"][-1]["role"] == "assistant":
                sent |= upstream.continuing
    except RoleLLMError as error:
        code = "context_length_exceeded" if isinstance(error, ModelError) else None
        raise _InvalidRequestError(400, str(error), code) from error
    return name, sent


def _name_model(request: Request, name: str) -> dict[str, Any]:
    """Name the model that answers for a role, as the other server has it."""
    state = request.app.state
    served = state.served.get(name, state.default)
    if state.loras is None:
        return {"model": served}
    fields = {"model": state.upstream.endpoint.settings.model}
    if not state.loras and name not in state.served:
        return fields
    own = _find_lora(state.loras, served) if name in state.served else None
    # It takes an empty list for all that it was started with.
    scales = [{"id": number, "scale": float(number == own)} for number in state.loras.values()]
    return {**fields, "lora": scales}


def _find_lora(loras: Mapping[str, int], adapter: str) -> int:
    file = Path(adapter).name
    if file not in loras:
        listed = ", ".join(loras) or "none"
        problem = f"llama.cpp's server has no adapter {file}, only {listed}; start it with --lora FILE.gguf for each"
        raise _InvalidRequestError(400, problem)
    return loras[file]


async def _add_role(request: Request) -> Response:
    """Add a role, with an adapter of its own where the request has one."""
    state = request.app.state
    _check_changes(request)
    body = await _read_body(request)
    role = body.get("role")
    adapter = body.get("adapter") or ""
    if not isinstance(role, str) or not isinstance(adapter, str):
        raise _InvalidRequestError(
            400, "send role (a character's folder, a card or a name), and adapter where it has one"
        )
    async with state.changing:
        try:
            player = await run_sync(state.first.with_role, role)
            check_new_role(player.role, state.players)
        except RoleLLMError as error:
            raise _InvalidRequestError(400, str(error)) from error
        name = player.role
        if adapter and state.base is not None:
            await _check_base(state.base, adapter)
        if adapter and state.loras is not None:
            _find_lora(state.loras, adapter)
            state.served[name] = adapter
        elif adapter:
            if Path(adapter).is_dir():
                adapter = str(Path(adapter).absolute())
            await _change_adapter(request, "load", name, {"lora_name": name, "lora_path": adapter})
            state.served[name] = name
        state.players[name] = player
        state.names.insert(-1, name)
    return JSONResponse(_describe_model(name), 201)


async def _check_base(base: str, adapter: str) -> None:
    """Check that an adapter was tuned on the base: what its server says of another one explains nothing."""
    from rolellm.models.adapters import check_tuned_on

    try:
        await run_sync(check_tuned_on, base, adapter)
    except RoleLLMError as error:
        raise _InvalidRequestError(400, str(error)) from error


async def _remove_role(request: Request) -> Response:
    """Take a role out, and its adapter where no other role has it."""
    state = request.app.state
    _check_changes(request)
    async with state.changing:
        name = _find_model(request.path_params["name"], list(state.players))
        state.names.remove(name)
        del state.players[name]
        adapter = state.served.pop(name, None)
        is_shared = adapter in (*state.served.values(), state.default)
        if adapter is not None and state.loras is None and not is_shared:
            await _change_adapter(request, "unload", name, {"lora_name": adapter})
    return JSONResponse({"id": name, "object": "model", "deleted": True})


def _check_changes(request: Request) -> None:
    if not request.app.state.key:
        raise _InvalidRequestError(
            403, "roles are added and taken out with a key only; start the server with --key-env"
        )
    _check_access(request)


async def _change_adapter(request: Request, change: str, name: str, body: dict[str, str]) -> None:
    """Have the other server load or unload an adapter, as vLLM does it."""
    upstream: Upstream = request.app.state.upstream
    async with upstream.ask(f"{change}_lora_adapter", body) as response:
        if response.status == 200:
            return
        content = await response.read()
        # An adapter that is not there is a 404, too, of vLLM.
        if response.status == 404 and not parse_body(content).get("error"):
            raise _InvalidRequestError(400, "the model's server takes no adapters now; start it with --base BASE")
        error = json.loads(upstream.clean_error(response.status, content, name))
        problem = error["error"]["message"]
        cause = _NO_ROOM.search(problem)
        if cause is not None:
            problem = (
                f"vLLM refused the adapter: {cause[0]}. Start it with flags for the adapters that are added later: "
                "rolellm serve --set engine='vllm --enable-lora --max-lora-rank RANK'"
            )
        raise _InvalidRequestError(400, problem)


def _describe_model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "rolellm"}


class _InvalidRequestError(HTTPException):
    """A request that is not passed on."""

    def __init__(self, status: int, problem: str, code: str | None = None) -> None:
        super().__init__(status, problem)
        self.code = code


async def _explain_error(request: Request, error: Exception) -> Response:
    status = 500
    problem = str(error)
    headers = None
    if isinstance(error, HTTPException):
        status = error.status_code
        problem = error.detail
        headers = error.headers
        if not isinstance(error, _InvalidRequestError):
            request_name = f"{request.method} {request.url.path[:100]}"
            problem = (
                f"{request_name} is not served here; use POST /v1/chat/completions or /v1/responses, or GET /v1/models"
            )
    return JSONResponse(build_error(problem, code=getattr(error, "code", None)), status, headers)


def _check_access(request: Request) -> None:
    key = request.app.state.key
    hosts = request.app.state.hosts
    # A page may have a name of its own pointed at this machine.
    host = re.sub(r":\d*$", "", request.headers.get("Host", "").lower())
    if "*" not in hosts and host not in hosts:
        raise _InvalidRequestError(
            400, "this host name is not served; use the address that `rolellm serve` printed, or set host"
        )
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    has_key = scheme.lower() == "bearer" and secrets.compare_digest(token.strip().encode(), key.encode())
    if key and not has_key:
        raise _InvalidRequestError(401, "wrong or missing API key; send the server's key", "invalid_api_key")


async def _read_body(request: Request) -> dict[str, Any]:
    # A page in a browser can send anything else to this machine without being asked.
    if request.headers.get("Content-Type", "").partition(";")[0].strip().lower() != "application/json":
        raise _InvalidRequestError(415, "send the request as application/json")
    content = bytearray()
    try:
        async for chunk in request.stream():
            content += chunk
            if len(content) > MAX_BODY:
                raise _InvalidRequestError(413, f"the request is longer than {MAX_BODY >> 20} MiB; send less")
        body = json.loads(content)
    except ClientDisconnect as error:
        raise _InvalidRequestError(400, "the client left") from error
    except (ValueError, RecursionError) as error:
        raise _InvalidRequestError(400, "the request is not JSON") from error
    if not isinstance(body, dict):
        raise _InvalidRequestError(400, "the request is not a JSON object")
    return body


def _find_model(name: Any, names: list[str]) -> str:
    name = name if isinstance(name, str) else ""
    match = find_name(name, names)
    if match is None:
        shown = repr(name[:100]) if name else "nothing"
        problem = f"there is no role {shown}{describe_alternatives(name[:100], names)}"
        raise _InvalidRequestError(404, problem, "model_not_found")
    return match


def _play(player: RolePlayer, body: dict[str, Any], names: list[str]) -> list[dict[str, Any]]:
    """The messages with the role's prompt, tool calls and their results as they are; `names` are those of all roles.

    A client's system turns before the talk go after the role's. Those after it go at the end of the user's last message
    or, after a turn of the role, into a message of their own. A turn of the role that comes last is continued where the
    client says so; otherwise a message of the user that announces a new turn follows it.
    """
    is_continued = any(body.get(name) is value for name, value in _CONTINUE.items())
    turns = _read_messages(body, is_continued)
    talk = [index for index, turn in enumerate(turns) if turn.role != "system"]
    first, end = (talk[0], talk[-1] + 1) if talk else (len(turns), len(turns))
    more = _join_turns(turns[:first])
    after = _join_turns(turns[end:])
    sheet = player.part.sheet
    turns, items = _take_names(turns[first:end], body["messages"][first:end], [*sheet.names, *names])
    turns, items = _merge_turns(turns, items, sheet, names)
    cue = _choose_cue(turns, sheet.language, after, is_continued)
    if cue is not None:
        turns.append(user(cue))
        items.append({})
    tool_tokens = 0
    if body.get("tools"):
        tool_tokens = player.count([user(json.dumps(body["tools"], ensure_ascii=False))])
    limits = [body.get(name) for name in _LIMITS]
    reply_tokens = next((limit for limit in limits if isinstance(limit, int) and limit > 0), None)
    prompt = player.prompt(turns, more=more, after=after, reply_tokens=reply_tokens, tool_tokens=tool_tokens)
    if prompt.warning:
        warnings.warn(f"{player.role}: {prompt.warning}", RoleLLMWarning, stacklevel=2)
    # The prompt begins with turns of its own, the system's first.
    sources = items[prompt.dropped :]
    sources = [{}] * (len(prompt.messages) - len(sources)) + sources
    messages = []
    for source, turn in zip(sources, prompt.messages, strict=True):
        images = source.get(_IMAGES)
        message = {**source, "role": turn.role}
        message.pop(_IMAGES, None)
        if images:
            message["content"] = [{"type": "text", "text": turn.content}, *images]
        elif not source.get("tool_calls"):
            message["content"] = turn.content
        messages.append(message)
    return messages


def _join_turns(turns: list[Message]) -> str:
    return "\n\n".join(turn.content for turn in turns)


def _choose_cue(turns: list[Message], language: Language, after: str, is_continued: bool) -> str | None:
    """Choose what a message of the user says that follows the talk; ``None`` where none has to."""
    last_role = turns[-1].role if turns else ""
    if last_role == "user":
        return None
    if after:
        return ""
    if not turns:
        return OPENING[language]
    return None if last_role == "tool" or is_continued else ONWARD[language]


def _take_names(
    turns: list[Message], items: list[dict[str, Any]], names: list[str]
) -> tuple[list[Message], list[dict[str, Any]]]:
    """Turns with their speakers' names taken from the texts, where all of the role's side begin with one.

    So SillyTavern sends a group. Some other text may begin alike, so one name has to be that of a role here.
    """
    matches: dict[int, re.Match[str]] = {}
    for index, turn in enumerate(turns):
        if turn.role == "assistant" and not items[index].get("tool_calls"):
            match = _NAMED.match(turn.content)
            if match is None:
                return turns, items
            matches[index] = match
    if all(find_name(match[1], names) is None for match in matches.values()):
        return turns, items
    turns, items = list(turns), list(items)
    for index, match in matches.items():
        turns[index] = assistant(turns[index].content[match.end() :])
        items[index] = {**items[index], "name": match[1]}
    return turns, items


def _merge_turns(
    turns: list[Message], items: list[dict[str, Any]], sheet: Profile, names: list[str]
) -> tuple[list[Message], list[dict[str, Any]]]:
    """Turns that take turns, as strict chat templates want them, and the client's message for each.

    A system turn within the talk becomes the user's. Where somebody else talks to the role besides the user, turns have
    their speakers' names, and those of another character are the user's, as in training, without its thoughts. A user
    is one where it has the name of a role, of which `names` are all.
    """
    speakers = list(map(_read_speaker, turns, items, repeat(sheet), repeat(names)))
    named = {(turn.role, speaker) for turn, speaker in zip(turns, speakers, strict=True) if speaker}
    roles = {role for role, _ in named}
    is_group = "assistant" in roles or len(named) > 1
    merged: list[Message] = []
    sources: list[dict[str, Any]] = []
    last_role = ""
    for turn, item, speaker in zip(turns, items, speakers, strict=True):
        images = _list_images(item)
        if speaker and (turn.role == "assistant" or find_name(speaker, names)):
            turn = replace(turn, content=strip_inner_thoughts(turn.content))
            if not turn.content and not images:
                continue
        if turn.role == "system":
            turn = user(turn.content)
            item = {}
        elif is_group and speaker:
            text = format_turn(Turn(speaker, turn.content), sheet.language, is_full=True)
            turn = user(text)
            item = {}
        # Calls of tools and their results stay as they are.
        role = "" if turn.role == "tool" or item.get("tool_calls") else turn.role
        if role and role == last_role:
            merged[-1] = replace(turn, content=f"{merged[-1].content}\n\n{turn.content}")
            images = [*sources[-1].get(_IMAGES, ()), *images]
        else:
            merged.append(turn)
            sources.append(item)
        if images:
            sources[-1] = {**sources[-1], _IMAGES: images}
        last_role = role
    return merged, sources


def _list_images(item: dict[str, Any]) -> list[Any]:
    content = item.get("content")
    parts = content if isinstance(content, list) else ()
    return [part for part in parts if isinstance(part, dict) and part.get("type") == "image_url"]


def _read_speaker(turn: Message, item: dict[str, Any], sheet: Profile, names: list[str]) -> str:
    """The name that a client gives a turn; empty for none, the role's own, and one without letters that no role has."""
    name = item.get("name")
    if turn.role not in ("user", "assistant") or item.get("tool_calls") or not isinstance(name, str):
        return ""
    matches = [role for role in names if _NOT_ENGLISH.sub("_", role) == name]
    is_own = any(_NOT_ENGLISH.sub("_", own) == name for own in sheet.names)
    if is_own and len(matches) > 1:
        words = f"the client calls {' and '.join(matches)} {name!r}; have it send names in the texts"
        warnings.warn(f"{words} (SillyTavern: Character Names Behavior, Message Content)", RoleLLMWarning, stacklevel=2)
    if is_own or find_name(name, sheet.names):
        return ""
    if fold_name(name):
        # OpenAI's names have no spaces.
        return matches[0] if matches else name.replace("_", " ")
    if turn.role == "user" or not matches:
        return ""
    return matches[0] if len(matches) == 1 else _SOMEBODY[sheet.language]


def _read_messages(body: dict[str, Any], is_continued: bool) -> list[Message]:
    items = body.get("messages")
    if not isinstance(items, list) or not items:
        raise SettingsError("messages has to be a list of messages")
    last = len(items) - 1
    return [_read_message(item, index, is_continued and index == last) for index, item in enumerate(items)]


def _read_message(item: Any, index: int, is_continued: bool) -> Message:
    """A client's message as a turn, tool calls as part of its text: they take tokens, too."""
    role = item.get("role") if isinstance(item, dict) else None
    if role not in _ROLES:
        raise SettingsError(f"messages[{index}]: expected a role of {', '.join(_ROLES)}")
    content = item.get("content")
    calls = item.get("tool_calls")
    for part in content if isinstance(content, list) else ():
        kind = part.get("type") if isinstance(part, dict) else None
        is_taken = kind == "text" or (kind == "image_url" and role == "user")
        if not is_taken:
            words = f"content parts of type {str(kind)[:50]!r} from {role}"
            raise SettingsError(f"messages[{index}]: {words} are not supported; send text, and images of the user")
    may_lack_text = role == "assistant" and content is None
    if not isinstance(content, str | list) and not may_lack_text:
        raise SettingsError(f"messages[{index}]: expected text as content")
    text = read_content(content)
    if calls:
        text += json.dumps(calls, ensure_ascii=False)
    elif role == "assistant" and "</think>" in text and not is_continued:
        # Clients send back what a reasoning model thought.
        text = strip_thoughts(text)
    return Message("system" if role == "developer" else role, text)


def play_all(model: Any, roles: list[Any], **options: Any) -> dict[str, RolePlayer]:
    """Players of several roles by one model, by the roles' names.

    Raises:
        SettingsError: For an unknown role, or two that a client could not tell apart.
    """
    players: dict[str, RolePlayer] = {}
    for player in play_roles(model, roles, **options):
        check_new_role(player.role, players)
        players[player.role] = player
    return players


def check_new_role(name: str, names: Iterable[str]) -> None:
    """Check that a client can tell a role from the others.

    Raises:
        SettingsError: When it cannot.
    """
    if find_name(name, names) is not None or not fold_name(name):
        raise SettingsError(f"two roles are called {name!r}, or have no letter in their name; rename one")


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
    config = uvicorn.Config(app, timeout_graceful_shutdown=3, **quiet)
    uvicorn.Server(config).run(sockets=[listening])
