"""The prompts of the three strategies, and what a token budget leaves out of them."""

from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rolellm.characters.role_prompts import RolePrompts
from rolellm.characters.settings import PromptSettings, Strategy
from rolellm.core.errors import SettingsError
from rolellm.core.records import Lore, Profile, Turn
from rolellm.llm.model import Message
from rolellm.llm.tokens import TokenCounter
from rolellm.models.prompts.render import load_system_template

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
