"""Who speaks next in a scene: the next one in turn, who was last named, or as a model says."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from rolellm.llm.model import Reply, Request, UnacceptableError, strip_thoughts
from rolellm.scenes.names import find_names, find_only_named
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


def choose_in_turn(scene: Scene, turns: Sequence[SceneTurn]) -> str:
    """Choose whoever has been silent longest, in the order of the scene."""
    candidates = list_candidates(scene, turns)
    spoken = {turn.speaker: turn.turn for turn in turns}
    return min(candidates, key=lambda name: spoken.get(name, 0))


def choose_named(scene: Scene, turns: Sequence[SceneTurn]) -> str:
    """Choose who was named last in the last turn, else the next one in turn."""
    candidates = list_candidates(scene, turns)
    text = turns[-1].visible_text if turns else ""
    named = [name for name in find_names(text, (*scene.names, ENVIRONMENT)) if name in candidates]
    return named[-1] if named else choose_in_turn(scene, turns)


def read_speaker(candidates: Sequence[str], *, may_end: bool) -> Callable[[Request, Reply], str]:
    """Make the `accept` that reads the next speaker's name, or `END`, out of a model's reply.

    The last line that names exactly one of the candidates decides. A reply that names none is asked for again, then
    read as an empty name.
    """

    def accept(_: Request, reply: Reply) -> str:
        text = strip_thoughts(reply.text)
        if may_end and _END.search(text):
            return END
        for line in reversed(text.splitlines()):
            name = find_only_named(line, candidates)
            if name:
                return name
        raise UnacceptableError(f"names none of {', '.join(candidates)}", usable="")

    return accept
