"""An endpoint: every way in which a server can fail becomes a typed outcome, and no key gets out."""

import asyncio
import itertools
import json
import logging
import socket
import traceback
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolellm.core.errors import RoleLLMWarning
from rolellm.core.scrub import hide
from rolellm.llm.client import Client
from rolellm.llm.endpoint import Endpoint
from rolellm.llm.journal import JOURNAL
from rolellm.llm.model import (
    CallError,
    Model,
    Price,
    Request,
    RunOptions,
    Sampling,
    Schema,
    UnacceptableError,
    Usage,
    assistant,
    request_key,
    system,
    user,
)
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

from .conftest import KEY, Serve

ASKED = Request((system("You are a fox."), user("Who are you?")))
SHAPED = Request(ASKED.messages, schema=Schema("pair", {"type": "object", "properties": {"a": {"type": "integer"}}}))


QUIET = RunOptions(show_progress=False)


def asked(count: int, **fields: Any) -> list[Request]:
    return [Request((user(f"Question {number}?"),), **fields) for number in range(count)]


def ask(endpoint: Endpoint, *requests: Request, attempt: int = 1) -> list[Any]:
    """What came of each request: a raw reply or a `CallError`."""

    async def go() -> list[Any]:
        try:
            calls = (endpoint.call(request, attempt) for request in requests)
            return await asyncio.gather(*calls, return_exceptions=True)
        finally:
            await endpoint.close()

    return asyncio.run(go())


def outcome(endpoint: Endpoint, raw: Any) -> str:
    """How a call ended, in a word."""
    if isinstance(raw, CallError):
        return raw.kind
    assert isinstance(raw, dict), raw
    try:
        return endpoint.read(raw).finish
    except UnacceptableError as error:
        return error.kind


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """All that is logged by anything, at any level."""
    with caplog.at_level(logging.NOTSET):
        for name in ("openai", "httpx2", "httpcore2", "aiohttp", "asyncio"):
            logging.getLogger(name).setLevel(logging.DEBUG)
        yield caplog
        for name in ("openai", "httpx2", "httpcore2", "aiohttp", "asyncio"):
            logging.getLogger(name).setLevel(logging.NOTSET)


#: What a fault tells of how long to wait, the absurd for the run to cap; another tells nothing, or nothing of sense.
WAITS = {
    **dict.fromkeys(("limited_seconds", "limited_ms", "error_503"), 1.25),
    "limited_date": pytest.approx(0.6, abs=0.65),
    "limited_absurd": 1e9,
}
#: How calls end: the kind, whether another try is worth it, whether it may have been charged; and the faults.
CALLS_THAT_FAIL = {
    fault: ending
    for ending, faults in {
        (
            "rate_limited",
            True,
            False,
        ): "limited limited_seconds limited_ms limited_date limited_negative limited_absurd limited_words limited_nan",
        ("forbidden", False, False): "quota forbidden",
        ("server_error", True, False): "error_500 error_502 error_503 conflict echo_500",
        ("server_error", True, True): "error_in_200",
        ("bad_request", False, False): "bad_request unprocessable",
        ("unauthorized", False, False): "unauthorized echo",
        ("not_found", False, False): "not_found redirect",
        ("timeout", True, True): "request_timeout drip silent",
        ("connection", True, True): "reset reset_after cut",
    }.items()
    for fault in faults.split()
}
REPLIES = {
    fault: finish
    for finish, faults in {
        "empty": "empty_choices null_message empty_text tool_calls",
        "refused": "refusal",
        "filtered": "content_filter",
        "length": "length",
        "stop": "no_usage wrong_usage fenced cut_json doubled deep surrogate echo_reply",
        "malformed": "deep_body no_choices not_json not_object not_utf8 half_json",
    }.items()
    for fault in faults.split()
}


def test_every_fault_has_its_outcome_here(llm_server: Callable[..., Any]) -> None:
    import llm_faults

    assert set(llm_faults.FAULTS) == set(CALLS_THAT_FAIL) | set(REPLIES)


@pytest.mark.parametrize("fault", [*CALLS_THAT_FAIL, *REPLIES])
def test_a_fault_ends_in_a_typed_outcome_without_the_key(
    fault: str, serve: Serve, logged: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    # A busy machine takes its time over the long bodies.
    server, at = serve(fault=fault, at={"timeout": 0.4 if fault in ("drip", "silent") else 30.0})

    (raw,) = ask(at, ASKED)

    assert server.counts.faults == {fault: 1}
    if fault in REPLIES:
        assert outcome(at, raw) == REPLIES[fault]
        seen = json.dumps(raw)
    else:
        assert (raw.kind, raw.retry, raw.billed) == CALLS_THAT_FAIL[fault]
        assert raw.after == WAITS.get(fault)
        assert raw.__cause__ is None
        assert raw.__context__ is None
        seen = "".join(traceback.format_exception(raw)) + repr(raw)
        assert len(raw.reason) < 400
        assert raw.reason.isprintable()
    printed = capfd.readouterr()
    for text in (seen, repr(at), at.name, json.dumps(at.identity), logged.text, printed.out, printed.err):
        assert KEY not in text


def test_the_key_is_found_in_what_the_faults_echo(llm_server: Callable[..., Any]) -> None:
    """Else the test before would pass with a server that echoes nothing."""
    import llm_faults

    asked = llm_faults.Asked({"authorization": f"Bearer {KEY}"}, 0.0)
    whole = llm_faults.Answer(200, b'{"choices": [{"message": {"content": "x"}}]}')
    for fault in ("echo", "echo_500", "echo_reply"):
        assert KEY in llm_faults.FAULTS[fault](whole, asked).body.decode()


def test_a_reply_is_read(serve: Serve) -> None:
    server, at = serve(lambda body: f"I am {body['messages'][1]['content']}", price=(1.0, 2.0))
    assert isinstance(at, Model)
    raw, again = ask(at, ASKED, ASKED)
    reply = at.read(raw)
    assert reply.text == "I am Who are you?"
    assert (reply.finish, reply.model, reply.endpoint) == ("stop", "local", at.name)
    prompt, completion, cached = reply.usage.prompt, reply.usage.completion, reply.usage.cached
    assert (prompt, completion) == (server.counts.prompt_tokens // 2, server.counts.completion_tokens // 2)
    # Both are on their way at once: the one that came second found the first message in the server's cache.
    assert sorted((cached, at.read(again).usage.cached)) == [0, 4]
    assert at.name == server.url.removeprefix("http://").removesuffix("/v1") + "/local"


def test_what_is_sent(serve: Serve) -> None:
    server, at = serve(at={"max_tokens_field": "max_completion_tokens", "extra_body": {"top_k": 20, "top_p": None}})
    messages = (system("S"), user("U"), assistant("A"), user("V"))
    sampling = Sampling(temperature=0.1, top_p=0.2, max_tokens=3, seed=6)
    ask(at, Request(messages, sampling, schema=SHAPED.schema))
    assert server.bodies[-1] == {
        "model": "local",
        "messages": [{"role": message.role, "content": message.content} for message in messages],
        "temperature": 0.1,
        "max_completion_tokens": 3,
        "seed": 6,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "pair", "schema": SHAPED.schema.schema, "strict": True},  # type: ignore[union-attr]
        },
        "top_k": 20,
    }


def test_no_header_of_the_environment_is_sent(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_ORG_ID", "org-of-mine")
    monkeypatch.setenv("OPENAI_PROJECT_ID", "project-of-mine")
    monkeypatch.setenv("OPENAI_ADMIN_KEY", "admin-of-mine")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-mine")
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "X-Secret: custom-of-mine")
    server, at = serve()
    ask(at, ASKED)
    assert server.headers[-1]["authorization"] == f"Bearer {KEY}"
    assert "of-mine" not in str(server.headers[-1])
    assert "openai" not in str(server.headers[-1]).casefold()
    server, at = serve(at={"api_key_env": None})
    ask(at, ASKED)
    assert "authorization" not in server.headers[-1]


def test_the_key_is_read_at_each_call(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    _, at = serve(key=KEY)
    assert outcome(at, ask(at, ASKED)[0]) == "stop"
    monkeypatch.setenv("ROLELLM_TEST_KEY", "sk-another-0123456789")
    assert outcome(at, ask(at, ASKED)[0]) == "unauthorized"


def test_form_of_structured_output_falls_back_and_is_remembered(serve: Serve) -> None:
    server, at = serve(structured=("json_object",))
    replies = ask(at, *(Request((user(str(number)),), schema=SHAPED.schema) for number in range(20)))
    assert [outcome(at, raw) for raw in replies] == ["stop"] * 20
    assert at.structured == "json_object"
    assert all(body["response_format"] == {"type": "json_object"} for body in server.bodies)
    before = server.counts.calls
    ask(at, SHAPED)
    assert server.counts.calls == before + 1, "it does not ask by schema again"


def test_nothing_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    at = Endpoint(ModelSettings(model="m", base_url=f"http://127.0.0.1:{port}/v1"))
    (error,) = ask(at, ASKED)
    assert (error.kind, error.retry, error.billed) == ("connection", True, False)
    assert "no connection" in error.reason


@pytest.mark.parametrize("shaped", [False, True])
def test_a_key_changes_with_what_can_change_the_reply_and_with_nothing_else(shaped: bool) -> None:
    other: dict[str, Any] = {
        "price": Price(1.0, 1.0),
        "base_url": "http://localhost:2/v1",
        "model": "n",
        "api_key_env": "X",
        "allow_plain_http": True,
        "concurrency": 3,
        "timeout": 1.0,
        "structured": "none",
        "max_tokens_field": "max_completion_tokens",
        "extra_body": {"top_k": 1},
    }
    elsewhere = {"backend", "adapter", "engine", "device", "dtype", "batch_size", "rules"}
    assert {field.name for field in fields(ModelSettings)} == set(other) | elsewhere
    deciding = {"base_url", "model", "extra_body"} | ({"structured"} if shaped else set())
    request = SHAPED if shaped else ASKED
    plain = ModelSettings(model="m", base_url="http://localhost:1/v1")
    key = request_key(Endpoint(plain), request)
    changing = {
        name for name, value in other.items() if request_key(Endpoint(replace(plain, **{name: value})), request) != key
    }
    assert changing == deciding


def test_a_far_server_is_reached_through_the_proxy_and_this_machine_is_not(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    (proxy, _), (server, near) = serve(), serve()
    monkeypatch.setenv("HTTP_PROXY", proxy.url.removesuffix("/v1"))
    monkeypatch.setenv("http_proxy", proxy.url.removesuffix("/v1"))
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    far = Endpoint(ModelSettings(model="m", base_url="http://far.invalid/v1", api_key_env=""))
    assert outcome(far, ask(far, ASKED)[0]) == "stop"
    assert proxy.counts.calls == 1
    assert outcome(near, ask(near, ASKED)[0]) == "stop"
    assert (proxy.counts.calls, server.counts.calls) == (1, 1)


def test_every_stage_tells_of_damage(serve: Serve, tmp_path: Path) -> None:
    _, at = serve()
    with Client(tmp_path, [at], QUIET) as client:
        client.ask([ASKED])
    with (tmp_path / JOURNAL).open("ab") as stream:
        stream.write(b"half a rec")
    with pytest.warns(RoleLLMWarning, match="requested and paid for again: 1 damaged line"):
        Client(tmp_path, [at]).close()
    Client(tmp_path, [at]).close()


@pytest.mark.parametrize(
    ("name", "counted", "told"),
    [
        pytest.param(lambda _: "cheap-model-9000", {"cheap-model-9000": 40}, 1, id="one"),
        pytest.param(
            lambda number: f"model {number}", {f"model {n}": 1 for n in range(20)} | {"others": 20}, 20, id="ever-new"
        ),
    ],
)
def test_results_name_who_answered(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: Callable[[int], str], counted: Any, told: int
) -> None:
    import llm_faults

    numbers = itertools.count()
    renamed = llm_faults._body(lambda body: body.update(model=name(next(numbers))))
    monkeypatch.setitem(llm_faults.FAULTS, "no_usage", renamed)
    at = serve(fault="no_usage", at={"concurrency": 1})[1]
    with (
        Client(tmp_path, [at], QUIET) as client,
        pytest.warns(RoleLLMWarning, match="/local was asked, but '") as warned,
    ):
        client.ask(asked(40))
    assert len(warned) == told and client.spent.answered_by == counted


# --- bodies, waits and refusals


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
        pytest.param({"retry-after-ms": "1500", "retry-after": "9"}, 1.5, id="milliseconds first"),
        pytest.param({"retry-after": formatdate(NOW - 30, usegmt=True)}, 0.0, id="date past"),
        pytest.param({"retry-after": "9" * 5000}, None, id="endless"),
    ],
)
def test_retry_after(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(headers, lambda: NOW) == seconds


@pytest.mark.parametrize(
    ("body", "finish", "text"),
    [
        pytest.param(choice(finish=None), "stop", "Hello.", id="no reason given"),
        pytest.param(choice(refusal="No."), "refused", "Hello.", id="refusal beside text"),
        pytest.param(choice(finish="error"), "empty", "Hello.", id="broken off"),
        pytest.param(choice(" \n "), "empty", " \n ", id="white space"),
        pytest.param(choice([{"type": "text", "text": "He"}, {"text": "llo."}]), "stop", "Hello.", id="parts"),
        pytest.param(
            choice("a \ud800 b \ud83d\ude00"), "stop", "a \ufffd b \U0001f600", id="halves of surrogate pairs"
        ),
        pytest.param({"choices": []}, "empty", "", id="nothing"),
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
            502, b"<html>\n Bad \x1b[31m gateway\x00</html>", "HTTP 502: Bad ␛[31m gateway␀", id="a proxy's page"
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


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        pytest.param(b"<html>Open WebUI</html>", "not a JSON object: <html>Open WebUI", id="another address"),
        pytest.param(b'{"detail": "No such route"}', "not a chat completion: .*No such route", id="another API"),
    ],
)
def test_a_body_that_is_no_completion_is_quoted(answer: bytes, reason: str) -> None:
    with pytest.raises(UnacceptableError, match=reason):
        read(**parse_body(answer))


def test_an_address_without_its_path_is_pointed_out(serve: Serve) -> None:
    server, at = serve()
    bare = Endpoint(replace(at.settings, base_url=server.url.removesuffix("/v1")))
    (error,) = ask(bare, ASKED)
    assert error.kind == "not_found" and "ends in /v1" in error.reason


@pytest.mark.parametrize("content", [b"[]", b'{"data": [5, {"id": []}]}', b'{"data": {"id": "local"}}'])
def test_what_is_no_list_of_models_lists_none(content: bytes, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    import llm_faults

    server, at = serve()
    monkeypatch.setattr(server, "route", lambda *_: (llm_faults.Answer(200, content), 0.0))

    async def list_all() -> Any:
        try:
            return await at.list_models()
        finally:
            await at.close()

    assert asyncio.run(list_all()) == {}


def test_a_stream_that_is_no_completion_is_malformed(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    import llm_faults

    server, at = serve()
    answer = llm_faults.Answer(200, b'data: {"choices": ["x"]}\n\n', {"Content-Type": "text/event-stream"})
    monkeypatch.setattr(server, "route", lambda *_: (answer, 0.0))

    async def read_all() -> list[str]:
        try:
            return [piece async for piece in at.stream(ASKED)]
        finally:
            await at.close()

    with pytest.raises(UnacceptableError, match="not a chat completion"):
        asyncio.run(read_all())
