"""A server of one base with adapters, as a process: ``python -m rolellm.playing.adapter_server``.

It speaks as much of OpenAI's protocol as `rolellm.playing.server` passes on, and vLLM's two requests that add an
adapter and take it out. Calls that wait go through the model in one batch, whatever their adapters and settings.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import sys
import time
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from rolellm.core.errors import RoleLLMError, SettingsError
from rolellm.core.settings import read
from rolellm.llm.openai_format import read_content
from rolellm.models.adapters import PLAIN, AdapterModel
from rolellm.models.local_model import MOST_ROWS, Completion, Decoding, Draft
from rolellm.models.prompts.encode import encode_prompt
from rolellm.playing.relay import build_error
from rolellm.playing.server import listen, serve

#: Fields of a request that are not supported, with the values by which no reply is another.
_IGNORED: Final[Mapping[str, Any]] = {
    "frequency_penalty": 0,
    "logit_bias": {},
    "logprobs": False,
    "n": 1,
    "presence_penalty": 0,
    "response_format": {"type": "text"},
    "tool_choice": "auto",
    "top_logprobs": 0,
}
#: Tokens of a reply where the client does not say.
_REPLY_TOKENS: Final = 1024
#: Seconds between two looks whether the client is still there.
_PATIENCE: Final = 1.0
#: Seconds in which those who were answered, and those who come with them, ask again.
_PAUSE: Final = 0.002

_Event = str | Completion | Exception


class _Worker:
    """The thread that the model works in: it makes replies in batches and, between two, changes adapters.

    Args:
        model: The base with its adapters.
    """

    def __init__(self, model: AdapterModel) -> None:
        self.model = model
        self.context = model.forms[PLAIN].context
        self.thread = ThreadPoolExecutor(1)
        self._rows = MOST_ROWS[model.forms[PLAIN].device]
        self._waiting: list[Draft] = []

    def start(self, body: dict[str, Any]) -> tuple[Draft, asyncio.Queue[_Event]]:
        """Have a reply made; its text and its end come through the queue.

        Raises:
            SettingsError: For a setting that cannot be used, or a prompt that leaves no room.
        """
        ignored = [name for name, default in _IGNORED.items() if body.get(name) not in (None, default)]
        if ignored:
            instead = "leave that out, or put `rolellm serve` in front of a server that supports it (--llm URL)"
            raise SettingsError(f"the server of this model ignores {', '.join(ignored)}; {instead}")
        adapter = str(body.get("model"))
        form = self.model.forms.get(adapter)
        if form is None:
            raise SettingsError(f"there is no adapter {adapter!r}")
        stop = body.get("stop") or []
        stops = [stop] if isinstance(stop, str) else stop
        turns = [{**turn, "content": read_content(turn.get("content"))} for turn in body["messages"]]
        is_open = turns[-1]["role"] == "assistant"
        prompt = encode_prompt(form.tokenizer, turns, add_generation_prompt=not is_open, continue_final_message=is_open)
        limit = body.get("max_completion_tokens") or body.get("max_tokens") or _REPLY_TOKENS
        if self.context is not None:
            limit = min(limit, self.context - len(prompt))
        if limit < 1:
            raise SettingsError(f"the prompt's {len(prompt)} tokens leave no room in a context of {self.context}")
        options = {"max_new_tokens": limit, "temperature": 1.0, "seed": secrets.randbits(31)}
        for field in ("temperature", "top_p", "seed"):
            if body.get(field) is not None:
                options[field] = body[field]
        is_streamed = bool(body.get("stream"))
        decoding = read(Decoding, options)
        draft, events = Draft.begin(form, prompt, decoding, is_streamed=is_streamed, stops=stops, adapter=adapter)
        self._waiting.append(draft)
        # One turn for each draft, so that none is left: a turn takes whatever waits.
        self.thread.submit(self._complete_batch)
        return draft, events

    def _complete_batch(self) -> None:
        if not self._waiting:
            return
        time.sleep(_PAUSE)
        group = self.model.find_group(self._waiting[0])
        batch = [draft for draft in self._waiting if self.model.find_group(draft) == group]
        drafts = []
        for draft in batch[: self._rows]:
            self._waiting.remove(draft)
            if draft.adapter not in self.model.forms:
                draft.emit(SettingsError(f"the adapter {draft.adapter!r} was taken out"))
            elif not draft.is_abandoned:
                drafts.append(draft)
        try:
            if drafts:
                self.model.complete(drafts)
        except Exception as error:
            for draft in drafts:
                draft.emit(error)


def build_adapter_server(model: AdapterModel) -> Starlette:
    """The server as an ASGI application."""
    routes = [
        Route("/v1/models", _list_models),
        Route("/v1/chat/completions", _complete, methods=["POST"]),
        Route("/v1/load_lora_adapter", _change_adapters, methods=["POST"]),
        Route("/v1/unload_lora_adapter", _change_adapters, methods=["POST"]),
    ]
    app = Starlette(routes=routes, exception_handlers={RoleLLMError: _explain_error})
    app.state.worker = _Worker(model)
    return app


async def _explain_error(_: Request, error: Exception) -> Response:
    return JSONResponse(build_error(str(error)), 400)


async def _list_models(request: Request) -> Response:
    worker: _Worker = request.app.state.worker
    models = [{"id": name, "object": "model", "max_model_len": worker.context} for name in worker.model.forms]
    return JSONResponse({"object": "list", "data": models})


async def _change_adapters(request: Request) -> Response:
    worker: _Worker = request.app.state.worker
    body = await request.json()
    change = partial(worker.model.remove, body["lora_name"])
    if "lora_path" in body:
        change = partial(worker.model.add, body["lora_name"], body["lora_path"])
    await asyncio.get_running_loop().run_in_executor(worker.thread, change)
    return JSONResponse({"status": "ok"})


async def _complete(request: Request) -> Response:
    worker: _Worker = request.app.state.worker
    body = await request.json()
    draft, events = worker.start(body)
    head = {"id": f"chatcmpl-{secrets.token_hex(12)}", "created": 0, "model": body["model"]}
    if draft.is_streamed:
        usage = (body.get("stream_options") or {}).get("include_usage")
        return StreamingResponse(_stream(draft, events, head, bool(usage)), media_type="text/event-stream")
    while not await request.is_disconnected():
        try:
            event = await asyncio.wait_for(events.get(), _PATIENCE)
        except TimeoutError:
            continue
        if not isinstance(event, Completion):
            return JSONResponse(build_error(str(event), "server_error"), 500)
        message = {"role": "assistant", "content": event.text}
        choice = {"index": 0, "message": message, "finish_reason": event.finish}
        reply = {**head, "object": "chat.completion", "choices": [choice], "usage": _count(event)}
        return JSONResponse(reply)
    draft.is_abandoned = True
    return Response(status_code=499)


async def _stream(
    draft: Draft, events: asyncio.Queue[_Event], head: dict[str, Any], has_usage: bool
) -> AsyncIterator[str]:
    head = {**head, "object": "chat.completion.chunk"}

    def make_chunk(delta: dict[str, Any], finish: str | None = None) -> str:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return _make_line({**head, "choices": [choice]})

    try:
        yield make_chunk({"role": "assistant", "content": ""})
        event = await events.get()
        while isinstance(event, str):
            yield make_chunk({"content": event})
            event = await events.get()
        if isinstance(event, Exception):
            yield _make_line(build_error(str(event), "server_error"))
            return
        yield make_chunk({}, event.finish)
        if has_usage:
            yield _make_line({**head, "choices": [], "usage": _count(event)})
        yield "data: [DONE]\n\n"
    finally:
        draft.is_abandoned = True


def _make_line(value: dict[str, Any]) -> str:
    return f"data: {json.dumps(value, ensure_ascii=False)}\n\n"


def _count(reply: Completion) -> dict[str, int]:
    total = reply.prompt_tokens + reply.new_tokens
    return {"prompt_tokens": reply.prompt_tokens, "completion_tokens": reply.new_tokens, "total_tokens": total}


def run(settings: dict[str, Any]) -> None:
    """Serve until the process is ended.

    Args:
        settings: ``base``, ``adapters`` by name, and ``port``.
    """
    model = AdapterModel(settings["base"])
    for name, adapter in settings["adapters"].items():
        model.add(name, adapter)
    serve(listen("127.0.0.1", settings["port"]), build_adapter_server(model))


if __name__ == "__main__":
    try:
        run(json.loads(sys.argv[1]))
    except RoleLLMError as error:
        sys.exit(str(error))
