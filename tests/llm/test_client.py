"""The client: every request ends in one typed outcome, and nothing that was paid for is asked again."""

import asyncio
import itertools
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rolellm.core.errors import EndpointError, RoleLLMWarning, SettingsError, StoppedShortError
from rolellm.core.jsonl import read_jsonl
from rolellm.llm.client import FAILED, Client, order_by_prefix
from rolellm.llm.journal import JOURNAL
from rolellm.llm.model import (
    Answer,
    CallError,
    Failure,
    FailureKind,
    Json,
    Price,
    Reply,
    Request,
    RunOptions,
    Sampling,
    Schema,
    UnacceptableError,
    accept_text,
    request_key,
    system,
    user,
)
from rolellm.llm.retry import compute_delay
from rolellm.llm.scripted import read_plain

QUIET = RunOptions(show_progress=False)


class Faulty:
    """A model of this process that counts what it sees and fails where it is told to."""

    def __init__(
        self,
        fault: Callable[[Request, int], CallError | Json | None] = lambda request, seen: None,
        *,
        name: str = "faulty",
        concurrency: int = 8,
        price: Price | None = None,
        seconds: float = 0.0,
        cut: Callable[[Request], int] = lambda request: 0,
    ) -> None:
        self.name = name
        self.identity = {"model": name}
        self.concurrency = concurrency
        self.price = price or Price()
        self.seen: Counter[str] = Counter()
        self.delivered: Counter[str] = Counter()
        self.most = self.now = 0
        self.spent = 0.0
        self._fault = fault
        self._seconds = seconds
        self._cut = cut

    async def call(self, request: Request, attempt: int = 1) -> Json:
        key = request_key(self, request)
        self.seen[key] += 1
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await asyncio.sleep(self._seconds)
        finally:
            self.now -= 1
        fault = self._fault(request, self.seen[key])
        if fault is None and attempt <= self._cut(request):
            fault = {"finish": "empty"}
        if isinstance(fault, CallError):
            raise fault
        self.delivered[key] += 1
        text = f"to {request.messages[-1].content}, {request.repeat}"
        raw = {"model": self.name, "text": text, "finish": "stop", "usage": {"prompt": 10, "completion": 5}}
        raw |= dict(fault or {})
        self.spent += self.price.cost(self.read(raw).usage)
        return raw

    def read(self, raw: Json) -> Reply:
        return read_plain(raw, self.name)

    async def close(self) -> None:
        pass


def ask(
    folder: Path, models: list[Any], requests: list[Request], accept: Any = accept_text, also: Any = (), **options: Any
) -> list[Any]:
    """What comes of the requests."""
    with Client(folder, models, replace(QUIET, **options)) as client:
        return list(client.ask(requests, accept, also=also))


def asked(count: int, **changes: Any) -> list[Request]:
    return [Request((system("You are a clerk."), user(f"question {number}")), **changes) for number in range(count)]


def fault(kind: FailureKind, *, retry: bool = False, after: float | None = None, billed: bool = False) -> CallError:
    return CallError(kind, f"a {kind} on purpose", retry=retry, after=after, billed=billed)


def test_the_same_request_twice_is_paid_for_once(tmp_path: Path) -> None:
    model = Faulty(seconds=0.01)
    requests = [*asked(3), *(replace(request, tag="again") for request in asked(3)), *asked(1, repeat=1)]
    outcomes = ask(tmp_path, [model], requests)
    assert sum(model.seen.values()) == 4
    assert [outcome.request.tag for outcome in outcomes] == ["", "", "", "again", "again", "again", ""]
    assert all(isinstance(outcome, Answer) for outcome in outcomes)


def test_a_request_that_differs_misses(tmp_path: Path) -> None:
    base = Request((system("a"), user("b")), schema=Schema("s", {"type": "object"}))
    settings = {"temperature": 0.1, "top_p": 0.5, "max_tokens": 7, "seed": 1, "top_logprobs": 5}
    assert {item.name for item in fields(Sampling)} == set(settings)
    requests = [
        base,
        replace(base, messages=(system("a"), user("c"))),
        replace(base, messages=(user("a"), user("b"))),
        replace(base, messages=(system("ab"), user(""))),
        replace(base, repeat=1),
        replace(base, schema=None),
        replace(base, schema=Schema("s", {"type": "array"})),
        *(replace(base, sampling=replace(Sampling(), **{name: value})) for name, value in settings.items()),
    ]
    with Client(tmp_path, [Faulty()], QUIET) as client:
        client.ask(requests)
        assert client.spent.calls == len(requests)
        client.ask([replace(request, tag="a tag is no part of it") for request in requests])
        assert client.spent.calls == client.spent.from_journal == len(requests)


def test_another_model_misses(tmp_path: Path) -> None:
    ask(tmp_path, [Faulty()], asked(3))
    other = Faulty(name="another")
    ask(tmp_path, [other], asked(3))
    assert sum(other.seen.values()) == 3
    # With both, either's reply will do.
    both = [Faulty(), Faulty(name="another"), Faulty(name="third")]
    with Client(tmp_path, both, QUIET) as client:
        client.ask(asked(3))
    assert sum(sum(model.seen.values()) for model in both) == 0


def test_parsing_is_repeated_for_free(tmp_path: Path) -> None:
    def picky(request: Request, reply: Reply) -> str:
        raise UnacceptableError("never good enough", "malformed")

    model = Faulty()
    (failed,) = ask(tmp_path, [model], asked(1), picky, max_attempts=2)
    assert isinstance(failed, Failure)
    assert (failed.kind, failed.attempts, failed.refused) == ("malformed", 2, ("never good enough",) * 2)
    with Client(tmp_path, [model], replace(QUIET, max_attempts=2)) as client:
        (again,) = client.ask(asked(1), picky)
        (answer,) = client.ask(asked(1), lambda _, reply: reply.text.upper())
    assert isinstance(again, Failure) and again.attempts == 2
    assert isinstance(answer, Answer) and answer.value == "TO QUESTION 0, 0" and answer.attempts == 1
    assert sum(model.seen.values()) == 2, "what was given up stays given up, until it is asked for"
    ask(tmp_path, [model], asked(1), picky, max_attempts=2, retry_failed=True)
    assert sum(model.seen.values()) == 4


@pytest.mark.parametrize(
    ("finish", "calls"),
    [pytest.param(name, 3 if name == "empty" else 1, id=name) for name in ("length", "filtered", "refused", "empty")],
)
def test_a_reply_that_is_no_answer_is_never_taken_for_one(tmp_path: Path, finish: FailureKind, calls: int) -> None:
    model = Faulty(lambda request, seen: {"finish": finish})
    (failed,) = ask(tmp_path, [model], asked(1), max_attempts=3)
    assert isinstance(failed, Failure) and (failed.kind, failed.attempts) == (finish, calls)
    (answer,) = ask(tmp_path, [model], asked(1), also={finish}, max_attempts=3)
    assert isinstance(answer, Answer)
    ask(tmp_path, [model], asked(1), max_attempts=3)
    assert sum(model.seen.values()) == calls, "nor is it sent again by the next run"


@pytest.mark.parametrize(("temperature", "calls"), [(0.0, 1), (0.7, 3)], ids=["greedy", "drawn-anew"])
def test_what_was_not_accepted_is_sent_again_only_where_the_reply_can_change(
    tmp_path: Path, temperature: float, calls: int
) -> None:
    def picky(request: Request, reply: Reply) -> str:
        raise UnacceptableError("never good enough")

    model = Faulty()
    for _ in range(2):
        (failed,) = ask(tmp_path, [model], asked(1, sampling=Sampling(temperature=temperature)), picky, max_attempts=3)
        assert failed.attempts == calls == sum(model.seen.values())


MENDING = Request((user("How many?"),), Sampling(temperature=0), repair="Not so: {problem}. Again.")


def two_words(_: Request, reply: Reply) -> str:
    words = reply.text.split()
    if len(words) == 2:
        return reply.text
    usable = reply.text if len(words) > 2 else None
    raise UnacceptableError(
        f"has {len(words)} words", feedback=f"it has {len(words)}, not 2", usable=usable, defects=("x",) * len(words)
    )


def saying(*texts: str) -> tuple[Faulty, list[Request]]:
    asked: list[Request] = []

    def said(request: Request, seen: int) -> Json:
        asked.append(request)
        return {"text": texts[min(len(asked), len(texts)) - 1]}

    return Faulty(said), asked


def test_a_reply_that_is_not_taken_is_repaired_and_nothing_of_it_paid_for_twice(tmp_path: Path) -> None:
    model, asked = saying("one", "one two three", "one two")
    (answer,) = ask(tmp_path, [model], [MENDING], two_words)
    assert isinstance(answer, Answer) and (answer.value, answer.attempts, answer.defects) == ("one two", 3, ())
    assert answer.request == MENDING and answer.refused == ("has 1 words", "has 3 words")
    assert [[message.content for message in request.messages] for request in asked] == [
        ["How many?"],
        ["How many?", "one", "Not so: it has 1, not 2. Again."],
        ["How many?", "one two three", "Not so: it has 3, not 2. Again."],
    ]
    assert answer.key == request_key(model, asked[-1]), "a repair is a request of its own"
    (again,) = ask(tmp_path, [model], [MENDING], two_words)
    assert again == answer and len(asked) == 3


@pytest.mark.parametrize("attempts", [2, 3])
def test_a_repair_that_was_cut_off_goes_on_where_it_was(tmp_path: Path, attempts: int) -> None:
    texts = ("one", "one two three", "one two")
    first, _ = saying(*texts[: attempts - 1])
    ask(tmp_path, [first], [MENDING], two_words, max_attempts=attempts - 1)
    rest, asked = saying(*texts[attempts - 1 :])
    (answer,) = ask(tmp_path, [rest], [MENDING], two_words, max_attempts=5)
    assert isinstance(answer, Answer) and answer.attempts == 3 and len(asked) == 4 - attempts


def test_the_best_reply_is_kept_with_its_defects_when_none_is_taken(tmp_path: Path) -> None:
    model, _ = saying("a b c d", "one two three", "one")
    (answer,) = ask(tmp_path, [model], [MENDING], two_words, max_attempts=3)
    assert isinstance(answer, Answer) and answer.defects == ("x", "x", "x")
    assert (answer.value, answer.attempts) == ("one two three", 3)
    assert ask(tmp_path, [Faulty()], [MENDING], two_words, max_attempts=3) == [answer]


@pytest.mark.parametrize(
    "texts", [pytest.param(("one",), id="same-again"), pytest.param(("one", "1", "one", "1"), id="to-and-fro")]
)
def test_a_greedy_model_is_not_asked_for_a_repair_that_it_gave(tmp_path: Path, texts: tuple[str, ...]) -> None:
    model, asked = saying(*texts)
    for _ in range(2):
        (failed,) = ask(tmp_path, [model], [MENDING], two_words, max_attempts=20)
        assert isinstance(failed, Failure) and len(asked) == len(set(texts)) + 1


@pytest.mark.parametrize(
    ("error", "calls"),
    [
        pytest.param(fault("server_error", retry=True, after=0.0), 4, id="500-for-ever"),
        pytest.param(fault("timeout", retry=True, after=0.0, billed=True), 4, id="timeout"),
        pytest.param(fault("bad_request"), 1, id="400"),
    ],
)
def test_a_fault_ends_in_its_type_and_in_the_dead_letters(tmp_path: Path, error: CallError, calls: int) -> None:
    model = Faulty(lambda request, seen: error if request.messages[-1].content == "question 1" else None)
    good, failed, *_ = ask(tmp_path, [model], asked(3), max_attempts=4)
    assert isinstance(good, Answer)
    assert isinstance(failed, Failure) and (failed.kind, failed.attempts) == (error.kind, calls)
    ((_, letter),) = read_jsonl(tmp_path / FAILED)
    assert (letter["kind"], letter["attempts"], letter["reason"]) == (error.kind, calls, error.reason)
    assert letter["request"]["messages"][-1] == ["user", "question 1"]
    # A fault is no reply: the next run tries again, and clears the letter.
    healed = Faulty()
    assert all(isinstance(outcome, Answer) for outcome in ask(tmp_path, [healed], asked(3), max_attempts=4))
    assert sum(healed.seen.values()) == 1 and not (tmp_path / FAILED).exists()


def test_how_long_to_wait() -> None:
    def waits(kind: FailureKind, after: float | None) -> list[float]:
        error = fault(kind, retry=True, after=after)
        return [compute_delay(error, tries, "0" * 64, 60.0) for tries in range(1, 12)]

    for after, least in ((2.0, 2.0), (1e9, 60.0)):
        assert all(least <= seconds <= 1.1 * least for seconds in waits("server_error", after))
        assert min(waits("rate_limited", after)) >= least and max(waits("rate_limited", after)) <= 66
    assert len(set(waits("server_error", 2.0))) == 11, "those that failed together do not come back together"
    own = waits("server_error", None)
    assert all(0.25 * 2**tries <= own[tries] <= 0.75 * 2**tries for tries in range(6)) and max(own) <= 45
    assert waits("rate_limited", None)[-1] >= 15


def test_no_more_calls_at_once_than_each_model_takes(tmp_path: Path) -> None:
    models = [Faulty(concurrency=5, seconds=0.01), Faulty(name="second", concurrency=3, seconds=0.01)]
    with Client(tmp_path, models, QUIET) as client:
        client.ask(asked(100))
    assert [model.most for model in models] == [5, 3]
    assert sum(models[0].seen.values()) > sum(models[1].seen.values()) > 20


@pytest.mark.slow
def test_a_request_that_waits_holds_nobody_up(tmp_path: Path) -> None:
    first = fault("server_error", retry=True, after=0.5)
    model = Faulty(lambda request, seen: first if seen == 1 else None, concurrency=4, seconds=0.001)
    begun = time.monotonic()
    ask(tmp_path, [model], asked(40))
    # Ten times four, half a second each, if every call slept in its place.
    assert time.monotonic() - begun < 4.0 and model.most == 4


def test_a_retry_that_falls_due_while_it_is_looked_for_is_not_waited_for_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Every look at the clock finds it a step further, so that what was not due is, at the next look.
    clock = itertools.count(start=1000.0, step=0.1)
    monkeypatch.setattr("rolellm.llm.dispatcher.time", SimpleNamespace(monotonic=lambda: next(clock)))
    first = fault("server_error", retry=True, after=0.25)
    model = Faulty(lambda request, seen: first if seen == 1 else None, concurrency=1)
    assert all(isinstance(outcome, Answer) for outcome in ask(tmp_path, [model], asked(1)))


def test_one_request_that_is_always_over_the_limit_does_not_hold_up_the_run_for_ever(tmp_path: Path) -> None:
    limited = fault("rate_limited", retry=True, after=0.0)
    model = Faulty(lambda request, seen: limited if request.messages[-1].content == "question 1" else None)
    outcomes = ask(tmp_path, [model], asked(3), max_wait=0.02)
    assert [isinstance(outcome, Answer) for outcome in outcomes] == [True, False, True]
    failed = outcomes[1]
    assert isinstance(failed, Failure) and failed.kind == "rate_limited" and failed.attempts > 5


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", ["unauthorized", "forbidden", "not_found", "rate_limited", "server_error", "connection", "timeout"]
)
def test_an_endpoint_that_stops_answering_ends_the_run_and_the_next_goes_on(tmp_path: Path, kind: FailureKind) -> None:
    again = kind not in ("unauthorized", "forbidden", "not_found")
    error = fault(kind, retry=again)
    model = Faulty(lambda request, seen: error if int(request.messages[-1].content.split()[1]) >= 40 else None)
    options = replace(QUIET, max_attempts=2, max_wait=0.02)
    with Client(tmp_path, [model], options) as client:
        with pytest.raises(StoppedShortError, match=rf"a {kind} on purpose.*40 replies are kept.*check the key"):
            client.ask(asked(3000))
        assert client.spent.failed < 30
    assert sum(model.seen.values()) < 400
    healed = Faulty()
    assert all(
        isinstance(outcome, Answer) for outcome in ask(tmp_path, [healed], asked(200), max_attempts=2, max_wait=0.02)
    )
    assert sum(healed.seen.values()) == 160


@pytest.mark.parametrize(
    ("error", "concurrency"),
    [
        pytest.param(fault("timeout", retry=True, after=0.0), 8, id="never-gets-through"),
        # Moderation of single prompts is a 403 at some servers.
        pytest.param(fault("forbidden"), 1, id="refused"),
    ],
)
def test_what_fails_of_some_requests_does_not_end_the_run(tmp_path: Path, error: CallError, concurrency: int) -> None:
    model = Faulty(
        lambda request, seen: error if request.messages[-1].content.endswith(("3", "7")) else None,
        concurrency=concurrency,
    )
    outcomes = ask(tmp_path, [model], asked(100))
    assert sum(isinstance(outcome, Failure) for outcome in outcomes) == 20


def test_a_refused_key_ends_the_run_in_words(tmp_path: Path) -> None:
    model = Faulty(lambda request, seen: fault("unauthorized"))
    with Client(tmp_path, [model], QUIET) as client, pytest.raises(EndpointError, match="environment variable"):
        client.ask(asked(1000))
    assert sum(model.seen.values()) < 30
    assert len(list(read_jsonl(tmp_path / FAILED))) < 30


def test_a_dead_endpoint_takes_no_request_with_it_however_few_there_are(tmp_path: Path) -> None:
    dead = Faulty(lambda request, seen: fault("unauthorized"), name="dead", seconds=0.01)
    models = [dead, Faulty(name="alive")]
    with Client(tmp_path, models, QUIET) as client, pytest.warns(RoleLLMWarning, match="dead was"):
        assert all(isinstance(outcome, Answer) for outcome in client.ask(asked(5)))
    assert sum(dead.seen.values()) == 5, "all went there first"


def test_a_retry_does_not_go_back_to_an_endpoint_that_refused(tmp_path: Path) -> None:
    picky = Faulty(lambda request, seen: fault("not_found"), name="picky", concurrency=1)
    slow = fault("server_error", retry=True, after=0.01)
    patient = Faulty(lambda request, seen: slow if seen < 4 else None, name="patient", concurrency=1)
    with pytest.warns(RoleLLMWarning, match="picky was"):
        assert isinstance(ask(tmp_path, [picky, patient], asked(1))[0], Answer)
    assert sum(picky.seen.values()) == 1


PRICE = Price(prompt=1000.0, completion=10_000.0)


def test_spend_never_goes_above_the_budget(tmp_path: Path) -> None:
    # Every reply costs its most: as many tokens as it may have, and a prompt of one token a byte.
    requests = asked(200, sampling=Sampling(max_tokens=5))
    model = Faulty(concurrency=64, price=PRICE, seconds=0.002)
    options = replace(QUIET, budget=2.0)
    with Client(tmp_path, [model], options) as client, pytest.raises(StoppedShortError, match="budget of 2"):
        client.ask(requests)
    assert 0 < model.spent <= 2.0 and client.spent.cost <= 2.0
    kept = sum(model.seen.values())
    # The budget is the folder's: it does not begin anew.
    with Client(tmp_path, [model], options) as client, pytest.raises(StoppedShortError):
        client.ask(requests)
    assert model.spent <= 2.0
    assert all(isinstance(outcome, Answer) for outcome in ask(tmp_path, [model], requests, budget=1000.0))
    assert sum(model.seen.values()) == 200 and kept > 5


def test_a_call_that_nobody_knows_the_end_of_counts_in_full(tmp_path: Path) -> None:
    reset = fault("connection", retry=True, after=0.0, billed=True)
    model = Faulty(lambda request, seen: reset, price=PRICE, concurrency=1)
    with Client(tmp_path, [model], replace(QUIET, budget=0.5, max_attempts=50)) as client:
        with pytest.raises(StoppedShortError):
            client.ask(asked(1, sampling=Sampling(max_tokens=5)))
        assert 0.3 < client.spent.cost <= 0.5


def test_a_client_that_is_closed_asks_nobody(tmp_path: Path) -> None:
    model = Faulty()
    with Client(tmp_path, [model], QUIET) as client:
        pass
    with pytest.raises(SettingsError, match="this client is closed"):
        client.ask(asked(1))
    assert not model.seen


def test_an_error_of_our_own_does_not_lose_what_is_in_flight(tmp_path: Path) -> None:
    def broken(request: Request, reply: Reply) -> str:
        if request.messages[-1].content == "question 0":
            raise ZeroDivisionError("a bug")
        return reply.text

    model = Faulty(seconds=0.01)
    with Client(tmp_path, [model], QUIET) as client, pytest.raises(ZeroDivisionError):
        client.ask(asked(8), broken)
    ask(tmp_path, [model], asked(8))
    assert max(model.seen.values()) == 1


def test_those_that_share_the_longest_beginning_go_first() -> None:
    texts = ["short", "x" * 500, "short", "alone " * 200, "x" * 500, "short"]
    requests = [Request((system(text), user(str(place)))) for place, text in enumerate(texts)]
    assert order_by_prefix(requests) == [1, 4, 0, 2, 5, 3]


RUNNER = """
import sys, asyncio, json, random
from pathlib import Path
sys.path.insert(0, {tests!r})
from test_client import QUIET, asked, killable, write_out
from rolellm.llm.client import Client
folder = Path(sys.argv[1])
model = killable()
with Client(folder, [model], QUIET) as client:
    print("begun", flush=True)
    write_out(folder, client.ask(asked(150)))
"""


def sometimes_down(request: Request, seen: int) -> CallError | None:
    """Faults by content and the how-many-th time."""
    down = random.Random(f"{request.messages[-1].content} {seen}").random() < 0.05
    return fault("server_error", retry=True, after=0.0) if down else None


def sometimes_cut(request: Request) -> int:
    """How many replies to a request are cut off, before one is whole."""
    return int(random.Random(f"{request.messages[-1].content}").random() < 0.05)


def killable() -> Faulty:
    return Faulty(sometimes_down, seconds=0.004, concurrency=8, cut=sometimes_cut)


def write_out(folder: Path, outcomes: list[Any]) -> None:
    values = [outcome.value if isinstance(outcome, Answer) else outcome.kind for outcome in outcomes]
    (folder / "out.json").write_text(json.dumps(values))


def journaled(folder: Path) -> dict[str, int]:
    path = folder / JOURNAL
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return dict(Counter(json.loads(line)["kind"] for line in lines))


@pytest.mark.parametrize("seed", [pytest.param(seed, id=f"seed-{seed}") for seed in range(2)])
def test_killed_at_any_moment_it_goes_on_as_if_it_never_was(tmp_path: Path, seed: int) -> None:
    """The many kills are in `benchmarks/client.py`; these few walk the same way."""
    whole = tmp_path / "whole"
    whole.mkdir()
    write_out(whole, ask(whole, [killable()], asked(150)))
    command = [sys.executable, "-c", RUNNER.format(tests=str(Path(__file__).parent)), str(tmp_path)]
    draw = random.Random(seed)
    for _ in range(2):
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None and process.stdout.readline() == "begun\n"
            time.sleep(draw.uniform(0.0, 0.12))
            os.kill(process.pid, signal.SIGKILL)
    before = journaled(tmp_path)
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    after = journaled(tmp_path)
    assert json.loads((tmp_path / "out.json").read_text()) == json.loads((whole / "out.json").read_text())
    in_flight = before.get("sent", 0) - before.get("reply", 0) - before.get("lost", 0)
    assert 0 <= in_flight <= 16
    assert after["reply"] == journaled(whole)["reply"], "no reply was paid for and journaled twice"


INTERRUPTED = """
import asyncio, sys
sys.path.insert(0, {tests!r})
from pathlib import Path
from test_client import Faulty, QUIET, asked
from rolellm.core.errors import StoppedShortError
from rolellm.llm.client import Client
model = Faulty(seconds={seconds}, concurrency=4)
def run():
    with Client(Path(sys.argv[1]), [model], QUIET) as client:
        print("begun", flush=True)
        try:
            client.ask(asked(400))
        except StoppedShortError as error:
            print(sum(model.seen.values()), sum(model.delivered.values()), error)
async def cell():
    run()
if sys.argv[2] == "notebook":
    asyncio.new_event_loop().run_until_complete(cell())
else:
    run()
"""


def interrupt(folder: Path, where: str, *, again: bool = False, seconds: float = 0.05) -> tuple[str, str]:
    """What a run says that is stopped by Ctrl-C after it began, and what it says on standard error."""
    code = INTERRUPTED.format(tests=str(Path(__file__).parent), seconds=seconds)
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", code, str(folder), where]
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None and process.stderr is not None and process.stdout.readline() == "begun\n"
        while journaled(folder).get("sent", 0) < 4:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        told = process.stderr.readline()
        if again:
            process.send_signal(signal.SIGINT)
        out, more = process.communicate()
    assert process.returncode == 0
    return out, told + more


def test_ctrl_c_in_a_notebook_waits_for_what_is_in_flight(tmp_path: Path) -> None:
    out, told = interrupt(tmp_path, "notebook", seconds=0.5)
    assert re.fullmatch(r"stopping; waiting for [1-4] calls? in flight \(Ctrl-C again to drop them\)\n", told)
    sent, delivered, words = out.split(" ", 2)
    assert 0 < int(sent) == int(delivered) < 400
    assert f"{delivered} replies are kept in {tmp_path}" in words and "Resume with: the same command" in words
    assert journaled(tmp_path) == {"sent": int(sent), "reply": int(sent)}


def test_a_second_ctrl_c_cuts_off_what_is_in_flight(tmp_path: Path) -> None:
    out, _ = interrupt(tmp_path, "script", again=True, seconds=30.0)
    assert out.startswith("4 0 asked to stop; 0 replies are kept")
    assert journaled(tmp_path) == {"sent": 4}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("concurrency", "settings"),
    [
        pytest.param(8, {"rate": (30, 5), "retry_after": 0.5}, id="default-concurrency"),
        pytest.param(64, {"rate": (40, 5), "retry_after": 0.01}, id="short-retry-after"),
        pytest.param(64, {"rate": (40, 2)}, id="no-retry-after"),
    ],
)
def test_a_rate_limit_costs_no_request(
    tmp_path: Path, serve: Callable[..., Any], concurrency: int, settings: dict[str, Any]
) -> None:
    server, at = serve(**settings, at={"concurrency": concurrency, "timeout": 30.0})
    outcomes = ask(tmp_path, [at], asked(120), max_attempts=1)
    assert all(isinstance(outcome, Answer) and outcome.attempts == 1 for outcome in outcomes)
    assert 0 < server.counts.limited < 200, "it slows down to what the server lets in"
