"""The audit of rewards before training."""

from typing import Any

import numpy as np
import pytest

from rolellm import rewards
from rolellm.core.errors import RecipeError
from rolellm.core.records import Row
from rolellm.training.rewards import (
    CANARIES,
    OWN,
    PAIRS,
    TOGETHER,
    RivalMaker,
    audit_rewards,
    check_rewards,
    find_beaten,
)

QUESTIONS = ["Where is the lantern kept?", "Who painted the harbor wall?", "What grows behind the chapel?"]
ROWS = [
    Row(
        f"{role}-{at}",
        role,
        "en",
        "general",
        question,
        (
            f"{call}, traveler, the answer number {at} is under the wooden staircase.",
            f"{call}! Beneath the wooden staircase, friend, number {at}.",
        ),
        raw_reference=f"It is under the staircase, number {at}.",
    )
    for role, call in (("Mara", "Ahoy"), ("Ada", "Zounds"))
    for at, question in enumerate(QUESTIONS)
]


def test_each_row_has_its_own_reply_and_all_rivals() -> None:
    for group in map(RivalMaker(ROWS).make_group, ROWS):
        assert [candidate.kind for candidate in group] == [OWN, *CANARIES, *PAIRS]
        own = group[0]
        assert own.text not in own.row.references
        texts = {candidate.kind: candidate.text for candidate in group}
        assert not set(texts["stuffing"].split()) & {"the", "is"}
        assert ("Zounds" in texts["other_role"]) is (own.row.role == "Mara")
        assert texts["damaged"] != own.text
        assert len(texts["long"]) > 5 * len(own.text)


def test_a_row_with_one_reference_is_compared_with_rolegpt() -> None:
    row = Row("a", "Mara", "en", "role_specific", "Who?", ("The keeper of the light.",), rolegpt="I, the keeper.")
    group = RivalMaker(ROWS).make_group(row)
    assert (group[0].kind, group[0].text, group[0].row.references) == (OWN, "I, the keeper.", row.references)


def constant(completions: list[Any], **_: Any) -> list[float]:
    return [1.0] * len(completions)


@pytest.mark.parametrize(
    ("reward", "beaten"),
    [
        pytest.param(rewards.length, ["empty", "plain"], id="length"),
        pytest.param(constant, list(CANARIES), id="constant"),
        pytest.param(rewards.in_character, ["null_model", "plain", "off_topic"], id="ties"),
    ],
)
def test_a_hackable_reward_is_caught(reward: Any, beaten: list[str]) -> None:
    audit = audit_rewards({"reward": reward}, ROWS, 64)
    assert set(beaten) <= set(find_beaten(audit))
    with pytest.raises(RecipeError, match=r"reward can be had without a good reply.*in 6 of 6 rows"):
        check_rewards({"reward": reward}, ROWS, None)


def test_rewards_together_are_what_trl_makes_of_them() -> None:
    functions = {"rouge": rewards.rouge, "length": rewards.length}
    audit = audit_rewards(functions, ROWS, 64, [1.0, 0.0])
    assert audit.decisive == TOGETHER
    for kind in CANARIES:
        assert audit.compare(TOGETHER, kind) == audit.compare("rouge", kind)
    both = audit_rewards(functions, ROWS, 64)
    for at, values in enumerate(both.rewards[TOGETHER]):
        parts = [both.rewards[name][at] for name in functions]
        wanted = sum((part - part.mean()) / (part.std(ddof=1) + 1e-4) for part in parts)
        np.testing.assert_allclose(values, wanted)


def test_an_async_reward_is_awaited_and_none_does_not_count() -> None:
    async def reward(completions: list[Any], **_: Any) -> list[float | None]:
        return [1.0 if "number" in message[-1]["content"] else None for message in completions]

    audit = audit_rewards({"reward": reward}, ROWS, 64)
    assert (audit.compare("reward", "empty"), audit.compare("reward", "plain")) == ([], [0.5] * 6)
