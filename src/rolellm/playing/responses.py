"""OpenAI's Responses API on top of chat completions, without state: nothing of a response is kept for the next one.

A request becomes one of chat completions, and the other server's answer a response, streamed or not. The fields and the
events are those of https://platform.openai.com/docs/api-reference/responses.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Mapping
from typing import Any, Final

import aiohttp
from starlette.responses import Response
from starlette.types import Send

from rolellm.core.errors import SettingsError
from rolellm.llm.openai_format import encode_body, parse_body
from rolellm.playing.relay import AnswerError, Relay, Upstream, make_json_response, send_part, start_stream

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
        SettingsError: For what needs state, for items and tools of another kind, and for fields of other types.
    """
    if body.get("previous_response_id") or body.get("conversation"):
        raise SettingsError("responses are not kept here; send the whole talk as `input`, without previous_response_id")
    chat = {name: body[name] for name in _SAME if body.get(name) is not None}
    try:
        chat["messages"] = _read_messages(body)
        tools = [_read_tool(tool) for tool in body.get("tools") or ()]
        choice = body.get("tool_choice")
        text_format = (body.get("text") or {}).get("format")
        if tools:
            chat["tools"] = tools
        if tools and choice is not None:
            chat["tool_choice"] = _nest(choice, "function") if isinstance(choice, dict) else choice
        if text_format:
            is_schema = text_format["type"] == "json_schema"
            chat["response_format"] = _nest(text_format, "json_schema") if is_schema else text_format
    except (AttributeError, KeyError, TypeError) as error:
        raise SettingsError(f"the request has a field of another type, or lacks one: {error}") from error
    if body.get("max_output_tokens"):
        chat["max_tokens"] = body["max_output_tokens"]
    if chat.get("stream"):
        chat["stream_options"] = {"include_usage": True}
    return chat


def _read_messages(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    if body.get("instructions"):
        messages.append({"role": "system", "content": body["instructions"]})
    items = body.get("input")
    if isinstance(items, str):
        items = [{"role": "user", "content": items}]
    if not isinstance(items, list) or not items:
        raise SettingsError("input has to be a text or a list of items")
    for index, item in enumerate(items):
        kind = item.get("type", "message")
        if kind == "function_call":
            # Calls that follow each other are one turn of the assistant.
            if not messages or "tool_calls" not in messages[-1]:
                messages.append({"role": "assistant", "content": None, "tool_calls": []})
            function = {"name": item["name"], "arguments": item["arguments"]}
            messages[-1]["tool_calls"].append({"id": item["call_id"], "type": "function", "function": function})
        elif kind == "function_call_output":
            output = item["output"]
            text = output if isinstance(output, str) else json.dumps(output, ensure_ascii=False)
            messages.append({"role": "tool", "tool_call_id": item["call_id"], "content": text})
        elif kind == "message":
            content = item["content"]
            if isinstance(content, list):
                content = list(map(_read_part, content))
            messages.append({"role": item["role"], "content": content})
        elif kind != "reasoning":
            raise SettingsError(f"input[{index}]: items of type {str(kind)[:50]!r} are not supported")
    return messages


def _read_part(part: dict[str, Any]) -> dict[str, Any]:
    """Read a part of a message as chat completions have it."""
    kind = part["type"]
    if kind in ("input_text", "output_text"):
        return {"type": "text", "text": part["text"]}
    if kind == "input_image":
        return {"type": "image_url", "image_url": {"url": part["image_url"]}}
    return part


def _read_tool(tool: dict[str, Any]) -> dict[str, Any]:
    if tool["type"] != "function":
        raise SettingsError(f"tools of type {str(tool['type'])[:50]!r} are not supported; send functions only")
    return _nest(tool, "function")


def _nest(value: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Put all fields but the type into one field, as chat completions have them."""
    fields = dict(value)
    return {"type": fields.pop("type"), name: fields}


class _Output:
    """A response as it grows: the text and the calls of the other server's answer, and the events that tell of them.

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
            **_ECHOED,
            **{field: request[field] for field in _ECHOED if request.get(field) is not None},
            "previous_response_id": None,
            "store": False,
            "error": None,
        }
        self._items: list[dict[str, Any]] = []
        self._calls: dict[int, dict[str, Any]] = {}
        self._finish = ""
        self._usage: Mapping[str, Any] = {}
        self._events = b""
        self._number = 0

    def build(self, status: str = "") -> dict[str, Any]:
        """Build the response as it is now."""
        reason = _ENDED_EARLY.get(self._finish)
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
        return {
            **self._head,
            "status": status or ("incomplete" if reason else "completed"),
            "incomplete_details": {"reason": reason} if reason else None,
            "output": self._items,
            "usage": usage,
        }

    def take_events(self) -> bytes:
        """Take the events since the last time."""
        events, self._events = self._events, b""
        return events

    def begin(self) -> None:
        """Begin."""
        for kind in ("created", "in_progress"):
            self._tell(f"response.{kind}", response=self.build("in_progress"))

    def add(self, answer: Mapping[str, Any]) -> None:
        """Add a chat completion, or a part of one."""
        self._usage = answer.get("usage") or self._usage
        for choice in answer.get("choices") or ():
            message = choice.get("message") or choice.get("delta") or {}
            if message.get("content"):
                self._add_text(message["content"])
            for place, call in enumerate(message.get("tool_calls") or ()):
                self._add_call(call.get("index", place), call)
            self._finish = choice.get("finish_reason") or self._finish

    def _add_text(self, text: str) -> None:
        if not self._items:
            item: dict[str, Any] = {"type": "message", "id": _make_id("msg"), "role": "assistant"}
            item |= {"status": "in_progress", "content": []}
            self._items.append(item)
            self._tell("response.output_item.added", output_index=0, item=item)
            item["content"].append({"type": "output_text", "text": "", "annotations": [], "logprobs": []})
            self._tell_of_text("content_part.added", part=item["content"][0])
        self._items[0]["content"][0]["text"] += text
        self._tell_of_text("output_text.delta", delta=text, logprobs=[])

    def _add_call(self, number: int, call: Mapping[str, Any]) -> None:
        function = call.get("function") or {}
        if number not in self._calls:
            item = {"type": "function_call", "id": _make_id("fc"), "call_id": call.get("id") or _make_id("call")}
            self._calls[number] = {**item, "name": function.get("name"), "arguments": "", "status": "completed"}
        self._calls[number]["arguments"] += function.get("arguments") or ""

    def end(self) -> None:
        """End; calls are told of whole."""
        for item in self._items:
            item["status"] = "completed"
            part = item["content"][0]
            self._tell_of_text("output_text.done", text=part["text"], logprobs=[])
            self._tell_of_text("content_part.done", part=part)
            self._tell("response.output_item.done", output_index=0, item=item)
        for call in self._calls.values():
            index = len(self._items)
            self._items.append(call)
            begun = {**call, "arguments": "", "status": "in_progress"}
            self._tell("response.output_item.added", output_index=index, item=begun)
            place = {"item_id": call["id"], "output_index": index}
            arguments = call["arguments"]
            self._tell("response.function_call_arguments.delta", **place, delta=arguments)
            self._tell("response.function_call_arguments.done", **place, arguments=arguments, name=call["name"])
            self._tell("response.output_item.done", output_index=index, item=call)
        response = self.build()
        self._tell(f"response.{response['status']}", response=response)

    def fail(self, message: str) -> None:
        """Tell that the answer broke off."""
        self._tell("error", code="upstream_error", message=message, param=None)

    def _tell_of_text(self, kind: str, **fields: Any) -> None:
        self._tell(f"response.{kind}", item_id=self._items[0]["id"], output_index=0, content_index=0, **fields)

    def _tell(self, kind: str, **fields: Any) -> None:
        value = {"type": kind, "sequence_number": self._number, **fields}
        self._number += 1
        self._events += b"event: %s\ndata: %s\n\n" % (kind.encode(), encode_body(value))


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
        self._output.add(self._upstream.clean(value, self._name))
        self._output.end()
        return make_json_response(encode_body(self._output.build()))

    async def _stream(self, response: aiohttp.ClientResponse, send: Send) -> None:
        await start_stream(send)
        self._output.begin()
        async for lines in self._iterate_lines(response):
            for line in lines.splitlines():
                value = self._upstream.clean(parse_body(line.removeprefix(b"data:")), self._name)
                error = value.get("error")
                if error:
                    raise AnswerError(str(error.get("message") if isinstance(error, dict) else error))
                self._output.add(value)
            await send_part(send, self._output.take_events())
        self._output.end()
        await send_part(send, self._output.take_events(), more=False)

    def _write_failure(self, failure: dict[str, Any]) -> bytes:
        self._output.fail(failure["error"]["message"])
        return self._output.take_events()
