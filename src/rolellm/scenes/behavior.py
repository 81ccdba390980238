"""Two checks of a played scene by rule: who spoke for another, and who knew what it had not witnessed.

A scene's file plants secrets: words, and who knows them. A character that has them in a turn, and neither knew them nor
was there when somebody said them, has them from nowhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rolellm.core.text import fold
from rolellm.scenes.scene import ENVIRONMENT, Scene
from rolellm.scenes.utterance import strip_inner_thoughts
from rolellm.scenes.visibility import SceneTurn, list_witnessed


@dataclass(frozen=True, slots=True)
class Lapse:
    """A turn in which a character knew what it had not witnessed.

    Attributes:
        turn: The turn's number.
        name: The character.
        words: The secret's words.
    """

    turn: int
    name: str
    words: str


def find_lapses(scene: Scene, turns: Sequence[SceneTurn]) -> list[Lapse]:
    """Find the turns in which a character knew a secret that it could not know.

    Thoughts count: a character that thinks of a secret has it. Upper case and width do not matter.
    """
    lapses = []
    for secret in scene.secrets:
        words = fold(secret.words)
        for number, turn in enumerate(turns):
            if turn.speaker in (*secret.known_by, ENVIRONMENT) or words not in fold(turn.text):
                continue
            earlier = list_witnessed(turns[:number], turn.speaker)
            heard = [strip_inner_thoughts(each.text) for each in earlier if each.speaker != turn.speaker]
            if not any(words in fold(text) for text in heard):
                lapses.append(Lapse(turn.turn, turn.speaker, secret.words))
    return lapses
