"""Casts that a judge of scenes must find bad: parrots, and characters with each other's profiles."""

from __future__ import annotations

from dataclasses import replace

from rolellm.llm.model import Request
from rolellm.scenes.scene import Scene


def repeat_last_line(request: Request) -> str:
    """Answer with the last line that the character saw, without the speaker's name."""
    last = request.messages[-1].content.split("\n\n")[-1]
    name, separator, line = last.partition(": ")
    return line if separator and "\n" not in name else last


def swap_profiles(scene: Scene) -> Scene:
    """Give each character the description and the motivation of the next one."""
    characters = []
    others = (*scene.characters[1:], *scene.characters[:1])
    for character, other in zip(scene.characters, others, strict=True):
        swapped = replace(character, card=other.card, description=other.description, motivation=other.motivation)
        characters.append(swapped)
    return replace(scene, characters=tuple(characters))
