"""Requests divided among Ray workers: the same answers, and whatever is killed, nothing lost and nothing twice."""

import json
import os
import random
import secrets
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from rolellm.core.records import Turn
from rolellm.llm.journal import JOURNAL, SHARDS, Journal

CALLS, KILLED, KILLS, AT_ONCE = 400, 2400, 5, 4
DRIVER = """
import json, sys
from dataclasses import asdict
from pathlib import Path
from rolellm.core.errors import StoppedShortError
from rolellm.llm.client import Client
from rolellm.llm.llm import LLM
from rolellm.llm.model import Answer, Request, UnacceptableError, system, user

folder, url, more = Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
calls, letters = more.pop("calls"), "aeiou"
llm = LLM(base_url=url, model="local", api_key_env="", concurrency={at_once}, max_attempts=12, **more)
requests = [Request((system("You are a clerk."), user(f"question {{number}}"))) for number in range(calls)]

def accept(request, reply):
    # Closes over what is here, as the stages' own do.
    if not set(reply.text) & set(letters):
        raise UnacceptableError("has no vowel")
    return reply.text

with Client(folder, llm.models, llm.options) as client:
    print("begun", flush=True)
    try:
        outcomes = client.ask(requests, accept)
    except StoppedShortError as error:
        print(json.dumps({{"stopped": str(error)}}))
        sys.exit()
    values = [found.value if isinstance(found, Answer) else None for found in outcomes]
    print(json.dumps({{"values": values, **asdict(client.spent)}}))
"""


CLUSTER = """
import sys
import ray
for attempt in range(3):
    try:
        ray.init("local", num_cpus=2, include_dashboard=False, logging_level="ERROR")
        break
    except Exception:
        # A busy machine may take longer than the 30 seconds that Ray gives its first process.
        ray.shutdown()
print(ray.get_runtime_context().gcs_address, flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """The address of a cluster with two CPUs on this machine; it ends with the tests."""
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(16)}
    with (
        pytest.MonkeyPatch.context() as patch,
        subprocess.Popen(
            [sys.executable, "-c", CLUSTER],
            env=os.environ | token | {"RAY_USAGE_STATS_ENABLED": "0"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        for name, value in token.items():
            patch.setenv(name, value)
        yield process.stdout.readline().strip()
        process.communicate("")


def command(folder: Path, url: str, **more: Any) -> list[str]:
    given = json.dumps({"calls": CALLS, **more})
    return [sys.executable, "-c", DRIVER.format(at_once=AT_ONCE), str(folder), url, given]


@contextmanager
def running(cluster: str, folder: Path, url: str, **more: Any) -> Iterator[subprocess.Popen[str]]:
    """A process that asks from two workers, by the time that one has begun."""
    asked = command(folder, url, ray=cluster, workers=2, **more)
    with subprocess.Popen(asked, stdout=subprocess.PIPE, text=True) as process:
        try:
            wait_for(lambda: process.poll() is not None or any(sizes(folder)))
            assert process.poll() is None
            yield process
        finally:
            with suppress(ProcessLookupError):
                process.kill()


def result(process: subprocess.Popen[str]) -> Any:
    # Ray's own word about killed workers is not there.
    _, told = process.stdout.read().splitlines()
    return json.loads(told)


def finish(folder: Path, url: str, **more: Any) -> Any:
    done = subprocess.run(command(folder, url, **more), check=True, capture_output=True, text=True, timeout=120)
    return json.loads(done.stdout.splitlines()[-1])


def wait_for(what: Callable[[], Any], seconds: float = 150.0) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.01)


def sizes(folder: Path) -> list[int]:
    return [path.stat().st_size for path in (folder / SHARDS).glob(f"*/{JOURNAL}")]


def replies(folder: Path) -> int:
    return sum(path.read_bytes().count(b'"kind":"reply"') for path in (folder / SHARDS).glob(f"*/{JOURNAL}"))


def workers(folder: Path) -> list[int]:
    """The processes that hold the workers' folders."""
    found = []
    for path in (folder / SHARDS).glob("*/.lock"):
        with suppress(OSError, ValueError):
            found.append(int(json.loads(path.read_text())["pid"]))
    return found


def records(folder: Path) -> Counter[str]:
    return Counter(json.loads(line)["kind"] for line in (folder / JOURNAL).read_bytes().splitlines())


STARTED = """
from rolellm.llm.scale import _join_cluster
_, remote = _join_cluster("local", 2, local=False)
import ray
ray.get(remote(lambda: 1).remote())
print("started", flush=True)
input()
"""


@pytest.mark.slow
def test_a_cluster_here_listens_to_this_machine_alone_and_ends_with_the_command(clean_env: dict[str, str]) -> None:
    psutil = pytest.importorskip("psutil")
    with subprocess.Popen(
        [sys.executable, "-c", STARTED], env=clean_env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as driver:
        assert driver.stdout is not None and driver.stdout.readline() == "started\n"
        processes = psutil.Process(driver.pid).children(recursive=True)
        assert any("raylet" in process.name() for process in processes)
        listening = {
            socket.laddr.ip.removeprefix("::ffff:")
            for process in (psutil.Process(driver.pid), *processes)
            for socket in process.net_connections("inet")
            if socket.status == "LISTEN"
        }
        assert listening == {"127.0.0.1"}
        environment = [process.environ() for process in processes if "raylet" in process.name()]
        assert {found.get("RAY_AUTH_MODE") for found in environment} == {"token"}
        driver.communicate("\n")
    _, left = psutil.wait_procs(processes, timeout=120)
    assert not left


@pytest.mark.slow
def test_workers_answer_as_one_client_does(cluster: str, tmp_path: Path, llm_server: Callable[..., Any]) -> None:
    server = llm_server(latency=0.01, faults=[{"rate": 0.1}])
    alone = finish(tmp_path / "alone", server.url)
    server.reset()
    together = finish(tmp_path / "together", server.url, ray=cluster)
    assert together["values"] == alone["values"] and None not in alone["values"]
    assert together["calls"] == records(tmp_path / "together")["sent"] == server.counts.calls
    assert (together["from_journal"], together["failed"]) == (0, 0)
    # Which request comes first, and so finds nothing in the server's cache, is chance.
    assert together["usage"] | {"cached": 0} == alone["usage"] | {"cached": 0}
    assert not (tmp_path / "together" / SHARDS).exists()
    again = finish(tmp_path / "together", server.url)
    assert again["values"] == alone["values"]
    assert (again["calls"], again["from_journal"]) == (0, CALLS)


@pytest.mark.slow
def test_workers_killed_lose_nothing_and_pay_twice_for_what_was_in_flight(
    cluster: str, tmp_path: Path, llm_server: Callable[..., Any]
) -> None:
    server, draw, killed = llm_server(latency=0.05), random.Random(7), set[int]()
    with running(cluster, tmp_path, server.url, calls=KILLED) as process:
        while len(killed) < KILLS:
            time.sleep(draw.uniform(0.0, 0.5))
            assert process.poll() is None, "the run was over before the last kill"
            if found := sorted({*workers(tmp_path)} - killed):
                os.kill(drawn := draw.choice(found), signal.SIGKILL)
                killed.add(drawn)
        done = result(process)
    assert len(done["values"]) == KILLED and None not in done["values"] and done["failed"] == 0
    kinds, counts = records(tmp_path), server.counts.to_dict()
    assert kinds["reply"] == KILLED, "every reply is journaled once"
    assert counts["paid_again"] <= kinds["sent"] - kinds["reply"] <= KILLS * AT_ONCE
    assert done["calls"] == kinds["sent"]


@pytest.mark.slow
def test_ctrl_c_waits_for_what_the_workers_have_in_flight(
    cluster: str, tmp_path: Path, llm_server: Callable[..., Any]
) -> None:
    server = llm_server(latency=0.05)
    with running(cluster, tmp_path, server.url) as process:
        process.send_signal(signal.SIGINT)
        said = result(process)["stopped"]
    kinds = records(tmp_path)
    assert 0 < kinds["reply"] == kinds["sent"] == server.counts.delivered < CALLS
    assert f"{kinds['reply']} replies are kept in {tmp_path}" in said
    assert None not in finish(tmp_path, server.url)["values"]
    assert server.counts.calls == CALLS, "nothing was asked again"


@pytest.mark.slow
def test_a_budget_holds_over_all_workers(cluster: str, tmp_path: Path, llm_server: Callable[..., Any]) -> None:
    price = {"prompt": 1000.0, "completion": 1000.0}
    server = llm_server(latency=0.01, price=(1000.0, 1000.0))
    done = finish(tmp_path, server.url, calls=100, price=price, budget=1.0, ray=cluster)
    assert "1 US dollars" in done["stopped"]
    assert 0 < server.counts.cost <= 1.0


def filled(folder: Path, keys: range) -> Path:
    journal = Journal(folder)
    for number in keys:
        journal.record_sent(f"{number:064x}", 1, "m", 0.5)
        journal.reply(f"{number:064x}", 1, {"n": number}, 0.25, {})
    journal.close()
    return folder / JOURNAL


@pytest.mark.parametrize("share", [0.0, 0.3, 0.77, 1.0])
def test_a_merge_that_was_killed_is_done_once(tmp_path: Path, share: float) -> None:
    whole = filled(tmp_path, range(5)).read_bytes()
    shards = [filled(tmp_path / SHARDS / f"{part:04}", range(10 + part, 30, 2)) for part in range(2)]
    both = b"".join(path.read_bytes() for path in shards)
    (tmp_path / SHARDS / "merging").write_text(str(len(whole)))
    (tmp_path / JOURNAL).write_bytes(whole + both[: int(share * len(both))])
    journal = Journal(tmp_path)
    assert journal.merge() == 20
    assert (len(journal), journal.spent, journal.unknown, journal.harm) == (25, 6.25, 0.0, "")
    assert [raw["n"] for _, raw in journal.read_replies([f"{29:064x}"])] == [29]
    assert journal.merge() == 0
    journal.close()
    assert (tmp_path / JOURNAL).read_bytes() == whole + both
    again = Journal(tmp_path)
    assert (len(again), again.spent, again.missing) == (25, 6.25, 0.0)
    again.close()


def test_a_merge_leaves_out_the_half_line_of_a_killed_worker(tmp_path: Path) -> None:
    filled(tmp_path, range(2))
    shard = filled(tmp_path / SHARDS / "0000", range(5, 8))
    shard.write_bytes(shard.read_bytes()[:-9])
    filled(tmp_path / SHARDS / "0001", range(8, 9))
    journal = Journal(tmp_path)
    assert (journal.merge(), len(journal), journal.unknown) == (4, 5, 0.5)
    journal.close()
    again = Journal(tmp_path)
    assert (len(again), again.damaged) == (5, 0)
    again.close()


def test_what_the_stages_send_along_can_be_sent(tiny_model: Path) -> None:
    """Ray pickles it with cloudpickle: functions that close over roles and judges, and models."""
    from ray import cloudpickle

    from rolellm.characters.reply_rules import make_reply_acceptor
    from rolellm.core.records import Profile
    from rolellm.judging.judge_models import load_judges
    from rolellm.judging.requests import accept_verdicts
    from rolellm.llm.llm import LLM
    from rolellm.llm.model import Reply, Request, Usage, user
    from rolellm.making.instruct.candidates import parse_pairs

    turns = (Turn("Crow", "Who?", "speech", 0), Turn("Fox", "Me.", "speech", 0))
    accept_reply = make_reply_acceptor(Profile("Fox", "en", turns, description="A fox."))
    judges = {judge.schema.name: judge for judge in load_judges()}
    for accept in (accept_reply, parse_pairs, accept_verdicts(judges)):
        assert callable(cloudpickle.loads(cloudpickle.dumps(accept)))
    request, reply = Request((user("Who?"),)), Reply("It is me.", "stop", Usage(), "m", "m", {})
    assert cloudpickle.loads(cloudpickle.dumps(accept_reply))(request, reply) == accept_reply(request, reply)
    for llm in (
        LLM(backend="local", model=str(tiny_model), batch_size=3),
        LLM(base_url="http://localhost:8000/v1", model="m", concurrency=3, price={"prompt": 1.0}),
    ):
        sent = cloudpickle.loads(cloudpickle.dumps(llm.models))[0]
        (model,) = llm.models
        assert (sent.name, sent.identity, sent.concurrency, sent.price) == (model.name, model.identity, 3, model.price)
