"""What can go wrong between a client and a language model's server, each under a name; for `local_llm`."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from email.utils import formatdate
from hashlib import sha256
from typing import Any, Literal

DEEP = 10_000


@dataclass(frozen=True)
class Answer:
    """What goes out.

    Attributes:
        status: Of HTTP.
        body: As sent after the headers.
        headers: In addition to ``Content-Type`` and ``Content-Length``.
        delivery: ``whole``; ``drip``, a byte a second; ``silent``, nothing and no end; ``reset``, a reset instead of an
            answer; ``cut``, headers and half the body, then a reset.
        paid: Whether tokens were spent on it.
    """

    status: int
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)
    delivery: Literal["whole", "drip", "silent", "reset", "cut"] = "whole"
    paid: bool = True


@dataclass(frozen=True)
class Asked:
    """What a fault may look at: the request's headers, and how long a client should be told to wait, in seconds."""

    headers: dict[str, str]
    wait: float


Fault = Callable[[Answer, Asked], Answer]


def failed(status: int, message: str, code: str = "", **headers: str) -> Answer:
    """An error in the form that OpenAI gives it."""
    body = {"error": {"message": message, "type": "error", "param": None, "code": code or None}}
    return Answer(status, json.dumps(body).encode(), headers, paid=False)


def _status(status: int, message: str, code: str = "") -> Fault:
    return lambda _, __: failed(status, message, code)


def _limited(header: str, value: Callable[[float], str], status: int = 429) -> Fault:
    return lambda _, asked: failed(status, "Too many requests", "rate_limit_exceeded", **{header: value(asked.wait)})


def _body(change: Callable[[dict[str, Any]], Any]) -> Fault:
    def fault(answer: Answer, _: Asked) -> Answer:
        body = json.loads(answer.body)
        return replace(answer, body=json.dumps(change(body) or body).encode())

    return fault


def _message(**fields: Any) -> Fault:
    return _body(lambda body: body["choices"][0]["message"].update(fields))


def _ended(finish: str, **fields: Any) -> Fault:
    return _body(lambda body: body["choices"][0].update(finish_reason=finish, **fields))


def _content(change: Callable[[str], str]) -> Fault:
    def put(body: dict[str, Any]) -> None:
        message = body["choices"][0]["message"]
        message["content"] = change(message["content"])

    return _body(put)


def _raw(body: bytes, kind: str = "application/json", status: int = 200) -> Fault:
    return lambda answer, _: replace(answer, status=status, body=body, headers={"Content-Type": kind})


def _delivered(delivery: Any, paid: bool = True) -> Fault:
    return lambda answer, _: replace(answer, delivery=delivery, paid=paid)


def _echo(answer: Answer, asked: Asked) -> Answer:
    return failed(401, f"Incorrect API key provided, your headers were {asked.headers}", "invalid_api_key")


def _echo_500(_: Answer, asked: Asked) -> Answer:
    text = f"<html><pre>upstream {asked.headers}</pre></html>"
    return Answer(500, text.encode(), {"Content-Type": "text/html"}, paid=False)


def _echo_reply(answer: Answer, asked: Asked) -> Answer:
    return _content(lambda text: f"{text} You sent {asked.headers.get('authorization')}")(answer, asked)


def _redirect(_: Answer, __: Asked) -> Answer:
    return Answer(307, b"", {"Location": "http://127.0.0.1:9/v1/chat/completions"}, paid=False)


_CALL = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}

#: Every fault by name.
FAULTS: dict[str, Fault] = {
    "limited": _status(429, "Too many requests", "rate_limit_exceeded"),
    "limited_seconds": _limited("Retry-After", lambda wait: f"{wait:g}"),
    "limited_ms": _limited("Retry-After-Ms", lambda wait: f"{1000 * wait:g}"),
    "limited_date": _limited("Retry-After", lambda wait: formatdate(time.time() + wait, usegmt=True)),
    "limited_negative": _limited("Retry-After", lambda _: "-5"),
    "limited_absurd": _limited("Retry-After", lambda _: "1e9"),
    "limited_words": _limited("Retry-After", lambda _: "soon"),
    "limited_nan": _limited("Retry-After", lambda _: "nan"),
    "quota": _status(429, "You exceeded your current quota", "insufficient_quota"),
    "error_500": _status(500, "The server had an error"),
    "error_502": _raw(b"<html>Bad gateway</html>", "text/html", 502),
    "error_503": _limited("Retry-After", lambda wait: f"{wait:g}", 503),
    "error_in_200": _raw(b'{"error": {"message": "Provider overloaded", "code": 502}}'),
    "bad_request": _status(400, "The prompt is too long", "context_length_exceeded"),
    "unauthorized": _status(401, "Incorrect API key provided", "invalid_api_key"),
    "forbidden": _status(403, "Not in your country"),
    "not_found": _status(404, "The model does not exist", "model_not_found"),
    "request_timeout": _status(408, "Too slow"),
    "conflict": _status(409, "Try again"),
    "unprocessable": _status(422, "Unprocessable"),
    "redirect": _redirect,
    "empty_choices": _body(lambda body: body.update(choices=[])),
    "no_choices": _body(lambda body: {key: body[key] for key in body if key != "choices"}),
    "null_message": _body(lambda body: body["choices"][0].update(message=None)),
    "empty_text": _message(content=""),
    "tool_calls": _ended("tool_calls", message={"role": "assistant", "content": None, "tool_calls": [_CALL]}),
    "refusal": _message(content=None, refusal="I cannot help with that."),
    "content_filter": _ended("content_filter"),
    "length": _ended("length"),
    "no_usage": _body(lambda body: {key: body[key] for key in body if key != "usage"}),
    "wrong_usage": _body(lambda body: body.update(usage={"prompt_tokens": -4, "completion_tokens": "many"})),
    "fenced": _content(lambda text: f"Here you are:\n```json\n{text}\n```\n"),
    "cut_json": _content(lambda text: text[: len(text) // 2]),
    "doubled": _content(lambda text: f"{text}\n{text}"),
    "deep": _content(lambda _: "[" * DEEP + "]" * DEEP),
    "deep_body": _raw(b'{"choices":' + b"[" * DEEP + b"]" * DEEP + b"}"),
    "surrogate": lambda answer, _: replace(answer, body=answer.body.replace(b'"content": "', b'"content": "\\ud800')),
    "not_json": _raw(b"<html>Log in to the network</html>", "text/html"),
    "not_object": _raw(b"[1, 2]"),
    "not_utf8": _raw(b'{"choices": "\xff\xfe"}'),
    "half_json": lambda answer, _: replace(answer, body=answer.body[: len(answer.body) // 2]),
    "drip": _delivered("drip"),
    "silent": _delivered("silent"),
    "reset": _delivered("reset", paid=False),
    "reset_after": _delivered("reset"),
    "cut": _delivered("cut"),
    "echo": _echo,
    "echo_500": _echo_500,
    "echo_reply": _echo_reply,
}

#: What passes by itself and holds nobody up; a client should get all answers through these.
PASSING = (
    *("limited_seconds", "limited_ms", "limited_date", "limited_negative", "error_500", "error_502", "error_503"),
    *("error_in_200", "request_timeout", "conflict", "reset", "reset_after", "cut", "empty_choices"),
    *("not_json", "half_json"),
)


@dataclass(frozen=True)
class Faults:
    """Which requests fail, and how; drawn from the seed, the request's content, and how often it was seen before.

    Attributes:
        rate: How many, from 0 to 1.
        kinds: Names of `FAULTS`, drawn alike.
        seed: Of the draw.
        forever: Draw from the seed and the content alone, so that asking again brings the same.
        wait: Seconds that a client is told to wait where a fault says so.
    """

    rate: float
    kinds: Sequence[str] = PASSING
    seed: int = 0
    forever: bool = False
    wait: float = 0.02

    def __post_init__(self) -> None:
        unknown = sorted(set(self.kinds) - set(FAULTS))
        if unknown:
            raise ValueError(f"no such fault: {', '.join(unknown)}; known: {', '.join(FAULTS)}")

    def drawn(self, key: str, seen: int) -> str | None:
        """The fault of a request, if it has one.

        Args:
            key: Names its content.
            seen: How often it came before.
        """
        name = f"{self.seed} {key} {0 if self.forever else seen}"
        source = random.Random(sha256(name.encode()).digest())
        return source.choice(self.kinds) if source.random() < self.rate else None
