"""The client by the Batch API: what holds for calls holds for batches, at half the price."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rolellm.core.errors import EndpointError, SettingsError, StoppedShortError
from rolellm.llm.batch import _Run
from rolellm.llm.client import Client
from rolellm.llm.endpoint import Endpoint
from rolellm.llm.model import Answer, Failure, Price, Reply, Request, RunOptions, Sampling, UnacceptableError, user
from rolellm.llm.scripted import ScriptedModel

OPTIONS = RunOptions(show_progress=False, batch=True, batch_poll=0.02)
PRICE = Price(prompt=100.0, completion=100.0)
Make = Callable[..., Any]


def asked(count: int) -> list[Request]:
    return [Request((user(f"Question {number}?"),), Sampling(max_tokens=50)) for number in range(count)]


def test_the_same_answers_as_by_calls_for_half_the_price(tmp_path: Path, llm_server: Make, endpoint: Make) -> None:
    server = llm_server()
    with Client(tmp_path / "calls", [endpoint(server, price=PRICE)], replace(OPTIONS, batch=False)) as client:
        called = client.ask(asked(20))
        dear = client.spent.cost
    with Client(tmp_path / "batch", [endpoint(server, price=PRICE)], OPTIONS) as client:
        batched = client.ask(asked(20))
        assert client.spent.cost == pytest.approx(dear / 2)
    assert [outcome.value for outcome in batched] == [outcome.value for outcome in called]
    with Client(tmp_path / "batch", [endpoint(server, price=PRICE)], OPTIONS) as client:
        assert client.ask(asked(20)) == batched
        assert client.spent.calls == 0


def test_a_journal_serves_both_ways(tmp_path: Path, llm_server: Make, endpoint: Make) -> None:
    server = llm_server()
    with Client(tmp_path, [endpoint(server)], replace(OPTIONS, batch=False)) as client:
        first = client.ask(asked(5))
    with Client(tmp_path, [endpoint(server)], OPTIONS) as client:
        assert client.ask(asked(8))[:5] == first
        assert client.spent.calls == 3


def test_what_is_not_taken_goes_into_another_batch_and_at_last_into_the_dead_letters(
    tmp_path: Path, llm_server: Make, endpoint: Make
) -> None:
    def accept(request: Request, reply: Reply) -> str:
        if request.messages[0].content == "Question 1?":
            raise UnacceptableError("no good")
        return reply.text

    with Client(tmp_path, [endpoint(llm_server())], replace(OPTIONS, max_attempts=3)) as client:
        good, bad = client.ask(asked(2), accept)
    assert isinstance(good, Answer) and isinstance(bad, Failure)
    assert (bad.attempts, bad.refused) == (3, ("no good",) * 3)
    assert len(json.loads((tmp_path / "batches.json").read_text())["batches"]) == 3


def test_a_batch_stays_within_the_budget(tmp_path: Path, llm_server: Make, endpoint: Make) -> None:
    model = endpoint(llm_server(), price=PRICE)
    with Client(tmp_path, [model], replace(OPTIONS, budget=0.05)) as client:
        with pytest.raises(StoppedShortError, match=r"budget of 0\.05"):
            client.ask(asked(100))
        assert 0 < client.spent.cost <= 0.05


def test_what_is_on_its_way_in_a_batch_is_not_paid_for_twice(
    tmp_path: Path, llm_server: Make, endpoint: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = llm_server()
    model = endpoint(server, price=PRICE)

    async def lose_patience(*_: object, **__: object) -> None:
        raise EndpointError("no patience")

    with monkeypatch.context() as patched, Client(tmp_path, [model], OPTIONS) as client:
        patched.setattr(_Run, "_look", lose_patience)
        with pytest.raises(EndpointError, match="no patience"):
            client.ask(asked(5))
        sent = client.spent
    with Client(tmp_path, [model], replace(OPTIONS, batch=False)) as client:
        with pytest.raises(SettingsError, match=r"5 requests .* on their way in batches"):
            client.ask(asked(5))
        most = client.spent.cost
    # What was set aside for the batch is not set aside a second time.
    with Client(tmp_path, [model], replace(OPTIONS, budget=most)) as client:
        assert all(isinstance(outcome, Answer) for outcome in client.ask(asked(5)))
        assert client.spent.calls == 0 and 0 < client.spent.cost < most
    assert sent.calls == 5 and len(server.batches.batches) == 1
    with Client(tmp_path, [model], replace(OPTIONS, batch=False)) as client:
        client.ask(asked(5))
        assert client.spent.calls == 0 and client.spent.cost < most


def test_a_batch_that_counts_no_tokens_is_no_gift(
    tmp_path: Path, llm_server: Make, endpoint: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Endpoint.received

    def without_usage(self: Endpoint, raw: dict[str, Any], request: Request | None) -> Any:
        return real(self, {name: value for name, value in raw.items() if name != "usage"}, request)

    monkeypatch.setattr(Endpoint, "received", without_usage)
    with Client(tmp_path, [endpoint(llm_server(), price=PRICE)], OPTIONS) as client:
        (answer,) = client.ask(asked(1))
        assert isinstance(answer, Answer) and answer.reply.usage.completion > 0 and client.spent.cost > 0


RUNNER = """
import sys
from pathlib import Path
from rolellm.llm.client import Client
from rolellm.llm.endpoint import Endpoint
from rolellm.llm.settings import ModelSettings
from rolellm.llm.model import Request, Sampling, user
from rolellm.llm.model import RunOptions
folder, url = Path(sys.argv[1]), sys.argv[2]
model = Endpoint(ModelSettings(model="local", base_url=url, api_key_env="ROLELLM_TEST_KEY"))
requests = [Request((user(f"Question {number}?"),), Sampling(max_tokens=50)) for number in range(30)]
with Client(folder, [model], RunOptions(show_progress=False, batch=True, batch_poll=0.02)) as client:
    print("begun", flush=True)
    client.ask(requests)
    print(client.spent.calls, client.spent.from_journal)
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [pytest.param(signal.SIGKILL, id="kill"), pytest.param(signal.SIGINT, id="ctrl-c")])
def test_stopped_while_a_batch_is_on_its_way_it_is_collected_later(
    tmp_path: Path, llm_server: Make, endpoint: Make, number: int
) -> None:
    server = llm_server(batch_seconds=2.0)
    command = [sys.executable, "-c", RUNNER, str(tmp_path), server.url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 20
        while not server.batches.batches and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(number)
        process.wait(timeout=20)
    with Client(tmp_path, [endpoint(server)], OPTIONS) as client:
        assert all(isinstance(outcome, Answer) for outcome in client.ask(asked(30)))
        assert client.spent.calls == 0, "the batch was on its way already"
    assert len(server.batches.batches) == 1


def test_only_an_endpoint_takes_batches(tmp_path: Path) -> None:
    model = ScriptedModel(lambda request: "x", rules_hash="0")
    with Client(tmp_path, [model], OPTIONS) as client, pytest.raises(SettingsError, match="--batch takes one endpoint"):
        client.ask(asked(1))
