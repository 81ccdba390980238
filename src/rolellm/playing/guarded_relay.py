"""The relay of a request that a guard reads along: nothing of a reply is passed on before the guard has read it."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

import aiohttp
import anyio
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from rolellm.characters.scripts.parse import detect_language
from rolellm.core.records import Language
from rolellm.llm.model import Message
from rolellm.llm.openai_format import UNREADABLE, parse_body
from rolellm.playing.guarding import HeldReply, TalkGuard
from rolellm.playing.relay import AnswerError, Relay, Upstream, send_part, start_stream

#: What a client is sent of an event of the other server, where a guard reads along.
_GUARDED: Final = ("id", "object", "created", "model", "choices", "usage", "system_fingerprint", "error")
_DONE: Final = b"data: [DONE]\n\n"
#: OpenAI's limit of ``n``.
_MOST_CHOICES: Final = 128
#: What of a choice is not text.
_NOT_TEXT: Final = frozenset({"index", "role", "id", "type", "object", "finish_reason", "logprobs"})


class GuardedRelay(Relay):
    """An answer that a guard reads before the client gets it.

    Args:
        upstream: The other server.
        sent: What to ask there, once the guard has let the user's turn through.
        name: What the client calls the model.
        guard: The guard.
        body: The client's request.
        turns: Its messages.
        language: The role's; by default that of what the user and tools said since the last reply.
    """

    def __init__(
        self,
        upstream: Upstream,
        sent: dict[str, Any],
        name: str,
        guard: TalkGuard,
        *,
        body: dict[str, Any],
        turns: Sequence[Message],
        language: Language | None,
    ) -> None:
        super().__init__(upstream, sent, name)
        self._guard, self._streams, choices = guard, bool(body.get("stream")), body.get("n")
        self._choices = min(max(choices, 1), _MOST_CHOICES) if isinstance(choices, int) else 1
        # A reply that is to be continued.
        self._begun = turns[-1].content if turns[-1].role == "assistant" else ""
        talk = turns[:-1] if turns[-1].role == "assistant" else turns
        last_reply = max((index for index, turn in enumerate(talk) if turn.role == "assistant"), default=-1)
        self._turn = "\n\n".join(turn.content for turn in talk[last_reply + 1 :] if turn.role in ("user", "tool"))
        self._language = language or detect_language(self._turn)
        self._head: dict[str, Any] = {
            "id": f"chatcmpl-{secrets.token_hex(12)}",
            "object": "chat.completion.chunk" if self._streams else "chat.completion",
            "created": int(time.time()),
            "model": name,
        }

    async def _send_answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        words = await self._guard.check_turn(self._turn, self._language) if self._turn.strip() else ""
        if not words:
            await super()._send_answer(scope, receive, send)
        elif self._streams:
            await start_stream(send)
            for index in range(self._choices):
                await send_part(send, self._encode_stop(index, words))
            await send_part(send, _DONE, more=False)
        else:
            choices = [_stop_choice(index, words) for index in range(self._choices)]
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
        return HeldReply(self._guard, self._turn, self._language, self._begun)

    async def _stream(self, response: aiohttp.ClientResponse, send: Send) -> None:
        await start_stream(send)
        replies: dict[int, HeldReply[dict[str, Any]]] = {}
        ending, problem, reading = b"", None, anyio.CancelScope()

        async def pass_on(index: int, reply: HeldReply[dict[str, Any]]) -> None:
            async for event in reply.release():
                await send_part(send, self._encode(event))
            if reply.words:
                await send_part(send, self._encode_stop(index, reply.words))
                if sum(bool(other.words) for other in replies.values()) >= self._choices:
                    reading.cancel()

        async with anyio.create_task_group() as tasks:
            try:
                with reading:
                    async for event in self._iterate_events(response):
                        self._head |= {name: event[name] for name in ("id", "created") if name in event}
                        choices = _list_choices(event) if event.get("choices") else []
                        ending += b"" if choices else self._encode(event)
                        for choice in choices:
                            index = choice.get("index", 0)
                            if index not in replies:
                                replies[index] = self._hold()
                                tasks.start_soon(pass_on, index, replies[index])
                            replies[index].put({**event, "choices": [choice]}, _join_texts(choice))
            except (aiohttp.ClientError, TimeoutError, AnswerError) as error:
                problem = error
            for reply in replies.values():
                reply.end()
        await send_part(send, ending)
        if problem is not None:
            raise problem
        await send_part(send, _DONE, more=False)

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
                    raise AnswerError("an event of its answer is not JSON")
                yield {name: event[name] for name in _GUARDED if name in event}

    def _encode(self, event: dict[str, Any]) -> bytes:
        return b"data: " + self._upstream.clean(event, self._name) + b"\n\n"

    def _encode_stop(self, index: int, words: str) -> bytes:
        """The operator's words for a choice, and that a filter ended it."""
        choices = (
            {"index": index, "delta": {"role": "assistant", "content": words}, "finish_reason": None},
            {"index": index, "delta": {}, "finish_reason": "content_filter"},
        )
        return b"".join(self._encode({**self._head, "choices": [choice]}) for choice in choices)


def _stop_choice(index: int, words: str) -> dict[str, Any]:
    message = {"role": "assistant", "content": words}
    return {"index": index, "message": message, "finish_reason": "content_filter"}


def _list_choices(value: dict[str, Any]) -> list[dict[str, Any]]:
    choices = value.get("choices")
    if not isinstance(choices, list) or not all(isinstance(choice, dict) for choice in choices):
        raise AnswerError("its answer is not a chat completion")
    return choices


def _join_texts(value: Any) -> str:
    """All that a choice says, thoughts and arguments of tools included, whatever a server calls them."""
    if isinstance(value, dict):
        return "".join(_join_texts(part) for name, part in value.items() if name not in _NOT_TEXT)
    if isinstance(value, list):
        return "".join(map(_join_texts, value))
    return value if isinstance(value, str) else ""
