"""How much faster two Ray workers ask than one, and what killing them costs.

    python benchmarks/scale.py [--json] [--calls N] [--at-once N] [--rounds N] [--kills N] [--ray ADDRESS]

The server is `examples/local_llm.py` in a process of its own, which answers after 50 ms; each client has at most
`--at-once` calls in flight, so that one can make `at-once / 0.05` calls a second and no more. A time is that of a whole
`Client.ask`: dividing the requests, starting the workers' clients, asking, merging the journals, and reading every
answer from the merged one. The cluster and the worker processes are started before, by a short run (`start_seconds`).

Then a run of two workers is killed (SIGKILL of a worker drawn at random, at random moments), and what is in its journal
is compared with what the server saw.
"""

import argparse
import json
import os
import random
import signal
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from client_server import Server, requests, server
from common import environment, report

from rolellm.llm.client import Client
from rolellm.llm.journal import JOURNAL, SHARDS
from rolellm.llm.model import Failure, Outcome, RunOptions

GOALS = "Goals: two workers >= 1.8 times one; of the kills: nothing lost, twice, or paid again beyond those in flight."
LATENCY = 0.05


def ask(running: Server, calls: int, at_once: int, workers: int | None, address: str) -> float:
    """Seconds that a run takes, with so many workers; `None` for this process alone."""
    ray: dict[str, Any] = {} if workers is None else {"ray": address, "workers": workers}
    options = RunOptions(show_progress=False, **ray)
    with TemporaryDirectory() as folder, Client(folder, [running.endpoint(at_once)], options) as client:
        begun = time.perf_counter()
        outcomes: list[Outcome[str]] = client.ask(requests(calls))
        seconds = time.perf_counter() - begun
    if client.spent.calls != calls or any(isinstance(outcome, Failure) for outcome in outcomes):
        raise SystemExit("not every request was answered by one call")
    return seconds


def rates(running: Server, calls: int, at_once: int, rounds: int, address: str) -> dict[str, float]:
    """Calls a second of one process without Ray, one worker and two, in turns; medians of the rounds."""
    begun = time.perf_counter()
    ask(running, 8, 1, 2, address)
    start = time.perf_counter() - begun
    seconds: dict[int | None, list[float]] = {None: [], 1: [], 2: []}
    for _ in range(rounds):
        for workers, taken in seconds.items():
            taken.append(ask(running, calls, at_once, workers, address))
    names = {None: "alone", 1: "one_worker", 2: "two_workers"}
    found = {f"calls_a_second_{names[workers]}": calls / median(taken) for workers, taken in seconds.items()}
    return {"start_seconds": start, **found}


def kills(running: Server, calls: int, at_once: int, count: int, address: str) -> dict[str, int]:
    """A run whose two workers are killed so often."""
    running.reset()
    draw, killed = random.Random(0), set[int]()
    with TemporaryDirectory() as folder:
        over = threading.Event()

        def kill() -> None:
            while len(killed) < count and not over.wait(draw.uniform(0.0, 0.5)):
                for path in draw.sample(found := sorted((Path(folder) / SHARDS).glob("*/.lock")), len(found)):
                    with suppress(OSError, ValueError):
                        process = int(json.loads(path.read_text())["pid"])
                        if process not in killed:
                            os.kill(process, signal.SIGKILL)
                            killed.add(process)
                            break

        killer = threading.Thread(target=kill)
        options = RunOptions(show_progress=False, ray=address, workers=2)
        with Client(folder, [running.endpoint(at_once)], options) as client:
            killer.start()
            outcomes: list[Outcome[str]] = client.ask(requests(calls))
            over.set()
            killer.join()
        records = [json.loads(line) for line in (Path(folder) / JOURNAL).read_bytes().splitlines()]
    replies = Counter(record["key"] for record in records if record["kind"] == "reply")
    in_flight = sum(record["kind"] == "sent" for record in records) - replies.total()
    again = sum(max(good - 1, 0) for _, good in running.seen().values())
    return {
        "kills": len(killed),
        "kill_answers_lost": sum(isinstance(outcome, Failure) for outcome in outcomes),
        "kill_replies_twice": replies.total() - calls,
        "kill_in_flight": in_flight,
        "kill_paid_again": again,
        "kill_paid_again_beyond_in_flight": max(again - in_flight, 0),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--calls", type=int, default=4000)
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--ray", default="local", help="a cluster's address")
    given = parser.parse_args()
    with server(LATENCY) as running:
        figures: dict[str, Any] = rates(running, given.calls, given.at_once, given.rounds, given.ray)
        if given.kills:
            figures |= kills(running, given.calls, given.at_once, given.kills, given.ray)
    one, two = figures["calls_a_second_one_worker"], figures["calls_a_second_two_workers"]
    figures["one_worker_of_its_limit"] = one / (given.at_once / LATENCY)
    ratios = {"one_worker": two / one, "no_ray": two / figures["calls_a_second_alone"]}
    result = {"ratios": ratios, "figures": figures, "n": given.calls, **environment("ray", "openai")}
    report("scale", result, [GOALS], given.json)


if __name__ == "__main__":
    main()
