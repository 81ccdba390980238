"""Characters of our own, small enough to reckon with by hand, and a client over a scripted model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rolellm.construct.sheet import Lore, Sheet
from rolellm.core.records import Turn
from rolellm.llm.client import Client
from rolellm.llm.model import Request, RunOptions
from rolellm.llm.scripted import ScriptedModel

PAIRS = (
    ("Where is the stew?", "In the kettle, you rat."),
    ("The captain wants his map.", "His map? I ate his map."),
    ("Who has the key?", "The parrot has the key."),
    ("Shall we sail at dawn?", "We sail when the stew is done."),
    ("What does the parrot say?", "The parrot says nothing."),
    ("Is it raining?", "Rain is for landsmen."),
)


def fox() -> Sheet:
    turns: list[Turn] = []
    for scene, (before, line) in enumerate(PAIRS):
        turns += [Turn("Crow", before, "speech", scene, 100 * scene, 100 * scene + 20)]
        turns += [Turn("Fox", line, "speech", scene, 100 * scene + 30, 100 * scene + 60)]
    return Sheet(
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
def character() -> Sheet:
    return fox()


@pytest.fixture
def chinese() -> Sheet:
    turns = (
        Turn("主公", "雾里看得见什么？", "speech", 0),
        Turn("军师", "看得见一驾驴车。", "speech", 0),
        Turn("主公", "磨坊有多远？", "speech", 1),
        Turn("军师", "磨坊就在河边。", "speech", 1),
    )
    lore = (Lore("郭翁种了五十年的田。", ("郭翁", "老农")), Lore("河水在九月最浅。"))
    return replace(fox(), role="军师", language="zh", turns=turns, description="你是军师。", catchphrases=(), lore=lore)


OpenClient = Callable[..., Client]


@pytest.fixture
def open_client(tmp_path: Path) -> OpenClient:
    def make(answer: Callable[[Request], Any], *, rules_hash: str = "1", **options: Any) -> Client:
        model = ScriptedModel(answer, rules_hash=rules_hash)
        return Client(tmp_path / "run", [model], RunOptions(show_progress=False, **options))

    return make
