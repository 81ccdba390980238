"""Characters of our own, small enough to reckon with by hand, and a client over a scripted model."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from rolellm.core.records import Lore, Profile, Turn
from rolellm.llm.llm import LLM
from rolellm.llm.model import Model, Request, RunOptions
from rolellm.llm.scripted import ScriptedModel

PAIRS = (
    ("Where is the stew?", "In the kettle, you rat."),
    ("The captain wants his map.", "His map? I ate his map."),
    ("Who has the key?", "The parrot has the key."),
    ("Shall we sail at dawn?", "We sail when the stew is done."),
    ("What does the parrot say?", "The parrot says nothing."),
    ("Is it raining?", "Rain is for landsmen."),
)


def fox() -> Profile:
    turns: list[Turn] = []
    for scene, (before, line) in enumerate(PAIRS):
        turns += [Turn("Crow", before, "speech", scene, 100 * scene, 100 * scene + 20)]
        turns += [Turn("Fox", line, "speech", scene, 100 * scene + 30, 100 * scene + 60)]
    return Profile(
        role="Fox",
        language="en",
        turns=tuple(turns),
        description="You are a fox who cooks.",
        catchphrases=("Stew first.",),
        lore=(
            Lore("The kettle was forged in the north.", ("kettle", "iron pot"), "Kettle"),
            Lore("Dawn comes late at the cape.", (), "Dawn"),
            Lore("Art is forbidden aboard.", ("art",), "Art"),
        ),
    )


@pytest.fixture
def character() -> Profile:
    return fox()


@pytest.fixture
def chinese() -> Profile:
    turns = (
        Turn("主公", "雾里看得见什么？", "speech", 0),
        Turn("军师", "看得见一驾驴车。", "speech", 0),
        Turn("主公", "磨坊有多远？", "speech", 1),
        Turn("军师", "磨坊就在河边。", "speech", 1),
    )
    lore = (Lore("郭翁种了五十年的田。", ("郭翁", "老农")), Lore("河水在九月最浅。"))
    return replace(fox(), role="军师", language="zh", turns=turns, description="你是军师。", catchphrases=(), lore=lore)


def make_llm(answer: Callable[[Request], Any] | Model, *, rules_hash: str = "1", **options: Any) -> LLM:
    llm = LLM.of(answer if isinstance(answer, Model) else ScriptedModel(answer, rules_hash=rules_hash))
    llm.options = RunOptions(show_progress=False, **options)
    return llm
