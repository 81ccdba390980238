"""What the client costs, and what it keeps: throughput, CPU, memory, budget, and what SIGKILL does to a run.

    python benchmarks/client.py [--json] [--part N] [--latency SECONDS] [--kills N]

The server is `examples/local_llm.py` in a process of its own, with 10 % faults that pass (429 with Retry-After in
seconds, milliseconds or as a date, 500, 502, 503, resets before and after, cut bodies, empty choices, filtered replies,
bodies that are no JSON). `server_limit` is the throughput of the whole run, start and end included, over what the
server's latency allows at concurrency 64: 64 / latency. CPU is this process's alone.

The rate limits are token buckets that say how long to wait, or do not; `limited_time` is the longest time of a run over
that which the limit and the latency allow, and `limited_lost` counts the requests of all of them without an answer.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from client_kills import measure_kills
from client_server import PRICE, requests, server
from common import environment, make_parser, peak_memory_mb, report

from rolellm.core.errors import StoppedShortError
from rolellm.llm.client import Client
from rolellm.llm.model import Failure, Outcome, Request, RunOptions
from rolellm.llm.openai_format import encode_body

CONCURRENCY = 64
GOALS = (
    "Goals: server_limit >= 0.9, limited_time <= 1.3, limited_lost = 0, "
    "cpu_ms_a_call < 2, memory_mb_100k_calls < 300, at_once <= 64, spend_over_budget <= 1, "
    "and of the kills: nothing lost, twice, sent again, beyond or different."
)

#: Requests a second, let in at once, seconds of Retry-After; concurrency, latency, requests.
LIMITS: dict[str, tuple[float, int, float | None, int, float, int]] = {
    "5 a second, 8 at once": (5, 5, 1.0, 8, 0.05, 200),
    "20 a second, 64 at once": (20, 20, 1.0, 64, 0.05, 700),
    "20 a second, 64 at once, short Retry-After": (20, 20, 0.05, 64, 0.05, 700),
    "20 a second, 64 at once, bursts of 5, no Retry-After": (20, 5, None, 64, 0.05, 700),
    "20 a second, 64 at once, answers take 2 s, no Retry-After": (20, 20, None, 64, 2.0, 700),
}


def rate_limits(part: int) -> dict[str, Any]:
    """Runs against servers that let in only so many requests a second."""
    times, lost, refused = {}, 0, {}
    for name, (rate, burst, wait, at_once, latency, calls) in LIMITS.items():
        count = max(calls // part, burst + 1)
        more = ["--rate", str(rate), str(burst), *(["--retry-after", str(wait)] if wait is not None else [])]
        with server(latency, more=more) as running, TemporaryDirectory() as folder:
            endpoint = running.endpoint(at_once)
            warm(running.url, endpoint)
            time.sleep(1.5)
            running.reset()
            with Client(folder, [endpoint], RunOptions(show_progress=False)) as client:
                clock = time.perf_counter()
                outcomes: list[Outcome[str]] = client.ask(requests(count))
                clock = time.perf_counter() - clock
            lost += sum(isinstance(outcome, Failure) for outcome in outcomes)
            ideal = max((count - burst) / rate, (count - 1) // at_once * latency) + latency
            times[f"limited_time, {name}"] = clock / ideal
            refused[f"limited_refused, {name}"] = running.counts()["limited"] / count
    return {"limited_time": max(times.values()), "limited_lost": lost, **times, **refused}


def throughput(calls: int, latency: float, seed: int) -> dict[str, float]:
    """A run at concurrency 64 with 10 % faults."""
    with server(latency, faults=0.1, seed=seed) as running, TemporaryDirectory() as folder:
        endpoint = running.endpoint(CONCURRENCY)
        warm(running.url, endpoint)
        running.reset()
        with Client(folder, [endpoint], RunOptions(max_attempts=10, show_progress=False)) as client:
            cpu, clock = time.process_time(), time.perf_counter()
            outcomes: list[Outcome[str]] = client.ask(requests(calls))
            cpu, clock = time.process_time() - cpu, time.perf_counter() - clock
        counts = running.counts()
    failed = sum(isinstance(outcome, Failure) for outcome in outcomes)
    if failed:
        raise SystemExit(f"{failed} requests failed, which none should at ten attempts")
    return {
        "server_limit": counts["calls"] / clock / (CONCURRENCY / latency),
        "calls_a_second": counts["calls"] / clock,
        "cpu_ms_a_call": 1000 * cpu / counts["calls"],
        "at_once": counts["at_once"],
        "faults": sum(counts["faults"].values()) / counts["calls"],
    }


def warm(url: str, endpoint: Any) -> None:
    """Import what a first call imports."""

    async def once() -> None:
        try:
            await asyncio.gather(endpoint.call(next(requests(1))), return_exceptions=True)
        finally:
            await endpoint.close()

    asyncio.run(once())


def sdk_costs(calls: int = 1500) -> dict[str, float]:
    """CPU a call at concurrency 64, without journal or faults, of ours and of the SDK used as its manual has it."""
    with server(0.05) as running:
        return asyncio.run(_sdk_costs(running, calls))


async def _sdk_costs(running: Any, calls: int) -> dict[str, float]:
    import httpx2
    from openai import AsyncOpenAI, DefaultAioHttpClient

    ours = running.endpoint(CONCURRENCY)
    plain = AsyncOpenAI(base_url=running.url, api_key="none", max_retries=0)
    aio = AsyncOpenAI(base_url=running.url, api_key="none", max_retries=0, http_client=DefaultAioHttpClient())

    async def endpoint(request: Request) -> None:
        ours.read(await ours.call(request))

    async def create(request: Request) -> None:
        await plain.chat.completions.create(**ours.make_body(request))

    async def bare(sdk: AsyncOpenAI, request: Request) -> None:
        content = encode_body(ours.make_body(request))
        response = await sdk.post("/chat/completions", cast_to=httpx2.Response, content=content)
        json.loads(response.content)

    ways: dict[str, Callable[[Request], Awaitable[None]]] = {
        "cpu_ms_endpoint": endpoint,
        "cpu_ms_sdk_create": create,
        "cpu_ms_sdk_post": lambda request: bare(plain, request),
        "cpu_ms_sdk_post_aiohttp": lambda request: bare(aio, request),
    }
    found = {name: await _cpu(way, calls) for name, way in ways.items()}
    await asyncio.gather(ours.close(), plain.close(), aio.close())
    return found


async def _cpu(way: Callable[[Request], Awaitable[None]], calls: int) -> float:
    async def worker(source: Any) -> None:
        for request in source:
            await way(request)

    await worker(islice(requests(3), 3))
    source, before = requests(calls), time.process_time()
    await asyncio.gather(*(worker(source) for _ in range(CONCURRENCY)))
    return 1000 * (time.process_time() - before) / calls


def budget(calls: int, share: float) -> dict[str, float]:
    """A run that is stopped by its budget, by what the server counted."""
    with server(0.01, faults=0.1, seed=1) as running, TemporaryDirectory() as parent:
        options = RunOptions(max_attempts=10, show_progress=False)
        with Client(Path(parent) / "whole", [running.endpoint(CONCURRENCY)], options) as client:
            client.ask(requests(calls, max_tokens=60))
        limit = share * running.counts()["cost"]
        running.reset()
        options = RunOptions(max_attempts=10, show_progress=False, budget=limit)
        stopped = False
        with Client(Path(parent) / "short", [running.endpoint(CONCURRENCY)], options) as client:
            try:
                client.ask(requests(calls, max_tokens=60))
            except StoppedShortError:
                stopped = True
        time.sleep(0.1)
        if not stopped:
            raise SystemExit("the budget did not stop the run")
        return {"spend_over_budget": running.counts()["cost"] / limit}


def measure_memory(calls: int, url: str) -> None:
    """Journal so many calls, in a process of its own; print its highest memory."""
    from client_server import Server

    failed = 0

    def done(_: int, outcome: Any) -> None:
        nonlocal failed
        failed += isinstance(outcome, Failure)

    endpoint = Server(url).endpoint(CONCURRENCY)
    with TemporaryDirectory() as folder:
        for again in (False, True):
            with Client(folder, [endpoint], RunOptions(show_progress=False)) as client:
                client.ask_each(enumerate(requests(calls)), lambda _, reply: len(reply.text), done)
                if failed or client.spent.calls != (0 if again else calls):
                    raise SystemExit("not every call was journaled once")
        size = sum(file.stat().st_size for file in Path(folder).iterdir())
    print(json.dumps({"peak": peak_memory_mb(), "journal": size / 1e6}))


def memory(calls: int) -> dict[str, float]:
    """What a run of so many calls, and going on with it, takes at most."""
    with server(0.005) as running:
        command = [sys.executable, __file__, "--measure-memory", str(calls), running.url]
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return {f"memory_mb_{calls // 1000}k_calls": found["peak"], "journal_mb": found["journal"]}


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = make_parser(__doc__)
    parser.add_argument("--part", type=int, default=1, help="measure an N-th of everything, to see that it works")
    parser.add_argument("--latency", type=float, default=0.2, help="of the server's answers, in seconds")
    parser.add_argument("--calls", type=int, default=12_000, help="of the run that is timed")
    parser.add_argument("--kills", type=int, default=200, help="how many runs are killed")
    parser.add_argument("--seed", type=int, default=0, help="of faults and kills")
    parser.add_argument("--limits", action="store_true", help="measure the rate limits alone")
    parser.add_argument("--measure-memory", nargs=2, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    """Measure and print."""
    arguments = parse_arguments()
    if arguments.measure_memory:
        measure_memory(int(arguments.measure_memory[0]), arguments.measure_memory[1])
        return
    part = arguments.part
    if arguments.limits:
        print(json.dumps(rate_limits(part), indent=2))
        return
    calls = arguments.calls // part
    timed = throughput(calls, arguments.latency, arguments.seed)
    fast = throughput(calls, 0.05, arguments.seed)
    figures: dict[str, Any] = {name: value for name, value in timed.items() if name != "server_limit"}
    figures |= {"server_limit_at_50_ms": fast["server_limit"], "calls_a_second_at_50_ms": fast["calls_a_second"]}
    figures |= rate_limits(part)
    figures |= sdk_costs(1500 // part)
    figures |= budget(1000, 0.3)
    figures |= memory(100_000 // part)
    figures |= measure_kills(max(arguments.kills // part, 1), arguments.seed)
    result = {
        "ratios": {"server_limit": timed["server_limit"]},
        "figures": figures,
        "n": calls,
        "latency": arguments.latency,
        "concurrency": CONCURRENCY,
        "price": PRICE,
        **environment("openai", "aiohttp", "httpx2"),
        "load": os.getloadavg()[0],
    }
    report(
        "client", result, [GOALS, f"Server latency {arguments.latency:g} s, concurrency {CONCURRENCY}."], arguments.json
    )


if __name__ == "__main__":
    main()
