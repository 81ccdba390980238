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


def choose_in_turn(scene: Scene, turns: Sequence[SceneTurn]) -> str:
    """Choose whoever has been silent longest, in the order of the scene."""
    candidates = list_candidates(scene, turns)
    spoken = {turn.speaker: turn.turn for turn in turns}
    return min(candidates, key=lambda name: spoken.get(name, 0))


def choose_named(scene: Scene, turns: Sequence[SceneTurn]) -> str:
    """Choose who was named last in the last turn, else the next one in turn."""
    candidates = list_candidates(scene, turns)
    text = turns[-1].visible_text if turns else ""
    places = {name: _find_last(text, name) for name in candidates}
    # Of two names in one another, such as Lear and King Lear, the longer one is meant.
    named = max(candidates, key=lambda name: (places[name], len(name)))
    if places[named] < 0:
        return choose_in_turn(scene, turns)
    return named


def _find_last(text: str, name: str) -> int:
    """Return where a name ends that is no part of a longer word."""
    matches = re.finditer(rf"(?<![a-z]){re.escape(fold(name))}(?![a-z])", fold(text))
    return max((match.end() for match in matches), default=-1)


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
            names = [name for name in candidates if fold(name) in fold(line)]
            # Of two names in one another, such as Lear and King Lear, the longer one is meant.
            longest = [name for name in names if not any(fold(name) in fold(long) for long in names if long != name)]
            if len(longest) == 1:
                return longest[0]
        raise UnacceptableError(f"names none of {', '.join(candidates)}", usable="")

    return accept
