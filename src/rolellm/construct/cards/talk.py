"""A character's turns as the fields of a card that hold talk: scenario, greetings and example talk."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from rolellm.construct.cards.card import Card
from rolellm.construct.cards.convert import FIRST, Reading
from rolellm.construct.cards.examples import Names, block_of, joined
from rolellm.construct.character import Character
from rolellm.prompts.retrieval import exchanges
from rolellm.records import Profile, Turn

#: How much new example talk is written into a card, in characters, and the longest scene that is taken whole, in turns;
#: our choice: applications put all of it into each prompt.
EXAMPLES = 6_000
WHOLE_SCENE = 12


def new_examples(character: Character, names: Names) -> tuple[str, int]:
    """The first scenes of a character as ``mes_example``, within `EXAMPLES`; and how many of its lines are in them."""
    texts, lines = _within_budget(_by_scene(character.turns).values(), character, names)
    return joined(texts), lines


def talk_changes(character: Character, card: Card, reading: Reading) -> tuple[dict[str, Any], list[str]]:
    """The fields of the card that its character's turns no longer agree with, and what a user should know.

    A greeting follows its scene, as long as that holds one line of the role and no other. A block of example talk whose
    scene is as it was stays as it was, placeholders included; scenes that are new come within a budget.
    """
    was = _by_scene(reading.character.turns)
    now = _by_scene(_own(character, reading.names.role))
    if _said(was) == _said(now):
        return {}, []
    changes: dict[str, Any] = {}
    greetings = list(card.alternate_greetings)
    rest = dict(now)
    opening = min(was, default=0)
    for scene in [*reading.greetings, *([opening] if opening not in reading.examples else [])]:
        told, said = _greeting(rest.get(scene, []), reading.names.role)
        if scene not in now or not (told or said) or (scene in reading.greetings) != bool(said):
            continue
        del rest[scene]
        if scene == opening and told != _greeting(was[scene], reading.names.role)[0]:
            changes["scenario"] = told
        if said != _greeting(was[scene], reading.names.role)[1]:
            place = reading.greetings[scene]
            if place == FIRST:
                changes["first_mes"] = said
            else:
                greetings[place] = said
    if tuple(greetings) != card.alternate_greetings:
        changes["alternate_greetings"] = greetings
    examples, notes = _examples(rest, was, character, reading)
    return changes | examples, notes


def _examples(
    rest: dict[int, list[Turn]], was: dict[int, list[Turn]], character: Character, reading: Reading
) -> tuple[dict[str, Any], list[str]]:
    rest = {scene: turns for scene, turns in rest.items() if scene not in reading.greetings or turns != was[scene]}
    if list(rest) == list(reading.examples) and all(_same(rest[scene], was[scene]) for scene in rest):
        return {}, []
    texts: list[str] = []
    new: list[list[Turn]] = []
    for scene, turns in rest.items():
        if scene not in reading.examples:
            new.append(turns)
        else:
            same = _same(turns, was[scene])
            texts.append(reading.examples[scene] if same else block_of(turns, reading.names))
    owner = replace(character, role=reading.names.role)
    more, lines = _within_budget(new, owner, reading.names)
    note = f"{lines:,} lines of scenes that the card did not have came into its mes_example"
    return {"mes_example": joined([*texts, *more])}, [note] if new else []


def _within_budget(scenes: Iterable[list[Turn]], character: Character, names: Names) -> tuple[list[str], int]:
    texts: list[str] = []
    left, lines = EXAMPLES, 0
    for turns in scenes:
        profile = Profile(character.role, character.language, tuple(turns))
        if not any(profile.owns(turn) for turn in turns):
            continue
        parts: Sequence[Sequence[Turn]] = [turns]
        if len(turns) > WHOLE_SCENE:
            parts = [(exchange.before, exchange.line) for exchange in exchanges(profile)]
        for part in parts:
            text = block_of(part, names)
            if len(text) <= left:
                texts.append(text)
                left -= len(text)
                lines += sum(profile.owns(turn) for turn in part)
    return texts, lines


def _greeting(turns: Sequence[Turn], role: str) -> tuple[str, str]:
    """What is told before a greeting, and the greeting; both empty where the scene is something else."""
    told = [turn.content for turn in turns if turn.kind == "narration"]
    said = [turn.content for turn in turns if turn.kind == "speech" and turn.speaker == role]
    if len(told) + len(said) != len(turns) or len(told) > 1 or len(said) > 1:
        return "", ""
    return "".join(told), "".join(said)


def _own(character: Character, role: str) -> list[Turn]:
    """The turns with the role under the name it had in the card, in case it was given another since."""
    return [replace(turn, speaker=role) if turn.speaker == character.role else turn for turn in character.turns]


def _by_scene(turns: Iterable[Turn]) -> dict[int, list[Turn]]:
    found: dict[int, list[Turn]] = {}
    for scene, group in groupby(turns, key=lambda turn: turn.scene):
        found.setdefault(scene, []).extend(group)
    return found


def _said(scenes: dict[int, list[Turn]]) -> dict[int, list[tuple[str, str, str]]]:
    return {scene: [(turn.speaker, turn.content, turn.kind) for turn in turns] for scene, turns in scenes.items()}


def _same(turns: list[Turn], others: list[Turn]) -> bool:
    return _said({0: turns}) == _said({0: others})
