"""Turns as files: JSON Lines with one object a turn, or the layout of the release's profiles.

The first is ``{"role", "speaker", "content", "kind", "scene", "start", "end"}``: ``role`` is the name asked for where
the speaker is that role under any alias, else the speaker's own. The second is ``{"role", "content", "act_id",
"diag_id"}``: narration goes by ``narrator`` or ``旁白``, a direction by ``stage direction`` or ``舞台提示``, ``act_id``
is the scene and ``diag_id`` counts in it; offsets are not kept. Reading it follows `rolellm.data.rolebench.release`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Strict

from rolellm.core.errors import DataError
from rolellm.core.jsonl import read_jsonl, write_jsonl
from rolellm.core.records import Language, Turn, TurnKind
from rolellm.core.text import find_surrogate
from rolellm.core.typed_json import read_as
from rolellm.data.rolebench.release import Text, get_turn_kind, is_role, read_dialogue

Layout = Literal["turns", "release"]

#: What narration, directions and headings of scenes go by.
NARRATORS: Final[Mapping[Language, Mapping[str, str]]] = {
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
        speakers: By index of the turn, the speaker's name in the script, where it differs from the turn's `speaker`.
        layout: ``turns``, or ``release`` for the layout of the release's profiles.
        language: The language of the names for narration in the release's layout.

    Returns:
        How many were written.
    """
    if layout == "release":
        return write_jsonl(path, _make_rows(turns, role, language))
    names = speakers or {}
    objects = (_make_object(turn, names.get(index)) for index, turn in enumerate(turns))
    return write_jsonl(path, objects)


def _make_object(turn: Turn, speaker: str | None) -> dict[str, Any]:
    fields = {name: getattr(turn, name) for name in ("content", "kind", "scene", "start", "end")}
    return {"role": turn.speaker, "speaker": speaker or turn.speaker, **fields}


def _make_rows(turns: Iterable[Turn], role: str, language: Language) -> Iterator[dict[str, Any]]:
    scene, index = -1, 0
    for turn in turns:
        index += 1
        if turn.scene != scene:
            scene, index = turn.scene, 0
        name = _choose_name(turn, role, language)
        yield {"role": name, "content": turn.content, "act_id": scene, "diag_id": index}


def _choose_name(turn: Turn, role: str, language: Language) -> str:
    """The name that reads back as the same kind of turn."""
    if turn.kind == "speech":
        return turn.speaker
    for name in (turn.speaker, NARRATORS[language][turn.kind], _INSTEAD[turn.kind]):
        if get_turn_kind(name) == turn.kind and not is_role(name, role):
            return name
    return _INSTEAD[turn.kind]


def read_turns(path: str | Path, role: str | None = None) -> Iterator[Turn]:
    """Read turns as `write_turns` writes them, in either layout; those without content are left out.

    Args:
        path: The file.
        role: Whose speeches carry its name to the letter; only the release's layout, which does not say, needs it.

    Raises:
        DataError: At a line that is not a turn; names file and line.
    """
    _, first = next(iter(read_jsonl(path)), (0, {}))
    if "act_id" in first and "kind" not in first:
        yield from read_dialogue(path, role)
        return
    for number, value in read_jsonl(path):
        line = read_as(_TurnRow, value, "the turn", path=path, line=number)
        problem = find_surrogate(line.role, line.content)
        if problem:
            raise DataError(problem, path=path, line=number)
        if line.content.strip():
            yield Turn(line.role, line.content, line.kind, line.scene, line.start, line.end)


def holds_turns(path: Path) -> bool:
    """Tell whether a file is one of turns, and not of the rows of a chat."""
    if path.suffix != ".jsonl":
        return False
    _, first = next(iter(read_jsonl(path)), (0, {}))
    return "kind" in first or "act_id" in first


@dataclass(slots=True)
class _TurnRow:
    role: Text
    content: str
    kind: TurnKind
    scene: Annotated[int, Strict()]
    start: Annotated[int, Strict()] = -1
    end: Annotated[int, Strict()] = -1
