"""The part of a script that a model is shown to describe a role."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import Final

from rolellm.core.records import Profile, Turn
from rolellm.llm.tokens import TokenCounter
from rolellm.making.profile.portrait import find_role_name
from rolellm.models.prompts.render import format_turn

#: Share of the budget for what others and the narrator say of the role (our choice).
_OF_OTHERS: Final = 0.4


def choose_excerpts(
    character: Profile, names: re.Pattern[str], budget: int = 6000, counter: TokenCounter | None = None
) -> tuple[str, dict[str, int]]:
    """Choose the excerpts, spread over the script; the same for the same script.

    Args:
        character: Whose script.
        names: The role's.
        budget: Tokens that they may have in all.
        counter: Counts tokens; by default an estimate.

    Returns:
        The turns as text, in the order of the script, with an empty line where some were left out. And how many of them
        are the role's (``own``), how many others are right before those or of the role (``others``), and the
        ``tokens`` of the text.
    """
    turns, count = character.turns, (counter or TokenCounter()).count
    lines = [format_turn(turn, character.language) for turn in turns]
    costs = [count(f"{line}\n\n") + 1 for line in lines]
    own = {index for index, turn in enumerate(turns) if character.owns(turn)}
    chosen: set[int] = set()

    def take(passages: Sequence[Sequence[int]], most: int) -> None:
        """Take the passages that fit, in a random order, so that they come from all over the script."""
        room = most - sum(costs[index] for index in chosen)
        for passage in random.Random(len(passages)).sample(passages, len(passages)):
            fresh = [index for index in passage if index not in chosen]
            cost = sum(costs[index] for index in fresh)
            if cost <= room:
                room -= cost
                chosen.update(fresh)

    mentions = [[index] for index, turn in enumerate(turns) if index not in own and find_role_name(names, turn.content)]
    take(mentions, int(budget * _OF_OTHERS))
    take([_add_cue(turns, index, own) for index in sorted(own)], budget)
    take(mentions, budget)
    ordered = sorted(chosen)
    shown: list[str] = []
    for before, index in zip([None, *ordered], ordered, strict=False):
        if before is not None and (index != before + 1 or turns[index].scene != turns[before].scene):
            shown.append("")
        shown.append(lines[index])
    text = "\n".join(shown)
    return text, {"own": len(own & chosen), "others": len(chosen - own), "tokens": count(text)}


def _add_cue(turns: Sequence[Turn], index: int, own: set[int]) -> list[int]:
    """Return a line of the role's, with what someone else says right before it."""
    before = index - 1
    if before < 0 or before in own or turns[before].kind != "speech" or turns[before].scene != turns[index].scene:
        return [index]
    return [before, index]
