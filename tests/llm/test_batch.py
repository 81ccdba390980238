"""The Batch API: half the price, every reply handed on, and no batch twice, wherever a run is killed."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from rolellm.core.errors import DataError, EndpointError
from rolellm.llm import batch as batch_lines
from rolellm.llm import batch as batch_state
from rolellm.llm.batch import STATE, BatchItem, Handlers, chunks, key_and_attempt, run_batch
from rolellm.llm.endpoint import Endpoint
from rolellm.llm.model import CallError, Request, Schema, request_key, user

from .conftest import KEY


def items(endpoint: Endpoint, count: int, **fields: Any) -> list[BatchItem]:
    requests = [Request((user(f"Question {number}?"),), **fields) for number in range(count)]
    return [BatchItem(request_key(endpoint, request), 1, request) for request in requests]


class Heard:
    """What came of a batch."""

    def __init__(self) -> None:
        self.replies: dict[tuple[str, int], Any] = {}
        self.errors: dict[tuple[str, int], CallError] = {}
        self.times: Counter[tuple[str, int]] = Counter()
        self.steps: list[tuple[int, int]] = []

    @property
    def handlers(self) -> Handlers:
        return Handlers(self.reply, self.error, lambda done, total: self.steps.append((done, total)))

    def reply(self, key: str, attempt: int, raw: Any) -> None:
        self.times[key, attempt] += 1
        self.replies[key, attempt] = raw

    def error(self, key: str, attempt: int, error: CallError) -> None:
        self.times[key, attempt] += 1
        self.errors[key, attempt] = error


def run(endpoint: Endpoint, asked: Iterable[BatchItem], folder: Path) -> Heard:
    heard = Heard()
    asyncio.run(run_batch(endpoint, asked, folder, heard.handlers, poll=0.02))
    return heard


def test_a_batch_brings_the_replies_that_calls_would(
    llm_server: Callable[..., Any], endpoint: Callable[..., Endpoint], tmp_path: Path
) -> None:
    server = llm_server(batch_seconds=0.1, price=(1.0, 1.0), key=KEY)
    at = endpoint(server)
    asked = items(at, 20)
    heard = run(at, asked, tmp_path)
    half = server.counts.cost

    assert not heard.errors
    assert heard.times == Counter({(item.key, 1): 1 for item in asked})

    async def call() -> list[Any]:
        try:
            return [await at.call(item.request) for item in asked]
        finally:
            await at.close()

    server.reset()
    one_by_one = asyncio.run(call())
    texts = [at.read(raw).text for raw in one_by_one]
    assert [at.read(heard.replies[item.key, 1]).text for item in asked] == texts
    assert half == pytest.approx(server.counts.cost / 2)
    assert heard.steps[-1] == (20, 20)
    assert [done for done, _ in heard.steps] == sorted(done for done, _ in heard.steps)
    assert list((tmp_path / "batches").iterdir()) == []


def test_a_finished_folder_makes_no_second_batch(
    llm_server: Callable[..., Any], endpoint: Callable[..., Endpoint], tmp_path: Path
) -> None:
    server = llm_server()
    at = endpoint(server)
    run(at, items(at, 3), tmp_path)
    heard = run(at, [], tmp_path)
    assert len(server.batches.batches) == 1
    assert not heard.times


def test_many_requests_go_in_several_batches(
    llm_server: Callable[..., Any],
    endpoint: Callable[..., Endpoint],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(batch_lines, "MOST_REQUESTS", 7)
    server = llm_server()
    at = endpoint(server)
    heard = run(at, items(at, 20), tmp_path)
    assert len(heard.replies) == 20
    made = server.batches.batches.values()
    assert [found.shown["request_counts"]["total"] for found in made] == [7, 7, 6]


def test_chunks_keep_to_both_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_lines, "MOST_REQUESTS", 3)
    monkeypatch.setattr(batch_lines, "MOST_BYTES", 10)
    lines = ["aaaa", "bbbb", "cccc", "大", "d", "e", "f", "gggggggggggggggggg", "h"]
    found = list(chunks(lines))
    assert [line for chunk in found for line in chunk] == lines
    assert found == [["aaaa", "bbbb"], ["cccc", "大", "d"], ["e", "f"], ["gggggggggggggggggg"], ["h"]]


def test_custom_ids_hold_key_and_attempt() -> None:
    item = BatchItem("ab" * 32, 12345, Request(()))
    assert len(item.custom_id) <= 64
    assert key_and_attempt(item.custom_id) == ("ab" * 32, 12345)


@pytest.mark.parametrize("end", ["expired", "cancelled"])
def test_a_batch_that_ends_early_keeps_what_it_has(
    end: str, llm_server: Callable[..., Any], endpoint: Callable[..., Endpoint], tmp_path: Path
) -> None:
    server = llm_server(batch_end=end)
    at = endpoint(server)
    asked = items(at, 10)
    heard = run(at, asked, tmp_path)
    assert len(heard.replies) == 5
    assert [heard.errors[item.key, 1].kind for item in asked[5:]] == ["timeout"] * 5
    assert all(error.retry and not error.billed for error in heard.errors.values())
    server.change(batch_end="completed")
    again = run(at, [BatchItem(item.key, 1, item.request) for item in asked[5:]], tmp_path)
    assert len(again.replies) == 5


def test_a_batch_that_is_refused_says_why(
    llm_server: Callable[..., Any], endpoint: Callable[..., Endpoint], tmp_path: Path
) -> None:
    at = endpoint(llm_server(batch_end="failed"))
    with pytest.raises(EndpointError, match="refused a batch of 4 requests: The file is not valid"):
        run(at, items(at, 4), tmp_path)
    assert json.loads((tmp_path / STATE).read_text())["batches"][0]["collected"] is True


def test_a_server_without_batches_says_so(
    llm_server: Callable[..., Any], endpoint: Callable[..., Endpoint], tmp_path: Path
) -> None:
    server = llm_server(key="sk-some-other-key-0000")
    at = endpoint(server)
    with pytest.raises(EndpointError, match="HTTP 401") as raised:
        run(at, items(at, 2), tmp_path)
    assert KEY[:8] not in str(raised.value)


def test_single_requests_fail_alone(
    llm_server: Callable[..., Any], endpoint: Callable[..., Endpoint], tmp_path: Path
) -> None:
    kinds = ["error_500", "bad_request", "echo", "echo_reply", "content_filter", "limited_seconds", "huge"]
    server = llm_server(faults=[{"rate": 0.5, "kinds": kinds, "seed": 2}])
    at = endpoint(server)
    asked = items(at, 60)
    heard = run(at, asked, tmp_path)
    assert heard.times == Counter({(item.key, 1): 1 for item in asked})
    assert {error.kind for error in heard.errors.values()} >= {"server_error", "bad_request", "unauthorized"}
    for key, error in heard.errors.items():
        assert error.retry == (error.kind in ("server_error", "rate_limited", "timeout")), (key, error)
    shown = json.dumps(list(heard.replies.values())) + "".join(error.reason for error in heard.errors.values())
    assert server.counts.faults["echo_reply"] > 0
    assert KEY[:8] not in shown


def test_a_form_that_the_server_refuses_is_not_used_again(
    llm_server: Callable[..., Any], endpoint: Callable[..., Endpoint], tmp_path: Path
) -> None:
    at = endpoint(llm_server(structured=("json_object",)))
    asked = items(at, 4, schema=Schema("s", {"type": "object"}))
    heard = run(at, asked, tmp_path)
    assert all(error.retry for error in heard.errors.values())
    assert len(run(at, asked, tmp_path).replies) == 4


@pytest.mark.parametrize(
    "content", [pytest.param("{", id="cut"), pytest.param("[]", id="list"), pytest.param('{"run": "x"}', id="half")]
)
def test_a_state_file_that_is_none(
    content: str, llm_server: Callable[..., Any], endpoint: Callable[..., Endpoint], tmp_path: Path
) -> None:
    (tmp_path / STATE).write_text(content)
    with pytest.raises(DataError, match="not a record of batches"):
        run(endpoint(llm_server()), [], tmp_path)


class _KilledError(Exception):
    """Stands for the end of the process."""


@pytest.mark.parametrize("point", range(1, 12))
def test_a_kill_at_any_write_makes_no_second_batch_and_loses_no_reply(
    point: int,
    llm_server: Callable[..., Any],
    endpoint: Callable[..., Endpoint],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The state is written as often as this; dying just before each write in turn leaves every state there is."""
    server = llm_server()
    asked = items(endpoint(server), 6)
    real, writes = batch_state.write_json, 0

    def dying(path: Any, value: Any) -> None:
        nonlocal writes
        writes += 1
        if writes == point:
            raise _KilledError
        real(path, value)

    monkeypatch.setattr(batch_state, "write_json", dying)
    killed = Heard()
    try:
        asyncio.run(run_batch(endpoint(server), asked, tmp_path, killed.handlers, poll=0.0))
    except _KilledError:
        pass
    else:
        assert writes < point, "every write was the last one once"
    monkeypatch.setattr(batch_state, "write_json", real)

    left = [item for item in asked if (item.key, 1) not in killed.replies]
    heard = run(endpoint(server), left, tmp_path)

    assert len(server.batches.batches) == 1, "one batch, however it went"
    assert set(killed.replies) | set(heard.replies) == {(item.key, 1) for item in asked}


KILLED = """
import asyncio, json, sys
from pathlib import Path
from rolellm.llm.batch import Handlers, run_batch
from rolellm.llm.batch import BatchItem
from rolellm.llm.endpoint import Endpoint
from rolellm.llm.settings import ModelSettings
from rolellm.llm.model import Request, request_key, user

url, folder = sys.argv[1], Path(sys.argv[2])
at = Endpoint(ModelSettings(model="local", base_url=url))
requests = [Request((user(str(n)),)) for n in range(30)]
journal = (folder / "heard.jsonl").open("a")

def heard(key, attempt, raw):
    journal.write(json.dumps([key, attempt]) + "\\n")
    journal.flush()

items = [BatchItem(request_key(at, request), 1, request) for request in requests]
print("ready", flush=True)
asyncio.run(run_batch(at, items, folder, Handlers(heard, lambda *_: None), poll=0.05))
"""


def test_killed_for_real(llm_server: Callable[..., Any], endpoint: Callable[..., Endpoint], tmp_path: Path) -> None:
    server = llm_server(batch_seconds=0.8)
    command = [sys.executable, "-c", KILLED, server.url, str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=dict(os.environ))
    assert process.stdout is not None
    process.stdout.readline()
    deadline = time.monotonic() + 20
    while not server.batches.batches and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    assert len(server.batches.batches) == 1
    heard = {tuple(json.loads(line)) for line in (tmp_path / "heard.jsonl").read_text().splitlines()}
    assert len(heard) == 30
    assert server.counts.batched == 30
