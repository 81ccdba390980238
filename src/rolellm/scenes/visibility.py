"""What a character sees of a scene: what was said and done while it was there, its own thoughts, and nobody else's.

A scene's file may plant secrets: words, and who knows them. A character that has them in a turn, and neither knew them
nor was there when somebody said them, has them from nowhere (`find_lapses`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from rapidfuzz.distance import Indel

from rolellm.core.text import fold
from rolellm.llm.model import Message, assistant, user
from rolellm.models.prompts.render import load_template
from rolellm.playing.thoughts import strip_inner_thoughts
from rolellm.scenes.scene import ENVIRONMENT, Scene

#: What a turn's note says where it repeats an earlier one, and the model had nothing else.
REPETITION: Final = "repeats an earlier turn"
#: The similarity from which on a turn is an earlier one again (our choice).
_SAME: Final = 0.9


@dataclass(frozen=True, slots=True)
class SceneTurn:
    """A turn of a scene.

    Attributes:
        turn: Its number, from 1.
        speaker: A character, or ``Environment``.
        text: What it thinks, does and says, as it came.
        present: The characters who were there.
        note: What was odd about it, such as a speaker that no model named; empty for nothing.
    """

    turn: int
    speaker: str
    text: str
    present: tuple[str, ...]
    note: str = ""

    @property
    def visible_text(self) -> str:
        """What others see of it, with the speaker's name in front; empty where it is only thoughts."""
        visible = strip_inner_thoughts(self.text)
        return add_speaker(visible, self.speaker) if visible else ""


def add_speaker(text: str, speaker: str) -> str:
    """Put the speaker's name in front of a text, unless one of its lines begins with it."""
    heads = (f"{speaker}:", f"{speaker}：")
    if any(line.strip().startswith(heads) for line in text.split("\n")):
        return text
    return f"{speaker}: {text}"


def list_witnessed(turns: Iterable[SceneTurn], name: str) -> list[SceneTurn]:
    """List the turns that a character witnessed: its own, and those of others while it was there."""
    return [turn for turn in turns if turn.speaker == name or name in turn.present]


def build_talk(scene: Scene, turns: Sequence[SceneTurn], name: str) -> list[Message]:
    """Build the talk as a character witnessed it, which ends with a message to the character.

    Its own turns are the assistant's, whole; what others said and did between them is one message of the user, without
    thoughts.
    """
    talk: list[Message] = []
    seen: list[str] = []
    present: Sequence[str] = ()
    for turn in list_witnessed(turns, name):
        if turn.turn > 1:
            seen += tell_changes(scene, present, turn.present, name)
        present = turn.present
        if turn.speaker != name:
            seen.append(turn.visible_text)
            continue
        talk += _join(scene, seen, is_first=not talk)
        talk.append(assistant(turn.text))
        seen = []
    if turns:
        seen += tell_changes(scene, present, scene.list_present(len(turns) + 1), name)
    return [*talk, *_join(scene, seen, is_first=not talk)]


def tell_changes(scene: Scene, before: Sequence[str], now: Sequence[str], name: str | None = None) -> list[str]:
    """Tell who came and who left since a character, or an onlooker, last looked; of the character itself, nothing."""
    changes = []
    for template, names, absent in (("scene_leaves", before, now), ("scene_enters", now, before)):
        for other in names:
            if other != name and other not in absent and before:
                changes.append(load_template(scene.language, template).fill(name=other))
    return changes


def is_repetition(text: str, turns: Iterable[SceneTurn]) -> bool:
    """Tell whether others would hear and see, nearly word for word, what was in a turn before.

    >>> is_repetition("(sighs) [So.] Aye!", [SceneTurn(1, "Ada", "(sighs) Aye.", ())])
    True
    """
    visible = fold(strip_inner_thoughts(text))
    earlier = (fold(strip_inner_thoughts(turn.text)) for turn in turns)
    return any(Indel.normalized_similarity(visible, line) >= _SAME for line in earlier)


def build_chronicle(turns: Iterable[SceneTurn]) -> str:
    """Build the scene as an onlooker sees it: everything but thoughts."""
    texts = [turn.visible_text for turn in turns]
    return "\n\n".join(filter(None, texts))


def _join(scene: Scene, seen: Sequence[str], *, is_first: bool) -> list[Message]:
    text = "\n\n".join(filter(None, seen))
    if not text:
        # A chat template wants the user to speak between two turns of the assistant.
        text = load_template(scene.language, "scene_begin" if is_first else "scene_continue").fill()
    return [user(text)]


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
