"""Asking a role: five replies and one held out, cleaned, re-asks counted, the same from the journal as from a model."""

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from rolellm.core.jsonl import read_jsonl
from rolellm.core.records import Profile
from rolellm.llm.model import Request
from rolellm.making import respond as stage
from rolellm.making.respond import Instruction, Instructions, ReplyRow
from rolellm.making.settings import RespondSettings
from rolellm.runs import Run, run_step

from .conftest import make_llm

ASKED = (
    Instruction("Who has the map?", "The captain.", {"source": "ours"}),
    Instruction("Name a prime number.", "Seven."),
    Instruction("What is the opposite of hot?"),
)
Respond = Callable[..., Run[tuple[ReplyRow, ...]]]


def instructions(asked: Sequence[Instruction | str]) -> Instructions:
    return Instructions([Instruction(item) if isinstance(item, str) else item for item in asked])


@pytest.fixture
def respond(character: Profile, tmp_path: Path) -> Respond:
    def run(
        answer: Any, asked: Sequence[Instruction | str], settings: RespondSettings | None = None, **given: Any
    ) -> Any:
        step = stage.Respond(given.pop("character", character), instructions(asked), settings or RespondSettings())
        return run_step(step, make_llm(answer, **given), tmp_path / "run")

    return run


def numbered(request: Request) -> str:
    """Another reply for each prompt and repeat."""
    return f"To {len(request.messages[-1].content)} I say {request.repeat}."


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


def test_what_breaks_a_rule_is_asked_again_and_counted(respond: Respond) -> None:
    moody = Moody()
    run = respond(moody, ["Why?"], max_attempts=3)
    (line,) = run.records()
    assert line["generated"] == [f"Fine, {number}." for number in range(5)]
    assert run.summary["turned_down"] == {"complete": 1, "hides_ai": 4, "hides_role": 1, "answers": 1}
    assert sum(moody.calls.values()) == 4 * 2 + 1 + 3
    ((_, dead),) = read_jsonl(run.folder / "failed.jsonl")
    assert (dead["tag"], dead["kind"], dead["reason"]) == ("respond/Fox/0", "unacceptable", "says that it is an AI")
    assert (line["rolegpt"], line["missing"]) == (None, 1)
    assert line["receipt"]["replies"][0]["refused"] == ["says that it is an AI"]
    assert line["receipt"]["replies"][5]["failed"] == "unacceptable"


def test_the_row_as_written(respond: Respond) -> None:
    run = respond(numbered, ASKED)
    row, *_ = run.records()
    assert (run.asked, run.failed) == (18, 0)
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
    assert receipt["demonstrations"][0] == 1
    assert [item["model"] for item in receipt["replies"]] == ["scripted"] * 6
    sampling = run.manifest["settings"]
    assert sampling | {"temperature": 0.7, "max_tokens": 200} == sampling, "the paper's"
    assert set(run.manifest["templates"]) == {"system", "rolegpt_prompt", "rolegpt_dialogue", "rolegpt_lore"}
    assert run.manifest["models"]["endpoints"][0]["rules"] == "1" and run.summary["role"] == "Fox"
