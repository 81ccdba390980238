"""A server of one base with adapters, as a process: ``python -m rolellm.playing.adapter_server``.

It speaks as much of OpenAI's protocol as `rolellm.playing.server` passes on, and vLLM's two requests that add an
adapter and take it out. Calls that wait go through the model in one batch, whatever their adapters and settings.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from rolellm.core.errors import RoleLLMError, SettingsError
from rolellm.core.settings import read
from rolellm.models.adapters import AdapterModel, Draft
from rolellm.models.local_model import Completion, Decoding
from rolellm.models.prompts.render import load_chat_template
from rolellm.playing.local_server import continue_last_turn
from rolellm.playing.relay import build_error
from rolellm.playing.server import serve

#: The most replies in a batch: a step on an H200 takes 27 ms for one row and 36 for 256.
_ROWS: Final = {"cpu": 8, "cuda": 256}
#: Tokens of a reply where the client does not say.
_REPLY_TOKENS: Final = 1024
#: Seconds between two looks whether the client is still there.
_PATIENCE: Final = 1.0

_Event = str | Completion | Exception


class _Batches:
    """The replies that wait, and the task that makes them.

    Args:
        model: The base with its adapters.
        plain: The name of the base.
    """

    def __init__(self, model: AdapterModel, plain: str) -> None:
        self.model = model
        self.plain = plain
        self.context = model.forms[""].context
        # Adapters change between two batches.
        self.lock = asyncio.Lock()
        self._rows = _ROWS[model.forms[""].device]
        self._waiting: deque[tuple[Draft, Callable[[_Event], object]]] = deque()
        self._working: asyncio.Task[None] | None = None

    def start(self, body: dict[str, Any]) -> tuple[Draft, asyncio.Queue[_Event]]:
        """Have a reply made; its text and its end come through the queue.

        Raises:
            SettingsError: For a setting that cannot be used, or a prompt that leaves no room.
        """
        name = body.get("model")
        adapter = "" if name == self.plain else str(name)
        form = self.model.forms.get(adapter)
        if form is None:
            raise SettingsError(f"there is no adapter {adapter!r}")
        prompt = form.encode(body["messages"])
        limit = body.get("max_completion_tokens") or body.get("max_tokens") or _REPLY_TOKENS
        if self.context is not None:
            limit = min(limit, self.context - len(prompt))
        if limit < 1:
            raise SettingsError(f"the prompt's {len(prompt)} tokens leave no room in a context of {self.context}")
        options = {"max_new_tokens": limit, "temperature": 1.0, "seed": secrets.randbits(31)}
        for field in ("temperature", "top_p", "seed"):
            if body.get(field) is not None:
                options[field] = body[field]
        loop = asyncio.get_running_loop()
        events: asyncio.Queue[_Event] = asyncio.Queue()

        def emit(event: _Event) -> None:
            loop.call_soon_threadsafe(events.put_nowait, event)

        draft = Draft(adapter, form, prompt, read(Decoding, options), bool(body.get("stream")), emit)
        self._waiting.append((draft, emit))
        if self._working is None or self._working.done():
            self._working = asyncio.create_task(self._run())
        return draft, events

    async def _run(self) -> None:
        while self._waiting:
            # Those who were answered, and those who come with them, ask before this ends.
            await asyncio.sleep(0.002)
            async with self.lock:
                batch = self._take_batch()
                if not batch:
                    continue
                try:
                    await asyncio.to_thread(self.model.complete, [draft for draft, _ in batch])
                except Exception as error:
                    for _, emit in batch:
                        emit(error)

    def _take_batch(self) -> list[tuple[Draft, Callable[[_Event], object]]]:
        batch: list[tuple[Draft, Callable[[_Event], object]]] = []
        remaining: deque[tuple[Draft, Callable[[_Event], object]]] = deque()
        group = None
        for draft, emit in self._waiting:
            if draft.is_abandoned:
                continue
            if draft.adapter not in self.model.forms:
                emit(SettingsError(f"the adapter {draft.adapter!r} was taken out"))
                continue
            own = self.model.find_group(draft)
            if len(batch) < self._rows and group in (None, own):
                group = own
                batch.append((draft, emit))
            else:
                remaining.append((draft, emit))
        self._waiting = remaining
        return batch


def build_adapter_server(model: AdapterModel, plain: str) -> Starlette:
    """The server as an ASGI application; the base is called ``plain``."""
    routes = [
        Route("/health", _report_health),
        Route("/v1/models", _list_models),
        Route("/v1/chat/completions", _complete, methods=["POST"]),
        Route("/v1/load_lora_adapter", _load_adapter, methods=["POST"]),
        Route("/v1/unload_lora_adapter", _unload_adapter, methods=["POST"]),
    ]
    app = Starlette(routes=routes, exception_handlers={RoleLLMError: _explain_error})
    app.state.batches = _Batches(model, plain)
    return app


async def _explain_error(_: Request, error: Exception) -> Response:
    return JSONResponse(build_error(str(error)), 400)


async def _report_health(_: Request) -> Response:
    return JSONResponse({"status": "ok"})


async def _list_models(request: Request) -> Response:
    batches: _Batches = request.app.state.batches
    names = [name or batches.plain for name in batches.model.forms]
    models = [{"id": name, "object": "model", "max_model_len": batches.context} for name in names]
    return JSONResponse({"object": "list", "data": models})


async def _load_adapter(request: Request) -> Response:
    batches: _Batches = request.app.state.batches
    body = await request.json()
    async with batches.lock:
        await asyncio.to_thread(add_adapter, batches.model, body["lora_name"], body["lora_path"])
    return JSONResponse({"status": "ok"})


async def _unload_adapter(request: Request) -> Response:
    batches: _Batches = request.app.state.batches
    body = await request.json()
    async with batches.lock:
        await asyncio.to_thread(batches.model.remove, body["lora_name"])
    return JSONResponse({"status": "ok"})


async def _complete(request: Request) -> Response:
    batches: _Batches = request.app.state.batches
    body = await request.json()
    draft, events = batches.start(body)
    head = {"id": f"chatcmpl-{secrets.token_hex(12)}", "created": 0, "model": body["model"]}
    if draft.is_streamed:
        usage = (body.get("stream_options") or {}).get("include_usage")
        return StreamingResponse(_stream(draft, events, head, bool(usage)), media_type="text/event-stream")
    while True:
        try:
            event = await asyncio.wait_for(events.get(), _PATIENCE)
        except TimeoutError:
            draft.is_abandoned = await request.is_disconnected()
            if draft.is_abandoned:
                return Response(status_code=499)
            continue
        if isinstance(event, Exception):
            return JSONResponse(build_error(str(event), "server_error"), 500)
        if isinstance(event, Completion):
            message = {"role": "assistant", "content": event.text}
            choice = {"index": 0, "message": message, "finish_reason": event.finish}
            reply = {**head, "object": "chat.completion", "choices": [choice], "usage": _count(event)}
            return JSONResponse(reply)


async def _stream(
    draft: Draft, events: asyncio.Queue[_Event], head: dict[str, Any], has_usage: bool
) -> AsyncIterator[str]:
    head = {**head, "object": "chat.completion.chunk"}

    def make_chunk(delta: dict[str, Any], finish: str | None = None) -> str:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return _make_line({**head, "choices": [choice]})

    try:
        yield make_chunk({"role": "assistant", "content": ""})
        while True:
            event = await events.get()
            if isinstance(event, str):
                yield make_chunk({"content": event})
            elif isinstance(event, Completion):
                yield make_chunk({}, event.finish)
                if has_usage:
                    yield _make_line({**head, "choices": [], "usage": _count(event)})
                yield "data: [DONE]\n\n"
                return
            else:
                yield _make_line(build_error(str(event), "server_error"))
                return
    finally:
        draft.is_abandoned = True


def _make_line(value: dict[str, Any]) -> str:
    return f"data: {json.dumps(value, ensure_ascii=False)}\n\n"


def _count(reply: Completion) -> dict[str, int]:
    total = reply.prompt_tokens + reply.new_tokens
    return {"prompt_tokens": reply.prompt_tokens, "completion_tokens": reply.new_tokens, "total_tokens": total}


def add_adapter(model: AdapterModel, name: str, adapter: str) -> None:
    """Put an adapter on the base; its prompts leave the role's own turn open where that comes last.

    Raises:
        ModelError: When it is not an adapter, or one for another base.
    """
    model.add(name, adapter)
    _open_last_turn(model, name)


def _open_last_turn(model: AdapterModel, name: str) -> None:
    form = model.forms[name]
    tokenizer = form.tokenizer
    own = tokenizer.get_chat_template() if tokenizer.chat_template else load_chat_template()
    tokenizer.chat_template = continue_last_turn(own)
    # A tokenizer may take more memory than an adapter.
    for other in model.forms.values():
        if _is_same(other.tokenizer, tokenizer):
            form.tokenizer = other.tokenizer
            return


def _is_same(first: Any, second: Any) -> bool:
    if not (first.is_fast and second.is_fast) or first.chat_template != second.chat_template:
        return False
    if first.special_tokens_map != second.special_tokens_map:
        return False
    backend: str = first.backend_tokenizer.to_str()
    is_same: bool = backend == second.backend_tokenizer.to_str()
    return is_same


def run(settings: dict[str, Any]) -> None:
    """Serve until the process is ended.

    Args:
        settings: ``base``, its name ``plain``, ``adapters`` by name, and ``port``.
    """
    model = AdapterModel(settings["base"])
    _open_last_turn(model, "")
    for name, adapter in settings["adapters"].items():
        add_adapter(model, name, adapter)
    app = build_adapter_server(model, settings["plain"])
    listening = socket.create_server(("127.0.0.1", settings["port"]), backlog=2048)
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    serve(listening, app)


if __name__ == "__main__":
    try:
        run(json.loads(sys.argv[1]))
    except RoleLLMError as error:
        sys.exit(str(error))
