"""Who speaks next in a scene: the next one in turn, who was last named, or as a model says."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from rolellm.core.text import fold
from rolellm.llm.model import Reply, Request, UnacceptableError, strip_thoughts
from rolellm.scenes.scene import ENVIRONMENT, Scene
from rolellm.scenes.visibility import SceneTurn

#: What a model that chooses the speakers answers when the scene is over.
END = "<END>"
_END = re.compile(r"<\s*END(?:\s+CHAT)?\s*>", re.IGNORECASE)


def list_candidates(scene: Scene, turns: Sequence[SceneTurn]) -> list[str]:
    """List who may speak next: who is there and did not just speak, or the only one."""
    turn = len(turns) + 1
    candidates = scene.list_present(turn)
    if scene.environment:
        candidates.append(ENVIRONMENT)
    last = turns[-1].speaker if turns else ""
    return [name for name in candidates if name != last] or candidates


def choose_in_turn(scene: Scene, turns: Sequence[SceneTurn]) -> str | None:
    """Choose whoever has been silent longest, in the order of the scene; nobody where nobody is there."""
    candidates = list_candidates(scene, turns)
    spoken = {turn.speaker: turn.turn for turn in turns}
    return min(candidates, key=lambda name: spoken.get(name, 0), default=None)


def choose_named(scene: Scene, turns: Sequence[SceneTurn]) -> str | None:
    """Choose who was named last in the last turn, else the next one in turn."""
    candidates = list_candidates(scene, turns)
    text = turns[-1].visible_text if turns else ""
    places = {name: _find_last(text, name) for name in candidates}
    named = max(candidates, key=lambda name: places[name], default=None)
    if named is None or places[named] < 0:
        return choose_in_turn(scene, turns)
    return named


def _find_last(text: str, name: str) -> int:
    return fold(text).rfind(fold(name))


def read_speaker(candidates: Sequence[str], *, may_end: bool) -> Callable[[Request, Reply], str]:
    """Make the `accept` that reads the next speaker's name, or `END`, out of a model's reply.

    The last line that names exactly one of the candidates decides.
    """

    def accept(_: Request, reply: Reply) -> str:
        text = strip_thoughts(reply.text)
        if may_end and _END.search(text):
            return END
        for line in reversed(text.splitlines()):
            names = [name for name in candidates if fold(name) in fold(line)]
            # Of two names in one another, such as Lear and King Lear, the longer one is meant.
            longest = [name for name in names if not any(fold(name) in fold(long) for long in names if long != name)]
            if len(longest) == 1:
                return longest[0]
        raise UnacceptableError(f"names none of {', '.join(candidates)}")

    return accept
