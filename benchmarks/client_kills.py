"""What SIGKILL does to a run: nothing that was paid for is lost, and hardly anything is paid for again."""

import os
import random
import signal
import time
from collections import Counter
from dataclasses import dataclass
from hashlib import sha256
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from client_server import Server, requests, server
from rich.console import Console
from rich.progress import track

from rolellm.core.jsonl import read_jsonl, write_jsonl
from rolellm.llm import retry as pacing
from rolellm.llm.client import Client
from rolellm.llm.endpoint import Endpoint
from rolellm.llm.journal import JOURNAL
from rolellm.llm.model import Failure, Outcome, RunOptions, request_key
from rolellm.llm.openai_format import encode_body

CALLS = 600
CONCURRENCY = 32
OUT = "out.jsonl"
#: So many that no request is given up: what is measured is the kill.
ATTEMPTS = 12
LOG = Console(stderr=True)


@dataclass
class Found:
    """What the kills did, added up; all but `paid_again` and `open` have to be 0.

    Attributes:
        lost: Journaled replies that are not in the journal after the run went on.
        twice: Rows written twice, or missing.
        sent_again: Requests whose good reply was journaled at the kill and that the server saw again.
        beyond: Good answers that the server gave again beyond those in flight at the kill.
        different: Runs whose rows are not those of the run that was not killed.
        paid_again: Good answers that the server gave again.
        open: Calls in flight at the kill, by the journal.
        late: Kills that came when the run had ended.
        most_open: The most calls in flight at one kill.
    """

    lost: int = 0
    twice: int = 0
    sent_again: int = 0
    beyond: int = 0
    different: int = 0
    paid_again: int = 0
    open: int = 0
    late: int = 0
    most_open: int = 0


def run(folder: Path, endpoint: Endpoint) -> None:
    """Ask all, and write what came; what a child does."""
    options = RunOptions(max_attempts=ATTEMPTS, show_progress=False)
    with Client(folder, [endpoint], options) as client:
        outcomes: list[Outcome[str]] = client.ask(requests(CALLS))
    rows = (
        {"n": number, "text": f"failed: {outcome.kind}" if isinstance(outcome, Failure) else outcome.value}
        for number, outcome in enumerate(outcomes)
    )
    write_jsonl(folder / OUT, rows)


def fork(folder: Path, endpoint: Endpoint) -> int:
    """Run in a child that has all imports behind it."""
    child = os.fork()
    if child:
        return child
    try:
        # With the pauses of a run against a real server, most of the time would go into waiting.
        pacing._FIRST_BACKOFF = 0.01
        run(folder, endpoint)
        os._exit(0)
    except BaseException as error:
        os.write(2, f"{type(error).__name__}: {error}\n".encode())
        os._exit(1)


def finish(folder: Path, endpoint: Endpoint) -> list[dict[str, Any]]:
    """Run to the end; the rows."""
    _, status = os.waitpid(fork(folder, endpoint), 0)
    if status:
        raise SystemExit(f"a run failed with status {status}")
    return [row for _, row in read_jsonl(folder / OUT)]


def kill_at(folder: Path, endpoint: Endpoint, size: int) -> bool:
    """Run, and kill when the journal has that many bytes; whether the run was still going."""
    child = fork(folder, endpoint)
    journal = folder / JOURNAL
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            if status:
                raise SystemExit(f"a run failed with status {status}")
            return False
        if journal.is_file() and journal.stat().st_size >= size:
            os.kill(child, signal.SIGKILL)
            return os.waitpid(child, 0)[1] != 0
        time.sleep(0.0005)


def records(folder: Path) -> list[dict[str, Any]]:
    """The whole records of a journal."""
    return [record for _, record in read_jsonl(folder / JOURNAL, bad=[])]


def measure_kills(kills: int, seed: int = 0) -> dict[str, Any]:
    """Kill runs at points drawn by seed, let each go on, and compare with a run that was not killed."""
    drawn = random.Random(seed)
    found = Found()
    with server(0.004, faults=0.1, seed=seed) as running, TemporaryDirectory() as parent:
        endpoint = running.endpoint(CONCURRENCY)
        hashes = {
            request_key(endpoint, request): sha256(encode_body(endpoint.make_body(request))).hexdigest()
            for request in requests(CALLS)
        }
        whole = Path(parent) / "whole"
        expected = finish(whole, endpoint)
        size = (whole / JOURNAL).stat().st_size
        faults = sum(running.counts()["faults"].values())
        numbers = count()
        for _ in track(range(kills), "kills", console=LOG, transient=True):
            folder = Path(parent) / f"run-{next(numbers)}"
            one_kill(folder, drawn.uniform(0, size), running, endpoint, hashes, expected, found)
    return {
        "kills": kills,
        "kill_calls": CALLS,
        "kill_faults": faults,
        "kill_replies_lost": found.lost,
        "kill_rows_twice_or_missing": found.twice,
        "kill_journaled_sent_again": found.sent_again,
        "kill_paid_again_beyond_in_flight": found.beyond,
        "kill_outputs_different": found.different,
        "kill_paid_again_mean": found.paid_again / kills,
        "kill_in_flight_mean": found.open / kills,
        "kill_in_flight_most": found.most_open,
        "kill_after_the_end": found.late,
    }


def one_kill(
    folder: Path,
    at: float,
    running: Server,
    endpoint: Endpoint,
    hashes: dict[str, str],
    expected: list[dict[str, Any]],
    found: Found,
) -> None:
    """One run, killed and gone on with."""
    running.reset()
    found.late += not kill_at(folder, endpoint, int(at))
    settle(running)
    before, seen = records(folder), running.seen()
    open_calls = Counter(record["key"] for record in before if record["kind"] == "sent")
    open_calls.subtract(record["key"] for record in before if record["kind"] != "sent")
    in_flight = sum(open_calls.values())
    good = {record["key"] for record in before if record["kind"] == "reply" and is_good(record["raw"])}
    rows = finish(folder, endpoint)
    after, seen_after = records(folder), running.seen()
    replies = Counter(record["sum"] for record in after if record["kind"] == "reply")
    again = sum(max(good_count - 1, 0) for _, good_count in seen_after.values())
    found.lost += sum(record["kind"] == "reply" and not replies[record["sum"]] for record in before)
    found.twice += len(rows) != CALLS or len({row["n"] for row in rows}) != CALLS
    found.sent_again += sum(seen_after[hashes[key]][0] != seen[hashes[key]][0] for key in good)
    found.beyond += max(again - in_flight, 0)
    found.different += rows != expected
    found.paid_again += again
    found.open += in_flight
    found.most_open = max(found.most_open, in_flight)


def settle(running: Server) -> None:
    """Wait until the server has answered what the killed run had asked."""
    while running.counts()["in_flight"] > 1:
        time.sleep(0.002)


def is_good(raw: dict[str, Any]) -> bool:
    """Whether a raw reply is one that a run takes."""
    choices = raw.get("choices") or []
    return bool(choices and choices[0]["finish_reason"] == "stop" and choices[0]["message"]["content"])
