"""Turns as files: JSON Lines with one object a turn, or the layout of the release's profiles.

The first is ``{"role", "speaker", "content", "kind", "scene", "start", "end"}``: ``role`` is the name asked for where
the speaker is that role under any alias, else the speaker's own. The second is ``{"role", "content", "act_id",
"diag_id"}``: narration goes by ``narrator`` or ``旁白``, a direction by ``stage direction`` or ``舞台提示``, ``act_id``
is the scene and ``diag_id`` counts in it; offsets are not kept. Reading it follows `rolellm.rolebench.profiles`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal

from rolellm.core.errors import DataError
from rolellm.core.jsonl import read_jsonl, write_jsonl
from rolellm.core.records import Language, Turn, TurnKind
from rolellm.core.text import half_in
from rolellm.rolebench.profiles import is_role, narrates, read_dialogue

Layout = Literal["turns", "release"]
_KINDS = ("speech", "narration", "direction")

#: What narration, directions and headings of scenes go by.
TOLD: Final[Mapping[Language, Mapping[str, str]]] = {
    "en": {"narration": "narrator", "direction": "stage direction", "scene": "scene"},
    "zh": {"narration": "旁白", "direction": "舞台提示", "scene": "场景"},
}
# What they go by where the role itself has that name.
_INSTEAD: Final[Mapping[TurnKind, str]] = {"narration": "background", "direction": "direction"}


def write_turns(
    path: str | Path,
    turns: Iterable[Turn],
    role: str,
    *,
    speakers: Mapping[int, str] | None = None,
    layout: Layout = "turns",
    language: Language = "en",
) -> int:
    """Write turns, complete or not at all.

    Args:
        path: The file.
        turns: In the order of the script.
        role: The role they were read for.
        speakers: By place, what the script calls the speaker, where that is not the turn's own `speaker`.
        layout: ``turns``, or ``release`` for the layout of the release's profiles.
        language: Of the names that narration gets in the release's layout.

    Returns:
        How many were written.
    """
    if layout == "release":
        return write_jsonl(path, _rows(turns, role, language))
    names = speakers or {}
    return write_jsonl(path, (_object(turn, names.get(place)) for place, turn in enumerate(turns)))


def _object(turn: Turn, speaker: str | None) -> dict[str, Any]:
    kept = {name: getattr(turn, name) for name in ("content", "kind", "scene", "start", "end")}
    return {"role": turn.speaker, "speaker": speaker or turn.speaker, **kept}


def _rows(turns: Iterable[Turn], role: str, language: Language) -> Iterator[dict[str, Any]]:
    scene, place = -1, 0
    for turn in turns:
        scene, place = (scene, place + 1) if turn.scene == scene else (turn.scene, 0)
        yield {"role": _released(turn, role, language), "content": turn.content, "act_id": scene, "diag_id": place}


def _released(turn: Turn, role: str, language: Language) -> str:
    """The name that reads back as the same kind of turn."""
    if turn.kind == "speech":
        return turn.speaker
    for name in (turn.speaker, TOLD[language][turn.kind], _INSTEAD[turn.kind]):
        if narrates(name) == turn.kind and not is_role(name, role):
            return name
    return _INSTEAD[turn.kind]


def read_turns(path: str | Path, role: str | None = None) -> Iterator[Turn]:
    """Read turns as `write_turns` writes them, in either layout; those without content are left out.

    Args:
        path: The file.
        role: Whose speeches carry its name to the letter; only the release's layout, which does not say, needs it.

    Raises:
        DataError: At a line that is no turn; names file and line.
    """
    if _is_release(path):
        yield from read_dialogue(path, role)
        return
    for number, value in read_jsonl(path):
        problem = _problem(value)
        if problem:
            raise DataError(problem, path=path, line=number)
        if value["content"].strip():
            place = value.get("start", -1), value.get("end", -1)
            yield Turn(value["role"], value["content"], value["kind"], value["scene"], *place)


def _is_release(path: str | Path) -> bool:
    for _, value in read_jsonl(path):
        return "act_id" in value and "kind" not in value
    return False


def _problem(value: Mapping[str, Any]) -> str | None:
    for key in ("role", "content"):
        if not isinstance(value.get(key), str) or (key == "role" and not value[key].strip()):
            return f"expected a text `{key}`, found {value.get(key)!r:.60} (keys: {', '.join(value) or 'none'})"
    if value.get("kind") not in _KINDS:
        return f"expected `kind` to be one of {', '.join(_KINDS)}, found {value.get('kind')!r:.60}"
    for key in ("scene", "start", "end"):
        found = value.get(key, -1)
        if isinstance(found, bool) or not isinstance(found, int) or (key == "scene" and key not in value):
            return f"expected a whole number `{key}`, found {value.get(key)!r:.60}"
    return half_in(value["role"], value["content"])
