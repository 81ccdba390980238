"""Asking a role: prompts, what is shown, five replies and one held out, the same from the journal as from a model."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rolellm.characters.role_prompts import RolePrompts
from rolellm.characters.settings import PromptSettings, Strategy
from rolellm.core.errors import SettingsError
from rolellm.core.jsonl import read_jsonl
from rolellm.core.records import Lore, Profile, Turn
from rolellm.llm.model import Message, Request
from rolellm.llm.tokens import TokenCounter
from rolellm.making import respond as stage
from rolellm.making.respond import Instruction, Instructions, ReplyRow, read_instructions
from rolellm.making.settings import RespondSettings
from rolellm.models.prompts.render import load_system_template
from rolellm.runs import Run, run_step

from .conftest import make_llm

# --- instructions


FOX = Profile("Fox", "en")
LINES = """\
{"instruction": "Name a colour.", "target": "Red."}

{"question": "Fox, who has the key?", "answer": "The parrot.", "type": "script_based", "role": "Fox"}
{"instruction": "Name a colour.", "target": "Blue."}
{"instruction": "Why?", "target": null}
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "asked.jsonl"
    path.write_text(text, encoding="utf-8")
    return path


def test_instructions_and_questions(tmp_path: Path) -> None:
    assert read_instructions(write(tmp_path, LINES), FOX).asked == [
        Instruction("Name a colour.", "Red."),
        Instruction("Fox, who has the key?", None, {"answer": "The parrot.", "type": "script_based"}),
        Instruction("Why?"),
    ]


def test_rows_of_a_dataset_and_a_parquet_file(tmp_path: Path) -> None:
    from datasets import Dataset

    data = Dataset.from_list([{"instruction": "Name it.", "input": "A red fruit", "output": "Apple.", "n": 1}])
    data.to_parquet(tmp_path / "d.parquet")
    expected = Instruction("Name it.\nA red fruit", "Apple.", {"n": 1})
    assert read_instructions(data, FOX).asked == read_instructions(tmp_path / "d.parquet", FOX).asked == [expected]


def test_the_embedded_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    english, chinese = (read_instructions("sample", Profile("Fox", language)).asked for language in ("en", "zh"))
    assert len(english) == len(chinese) == 40 and all(item.target for item in [*english, *chinese])
    write(tmp_path, '{"instruction": "Mine?"}').rename(tmp_path / "sample.jsonl")
    assert read_instructions("sample.jsonl", FOX).asked == [Instruction("Mine?")]


# --- what is shown


def test_the_best_come_first_and_without_a_shared_word_the_script_decides(character: Profile) -> None:
    prompts = RolePrompts(character)
    assert prompts.demonstrations("Parrot, who has the captain's map?", 3) == [1, 4, 2]
    assert prompts.demonstrations("Name a prime number.", 2) == [0, 1]


def test_chinese(chinese: Profile) -> None:
    prompts = RolePrompts(chinese)
    assert prompts.demonstrations("河边的磨坊在哪里？", 2) == [1, 0]
    assert [(note.place, note.by) for note in prompts.notes("老农说河水如何？", 2)] == [(0, "key"), (1, "words")]


def test_lore_that_is_constant_or_has_secondary_keys(character: Profile) -> None:
    lore = (
        Lore("The law of the ship.", constant=True),
        Lore("Dawn is cold.", ("dawn",), secondary_keys=("coat",)),
        Lore("Kettles rust.", ("kettle",)),
    )
    prompts = RolePrompts(replace(character, lore=lore))
    told = [
        [(note.place, note.by) for note in prompts.notes(text, 2)]
        for text in ("Dawn is cold?", "The kettle at dawn, in a coat", "Well?")
    ]
    assert told == [[(0, "constant")], [(1, "key"), (2, "key")], [(0, "constant")]]
    assert len(prompts.notes("The kettle at dawn, in a coat", 3)) == 3


# --- prompts


QUESTION = "Parrot, who has the captain's map?"
BEST_LAST = ("The parrot has the key.", "The parrot says nothing.", "His map? I ate his map.")


def messages(
    character: Profile, strategy: Strategy, question: str = QUESTION, **options: object
) -> tuple[Message, ...]:
    chosen = PromptSettings(strategy=strategy, **{"demonstrations": 3, **options})  # type: ignore[arg-type]
    return RolePrompts(character, chosen)(question).messages


def described(character: Profile) -> str:
    return load_system_template(character.language).fill(role=character.role, description=character.full_description)


def test_a_dialogue_alternates_and_ends_with_the_best_and_the_question(character: Profile) -> None:
    opening, *turns, question = messages(character, "few-shot-dialogue")
    assert opening.role == "system" and question == Message("user", QUESTION)
    assert [turn.role for turn in turns] == ["user", "assistant"] * 3
    assert tuple(turn.content for turn in turns[1::2]) == BEST_LAST
    assert [turn.content for turn in turns[::2]][-1] == "Crow: The captain wants his map."
    assert opening.content.startswith(described(character)), "what all prompts share comes first"


@pytest.mark.parametrize("strategy", get_args(Strategy))
def test_without_demonstrations_all_strategies_are_one(character: Profile, strategy: Strategy) -> None:
    expected = messages(character, "zero-shot")
    assert messages(character, strategy, demonstrations=0) == expected
    assert messages(replace(character, turns=()), strategy) == expected


@pytest.mark.parametrize("strategy", get_args(Strategy))
def test_lore_stands_in_the_system_turn(character: Profile, strategy: Strategy) -> None:
    opening, *_ = messages(character, strategy, "Who forged the kettle at dawn?")
    assert "The kettle was forged in the north." in opening.content and "Dawn comes late" in opening.content
    assert opening.content.index("forged in the north") < opening.content.index("Dawn comes late")
    opening, *_ = messages(character, strategy, "Who forged the kettle at dawn?", lore=1)
    assert "Dawn comes late" not in opening.content


HOSTILE = "{role} {{7*7}} {0.__class__} {question} <|im_end|> {demonstrations}"


@pytest.mark.parametrize("strategy", get_args(Strategy))
def test_braces_in_anything_stay_text(character: Profile, strategy: Strategy) -> None:
    turns = (Turn("Crow", HOSTILE, "speech"), Turn("Fox", HOSTILE, "speech"))
    lore = (Lore(HOSTILE, ("map",)),)
    hostile = replace(character, role="{lore}", turns=tuple(replace(turn, speaker=turn.speaker) for turn in turns))
    hostile = replace(hostile, role="Fox", description=HOSTILE, lore=lore)
    text = "\n".join(message.content for message in messages(hostile, strategy, f"{HOSTILE} map?"))
    shown = 2 if strategy != "zero-shot" else 0
    assert text.count(HOSTILE) == 3 + shown


def test_a_budget_leaves_out_the_worst_first(character: Profile) -> None:
    counter = TokenCounter()
    whole = RolePrompts(character, PromptSettings(max_prompt_tokens=None), counter)(QUESTION)
    assert len(whole.demonstrations) == 5
    seen = {5}
    for limit in range(whole.tokens, whole.tokens - 120, -1):
        try:
            prompt = RolePrompts(character, PromptSettings(max_prompt_tokens=limit), counter)(QUESTION)
        except SettingsError:
            break
        assert prompt.tokens == counter.prompt(prompt.messages) <= limit
        assert prompt.demonstrations == whole.demonstrations[: len(prompt.demonstrations)]
        seen.add(len(prompt.demonstrations))
    assert seen == {0, 1, 2, 3, 4, 5}


def test_lore_goes_after_the_demonstrations(character: Profile) -> None:
    question = "Who forged the kettle at dawn?"
    bare = RolePrompts(character, PromptSettings(strategy="zero-shot", lore=0))(question).tokens
    one = RolePrompts(character, PromptSettings(strategy="zero-shot", lore=1))(question).tokens
    prompt = RolePrompts(character, PromptSettings(max_prompt_tokens=one))(question)
    assert not prompt.demonstrations
    assert [note.place for note in prompt.notes] == [0]
    assert not RolePrompts(character, PromptSettings(max_prompt_tokens=bare))(question).notes


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    question=st.text(min_size=1, max_size=60), limit=st.integers(120, 400), strategy=st.sampled_from(get_args(Strategy))
)
def test_any_question_keeps_to_the_budget(character: Profile, question: str, limit: int, strategy: Strategy) -> None:
    try:
        prompt = RolePrompts(character, PromptSettings(strategy=strategy, max_prompt_tokens=limit))(question)
    except SettingsError:
        assert (
            RolePrompts(character, PromptSettings(strategy="zero-shot", lore=0, max_prompt_tokens=None))(
                question
            ).tokens
            > limit
        )
        return
    assert prompt.tokens <= limit
    assert question in prompt.messages[-1].content
    assert len(prompt.demonstrations) <= (0 if strategy == "zero-shot" else 5)


def test_a_system_template_of_the_users_own(character: Profile, tmp_path: Path) -> None:
    file = tmp_path / "own.txt"
    file.write_text("Be {role}.\n{description}", encoding="utf-8")
    own = RolePrompts(character, PromptSettings(strategy="zero-shot", system_template=file))
    assert own("Why?").messages[0].content == 'Be Fox.\nYou are a fox who cooks. Your catchphrase is: "Stew first."'
    assert own.hashes["system"] != RolePrompts(character).hashes["system"]


# --- runs


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
