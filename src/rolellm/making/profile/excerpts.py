"""The part of a script that a model is shown to describe a role."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from rolellm.core.records import Profile, Turn
from rolellm.llm.tokens import TokenCounter
from rolellm.making.profile.portrait import find_role_name
from rolellm.models.prompts.render import format_turn

_OF_OTHERS: Final = 0.25
_NARRATED: Final = 0.15
# After this many misses in a row, no room is left worth looking for.
_MISSES: Final = 50
_LEAST: Final = 8


@dataclass(frozen=True, slots=True)
class Excerpts:
    """The part of a script that a model is shown.

    Attributes:
        text: The turns in the order of the script, an empty line where some were left out.
        own: How many of the role's lines there are in it.
        of_others: How many of what others say: to the role right before its lines, or of it.
        narrated: How many turns of narration.
        tokens: Of the text.
    """

    text: str
    own: int
    of_others: int
    narrated: int
    tokens: int


def choose_excerpts(
    character: Profile, names: re.Pattern[str], budget: int = 6000, counter: TokenCounter | None = None
) -> Excerpts:
    """Choose the excerpts, spread over the script; the same for the same script.

    Args:
        character: Whose script.
        names: The role's.
        budget: Tokens that they may have in all.
        counter: Counts tokens; by default an estimate.
    """
    turns, count = character.turns, (counter or TokenCounter()).count
    own = [index for index, turn in enumerate(turns) if character.owns(turn)]
    mine = frozenset(own)
    naming = [index for index, turn in enumerate(turns) if index not in mine and find_role_name(names, turn.content)]
    spoken = [index for index in naming if turns[index].kind == "speech"]
    narrated = [index for index in naming if turns[index].kind != "speech"]
    chosen: set[int] = set()

    def count_cost(indices: Iterable[int]) -> int:
        return sum(count(format_turn(turns[index], character.language) + "\n\n") + 1 for index in indices)

    def take(passages: Iterable[Sequence[int]], room: int) -> int:
        """Take the passages that fit, as they come; return what is left of the room."""
        misses = 0
        for passage in passages:
            if room < _LEAST or misses > _MISSES:
                break
            fresh = [index for index in passage if index not in chosen]
            added = count_cost(fresh)
            misses = misses + 1 if added > room else 0
            if added <= room:
                room -= added
                chosen.update(fresh)
        return room

    remaining = take(([index] for index in _spread(spoken)), int(budget * _OF_OTHERS))
    take(([index] for index in _spread(narrated)), int(budget * _NARRATED) + remaining)
    room = take((_add_cue(turns, index, mine) for index in _spread(own)), budget - count_cost(chosen))
    take(([index] for index in _spread([*spoken, *narrated])), room)
    ordered = sorted(chosen)
    lines: list[str] = []
    for before, index in zip([None, *ordered], ordered, strict=False):
        if before is not None and (index != before + 1 or turns[index].scene != turns[before].scene):
            lines.append("")
        lines.append(format_turn(turns[index], character.language))
    text = "\n".join(lines)
    kinds = [turns[index].kind == "speech" for index in ordered if index not in mine]
    return Excerpts(text, len(mine & chosen), sum(kinds), len(kinds) - sum(kinds), count(text))


def _add_cue(turns: Sequence[Turn], index: int, own: frozenset[int]) -> list[int]:
    """Return a line of the role's, with what someone else says right before it."""
    before = index - 1
    if before < 0 or before in own or turns[before].kind != "speech" or turns[before].scene != turns[index].scene:
        return [index]
    return [before, index]


def _spread(indices: Sequence[int]) -> list[int]:
    """Order the indices so that every beginning is spread over the script; the same for the same script."""
    return random.Random(len(indices)).sample(indices, len(indices))
