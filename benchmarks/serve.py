"""`rolellm serve` in front of a server that streams: throughput and first token, against the server alone.

Usage::

    python benchmarks/serve.py [--clients 64] [--rounds 3] [--json]

The server, of this file and in a process of its own, waits as a model does: for the first token, and between tokens.
Clients ask one question after the other for a fixed time; rounds at the bare server and through `rolellm serve`
alternate. CPU time of `rolellm serve` is given as well: unlike the rest, it does not depend on what else runs.
"""

import argparse
import asyncio
import json
import multiprocessing
import re
import statistics
import subprocess
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil
from common import environment, report

FIRST, BETWEEN, TOKENS = 0.3, 0.04, 50
QUESTION = "What do you count on a night such as this one, and why?"


async def _upstream(tell: Connection) -> None:
    chunk = {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": " seventy-two"}}]}
    event = f"data: {json.dumps(chunk)}\n\n".encode()
    part = b"%x\r\n%s\r\n" % (len(event), event)
    begin = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                if head.startswith(b"GET"):
                    body = b'{"data": [{"id": "model", "max_model_len": 8192}]}'
                    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n")
                    writer.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
                    continue
                length = re.search(rb"(?i)content-length: (\d+)", head)
                assert length is not None
                await reader.readexactly(int(length[1]))
                await asyncio.sleep(FIRST)
                writer.write(begin + part)
                for _ in range(TOKENS - 1):
                    await asyncio.sleep(BETWEEN)
                    writer.write(part)
                writer.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, backlog=1024)
    tell.send(server.sockets[0].getsockname()[1])
    await server.serve_forever()


def serve_upstream(tell: Connection) -> None:
    """Be the server."""
    asyncio.run(_upstream(tell))


async def load(port: int, model: str, clients: int, seconds: float) -> tuple[float, list[float]]:
    """Ask for a while; answers per second, and seconds to first tokens.

    Each client's rate is over its own time, since answers that are begun in the last moments finish.
    """
    body = json.dumps({"model": model, "stream": True, "messages": [{"role": "user", "content": QUESTION}]}).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    request = b"%sContent-Length: %d\r\n\r\n%s" % (head, len(body), body)
    firsts: list[float] = []
    started = time.perf_counter()

    async def client() -> float:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        done = 0
        while time.perf_counter() - started < seconds:
            asked = time.perf_counter()
            writer.write(request)
            await reader.readuntil(b"data: ")
            firsts.append(time.perf_counter() - asked)
            await reader.readuntil(b"[DONE]")
            await reader.readuntil(b"\r\n0\r\n\r\n")
            done += 1
        writer.close()
        return done / (time.perf_counter() - started)

    return sum(await asyncio.gather(*(client() for _ in range(clients)))), firsts


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--clients", type=int, default=64, help="at once")
    parser.add_argument("--rounds", type=int, default=3, help="of each")
    parser.add_argument("--seconds", type=float, default=7.0, help="after which a round begins no more answers")
    options = parser.parse_args()

    ours, theirs = multiprocessing.Pipe()
    upstream = multiprocessing.get_context("spawn").Process(target=serve_upstream, args=(theirs,), daemon=True)
    upstream.start()
    bare = ours.recv()
    command = [str(Path(sys.executable).parent / "rolellm"), "serve", "queen of hearts", "--port", "0"]
    command += ["--llm", f"http://127.0.0.1:{bare}/v1", "--model", "model"]
    serving = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert serving.stderr is not None
    found = re.search(r":(\d+)/v1\.", serving.stderr.readline())
    assert found is not None
    try:
        rates: dict[str, list[float]] = {"upstream": [], "serve": []}
        firsts: dict[str, list[float]] = {"upstream": [], "serve": []}
        asyncio.run(load(int(found[1]), "queen of hearts", options.clients, 1))
        cpu, answers = 0.0, 0
        for _ in range(options.rounds):
            for name, port in (("upstream", bare), ("serve", int(found[1]))):
                before = psutil.Process(serving.pid).cpu_times()
                rate, first = asyncio.run(load(port, "queen of hearts", options.clients, options.seconds))
                after = psutil.Process(serving.pid).cpu_times()
                rates[name].append(rate)
                firsts[name] += first
                if name == "serve":
                    cpu += after.user + after.system - before.user - before.system
                    answers += len(first)
    finally:
        serving.terminate()
        serving.wait()
        upstream.terminate()
    median: dict[str, Any] = {name: statistics.median(found) for name, found in rates.items()}
    figures = {
        "answers_per_s_upstream": median["upstream"],
        "answers_per_s_serve": median["serve"],
        "first_token_s_upstream": statistics.median(firsts["upstream"]),
        "first_token_s_serve": statistics.median(firsts["serve"]),
        "first_token_p95_s_upstream": statistics.quantiles(firsts["upstream"], n=20)[-1],
        "first_token_p95_s_serve": statistics.quantiles(firsts["serve"], n=20)[-1],
        "cpu_ms_per_answer_serve": 1000 * cpu / answers,
    }
    notes = [f"{options.clients} clients; first token after {FIRST} s, then one each {BETWEEN} s, {TOKENS} in all"]
    share = {"the upstream": median["serve"] / median["upstream"]}
    report(
        "serve",
        {"ratios": share, "figures": figures, "n": answers, **environment("uvicorn", "starlette")},
        notes,
        options.json,
    )


if __name__ == "__main__":
    main()
