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


def choose_excerpts(character: Profile, names: re.Pattern[str], budget: int, counter: TokenCounter) -> tuple[str, int]:
    """Choose the excerpts, spread over the script; the same for the same script.

    Args:
        character: Whose script.
        names: The role's.
        budget: Tokens that they may have in all.
        counter: Counts tokens.

    Returns:
        The turns as text, in the order of the script, with an empty line where some were left out; and how many of them
        are the role's.
    """
    turns = character.turns
    count = counter.count
    lines = [format_turn(turn, character.language) for turn in turns]
    costs = [count(f"{line}\n\n") + 1 for line in lines]
    own = {index for index, turn in enumerate(turns) if character.owns(turn)}
    mentions: list[list[int]] = []
    for index, turn in enumerate(turns):
        if index not in own and find_role_name(names, turn.content):
            mentions.append([index])
    cued = [_add_cue(turns, index, own) for index in sorted(own)]
    chosen: set[int] = set()
    _take_passages(mentions, int(budget * _OF_OTHERS), costs, chosen)
    _take_passages(cued, budget, costs, chosen)
    _take_passages(mentions, budget, costs, chosen)
    excerpts: list[str] = []
    for index in sorted(chosen):
        is_same_scene = turns[index].scene == turns[index - 1].scene
        is_next = is_same_scene and index - 1 in chosen
        if excerpts and not is_next:
            excerpts.append("")
        excerpts.append(lines[index])
    return "\n".join(excerpts), len(own & chosen)


def _take_passages(passages: Sequence[Sequence[int]], budget: int, costs: Sequence[int], chosen: set[int]) -> None:
    """Add the passages that fit, in a random order, so that they come from all over the script."""
    room = budget - sum(costs[index] for index in chosen)
    for passage in random.Random(len(passages)).sample(passages, len(passages)):
        fresh = [index for index in passage if index not in chosen]
        cost = sum(costs[index] for index in fresh)
        if cost <= room:
            room -= cost
            chosen.update(fresh)


def _add_cue(turns: Sequence[Turn], index: int, own: set[int]) -> list[int]:
    """Return a line of the role's, with what someone else says right before it."""
    before = index - 1
    if before < 0 or before in own:
        return [index]
    cue = turns[before]
    if cue.kind != "speech" or cue.scene != turns[index].scene:
        return [index]
    return [before, index]
