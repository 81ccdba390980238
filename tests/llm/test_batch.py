"""The Batch API: what holds for calls holds for batches at half the price, and no batch is made twice."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rolellm.core.errors import EndpointError, SettingsError, StoppedShortError
from rolellm.llm import batch as batch_module
from rolellm.llm.batch import STATE, BatchDispatcher, BatchState
from rolellm.llm.client import Client
from rolellm.llm.model import (
    Answer,
    Failure,
    Outcome,
    Price,
    Reply,
    Request,
    RunOptions,
    Sampling,
    Schema,
    UnacceptableError,
    user,
)

from .conftest import KEY, Serve

OPTIONS = RunOptions(show_progress=False, batch=True, batch_poll=0.02)
PRICE = Price(prompt=100.0, completion=100.0)


def asked(count: int, **fields: Any) -> list[Request]:
    return [Request((user(f"Question {number}?"),), Sampling(max_tokens=50), **fields) for number in range(count)]


def ask(folder: Path, model: Any, requests: list[Request], **options: Any) -> list[Outcome[str]]:
    with Client(folder, [model], replace(OPTIONS, **options)) as client:
        return client.ask(requests)


def test_the_same_answers_as_by_calls_for_half_the_price(tmp_path: Path, serve: Serve) -> None:
    server, at = serve(at={"price": PRICE})
    with Client(tmp_path / "calls", [at], replace(OPTIONS, batch=False)) as client:
        called = client.ask(asked(20))
        dear = client.spent.cost
    with Client(tmp_path / "batch", [at], OPTIONS) as client:
        batched = client.ask(asked(20))
        assert client.spent.cost == pytest.approx(dear / 2)
    assert [outcome.value for outcome in batched] == [outcome.value for outcome in called]
    with Client(tmp_path / "batch", [at], OPTIONS) as client:
        assert client.ask(asked(20)) == batched
        assert client.spent.calls == 0
    assert len(server.batches.batches) == 1
    assert list((tmp_path / "batch" / "batches").iterdir()) == []


def test_a_line_break_of_unicode_ends_no_line_of_a_batch(tmp_path: Path, serve: Serve) -> None:
    text = "one\u2028two\x85three"
    server, at = serve(lambda _: text)
    (outcome,) = ask(tmp_path, at, asked(1))
    assert isinstance(outcome, Answer) and outcome.value == text
    assert server.counts.batched == 1


def test_what_is_not_taken_goes_into_another_batch_and_at_last_into_the_dead_letters(
    tmp_path: Path, serve: Serve
) -> None:
    def accept(request: Request, reply: Reply) -> str:
        if request.messages[0].content == "Question 1?":
            raise UnacceptableError("no good")
        return reply.text

    with Client(tmp_path, [serve()[1]], replace(OPTIONS, max_attempts=3)) as client:
        good, bad = client.ask(asked(2), accept)
    assert isinstance(good, Answer) and isinstance(bad, Failure)
    assert (bad.attempts, bad.refused) == (3, ("no good",) * 3)
    assert len(json.loads((tmp_path / "batches.json").read_text())["batches"]) == 3


def test_a_batch_stays_within_the_budget(tmp_path: Path, serve: Serve) -> None:
    model = serve(at={"price": PRICE})[1]
    with Client(tmp_path, [model], replace(OPTIONS, budget=0.05)) as client:
        with pytest.raises(StoppedShortError, match=r"budget of 0\.05"):
            client.ask(asked(100))
        assert 0 < client.spent.cost <= 0.05


def test_what_is_on_its_way_in_a_batch_is_not_paid_for_twice(
    tmp_path: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, model = serve(at={"price": PRICE})

    async def lose_patience(*_: object, **__: object) -> None:
        raise EndpointError("no patience")

    with monkeypatch.context() as patched, Client(tmp_path, [model], OPTIONS) as client:
        patched.setattr(BatchDispatcher, "_look", lose_patience)
        with pytest.raises(EndpointError, match="no patience"):
            client.ask(asked(5))
        sent = client.spent
        assert max(map(len, BatchState.of(tmp_path).list_underway())) <= 64, "what servers take"
    with Client(tmp_path, [model], replace(OPTIONS, batch=False)) as client:
        with pytest.raises(SettingsError, match=r"5 requests .* submitted in batches"):
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


def test_many_requests_go_in_several_batches(tmp_path: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_module, "MOST_REQUESTS", 7)
    server, at = serve()
    assert all(isinstance(outcome, Answer) for outcome in ask(tmp_path, at, asked(20)))
    made = server.batches.batches.values()
    assert [found.shown["request_counts"]["total"] for found in made] == [7, 7, 6]
    monkeypatch.setattr(batch_module, "MOST_BYTES", 1000)
    ask(tmp_path / "other", at, asked(20))
    assert max(len(content) for name, content in server.batches.files.values() if "output" not in name) <= 3000
    assert len(server.batches.batches) > 6


@pytest.mark.parametrize("end", ["expired", "cancelled"])
def test_a_batch_that_ends_early_keeps_what_it_has(tmp_path: Path, serve: Serve, end: str) -> None:
    server, at = serve(batch_end=end)
    outcomes = ask(tmp_path, at, asked(10), max_attempts=1)
    assert [outcome.kind if isinstance(outcome, Failure) else "" for outcome in outcomes] == [""] * 5 + ["timeout"] * 5
    server.change(batch_end="completed")
    again = ask(tmp_path, at, asked(10), max_attempts=1)
    assert all(isinstance(outcome, Answer) for outcome in again)
    assert server.counts.batched == 10


def test_a_batch_that_is_refused_says_why(tmp_path: Path, serve: Serve) -> None:
    with pytest.raises(EndpointError, match="refused a batch of 4 requests: The file is not valid"):
        ask(tmp_path, serve(batch_end="failed")[1], asked(4))
    assert json.loads((tmp_path / STATE).read_text())["batches"][0]["collected"] is True


def test_a_server_without_batches_says_so(tmp_path: Path, serve: Serve) -> None:
    with pytest.raises(EndpointError, match="HTTP 401") as raised:
        ask(tmp_path, serve(key="sk-some-other-key-0000")[1], asked(2))
    assert KEY not in str(raised.value)


@pytest.mark.slow
def test_single_requests_fail_alone(tmp_path: Path, serve: Serve) -> None:
    kinds = ["error_500", "bad_request", "echo", "echo_reply", "content_filter"]
    server, at = serve(faults=[{"rate": 0.5, "kinds": kinds, "seed": 2}])
    outcomes = ask(tmp_path, at, asked(60), max_attempts=1)
    failed = [outcome for outcome in outcomes if isinstance(outcome, Failure)]
    assert {outcome.kind for outcome in failed} >= {"server_error", "bad_request", "unauthorized", "filtered"}
    assert len(failed) < 40 and server.counts.faults["echo_reply"] > 0
    files = [path.read_text() for path in tmp_path.iterdir() if path.is_file()]
    assert not any(KEY in text for text in (*files, *(outcome.reason for outcome in failed)))


def test_a_line_over_the_rate_limit_costs_no_attempt(tmp_path: Path, serve: Serve) -> None:
    server, at = serve(faults=[{"rate": 0.5, "kinds": ["limited_seconds"], "seed": 2}])
    outcomes = ask(tmp_path, at, asked(20), max_attempts=1)
    assert all(isinstance(outcome, Answer) and outcome.attempts == 1 for outcome in outcomes)
    assert server.counts.faults["limited_seconds"] > 0
    server, at = serve(faults=[{"rate": 1.0, "kinds": ["limited_seconds"], "forever": True}])
    (outcome,) = ask(tmp_path / "never", at, asked(1), max_wait=0.05)
    assert isinstance(outcome, Failure) and outcome.kind == "rate_limited"


class _KilledError(Exception):
    """Stands for the end of the process."""


@pytest.mark.parametrize("point", range(1, 8))
def test_a_kill_at_any_write_makes_no_second_batch_and_loses_no_reply(
    tmp_path: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch, point: int
) -> None:
    """The state is written as often as this; dying just before each write in turn leaves every state there is."""
    server, at = serve()
    real, writes = batch_module.write_json, 0

    def dying(path: Any, value: Any) -> None:
        nonlocal writes
        writes += 1
        if writes == point:
            raise _KilledError
        real(path, value)

    with monkeypatch.context() as patched:
        patched.setattr(batch_module, "write_json", dying)
        try:
            ask(tmp_path, at, asked(6))
        except _KilledError:
            pass
        else:
            assert writes < point, "every write was the last one once"
    outcomes = ask(tmp_path, at, asked(6))
    assert len(server.batches.batches) == 1, "one batch, however it went"
    assert all(isinstance(outcome, Answer) for outcome in outcomes)
    assert server.counts.batched == 6


def test_a_form_that_the_server_refuses_is_not_used_again(tmp_path: Path, serve: Serve) -> None:
    server, at = serve(structured=("json_object",))
    outcomes = ask(tmp_path, at, asked(4, schema=Schema("s", {"type": "object"})))
    assert all(isinstance(outcome, Answer) for outcome in outcomes)
    assert len(server.batches.batches) == 2
