"""A language model's server on this machine: OpenAI's HTTP API, with faults where they are wanted.

    python examples/local_llm.py --port 8401 --latency 0.05 --faults 0.1 --seed 7

prints its address, which is what `base_url` has to be, and answers every request with words drawn from the request, or
with JSON that follows the schema asked for. There is no model behind it: this is a place to try a run, its retries and
its budget, before it costs money. Chat completions (not streamed), the list of models, files and the Batch API.

What it saw is at ``GET /local/counts`` and, for each request by the SHA-256 of its body, at ``GET /local/seen``;
``POST /local/reset`` forgets it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import sys
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any
from urllib.parse import urlsplit

from llm_answers import Rule, cut, invented, tokens
from llm_batches import Batches
from llm_faults import FAULTS, PASSING, Answer, Asked, Faults, failed
from llm_http import Connection

_CACHED_PREFIXES = 32


@dataclass(frozen=True)
class Settings:
    """How the server behaves.

    Attributes:
        latency: Seconds from a request to its answer.
        faults: Which requests fail; the first that draws one decides.
        rate: Requests a second that are let in, and how many at once after a pause (a token bucket); others get a 429.
        retry_after: What a 429 for the rate asks a client to wait, in seconds; by default it does not say.
        price: US dollars a million tokens, of prompts and of answers.
        key: The only key that is let in; by default everybody is.
        model: The only model served; by default any name is.
        structured: The types of `response_format` that are taken; others get a 400 that says so.
        refused_fields: Fields of a body that get a 400, such as ``max_tokens``.
        batch_seconds: How long a batch takes.
        batch_end: How a batch ends: ``completed``, ``failed``, ``expired`` or ``cancelled``.
    """

    latency: float = 0.0
    faults: Sequence[Faults] = ()
    rate: tuple[float, float] | None = None
    retry_after: float | None = None
    price: tuple[float, float] = (0.0, 0.0)
    key: str | None = None
    model: str | None = None
    structured: Sequence[str] = ("json_schema", "json_object", "text")
    refused_fields: Sequence[str] = ()
    batch_seconds: float = 0.0
    batch_end: str = "completed"


@dataclass
class Counts:
    """What the server saw.

    Attributes:
        calls: Requests for a completion, batches left out.
        limited: Those turned away for the rate.
        in_flight: Those not yet answered.
        at_once: The most that were in flight at one time.
        seen: How often each request came, by the hash of its body.
        good: How often each got an answer without a fault.
        faults: How often each fault was drawn.
        delivered: Answers handed to a connection that was still open.
        prompt_tokens: Of all answers that were paid, faults included.
        completion_tokens: As `prompt_tokens`.
        cost: In US dollars, cached tokens at half the price of others.
        batched: Requests answered in batches.
    """

    calls: int = 0
    limited: int = 0
    in_flight: int = 0
    at_once: int = 0
    seen: Counter[str] = field(default_factory=Counter)
    good: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    delivered: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float = 0.0
    batched: int = 0

    def to_dict(self) -> dict[str, Any]:
        """All of it as JSON; `paid_again` counts good answers beyond the first of each request."""
        plain = {name: getattr(self, name) for name in self.__dataclass_fields__ if name not in ("seen", "good")}
        again = sum(count - 1 for count in self.good.values())
        return {**plain, "faults": dict(self.faults), "distinct": len(self.seen), "paid_again": again}


class LocalLLM:
    """The server, as a context manager: it answers from a thread while the block runs.

    Args:
        answer: What it says, by the request's body; by default words drawn from it.
        port: To listen on; 0 takes one that is free.
        settings: Fields of `Settings`.

    Attributes:
        url: What `base_url` has to be.
        settings: May be replaced at any time.
        counts: What it saw.
        bodies: The bodies of the last thousand requests for a completion, in order.
        headers: Their headers.
    """

    def __init__(self, answer: Rule = invented, *, port: int = 0, **settings: Any) -> None:
        self.answer = answer
        self.settings = Settings(**settings)
        self._socket = socket.create_server(("127.0.0.1", port), backlog=1024)
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}/v1"
        self.connections: set[Connection] = set()
        self.reset()

    def reset(self) -> None:
        """Forget what was seen, batches and files included."""
        self.counts = Counts()
        self.bodies: deque[dict[str, Any]] = deque(maxlen=1000)
        self.headers: deque[dict[str, str]] = deque(maxlen=1000)
        self.batches = Batches(self)
        self._prefixes: OrderedDict[int, None] = OrderedDict()
        self._spent, self._since = 0.0, time.monotonic()

    def _over_the_rate(self) -> bool:
        if self.settings.rate is None:
            return False
        (rate, burst), now = self.settings.rate, time.monotonic()
        self._spent, self._since = max(self._spent - rate * (now - self._since), 0.0), now
        over = self._spent + 1 > burst
        self._spent += not over
        return over

    def change(self, **settings: Any) -> None:
        """Replace some of the settings."""
        self.settings = replace(self.settings, **settings)

    def __enter__(self) -> LocalLLM:
        started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self.serve(started.set)), daemon=True)
        self._thread.start()
        started.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._done.set)
        self._thread.join()

    async def serve(self, started: Callable[[], object] = lambda: None) -> None:
        """Answer until the block ends, or the process."""
        self._loop, self._done = asyncio.get_running_loop(), asyncio.Event()
        server = await self._loop.create_server(lambda: Connection(self), sock=self._socket)
        started()
        try:
            await self._done.wait()
        finally:
            server.close()
            for connection in list(self.connections):
                connection.transport.abort()

    def route(self, method: str, target: str, headers: dict[str, str], body: bytes) -> tuple[Answer, float]:
        """The answer to a request, and how many seconds it takes."""
        url = urlsplit(target)
        if url.path.startswith("/local/"):
            return self._local(method, url.path), 0.0
        if self.settings.key is not None and headers.get("authorization") != f"Bearer {self.settings.key}":
            return failed(401, "Incorrect API key provided", "invalid_api_key"), 0.0
        if method == "POST" and url.path == "/v1/chat/completions":
            self.counts.calls += 1
            if self._over_the_rate():
                self.counts.limited += 1
                wait = self.settings.retry_after
                told = {} if wait is None else {"Retry-After-Ms": f"{1000 * wait:g}"}
                return failed(429, "Rate limit reached", "rate_limit_exceeded", **told), 0.0
            return self.complete(body, headers), self.settings.latency
        if method == "GET" and url.path == "/v1/models":
            models = [{"id": self.settings.model or "local", "object": "model", "created": 0, "owned_by": "local"}]
            return Answer(200, json.dumps({"object": "list", "data": models}).encode()), 0.0
        answer = self.batches.route(method, url.path, url.query, headers, body)
        return answer or failed(404, f"no {method} {url.path} here"), 0.0

    def _local(self, method: str, path: str) -> Answer:
        if (method, path) == ("GET", "/local/seen"):
            seen = {key: [count, self.counts.good[key]] for key, count in self.counts.seen.items()}
            return Answer(200, json.dumps(seen).encode())
        if (method, path) == ("POST", "/local/reset"):
            self.reset()
        elif (method, path) != ("GET", "/local/counts"):
            return failed(404, f"no {method} {path} here")
        return Answer(200, json.dumps(self.counts.to_dict()).encode())

    def complete(self, content: bytes, headers: dict[str, str], share: float = 1.0) -> Answer:
        """Answer a request for a completion, or draw a fault.

        Args:
            content: Its body.
            headers: Its headers.
            share: Of the price that is charged.
        """
        try:
            body = json.loads(content)
            refused = self._refused(body)
            if refused is not None:
                return refused
            whole = self._completion(body, share)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            return failed(400, f"not a request for a completion: {error!r:.200}")
        key = sha256(content).hexdigest()
        fault = next((kind for f in self.settings.faults if (kind := f.drawn(key, self.counts.seen[key]))), None)
        wait = self.settings.faults[0].wait if self.settings.faults else 0.0
        self.counts.seen[key] += 1
        self.bodies.append(body)
        self.headers.append(headers)
        answer = Answer(200, json.dumps(whole).encode())
        if fault is None:
            self.counts.good[key] += 1
        else:
            self.counts.faults[fault] += 1
            answer = FAULTS[fault](answer, Asked(headers, wait))
        if answer.paid:
            self._charge(whole["usage"], share)
        return answer

    def _refused(self, body: dict[str, Any]) -> Answer | None:
        settings = self.settings
        if settings.model is not None and body["model"] != settings.model:
            return failed(404, f"The model `{body['model']}` does not exist", "model_not_found")
        for name in settings.refused_fields:
            if name in body:
                return failed(400, f"Unsupported parameter: '{name}' is not supported", "unsupported_parameter")
        kind = (body.get("response_format") or {"type": "text"})["type"]
        if kind not in settings.structured and kind != "text":
            return failed(400, f"Invalid parameter: 'response_format' of type '{kind}' is not supported")
        return None

    def _completion(self, body: dict[str, Any], share: float) -> dict[str, Any]:
        found = self.answer(body)
        if isinstance(found, dict):
            asked = sum(tokens(str(part["content"])) + 4 for part in body["messages"])
            return {"usage": {"prompt_tokens": asked, "completion_tokens": tokens(str(found))}, **found}
        most = body.get("max_completion_tokens") or body.get("max_tokens") or 1 << 20
        ended = "stop" if tokens(found) <= most else "length"
        message = {"role": "assistant", "content": found if ended == "stop" else cut(found, most), "refusal": None}
        texts = [str(part["content"]) for part in body["messages"]]
        prompt, answered = sum(map(tokens, texts)) + 4 * len(texts), tokens(message["content"] or "")
        usage = {"prompt_tokens": prompt, "completion_tokens": answered, "total_tokens": prompt + answered}
        cached = tokens(texts[0]) if self._remember(texts[0]) else 0
        return {
            "id": "chatcmpl-" + sha256(repr(texts).encode("utf-8", "replace")).hexdigest()[:12],
            "object": "chat.completion",
            "created": 0,
            "model": body["model"],
            "choices": [{"index": 0, "message": message, "finish_reason": ended, "logprobs": None}],
            "usage": {**usage, "prompt_tokens_details": {"cached_tokens": cached}},
        }

    def _remember(self, prefix: str) -> bool:
        """Whether a first message is among those seen last; a server would have it in its cache."""
        name = hash(prefix)
        known = name in self._prefixes
        self._prefixes[name] = None
        self._prefixes.move_to_end(name)
        if len(self._prefixes) > _CACHED_PREFIXES:
            self._prefixes.popitem(last=False)
        return known

    def _charge(self, usage: dict[str, Any], share: float) -> None:
        counts, (prompt, answer) = self.counts, self.settings.price
        cached = usage.get("prompt_tokens_details", {}).get("cached_tokens", 0)
        counts.prompt_tokens += usage["prompt_tokens"]
        counts.completion_tokens += usage["completion_tokens"]
        charged = (usage["prompt_tokens"] - cached / 2) * prompt + usage["completion_tokens"] * answer
        counts.cost += share * charged / 1e6


def main() -> None:
    """Serve until interrupted."""
    parser = argparse.ArgumentParser(description="A language model's server on this machine, with faults.")
    parser.add_argument("--port", type=int, default=8401, help="to listen on; 0 takes one that is free")
    parser.add_argument("--latency", type=float, default=0.0, help="seconds to each answer")
    parser.add_argument("--faults", type=float, default=0.0, help="how many requests fail, from 0 to 1")
    parser.add_argument("--kinds", default=",".join(PASSING), help=f"which faults, of: {', '.join(FAULTS)}")
    parser.add_argument("--seed", type=int, default=0, help="of the faults")
    parser.add_argument(
        "--rate", type=float, nargs=2, metavar=("N", "BURST"), help="requests a second let in, and how many at once"
    )
    parser.add_argument("--retry-after", type=float, help="seconds that those over the rate are told to wait")
    parser.add_argument("--scripted", action="store_true", help="answer the prompts of making a role, by rules")
    parser.add_argument("--key", help="the only key that is let in; by default everybody is")
    parser.add_argument("--model", help="the only model served; by default any name is")
    parser.add_argument("--price", type=float, nargs=2, default=(0.0, 0.0), help="US dollars a million tokens, in, out")
    options = parser.parse_args()
    faults = (Faults(options.faults, options.kinds.split(","), options.seed),) if options.faults else ()
    answer = invented
    if options.scripted:
        from llm_scripted import Scripted

        answer = Scripted()
    settings = {"latency": options.latency, "price": tuple(options.price), "key": options.key, "model": options.model}
    settings |= {"rate": options.rate, "retry_after": options.retry_after}
    server = LocalLLM(answer, port=options.port, faults=faults, **settings)
    sys.stdout.write(f"{server.url}\n")
    sys.stdout.flush()
    with suppress(KeyboardInterrupt):
        asyncio.run(server.serve())


if __name__ == "__main__":
    main()
