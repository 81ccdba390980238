"""OpenAI's Responses API on top of chat completions, without state: nothing of a response is kept for the next one.

A request becomes one of chat completions, and the other server's answer a response, streamed or not. The fields and the
events are those of https://platform.openai.com/docs/api-reference/responses.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

import aiohttp
from starlette.responses import Response
from starlette.types import Send

from rolellm.core.errors import SettingsError
from rolellm.llm.openai_format import UNREADABLE, encode_body, parse_body
from rolellm.playing.relay import Relay, Upstream, send_part, start_stream

#: Fields that mean the same in both.
_SAME: Final = ("model", "temperature", "top_p", "parallel_tool_calls", "user", "seed", "stop", "stream")
#: What a response says of its request.
_ECHOED: Final[Mapping[str, Any]] = {
    "instructions": None,
    "max_output_tokens": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "temperature": None,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_p": None,
}
_ENDED_EARLY: Final = {"length": "max_output_tokens", "content_filter": "content_filter"}


def read_request(body: Mapping[str, Any]) -> dict[str, Any]:
    """Read a request for a response as one for a chat completion.

    Raises:
        SettingsError: For what needs state, and for items and tools of another kind.
    """
    if body.get("previous_response_id") or body.get("conversation"):
        raise SettingsError("responses are not kept here; send the whole talk as `input`, without previous_response_id")
    chat = {name: body[name] for name in _SAME if body.get(name) is not None}
    chat["messages"] = list(_read_messages(body))
    if body.get("max_output_tokens"):
        chat["max_tokens"] = body["max_output_tokens"]
    tools = [_read_tool(tool) for tool in body.get("tools") or ()]
    if tools:
        chat["tools"] = tools
    choice = body.get("tool_choice")
    if tools and choice is not None:
        is_named = isinstance(choice, dict) and choice.get("name")
        chat["tool_choice"] = {"type": "function", "function": {"name": choice["name"]}} if is_named else choice
    text_format = (body.get("text") or {}).get("format") or {"type": "text"}
    if text_format.get("type") == "json_schema":
        schema = {name: value for name, value in text_format.items() if name != "type"}
        chat["response_format"] = {"type": "json_schema", "json_schema": schema}
    elif text_format.get("type") != "text":
        chat["response_format"] = text_format
    if chat.get("stream"):
        chat["stream_options"] = {"include_usage": True}
    return chat


def _read_messages(body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    if body.get("instructions"):
        yield {"role": "system", "content": body["instructions"]}
    items = body.get("input")
    if isinstance(items, str):
        items = [{"role": "user", "content": items}]
    if not isinstance(items, list) or not items:
        raise SettingsError("input has to be a text or a list of items")
    calls: list[dict[str, Any]] = []
    for index, item in enumerate(items):
        kind = item.get("type", "message") if isinstance(item, dict) else None
        if kind == "function_call":
            function = {"name": item.get("name"), "arguments": item.get("arguments")}
            calls.append({"id": item.get("call_id"), "type": "function", "function": function})
            continue
        if calls:
            # Calls that follow each other are one turn of the assistant.
            yield {"role": "assistant", "content": None, "tool_calls": calls}
            calls = []
        if kind == "function_call_output":
            output = item.get("output")
            text = output if isinstance(output, str) else json.dumps(output, ensure_ascii=False)
            yield {"role": "tool", "tool_call_id": item.get("call_id"), "content": text}
        elif kind == "message":
            yield {**item, "content": _read_parts(item.get("content"))}
        elif kind != "reasoning":
            raise SettingsError(f"input[{index}]: items of type {str(kind)[:50]!r} are not supported")
    if calls:
        yield {"role": "assistant", "content": None, "tool_calls": calls}


def _read_parts(content: Any) -> Any:
    """Read the parts of a message as chat completions have them."""
    if not isinstance(content, list):
        return content
    parts: list[Any] = []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind in ("input_text", "output_text"):
            parts.append({"type": "text", "text": part.get("text")})
        elif kind == "input_image":
            parts.append({"type": "image_url", "image_url": {"url": part.get("image_url")}})
        else:
            parts.append(part)
    return parts


def _read_tool(tool: Any) -> dict[str, Any]:
    if not isinstance(tool, dict) or tool.get("type") != "function":
        kind = tool.get("type") if isinstance(tool, dict) else tool
        raise SettingsError(f"tools of type {str(kind)[:50]!r} are not supported; send functions only")
    return {"type": "function", "function": {name: value for name, value in tool.items() if name != "type"}}


class _Output:
    """A response as it grows: texts and calls of the other server's answer, and the events that tell of them.

    Args:
        name: What the client calls the model.
        request: The client's request.
    """

    def __init__(self, name: str, request: Mapping[str, Any]) -> None:
        self._head = {
            "id": _make_id("resp"),
            "object": "response",
            "created_at": int(time.time()),
            "model": name,
            **{field: request.get(field) or default for field, default in _ECHOED.items()},
            "previous_response_id": None,
            "store": False,
            "error": None,
        }
        self._items: list[dict[str, Any]] = []
        self._calls: dict[int, int] = {}
        self._text: int | None = None
        self._finish = ""
        self._usage: Mapping[str, Any] = {}
        self._number = 0

    def build(self, status: str = "") -> dict[str, Any]:
        """Build the response as it is now."""
        reason = _ENDED_EARLY.get(self._finish)
        details = {"reason": reason} if reason else None
        usage = None
        if self._usage:
            cached = (self._usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
            thought = (self._usage.get("completion_tokens_details") or {}).get("reasoning_tokens") or 0
            usage = {
                "input_tokens": self._usage.get("prompt_tokens", 0),
                "input_tokens_details": {"cached_tokens": cached},
                "output_tokens": self._usage.get("completion_tokens", 0),
                "output_tokens_details": {"reasoning_tokens": thought},
                "total_tokens": self._usage.get("total_tokens", 0),
            }
        status = status or ("incomplete" if reason else "completed")
        return {**self._head, "status": status, "incomplete_details": details, "output": self._items, "usage": usage}

    def begin(self) -> Iterator[bytes]:
        """Begin; yields events."""
        for kind in ("created", "in_progress"):
            yield self._event(f"response.{kind}", response=self.build("in_progress"))

    def add(self, message: Mapping[str, Any], finish: str | None = None) -> Iterator[bytes]:
        """Add a message, or a part of one; yields events."""
        if message.get("content"):
            yield from self._add_text(message["content"])
        for place, call in enumerate(message.get("tool_calls") or ()):
            yield from self._add_call(call.get("index", place), call)
        self._finish = finish or self._finish

    def note_usage(self, usage: Mapping[str, Any] | None) -> None:
        """Take down how many tokens there were."""
        self._usage = usage or self._usage

    def _add_text(self, text: str) -> Iterator[bytes]:
        if self._text is None:
            self._text = len(self._items)
            part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            item: dict[str, Any] = {"type": "message", "id": _make_id("msg"), "role": "assistant"}
            item |= {"status": "in_progress", "content": []}
            self._items.append(item)
            yield self._event("response.output_item.added", output_index=self._text, item=item)
            item["content"] = [part]
            yield self._event("response.content_part.added", **self._find_place(self._text), content_index=0, part=part)
        self._items[self._text]["content"][0]["text"] += text
        place = self._find_place(self._text)
        yield self._event("response.output_text.delta", **place, content_index=0, delta=text, logprobs=[])

    def _add_call(self, number: int, call: Mapping[str, Any]) -> Iterator[bytes]:
        function = call.get("function") or {}
        if number not in self._calls:
            self._calls[number] = len(self._items)
            item = {"type": "function_call", "id": _make_id("fc"), "call_id": call.get("id") or _make_id("call")}
            item |= {"name": function.get("name") or "", "arguments": "", "status": "in_progress"}
            self._items.append(item)
            yield self._event("response.output_item.added", output_index=self._calls[number], item=item)
        index = self._calls[number]
        arguments = function.get("arguments") or ""
        self._items[index]["arguments"] += arguments
        if arguments:
            yield self._event("response.function_call_arguments.delta", **self._find_place(index), delta=arguments)

    def end(self) -> Iterator[bytes]:
        """End; yields events."""
        for index, item in enumerate(self._items):
            place = self._find_place(index)
            if item["type"] == "function_call":
                arguments = item["arguments"]
                yield self._event(
                    "response.function_call_arguments.done", **place, arguments=arguments, name=item["name"]
                )
            else:
                part = item["content"][0]
                yield self._event("response.output_text.done", **place, content_index=0, text=part["text"], logprobs=[])
                yield self._event("response.content_part.done", **place, content_index=0, part=part)
            item["status"] = "completed"
            yield self._event("response.output_item.done", output_index=index, item=item)
        response = self.build()
        yield self._event(f"response.{response['status']}", response=response)

    def fail(self, message: str) -> bytes:
        """Tell that the answer broke off."""
        return self._event("error", code="upstream_error", message=message, param=None)

    def _find_place(self, index: int) -> dict[str, Any]:
        return {"item_id": self._items[index]["id"], "output_index": index}

    def _event(self, kind: str, **fields: Any) -> bytes:
        value = {"type": kind, "sequence_number": self._number, **fields}
        self._number += 1
        return f"event: {kind}\ndata: {json.dumps(value, ensure_ascii=False)}\n\n".encode()


def _make_id(kind: str) -> str:
    return f"{kind}_{secrets.token_hex(12)}"


class ResponseRelay(Relay):
    """A response made of the other server's answer to a chat completion.

    Args:
        upstream: The other server.
        body: What to ask there.
        name: What the client calls the model.
        request: The client's request.
    """

    def __init__(self, upstream: Upstream, body: dict[str, Any], name: str, request: Mapping[str, Any]) -> None:
        super().__init__(upstream, body, name)
        self._output = _Output(name, request)

    def _build_reply(self, value: dict[str, Any]) -> Response:
        cleaned = parse_body(self._upstream.clean(value, self._name))
        choice = cleaned["choices"][0]
        list(self._output.add(choice["message"], choice.get("finish_reason")))
        self._output.note_usage(cleaned.get("usage"))
        list(self._output.end())
        return Response(encode_body(self._output.build()), media_type="application/json")

    async def _stream(self, response: aiohttp.ClientResponse, send: Send) -> None:
        await start_stream(send)
        for event in self._output.begin():
            await send_part(send, event)
        async for lines in self._iterate_lines(response):
            for line in lines.splitlines():
                value = parse_body(line[5:]) if line.startswith(b"data:") else {UNREADABLE: True}
                if UNREADABLE in value:
                    continue
                if value.get("error"):
                    await send_part(send, self._output.fail(self._read_error(value)), more=False)
                    return
                for event in self._take(value):
                    await send_part(send, event)
        for event in self._output.end():
            await send_part(send, event)
        await send_part(send, b"", more=False)

    def _write_failure(self, failure: dict[str, Any]) -> bytes:
        return self._output.fail(failure["error"]["message"])

    def _read_error(self, value: dict[str, Any]) -> str:
        error = parse_body(self._upstream.clean(value, self._name))["error"]
        return str(error.get("message") if isinstance(error, dict) else error)

    def _take(self, value: dict[str, Any]) -> Iterator[bytes]:
        """Take a part of the stream; yields events."""
        cleaned = parse_body(self._upstream.clean(value, self._name))
        self._output.note_usage(cleaned.get("usage"))
        for choice in cleaned.get("choices") or ():
            yield from self._output.add(choice.get("delta") or {}, choice.get("finish_reason"))
