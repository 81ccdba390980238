"""A server that streams, a card with all that a prompt takes from one, and `rolellm serve` as a process."""

import asyncio
import json
import os
import re
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ..forking import Forked, Forking

KEY = "sk-upstream-9f8e7d6c5b4a3210"


def chunk(text: str, finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish}]}


#: Streams that do not end as they should, and one that thinks.
ENDS: dict[str, list[dict[str, Any]]] = {
    "halved": [chunk("Half a"), chunk(" sentence")],
    "aborted": [chunk("Half a"), chunk("", "error")],
    "memory": [chunk("Half a"), {"error": {"message": "out of memory", "code": 500}}],
    "limit": [chunk("Half a", "length")],
    "filter": [chunk("Half a"), chunk("", "content_filter")],
    "nothing": [chunk("", "stop")],
    "think": [chunk("<thi"), chunk("nk>Who asks?"), chunk("</think>\n"), chunk("\nA "), chunk("fox.", "stop")],
    "thoughts": [chunk("<think>Who asks?", "length")],
}


class Upstream:
    """Says the last message's words again, one at a time; some first words make it do something else.

    ``hold``: one word, and the others once `go` is set; ``fail``: an error that echoes the key; ``break``: the
    connection ends after two words; ``wait``: one word, and then nothing until the client leaves; ``drip``: half a
    second after each word; ``long``: the prompt is too long; ``call``: a call of the first tool; ``echo``: the key,
    the address and the model's name, under a status of 200;
    a word of `ENDS`: its events, and nothing after them.

    Attributes:
        bodies: What was asked.
        open: Streams that have not ended.
        owner: What the list of models calls it.
        adapters: Those that it was started with.
        refuses_tools: Whether a request with tools is an error, as to vLLM without a parser for them.
    """

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.open = 0
        self.owner = "llamacpp"
        self.adapters: list[str] = []
        self.refuses_tools = False
        self.go = threading.Event()

    async def complete(self, request: Any) -> Any:
        from starlette.responses import JSONResponse, Response, StreamingResponse

        body = await request.json()
        self.bodies.append(body)
        self.headers.append(dict(request.headers))
        if self.refuses_tools and body.get("tools"):
            return JSONResponse({"error": {"message": '"auto" tool choice requires --enable-auto-tool-choice'}}, 400)
        words = (body["messages"][-1]["content"] or "").split(" ")
        if body["model"] == "owl":
            words.append("Hoo!")
        if words[0] == "fail":
            words = f"slow down at {request.url}, {request.headers.get('authorization')}"
            told = {"error": {"message": words, "type": "busy"}}
            return JSONResponse(told, 429, {"Retry-After": "7"})
        if words[0] == "long":
            return JSONResponse({"error": {"message": "the request exceeds the available context size"}}, 400)
        told = {"id": "chatcmpl-1", "created": 1, "model": "/home/somebody/models/parrot"}
        if words[0] == "echo":
            words = ["you", "sent", request.headers.get("authorization", ""), "to", str(request.url)]
        if words[0] == "call":
            function = {"name": body["tools"][0]["function"]["name"], "arguments": json.dumps({"what": "gulls"})}
            calls = [{"index": 0, "id": "call_1", "type": "function", "function": function}]
            part, ended = {"role": "assistant", "content": None, "tool_calls": calls}, "tool_calls"
        else:
            part, ended = {"role": "assistant", "content": " ".join(words)}, "stop"
        if body.get("stream") and words[0] in ("call", "you"):
            chunks = [{"index": 0, "delta": part}, {"index": 0, "delta": {}, "finish_reason": ended}]
            events = [{**told, "object": "chat.completion.chunk", "choices": [choice]} for choice in chunks]
            text = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
            return Response(text, media_type="text/event-stream")
        if body.get("stream"):
            return StreamingResponse(self.events(words), media_type="text/event-stream")
        choice = {"index": 0, "message": part, "finish_reason": ended}
        return JSONResponse({**told, "object": "chat.completion", "choices": [choice]})

    async def events(self, words: list[str]) -> AsyncIterator[str]:
        self.open += 1
        try:
            if words[0] in ENDS:
                for event in ENDS[words[0]]:
                    yield f"data: {json.dumps(event)}\n\n"
                return
            for place, word in enumerate(words):
                delta = {"role": "assistant", "content": word if place == 0 else f" {word}"}
                ended = "stop" if place == len(words) - 1 else None
                choices = [{"index": 0, "delta": delta, "finish_reason": ended}]
                chunk = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": "m", "choices": choices}
                yield f"data: {json.dumps(chunk)}\n\n"
                while words[0] == "hold" and not self.go.is_set():
                    await asyncio.sleep(0.01)
                if words[0] == "drip":
                    await asyncio.sleep(0.5)
                if words[0] == "wait":
                    await asyncio.sleep(60)
                if words[0] == "break" and place == 1:
                    raise ConnectionError("the line is cut")
            yield "data: [DONE]\n\n"
        finally:
            self.open -= 1

    async def models(self, _: Any) -> Any:
        from starlette.responses import JSONResponse

        listed = {"id": "parrot", "object": "model", "owned_by": self.owner, "max_model_len": 2000}
        return JSONResponse({"data": [listed]})

    async def loras(self, _: Any) -> Any:
        from starlette.responses import JSONResponse

        return JSONResponse([{"id": number, "path": f"/x/{name}.gguf"} for number, name in enumerate(self.adapters)])

    def quiet(self) -> bool:
        """Whether all streams have ended, within half a minute."""
        deadline = time.monotonic() + 30
        while self.open and time.monotonic() < deadline:
            time.sleep(0.02)
        return self.open == 0


@pytest.fixture(scope="module")
def upstream() -> Iterator[Upstream]:
    import logging

    import uvicorn
    from starlette.applications import Starlette
    from starlette.routing import Route

    # It raises on purpose.
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
    made = Upstream()
    routes = [
        Route("/v1/chat/completions", made.complete, methods=["POST"]),
        Route("/v1/models", made.models),
        Route("/lora-adapters", made.loras),
    ]
    server = uvicorn.Server(uvicorn.Config(Starlette(routes=routes), port=0, log_level="critical"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    made.url = f"http://127.0.0.1:{port}/v1"  # type: ignore[attr-defined]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UPSTREAM_KEY", KEY)
        yield made
    server.should_exit = server.force_exit = True
    thread.join()


CARD = {
    "spec": "chara_card_v2",
    "spec_version": "2.0",
    "data": {
        "name": "Ada Fenn",
        "description": "{{char}} keeps the lighthouse and counts everything.",
        "scenario": "{{user}} knocks at the door of the lighthouse.",
        "first_mes": "Seventy-two steps, {{user}}. Sit down.",
        "mes_example": "<START>\n{{user}}: How many gulls?\n{{char}}: Eleven, and one that limps.",
        "system_prompt": "Speak slowly. {{original}}",
        "post_history_instructions": "Answer {{user}} in one sentence.",
        "character_book": {
            "entries": [
                {"keys": ["lamp"], "content": "The lamp burns whale oil.", "enabled": True, "insertion_order": 1},
                {"keys": ["fog"], "content": "The fog horn broke in May.", "enabled": True, "insertion_order": 2},
                {"keys": [], "constant": True, "content": "It is 1871.", "enabled": True, "insertion_order": 3},
            ]
        },
    },
}


@pytest.fixture
def card(tmp_path: Path) -> Path:
    return write_card(tmp_path)


def write_card(folder: Path) -> Path:
    path = folder / "ada.json"
    path.write_text(json.dumps(CARD), encoding="utf-8")
    return path


def address(process: Forked, pattern: str) -> str:
    """What it says on standard error, once it does."""
    until = time.monotonic() + 60
    said = ""
    while not (found := re.search(pattern, said)):
        assert time.monotonic() < until and process.poll() is None, said
        time.sleep(0.02)
        said = process.err.read_text(encoding="utf-8") if process.err.exists() else ""
    return found[1]


#: What `rolellm serve` imports in front of another server.
SERVING = ("rolellm.cli.app", "rolellm.cli.play", "rolellm.playing.server", "openai", "uvicorn")


@pytest.fixture(scope="session")
def forking() -> Iterator[Forking]:
    with Forking(os.environ, SERVING) as forking:
        yield forking


@pytest.fixture(scope="module")
def serving(forking: Forking, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., tuple[str, Forked]]]:
    """Starts `rolellm serve` with these words on a free port; gives its base URL and the process."""
    folder, processes = tmp_path_factory.mktemp("serving"), []

    def start(*words: str, **environment: str) -> tuple[str, Forked]:
        # The sample's roles.
        env = {"UPSTREAM_KEY": KEY, "ROLEBENCH_DIR": None, **environment}
        processes.append(forking.start(["serve", *words, "--port", "0"], folder, env=env))
        return address(processes[-1], r" at (http://\S+/v1)\."), processes[-1]

    yield start
    for process in processes:
        process.send_signal(signal.SIGTERM)
        assert "Traceback" not in process.wait().stderr
