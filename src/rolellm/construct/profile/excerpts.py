"""Excerpts of a script for whoever is to describe a role: chosen by rule, within a budget of tokens.

What is chosen, how it is shared out and in which order are our choice; the paper (arXiv 2310.00746) does not say. A
quarter of the budget goes to what others say of the role, three twentieths to narration that names it, the rest to its
own lines, each after what it answers. What one kind leaves goes to the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rolellm.construct.character import Character
from rolellm.construct.profile.naming import Names
from rolellm.llm.tokens import TokenCounter
from rolellm.prompts.script import LONGEST, script_line
from rolellm.records import Turn

#: Tokens of a script that a model is shown, by default.
EXCERPT_TOKENS: Final = 6000
_OF_OTHERS: Final = 0.25
_NARRATED: Final = 0.15
# A scene of a novel may be a whole book; no part of it should be passed over.
_LONGEST_SCENE: Final = 40
# So many that do not fit in a row, and there is no room left worth looking for.
_MISSES: Final = 50
_LEAST: Final = 8


@dataclass(frozen=True, slots=True)
class Excerpts:
    """What a model is shown of a script.

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

    def to_dict(self) -> dict[str, Any]:
        """The counts, for the manifest."""
        return {"own": self.own, "of_others": self.of_others, "narrated": self.narrated, "tokens": self.tokens}


def choose_excerpts(
    character: Character, names: Names, budget: int = EXCERPT_TOKENS, counter: TokenCounter | None = None
) -> Excerpts:
    """Choose the excerpts: spread over the scenes, in each the fullest turns first; the same for the same script.

    Args:
        character: Whose script.
        names: The role's.
        budget: Tokens that they may have in all.
        counter: Counts tokens; by default an estimate.
    """
    turns, count = character.turns, (counter or TokenCounter()).count
    profile = character.profile()
    own = [place for place, turn in enumerate(turns) if profile.owns(turn)]
    mine = frozenset(own)
    naming = [place for place, turn in enumerate(turns) if place not in mine and names.find(turn.content)]
    said = [place for place in naming if turns[place].kind == "speech"]
    told = [place for place in naming if turns[place].kind != "speech"]
    chosen = _Chosen(turns, lambda turn: count(script_line(turn, character.language) + "\n\n") + 1)
    left = chosen.take(([place] for place in _spread(turns, said)), int(budget * _OF_OTHERS))
    left = chosen.take(([place] for place in _spread(turns, told)), int(budget * _NARRATED) + left)
    room = budget - chosen.tokens
    room = chosen.take((_answered(turns, place, mine) for place in _spread(turns, own)), room)
    chosen.take(([place] for place in _spread(turns, [*said, *told])), room)
    shown = sorted(chosen.places)
    lines: list[str] = []
    for index, place in enumerate(shown):
        if index and (place != shown[index - 1] + 1 or turns[place].scene != turns[place - 1].scene):
            lines.append("")
        lines.append(script_line(turns[place], character.language))
    text = "\n".join(lines)
    kinds = [turns[place].kind == "speech" for place in shown if place not in mine]
    return Excerpts(text, len(mine & chosen.places), sum(kinds), len(kinds) - sum(kinds), count(text))


class _Chosen:
    """The places of turns that were taken, and what they cost."""

    def __init__(self, turns: Sequence[Turn], cost: Callable[[Turn], int]) -> None:
        self.places: set[int] = set()
        self.tokens = 0
        self._turns = turns
        self._cost = cost

    def take(self, passages: Iterable[Sequence[int]], room: int) -> int:
        """Take the passages that fit, as they come; return what is left of the room."""
        misses = 0
        for passage in passages:
            if room < _LEAST or misses > _MISSES:
                break
            fresh = [place for place in passage if place not in self.places]
            cost = sum(self._cost(self._turns[place]) for place in fresh)
            if cost > room:
                misses += 1
                continue
            misses = 0
            room -= cost
            self.tokens += cost
            self.places.update(fresh)
        return room


def _answered(turns: Sequence[Turn], place: int, own: frozenset[int]) -> list[int]:
    """A line of the role's, with what someone else says right before it."""
    before = place - 1
    if before < 0 or before in own or turns[before].kind != "speech" or turns[before].scene != turns[place].scene:
        return [place]
    return [before, place]


def _spread(turns: Sequence[Turn], places: Sequence[int]) -> Iterator[int]:
    """The places in an order of which every beginning is spread over the scenes."""
    scenes: dict[tuple[int, int], list[int]] = {}
    first: dict[int, int] = {}
    for place in sorted(places):
        scene = turns[place].scene
        block = (place - first.setdefault(scene, place)) // _LONGEST_SCENE
        scenes.setdefault((scene, block), []).append(place)
    groups = [sorted(group, key=lambda place: -min(len(turns[place].content), LONGEST)) for group in scenes.values()]
    order = _far_apart(len(groups))
    for depth in range(max(map(len, groups), default=0)):
        yield from (groups[index][depth] for index in order if depth < len(groups[index]))


def _far_apart(count: int) -> list[int]:
    """The numbers below `count` by their bits read backwards: first, middle, quarters, eighths, and so on."""
    width = max(count - 1, 1).bit_length()
    return sorted(range(count), key=lambda number: int(format(number, f"0{width}b")[::-1], 2))
