"""Asking a role: five replies and one held out, cleaned, re-asks counted, the same from the journal as from a model."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rolellm.construct.rolegpt.respond import Asked, planned_requests, respond
from rolellm.construct.settings import RespondSettings
from rolellm.construct.sheet import Sheet
from rolellm.core.errors import SettingsError
from rolellm.core.jsonl import read_jsonl
from rolellm.llm.client import Client
from rolellm.llm.model import Request, Sampling

ASKED = (
    Asked("Who has the map?", "The captain.", {"source": "ours"}),
    Asked("Name a prime number.", "Seven."),
    Asked("Name a prime number.", "Eleven."),
    Asked("What is the opposite of hot?"),
)
OpenClient = Callable[..., Client]


def numbered(request: Request) -> str:
    """Another reply for each prompt and repeat."""
    return f"To {len(request.messages[-1].content)} I say {request.repeat}."


def test_five_are_references_and_the_sixth_is_held_out(character: Sheet, open_client: OpenClient) -> None:
    with open_client(numbered) as client:
        result = respond(character, ASKED, client)
    assert [row.asked.question for row in result.rows] == [ASKED[0].question, ASKED[1].question, ASKED[3].question]
    first = result.rows[0]
    assert first.references == tuple(f"To 16 I say {number}." for number in range(5))
    assert (first.held_out, first.missing, first.asked.target) == ("To 16 I say 5.", 0, "The captain.")
    assert result.rows[1].asked.target == "Seven.", "of what repeats, the first"
    summary = result.summary()
    assert (summary["instructions"], summary["replies"], summary["missing"]) == (3, 18, 0)
    assert summary["turned_down"] == {"complete": 0, "hides_ai": 0, "hides_role": 0, "answers": 0}


def test_one_reply_is_the_baseline(character: Sheet, open_client: OpenClient) -> None:
    with open_client(numbered) as client:
        result = respond(character, ["Why?"], client, RespondSettings(replies=1, temperature=0))
    assert (result.rows[0].references, result.rows[0].held_out) == ((), "To 4 I say 0.")


BAD = {
    0: "As an AI language model, I say nothing.",
    1: "I'm sorry, but I can't help with that.",
    2: "I cannot leave my assigned personality role.",
    3: "And then, in the middle of the long dark night, he",
}


class Moody:
    """Breaks a rule the first time that a repeat is asked, and the last repeat each time."""

    def __init__(self) -> None:
        self.calls: Counter[tuple[str, int]] = Counter()

    def __call__(self, request: Request) -> str:
        key = request.prompt_hash, request.repeat
        self.calls[key] += 1
        bad = request.repeat == 5 or (request.repeat in BAD and self.calls[key] == 1)
        return BAD.get(request.repeat, "As an AI, I refuse.") if bad else f"Fine, {request.repeat}."


def test_what_breaks_a_rule_is_asked_again_and_counted(
    character: Sheet, open_client: OpenClient, tmp_path: Path
) -> None:
    moody = Moody()
    with open_client(moody, max_attempts=3) as client:
        result = respond(character, ["Why?"], client)
        result.write(client.folder)
    assert result.rows[0].references == tuple(f"Fine, {number}." for number in range(5))
    assert (result.rows[0].held_out, result.rows[0].missing) == (None, 1)
    expected = {"complete": 1, "hides_ai": 4, "hides_role": 1, "answers": 1}
    assert result.summary()["turned_down"] == expected
    assert sum(moody.calls.values()) == 4 * 2 + 1 + 3
    ((_, dead),) = read_jsonl(tmp_path / "run" / "failed.jsonl")
    assert (dead["tag"], dead["kind"], dead["reason"]) == ("respond/Fox/0", "unacceptable", "says that it is an AI")
    ((_, row),) = read_jsonl(tmp_path / "run" / "replies.jsonl")
    assert (row["rolegpt"], row["missing"], len(row["generated"])) == (None, 1, 5)
    assert row["receipt"]["replies"][0]["refused"] == ["says that it is an AI"]
    assert row["receipt"]["replies"][5]["failed"] == "unacceptable"


def test_a_reply_cut_off_at_its_limit_is_not_complete(character: Sheet, open_client: OpenClient) -> None:
    with open_client(numbered, max_attempts=2) as client:
        (model,) = client.models
        plain = model.call

        async def cut(request: Request, attempt: int = 1) -> Any:
            raw = dict(await plain(request, attempt))  # type: ignore[call-arg]
            return raw | {"finish": "length"} if request.repeat == 0 else raw

        model.call = cut  # type: ignore[method-assign]
        result = respond(character, ["Why?"], client)
    assert result.summary()["turned_down"]["complete"] == 2
    assert result.rows[0].missing == 1 and len(result.rows[0].references) == 4


def test_a_second_run_pays_nothing_and_writes_the_same(
    character: Sheet, open_client: OpenClient, tmp_path: Path
) -> None:
    written = []
    for expected in (18, 0):
        with open_client(numbered) as client:
            path = respond(character, ASKED, client).write(client.folder, spent=1)
            assert client.spent.calls == expected
        written.append((path.read_bytes(), (tmp_path / "run" / "manifest.json").read_bytes()))
    assert written[0] == written[1]


def test_more_instructions_later_pay_for_the_new_ones_only(character: Sheet, open_client: OpenClient) -> None:
    with open_client(numbered) as client:
        first = respond(character, ASKED[:1], client)
    with open_client(numbered) as client:
        both = respond(character, [Asked("Why?"), *ASKED[:1]], client)
        assert client.spent.calls == 6
    assert both.rows[1].references == first.rows[0].references


def test_the_row_as_written(character: Sheet, open_client: OpenClient) -> None:
    with open_client(numbered) as client:
        path = respond(character, ASKED, client).write(client.folder, models=["m"])
    (_, row), *_ = read_jsonl(path)
    receipt = row.pop("receipt")
    assert row == {
        "role": "Fox",
        "question": "Who has the map?",
        "generated": [f"To 16 I say {number}." for number in range(5)],
        "rolegpt": "To 16 I say 5.",
        "target": "The captain.",
        "strategy": "few-shot-dialogue",
        "missing": 0,
        "fields": {"source": "ours"},
    }
    assert receipt["demonstrations"][0] == {"place": 1, "start": 130, "end": 160, "score": pytest.approx(1.2, abs=1)}
    assert [item["model"] for item in receipt["replies"]] == ["scripted"] * 6
    manifest = json.loads((path.parent / "manifest.json").read_text(encoding="utf-8"))
    assert (
        manifest["settings"]["sampling"] | {"temperature": 0.7, "top_p": 0.95, "max_tokens": 200}
        == (manifest["settings"]["sampling"])
    ), "the paper's"
    assert set(manifest["templates"]) == {"system", "rolegpt_prompt", "rolegpt_dialogue", "rolegpt_lore"}
    assert manifest["models"] == ["m"] and manifest["summary"]["role"] == "Fox"


def test_requests_of_one_prompt_stand_together(character: Sheet) -> None:
    requests = planned_requests(character, ASKED)
    assert len(requests) == 18
    assert [request.repeat for request in requests[:7]] == [0, 1, 2, 3, 4, 5, 0]
    assert len({request.prompt_hash for request in requests[:6]}) == 1
    assert [request.tag for request in requests[5:7]] == ["respond/Fox/0", "respond/Fox/1"]
    assert requests[0].sampling == Sampling()


def test_planned_is_what_is_asked(character: Sheet, open_client: OpenClient) -> None:
    asked: list[Request] = []

    def answer(request: Request) -> str:
        asked.append(request)
        return numbered(request)

    settings = RespondSettings(strategy="few-shot-prompt", replies=2)
    with open_client(answer) as client:
        respond(character, ASKED, client, settings)
    planned = planned_requests(character, ASKED, settings)
    assert sorted(map(repr, asked)) == sorted(map(repr, planned))


def test_catchphrases_and_machines_are_spared(character: Sheet, open_client: OpenClient) -> None:
    machine = replace(
        character, description="You are the ship's computer.", catchphrases=("I'm afraid I can't do that.",)
    )
    reply = "I'm sorry, captain, I'm afraid I can't do that. As an AI, I see further."
    with open_client(lambda _: reply, max_attempts=1) as client:
        assert respond(machine, ["Why?"], client).rows[0].missing == 0
    with open_client(lambda _: reply, rules_hash="2", max_attempts=1) as client:
        assert respond(character, ["Why?"], client).rows[0].missing == 6


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param({"replies": 0}, "replies", id="no reply"),
        pytest.param({"temperature": 0}, "temperature 0 gives the same reply 6 times", id="no chance"),
    ],
)
def test_settings_that_will_not_do(change: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        RespondSettings(**change)


def test_an_instruction_over_the_budget_stops_before_anything_is_asked(
    character: Sheet, open_client: OpenClient
) -> None:
    settings = RespondSettings(max_prompt_tokens=300)
    with open_client(numbered) as client, pytest.raises(SettingsError, match="at most 300"):
        respond(character, ["Why?", "map " * 500], client, settings)
    assert client.spent.calls == 0
