"""`rolellm serve` in front of servers that answer as none should."""

import contextlib
import json
import re
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import pytest

from rolellm.playing import server

from .conftest import KEY

REPLY = json.dumps({"choices": [{"index": 0, "message": {"role": "assistant", "content": "Aye."}}]}).encode()
EVENT = b'data: {"model": "/srv/parrot", "choices": [{"index": 0, "delta": {"content": "Aye."}}]}\n\n'


def raw(status: str, content: bytes, *headers: str) -> bytes:
    length = f"Content-Length: {len(content)}"
    return "\r\n".join([f"HTTP/1.1 {status}", *headers, length, "", ""]).encode("latin-1") + content


#: Answers by the first word of a message.
ANSWERS = {
    "accented": raw("200 OK", REPLY, "Content-Type: application/json; name=\xe9t\xe9"),
    "101": raw("101 Switching Protocols", b"", "Upgrade: other", "Connection: upgrade"),
    "204": b"HTTP/1.1 204 No Content\r\n\r\n",
    "999": raw("999 Odd", b"what?"),
    "html": raw("200 OK", b"<html>a proxy</html>", "Content-Type: text/html"),
    "list": raw("200 OK", b"[1]", "Content-Type: application/json"),
    "fastapi": raw("422 No", b'{"detail": [{"msg": "bad field"}]}', "Content-Type: application/json"),
    "words": raw("503 No", b"overloaded", "Content-Type: text/plain", "Retry-After: 3"),
    "header": raw("429 No", b'{"error": "slow"}', "Retry-After: \xe9\xe9"),
    "empty": b"",
    "junk": b"\x00\xff\x00 nonsense\r\n\r\n",
}
#: What is sent until the other side hangs up, after a head.
ENDLESS = {
    "error": (b"HTTP/1.1 500 No\r\n\r\n", b"x" * 65536),
    "reply": (b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n", b"x" * 65536),
    "line": (b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: ", b"x" * 65536),
}
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"


class _Odd(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += self.rfile.read(1)
        if head.startswith(b"GET"):
            self.wfile.write(raw("404 No", b""))
            return
        key = re.search(rb"(?i)authorization: (\S+ \S+)", head)[1]  # type: ignore[index]
        length = int(re.search(rb"(?i)content-length: (\d+)", head)[1])  # type: ignore[index]
        word, _, pieces = json.loads(self.rfile.read(length))["messages"][-1]["content"].partition(" ")
        with contextlib.suppress(OSError):
            if word in ANSWERS:
                self.wfile.write(ANSWERS[word])
            elif word == "endless":
                start, more = ENDLESS[pieces]
                self.wfile.write(start)
                while True:
                    self.wfile.write(more)
            else:
                # An echo of the key, in pieces that do not end where lines do.
                secret = json.dumps({"error": {"message": f"no such key: {key.decode()}"}}).encode()
                escaped = "".join(f"\\u{ord(letter):04x}" for letter in key.decode()).encode()
                choices = b'data: {"choices": [{"index": 0, "delta": {"content": "' + escaped + b'"}}]}\r\n\r\n'
                content = b": ping\n\nevent: x\n" + EVENT + choices + b"data: " + secret + b"\n\ndata: [DONE]"
                self.wfile.write(STREAM)
                for start in range(0, len(content), 7):
                    self.wfile.write(content[start : start + 7])
                    self.wfile.flush()


@pytest.fixture(scope="module")
def url(serving: Callable[..., Any]) -> Iterator[str]:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Odd) as odd, pytest.MonkeyPatch.context() as patch:
        odd.daemon_threads = True
        patch.setenv("UPSTREAM_KEY", KEY)
        threading.Thread(target=odd.serve_forever, daemon=True).start()
        base = f"http://127.0.0.1:{odd.server_address[1]}/v1"
        words = ("--llm", base, "--model", "/srv/parrot", "--set", "api_key_env=UPSTREAM_KEY")
        yield str(serving("queen of hearts", *words)[0])
        odd.shutdown()


def ask(url: str, text: str, **more: Any) -> httpx2.Response:
    body = {"model": "queen of hearts", "messages": [{"role": "user", "content": text}], **more}
    return httpx2.post(f"{url}/chat/completions", json=body, timeout=30)


@pytest.mark.parametrize(
    ("text", "status", "said"),
    [
        ("accented", 200, "Aye."),
        ("101", 502, "status 101"),
        ("204", 502, "status 204"),
        ("999", 502, "status 999: what?"),
        ("html", 502, "not JSON"),
        ("list", 502, "not JSON"),
        ("fastapi", 422, "bad field"),
        ("words", 503, "overloaded"),
        ("header", 429, "slow"),
        ("empty", 502, "the connection broke"),
        ("junk", 502, "the answer is not HTTP"),
        ("endless error", 500, "no reason given"),
        ("endless reply", 502, "longer than 8,388,608 bytes"),
    ],
)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_whatever_the_other_server_answers_the_client_gets_json(
    url: str, text: str, status: int, said: str, stream: bool
) -> None:
    answer = ask(url, text, stream=stream)
    assert (answer.status_code, said in answer.text) == (status, True), answer.text
    assert answer.headers["content-type"] == "application/json"
    assert ("error" in answer.json()) == (status != 200)
    assert answer.headers.get("retry-after") == ("3" if text == "words" else None)


def test_a_line_of_a_stream_that_does_not_end_is_an_error(url: str) -> None:
    answer = ask(url, "endless line", stream=True)
    assert "a line of its answer is longer" in answer.text


def test_a_key_in_a_stream_is_hidden_and_the_model_is_the_role(url: str) -> None:
    answer = ask(url, "echo", stream=True)
    assert answer.status_code == 200 and KEY not in answer.text and "/srv/parrot" not in answer.text
    lines = answer.text.split("\n")
    assert lines[:3] == [": ping", "", "event: x"] and lines[-1] == "data: [DONE]"
    events = [json.loads(line[5:]) for line in lines if line.startswith("data: {")]
    assert [event.get("model") for event in events] == ["Queen of Hearts", "Queen of Hearts", None]
    assert events[1]["choices"][0]["delta"]["content"] == "Bearer [hidden]"
    assert events[2]["error"]["message"] == "no such key: Bearer [hidden]"


def test_what_is_small_is_sent_at_once() -> None:
    """The first token does not wait until the client has acknowledged the head of the response."""
    with server.listen("127.0.0.1", 0) as listening, socket.create_connection(listening.getsockname()):
        connection, _ = listening.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
