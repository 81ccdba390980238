"""Errors of real servers, as `refusals.yaml` has them with their sources: a run has to make the right thing of each."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from rolellm.core.errors import EndpointError
from rolellm.llm import retry
from rolellm.llm.client import Client
from rolellm.llm.endpoint import Endpoint
from rolellm.llm.model import Answer, Failure, Outcome, Request, RunOptions, Schema, system, user

RECORDED = yaml.safe_load(Path(__file__).with_name("refusals.yaml").read_text(encoding="utf-8"))
SCHEMA = Schema("pair", {"type": "object", "properties": {"a": {"type": "integer"}}})
#: After so many refusals that are not one request's own, an endpoint is given up; the requests here are more.
HOPELESS, MANY = 8, 12


def those(*outcomes: str) -> pytest.MarkDecorator:
    """Runs a test on each recording with one of these outcomes."""
    found = [entry for entry in RECORDED if entry["then"] in outcomes]
    return pytest.mark.parametrize(
        "recorded", [pytest.param(entry, id=f"{entry['server']}: {entry['when']}") for entry in found]
    )


def asked(count: int) -> list[Request]:
    return [Request((system("You are a fox."), user(f"Who are you, {n}?")), schema=SCHEMA) for n in range(count)]


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "_FIRST_BACKOFF", 0.001)


@pytest.fixture
def refuse(llm_server: Callable[..., Any], endpoint: Callable[..., Endpoint]) -> Iterator[Callable[..., Any]]:
    """Starts a server that answers as recorded, at most so many times; every other request gets a reply."""
    import llm_faults
    import local_llm

    class Refusing(local_llm.LocalLLM):
        def __init__(self, recorded: dict[str, Any], times: int) -> None:
            super().__init__()
            self.recorded, self.times, self.forms = recorded, times, list[str]()

        def complete(self, content: bytes, headers: dict[str, str], share: float = 1.0) -> Any:
            request = json.loads(content)
            form = request.get("response_format", {"type": "none"})["type"]
            self.forms.append(form)
            if self.times == 0 or form not in self.recorded.get("to", [form]):
                return super().complete(content, headers, share)
            self.times -= 1
            body = self.recorded["body"].replace('"<request>"', json.dumps(request))
            body = body.replace("<request>", json.dumps(repr(request))[1:-1])
            return llm_faults.Answer(self.recorded["status"], body.encode(), paid=False)

    started = []

    def start(recorded: dict[str, Any], times: int = 1000, **settings: Any) -> tuple[Any, Endpoint]:
        started.append(Refusing(recorded, times))
        return started[-1], endpoint(started[-1].__enter__(), concurrency=1, **settings)

    yield start
    for server in started:
        server.__exit__()


def run(folder: Path, at: Endpoint, requests: list[Request]) -> list[Outcome[str]]:
    with Client(folder, [at], RunOptions(show_progress=False)) as client:
        return client.ask(requests)


@those("json_object", "none")
def test_a_form_that_is_refused_is_given_up_for_one_that_is_taken_unless_the_settings_ask_for_it(
    recorded: dict[str, Any], refuse: Callable[..., Any], tmp_path: Path
) -> None:
    server, at = refuse(recorded)
    outcomes = run(tmp_path, at, asked(3))
    assert all(isinstance(outcome, Answer) and outcome.attempts == 1 for outcome in outcomes)
    tried = ["json_schema", "json_object", "none"]
    kept = recorded["then"]
    assert server.forms == [*tried[: tried.index(kept) + 1], kept, kept]

    server, at = refuse(recorded, structured="json_schema")
    (outcome,) = run(tmp_path / "asked for", at, asked(1))
    assert isinstance(outcome, Failure)
    assert set(server.forms) == {"json_schema"}


@those("retry")
def test_what_passes_is_asked_again(recorded: dict[str, Any], refuse: Callable[..., Any], tmp_path: Path) -> None:
    server, at = refuse(recorded, times=2)
    outcomes = run(tmp_path, at, asked(3))
    assert all(isinstance(outcome, Answer) for outcome in outcomes)
    assert server.forms == ["json_schema"] * 5, "the form is not at fault"


@those("request")
def test_what_one_request_is_refused_for_ends_that_request_alone(
    recorded: dict[str, Any], refuse: Callable[..., Any], tmp_path: Path
) -> None:
    server, at = refuse(recorded)
    outcomes = run(tmp_path, at, asked(MANY))
    failures = [outcome for outcome in outcomes if isinstance(outcome, Failure)]
    assert len(failures) == len(outcomes) and {failure.kind for failure in failures} == {"bad_request"}
    assert recorded["says"] in failures[0].reason
    # What repeats the request names the form in it: the others may be tried then, but none of them is kept.
    assert len(server.forms) <= MANY * (3 if "<request>" in recorded["body"] else 1)

    server.times = 0
    server.forms.clear()
    assert all(isinstance(outcome, Answer) for outcome in run(tmp_path / "later", at, asked(2)))
    assert server.forms == ["json_schema"] * 2


@those("run")
def test_what_every_request_would_be_refused_for_ends_the_run(
    recorded: dict[str, Any], refuse: Callable[..., Any], tmp_path: Path
) -> None:
    server, at = refuse(recorded)
    with pytest.raises(EndpointError) as raised:
        run(tmp_path, at, asked(MANY))
    assert recorded["says"] in str(raised.value)
    assert server.forms == ["json_schema"] * HOPELESS


@those("retry", "request", "run")
def test_what_the_user_reads_is_short_and_not_the_request(recorded: dict[str, Any], refuse: Callable[..., Any]) -> None:
    _, at = refuse(recorded)
    error = at.make_error(recorded["status"], recorded["body"].encode())
    assert error.reason.startswith(f"HTTP {recorded['status']}")
    assert len(error.reason) < 400 and error.reason.isprintable()


def test_a_request_that_fastapi_repeats_is_not_shown() -> None:
    (entry,) = [entry for entry in RECORDED if entry["server"] == "KServe, with vLLM"]
    assert "<request>" in entry["body"]
    assert "<request>" not in retry.make_status_error(entry["status"], {}, entry["body"].encode(), str).reason
