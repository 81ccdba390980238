"""Bodies out and in, waits, refusals and secrets: the parts of an endpoint that need no server."""

import json
from email.utils import formatdate
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolellm.core.scrub import hide
from rolellm.llm.model import Request, Sampling, Schema, UnacceptableError, Usage, user
from rolellm.llm.openai_format import (
    UNREADABLE,
    add_usage,
    encode_body,
    is_same_model,
    parse_body,
    read_body,
    request_body,
)
from rolellm.llm.retry import make_status_error, retry_after
from rolellm.llm.settings import ModelSettings

NOW = 1_800_000_000.0
SECRET = "sk-proj-Zq81vXw0LmT4cR7yPd2N+hK/9bQe"
SETTINGS = ModelSettings(base_url="http://localhost/v1", model="m")
SCHEMA = Schema("s", {"type": "object"})
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def read(**body: Any) -> Any:
    return read_body(body, "asked", "host/asked")


def choice(content: Any = "Hello.", finish: Any = "stop", **message: Any) -> dict[str, Any]:
    return {"choices": [{"message": {"content": content, **message}, "finish_reason": finish}]}


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        pytest.param({}, None, id="none"),
        pytest.param({"retry-after": "3"}, 3.0, id="seconds"),
        pytest.param({"retry-after-ms": "1500", "retry-after": "9"}, 1.5, id="milliseconds first"),
        pytest.param({"retry-after": formatdate(NOW + 30, usegmt=True)}, 30.0, id="date"),
        pytest.param({"retry-after": formatdate(NOW - 30, usegmt=True)}, 0.0, id="date past"),
        pytest.param({"retry-after": "-5"}, None, id="negative"),
        pytest.param({"retry-after": "nan"}, None, id="nan"),
        pytest.param({"retry-after": "9" * 5000}, None, id="endless"),
    ],
)
def test_retry_after(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(headers, lambda: NOW) == seconds


@pytest.mark.parametrize(
    ("body", "finish", "text"),
    [
        pytest.param(choice(), "stop", "Hello.", id="plain"),
        pytest.param(choice(finish=None), "stop", "Hello.", id="no reason given"),
        pytest.param(choice(finish="length"), "length", "Hello.", id="length"),
        pytest.param(choice(finish="content_filter"), "filtered", "Hello.", id="filter"),
        pytest.param(choice(refusal="No."), "refused", "Hello.", id="refusal beside text"),
        pytest.param(choice(finish="error"), "empty", "Hello.", id="broken off"),
        pytest.param(choice(" \n "), "empty", " \n ", id="white space"),
        pytest.param(choice(None), "empty", "", id="null"),
        pytest.param(choice([{"type": "text", "text": "He"}, {"text": "llo."}]), "stop", "Hello.", id="parts"),
        pytest.param(
            choice("a \ud800 b \ud83d\ude00"), "stop", "a \ufffd b \U0001f600", id="halves of surrogate pairs"
        ),
        pytest.param({"choices": []}, "empty", "", id="no choice"),
        pytest.param({}, "empty", "", id="nothing"),
    ],
)
def test_how_a_reply_ended(body: dict[str, Any], finish: str, text: str) -> None:
    reply = read(**body)
    assert (reply.finish, reply.text) == (finish, text)
    assert (reply.model, reply.endpoint) == ("asked", "host/asked")


@given(st.dictionaries(st.sampled_from(["choices", "usage", "model", "error"]), VALUES))
def test_any_object_is_read_or_refused(body: dict[str, Any]) -> None:
    try:
        reply = read_body(add_usage(body, Request((user("x"),))), "m", "e")
    except UnacceptableError as error:
        assert error.kind == "malformed"
    else:
        assert isinstance(reply.text, str)
        assert reply.finish in ("stop", "length", "filtered", "refused", "empty")
        assert min(reply.usage.prompt, reply.usage.completion, reply.usage.cached) >= 0


@pytest.mark.parametrize(
    ("details", "cached"),
    [
        pytest.param({"cached_tokens": 4}, 4, id="cached"),
        pytest.param({"cached_tokens": 99}, 5, id="more cached than there are"),
        pytest.param(None, 0, id="null"),
    ],
)
def test_usage(details: Any, cached: int) -> None:
    usage = {"prompt_tokens": 5, "completion_tokens": 2, "prompt_tokens_details": details}
    body = choice() | {"usage": usage}
    assert read(**body).usage == Usage(5, 2, cached)
    assert add_usage(body, Request((user("x"),))) is body


@pytest.mark.parametrize(
    ("asked", "answered", "same"),
    [
        pytest.param("api.x.com/gpt-4o", "gpt-4o-2024-08-06", True, id="dated"),
        pytest.param("api.x.com/large-latest", "large-2411", True, id="latest"),
        pytest.param("localhost:1/llama3", "llama3:latest", True, id="tag"),
        pytest.param("localhost:1/model-7b", "/models/Model-7B.gguf", True, id="llama.cpp"),
        pytest.param("api.x.com/gpt-4o", "gpt-4o-mini", False, id="smaller"),
        pytest.param("api.x.com/dear-model", "cheap-model-9000", False, id="another"),
    ],
)
def test_whether_who_answered_is_who_was_asked(asked: str, answered: str, same: bool) -> None:
    assert is_same_model(asked, answered) == same


@pytest.mark.parametrize(
    "usage",
    [
        None,
        [],
        {"prompt_tokens": -1, "completion_tokens": 2},
        {"prompt_tokens": True, "completion_tokens": 2},
    ],
)
def test_usage_that_cannot_be_is_estimated(usage: Any) -> None:
    found = add_usage(choice("To be, or not to be.") | {"usage": usage}, Request((user("Speak the speech"),)))
    counted = read(**found).usage
    assert found["usage"]["estimated"] is True
    assert 3 <= counted.prompt <= 25
    assert 4 <= counted.completion <= 12


def test_a_body_says_nothing_of_what_is_not_set() -> None:
    body = request_body(Request((user("U"),), schema=SCHEMA), SETTINGS, 1, "none")
    assert set(body) == {"model", "messages", "temperature", "top_p", "max_tokens"}


def test_seeds_differ_by_repeat_and_attempt() -> None:
    def seed(repeat: int, attempt: int) -> int:
        request = Request((user("U"),), Sampling(seed=6), repeat)
        found: int = request_body(request, SETTINGS, attempt, "none")["seed"]
        return found

    seeds = {seed(repeat, attempt) for repeat in range(6) for attempt in range(1, 6)}
    assert len(seeds) == 30
    assert all(0 <= value < 2**31 for value in seeds)
    assert seed(0, 1) == 6
    assert seed(2, 3) == seed(2, 3)


@given(st.text(st.characters()))
def test_any_text_is_sent_and_read_back(text: str) -> None:
    body = request_body(Request((user(text),)), SETTINGS, 1, "none")
    assert json.loads(encode_body(body)) == body


@pytest.mark.parametrize("content", [b"[" * 100_000, b'{"a":' * 100_000, b"[1]", b"", b"\xff", b"1" * 5000])
def test_bodies_that_are_no_object_are_kept_as_text(content: bytes) -> None:
    raw = parse_body(content)
    assert set(raw) == {UNREADABLE}
    assert len(raw[UNREADABLE]) <= 1 << 16


@pytest.mark.parametrize(
    ("status", "content", "found"),
    [
        pytest.param(400, b'{"error": {"message": "Too long"}}', "HTTP 400: Too long", id="openai"),
        pytest.param(
            422,
            b'{"detail": [{"loc": ["body", "n", 0], "msg": "A", "input": "secret"}, {"loc": "n", "msg": "B"}]}',
            "HTTP 422: body.n.0: A; B",
            id="fastapi, several",
        ),
        pytest.param(500, b'{"error": "out of memory"}', "HTTP 500: out of memory", id="a text"),
        pytest.param(400, b'[{"error": {"message": "Key?"}}]', "HTTP 400: Key?", id="list"),
        pytest.param(
            502, b"<html>\n Bad \x1b[31m gateway\x00</html>", "HTTP 502: <html> Bad ␛[31m gateway␀</html>", id="html"
        ),
        pytest.param(500, b"[" * 70_000, "HTTP 500: " + "[" * 300, id="deep"),
    ],
)
def test_what_a_refusal_says(status: int, content: bytes, found: str) -> None:
    assert make_status_error(status, {}, content, str).reason == found


def test_nothing_that_is_hidden_is_cut_in_half() -> None:
    body = ("x" * 290 + SECRET).encode()
    reason = make_status_error(500, {}, body, lambda text: hide(text, SECRET)).reason
    assert SECRET[:8] not in reason


@pytest.mark.parametrize(
    "body",
    [
        pytest.param({UNREADABLE: "<html>"}, id="no JSON"),
        pytest.param({"choices": {"a": 1}}, id="choices an object"),
        pytest.param({"choices": [{"message": "text"}]}, id="message a text"),
        pytest.param(choice([{"type": "text", "text": 5}]), id="part a number"),
    ],
)
def test_what_is_no_completion(body: dict[str, Any]) -> None:
    with pytest.raises(UnacceptableError) as raised:
        read(**body)
    assert raised.value.kind == "malformed"
