"""What the stages refuse, and what the error says of it."""

from collections.abc import Callable
from pathlib import Path

import pytest
from datasets import Dataset

from rolellm.characters.role_prompts import RolePrompts
from rolellm.characters.scripts.parse import read_script
from rolellm.characters.scripts.source import make_source
from rolellm.characters.settings import PromptSettings
from rolellm.core.errors import RoleLLMError
from rolellm.core.records import Profile, Turn
from rolellm.data.rolebench.source import sample_folder
from rolellm.llm.llm import LLM
from rolellm.llm.model import Request, system, user
from rolellm.making.attribution import Attribute
from rolellm.making.character import Character
from rolellm.making.instruct.run import read_questions
from rolellm.making.profile.build import BuildProfile
from rolellm.making.profile.start import start_sheet
from rolellm.making.respond import read_instructions
from rolellm.making.scripted import generate_scripted_reply, scripted_model
from rolellm.making.settings import BuildSettings, RespondSettings
from rolellm.runs import Step, run_step

FOX = Profile("Fox", "en", description="You are a fox who cooks.")
QUESTION = (system("You are she."), user("What is rain?"))
SCRIPT = sample_folder() / "scripts" / "Queen of Hearts.txt"
PLAY = "JOHN: Hi.\nMARY: Ho.\nJOHN: Hum.\n"
SPEAKERS = [Turn(f"P{number}", "X") for number in range(20)]


def run(step: Step[object]) -> Callable[[Path], object]:
    return lambda folder: run_step(step, LLM.of(scripted_model()), folder)


def ask(text: str) -> Callable[[Path], object]:
    """Read instructions from a file with this text."""

    def read(folder: Path) -> object:
        (folder / "asked.jsonl").write_text(text, encoding="utf-8")
        return read_instructions(folder / "asked.jsonl", FOX)

    return read


def scripted(tag: str) -> Callable[[Path], object]:
    return lambda _: generate_scripted_reply(Request(QUESTION, tag=tag))


def read_pair(folder: Path) -> object:
    (folder / "kept.jsonl").write_text('{"id": "a", "question": " ", "answer": "A."}', encoding="utf-8")
    return read_questions(folder)


def read_dialogue(folder: Path) -> object:
    (folder / "d.jsonl").write_text('{"role": "Ada", "text": "Nine."}', encoding="utf-8")
    return start_sheet(folder / "d.jsonl", "Ada")


CASES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a blank description": (lambda _: BuildSettings(description=" \n"), "is empty"),
    "six replies without chance": (lambda _: RespondSettings(temperature=0), "the same reply 6 times"),
    "no instructions": (ask(""), "no rows in it"),
    "no instruction in a line": (ask('{"ask": "x"}'), r":1: expected a text `instruction` .*keys: ask"),
    "an object": (ask('{"instruction": "a"}\n{"question": {}}'), ":2: expected a text `question`, found {}"),
    "another role": (ask('{"question": "a", "role": "Owl"}'), "is for 'Owl', and the profile is 'Fox'"),
    "half a pair": (ask('{"instruction": "a \\ud800"}'), r":1: half a surrogate pair \(U\+D800\)"),
    "no file of instructions": (lambda folder: read_instructions(folder / "none.jsonl", FOX), "no such file; "),
    "a data set": (lambda _: read_instructions(Dataset.from_dict({"text": ["Why?"]}), FOX), r"keys: text"),
    "no dialogue": (lambda folder: start_sheet(folder / "no.jsonl", "Ada"), "rolellm role parse"),
    "not a dialogue": (read_dialogue, r"d\.jsonl:1: .*turns were expected"),
    "a role that never speaks": (lambda _: start_sheet(SPEAKERS, "Ada"), r"who does: P0 \(1\), .* and 12 more"),
    "nothing to describe": (run(BuildProfile(Profile("Ada", "en"))), "nothing to describe Ada from"),
    "a play": (run(Attribute(read_script(make_source(PLAY)), ("John",))), "read as transcript, which names its"),
    "not a pair": (read_pair, "kept.jsonl:1: the pair is not valid at"),
    "another command's request": (scripted("judge/1"), "cannot answer 'judge/1'"),
    "an unknown setting": (lambda _: Character("Fox", "en").instruct(scripted_model(), per_rol=3), "mean per_role"),
    "another role than the script's": (lambda _: Character.from_script(SCRIPT, role="Queen of Spades"), "of Spades"),
    "an empty folder": (Character.load, r"profile\.json"),
    "a long question": (
        lambda _: RolePrompts(FOX, PromptSettings(max_prompt_tokens=20))("Who has the captain's map?"),
        r"\d+ tokens without any demonstration, and at most 20 .*max_prompt",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_refused_is_named(name: str, tmp_path: Path) -> None:
    call, message = CASES[name]
    with pytest.raises(RoleLLMError, match=message):
        call(tmp_path)
