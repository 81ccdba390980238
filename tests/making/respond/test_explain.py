"""Why a prompt shows what it shows; nobody is asked."""

from typing import get_args

import pytest

from rolellm.characters.role_prompts import RolePrompts
from rolellm.characters.settings import PromptSettings, Strategy
from rolellm.core.records import Profile
from rolellm.making.respond import explain

QUESTION = "Parrot, who has the captain's map, and is the kettle full?"


@pytest.mark.parametrize("strategy", get_args(Strategy))
def test_what_is_picked_why_and_for_how_much(character: Profile, strategy: Strategy) -> None:
    prompts = RolePrompts(character, PromptSettings(strategy=strategy))
    found = explain(prompts, QUESTION)
    prompt = prompts(QUESTION)
    assert found["question"] == QUESTION and found["tokens"] == prompt.tokens and not found["exact"]
    shown = [line for line in found["lines"] if line["kind"] == "demonstration"]
    assert [(line["text"], line["shared"]) for line in shown] == [
        (item.text, item.shared) for item in prompt.demonstrations
    ]
    lore = [line for line in found["lines"] if line["kind"] == "lore"]
    assert [(line["by"], line["shared"], line["before"]) for line in lore] == [("key", ("kettle",), "Kettle")]
    # An estimate rounds each message by itself; what is above the base is what the lines add.
    assert found["base"] + sum(line["tokens"] for line in found["lines"]) == pytest.approx(found["tokens"], abs=8)
    assert all(line["tokens"] > 0 and line["shown"] for line in found["lines"])
