"""The front door: a character from script or card through all stages, resumable, and what the stages refuse."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset
from hypothesis import given, settings
from hypothesis import strategies as st

from rolellm.characters.cards.card import load_card
from rolellm.characters.role_prompts import RolePrompts
from rolellm.characters.scripts.parse import read_script
from rolellm.characters.scripts.source import make_source
from rolellm.characters.settings import PromptSettings
from rolellm.core.errors import RoleLLMError, RoleLLMWarning, SettingsError, StoppedShortError
from rolellm.core.records import Profile, Turn
from rolellm.data.rolebench import load_rolebench
from rolellm.data.rolebench.release import load_profiles
from rolellm.data.rolebench.source import sample_folder
from rolellm.llm.llm import LLM
from rolellm.llm.model import Price, Request, RunOptions, system, user
from rolellm.making.attribution import Attribute
from rolellm.making.character import Character
from rolellm.making.duplicates import find_repeats
from rolellm.making.instruct.run import Instruct, read_questions
from rolellm.making.profile.build import BuildProfile
from rolellm.making.profile.start import start_sheet
from rolellm.making.respond import read_instructions
from rolellm.making.scripted import generate_scripted_reply, scripted_model
from rolellm.making.settings import BuildSettings, InstructSettings, RespondSettings
from rolellm.runs import Step, run_step

QUEEN = "Queen of Hearts"
SCRIPT = sample_folder() / "scripts" / f"{QUEEN}.txt"
OWN = "You are quick to anger, you rule a pack of cards, and you order beheadings over every small thing."
SMALL = {"per_role": 10, "chunk_tokens": 300}


def offline(**options: Any) -> LLM:
    llm = LLM.of(scripted_model(price=Price(0.0, 1.0)))
    llm.options = RunOptions(show_progress=False, **options)
    return llm


@pytest.fixture(scope="module")
def queen(tmp_path_factory: pytest.TempPathFactory) -> Character:
    llm = offline()
    made = Character.from_script(SCRIPT, role=QUEEN).build(llm).instruct(llm, **SMALL)
    made = made.respond(llm, ["Who are you?", "What is a croquet ball?"], replies=2)
    return made.save(tmp_path_factory.mktemp("made") / "queen")


def test_a_script_becomes_rows_with_the_columns_of_rolebench(queen: Character) -> None:
    rows = queen.to_dataset(test_share=0.5)
    assert set(rows) == {"train", "test"}
    assert rows["train"].features == load_rolebench("sample", split="test").features
    assert {row["subset"] for split in rows.values() for row in split} == {"general", "role_specific"}
    assert {row["role"] for split in rows.values() for row in split} == {QUEEN}
    again = Character.load(str(queen.folder)).to_dataset(test_share=0.5)
    assert again["test"]["id"] == rows["test"]["id"]


def test_what_was_made_shows_itself(queen: Character) -> None:
    shown = queen.to_dict()
    assert shown["stages"] == {"build": "done", "instruct": "done", "respond": "done"}
    assert QUEEN in repr(queen)
    assert str(queen.folder) in repr(queen)
    assert "<table" in queen._repr_html_()
    assert "&lt;b&gt;" in Character("<b>", "en")._repr_html_()


def test_a_character_works_in_a_temporary_folder_until_it_is_saved(tmp_path: Path) -> None:
    made = Character.from_script(SCRIPT, role=QUEEN)
    assert made.folder is None
    built = made.build(description=OWN, catchphrases=0)
    assert built.folder is not None
    assert built.folder == made.folder
    built.save(tmp_path / "queen")
    assert built.folder == tmp_path / "queen"
    assert Character.load(tmp_path / "queen").description == OWN
    with pytest.raises(SettingsError, match="holds a character"):
        made.save(tmp_path / "queen")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    with pytest.raises(SettingsError, match="other files"):
        built.save(tmp_path / "other", overwrite=True)


def test_a_stage_that_stops_short_names_the_call_that_goes_on(tmp_path: Path) -> None:
    made = Character.from_script(SCRIPT, role=QUEEN).save(tmp_path / "queen")
    with pytest.raises(StoppedShortError, match=r"rolellm\.Character\.load\(.*queen'\)\.build\(llm\)"):
        made.build(offline(budget=0.0))
    assert Character.load(tmp_path / "queen").build(offline()).description


def test_a_card_goes_in_and_out(queen: Character, tmp_path: Path) -> None:
    with pytest.warns(RoleLLMWarning, match="first_mes is empty|lines") as told:
        card = queen.to_card(tmp_path / "queen.png")
    assert "mes_example has 11 of the role's 12 lines" in str(told[1].message)
    again = Character.from_card(card)
    assert again.role == QUEEN
    assert load_card(card).name == QUEEN


# --- refusals


FOX = Profile("Fox", "en", description="You are a fox who cooks.")
QUESTION = (system("You are she."), user("What is rain?"))
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


# --- the rules that answer


def test_filters_keep_what_says_something_new_and_each_has_something_to_do(tmp_path: Path) -> None:
    dropped: set[str | None] = set()
    for profile in load_profiles("sample"):
        character = Profile(profile.role, profile.language, profile.turns, description=profile.description)
        settings = InstructSettings(per_role=150, chunk_tokens=300)
        run = run_step(Instruct(character, settings), LLM.of(scripted_model()), tmp_path / profile.role)
        counts = run.summary["counts"]
        assert counts["distinct"] >= 60
        # The rules quote each line several times.
        assert counts["dropped"]["duplicate"] > 20
        assert counts["kept"] > 15
        assert min(counts["kept_by_type"].values()) >= 3
        by = {verdict.by for verdict in run.result.dropped}
        assert len(by) >= 2
        dropped |= by
    assert dropped == {"form", "confidence", "overlap", "duplicate"}


# --- duplicates


OTHERS = [
    f"Ada, tell me about the {thing} in the harbour." for thing in ("lamp", "crane", "fog", "bell", "gull", "rope")
]


def test_english() -> None:
    first, second = (f"Ada, what do you think {word} the lamps on the quay?" for word in ("of", "about"))
    assert find_repeats([first, *OTHERS, second], "en", 0.8)[7][0] == 0
    assert find_repeats(["Ada, who found the jam?", *OTHERS, "Ada, where did you hide the jam?"], "en", 0.8) == {}
    # A short one within a long one is another question.
    assert find_repeats([f"{first[:-1]} that a sailor painted white?", *OTHERS, first], "en", 0.8) == {}


WORDS = st.sampled_from(["ada", "bell", "crane", "dusk", "fog", "gull", "who", "what"])
QUESTIONS = st.lists(st.lists(WORDS, max_size=6).map(" ".join), max_size=12)


@settings(max_examples=30)
@given(QUESTIONS)
def test_kept_ones_are_first_of_their_like_and_repeats_point_at_kept_ones(questions: list[str]) -> None:
    found = find_repeats(questions, "en", 0.8)
    for place, (first, value) in found.items():
        assert first < place
        assert first not in found
        assert 0 < value <= 1
    kept = [question for place, question in enumerate(questions) if place not in found]
    assert len(kept) == len(set(kept))


def test_the_repeats_among_thousands_are_found() -> None:
    draw = random.Random(0)
    vocabulary = [f"word{number}" for number in range(3000)]
    questions = ["Ada, " + " ".join(draw.choices(vocabulary, k=12)) for _ in range(3000)]
    assert len(find_repeats([*questions, *questions[:100]], "en", 0.8)) == 100
