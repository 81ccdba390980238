"""What a profile is made from: the turns of a parsed script, as a character of which nothing else is known yet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rolellm.construct.character import Character
from rolellm.construct.scripts.detect import detect_language
from rolellm.construct.scripts.turns import read_turns
from rolellm.errors import DataError, ScriptError
from rolellm.fingerprint import hash_file
from rolellm.jsonl import read_jsonl
from rolellm.records import Language, Turn
from rolellm.rolebench.profiles import is_role
from rolellm.text import fold, squash

_NAMED = 8
_SAMPLED = 2000


def start_character(
    dialogue: str | Path | Iterable[Turn],
    role: str,
    *,
    language: Language | None = None,
    aliases: Sequence[str] = (),
    script: str | None = None,
) -> Character:
    """Make a character of a script's turns.

    Args:
        dialogue: Turns, or a file of them as ``rolellm role parse`` writes it, in either layout.
        role: As the turns have it; failing that, a name with the same letters and digits is taken for it.
        language: By default told by the turns' texts.
        aliases: Other names of the role; those by which the file's speeches of the role go are added.
        script: What the script is called; by default the file's name.

    Raises:
        DataError: For a file that is not there, or a line that is no turn.
        ScriptError: When the role never speaks; names who does.
    """
    source: dict[str, Any] = {}
    if isinstance(dialogue, str | Path):
        path = Path(dialogue)
        if not path.is_file():
            raise DataError("there is no such file; make it with `rolellm role parse SCRIPT --role NAME`", path=path)
        try:
            turns = tuple(read_turns(path, role))
        except DataError as error:
            wanted = "turns were expected, as `rolellm role parse SCRIPT --role NAME` writes them"
            raise DataError(f"{error.problem}; {wanted}", path=error.path, line=error.line) from error
        aliases = [*aliases, *_called(path, role)]
        script = script or path.name
        source = {"file": path.name, "sha256": hash_file(path)}
    else:
        path, turns = None, tuple(turn for turn in dialogue if turn.content)
    speakers = {turn.speaker for turn in turns if turn.kind == "speech"}
    if role not in speakers:
        turns = tuple(replace(turn, speaker=role) if _speaks_as(turn, role) else turn for turn in turns)
    if not any(turn.kind == "speech" and turn.speaker == role for turn in turns):
        raise ScriptError(_silent(turns, role), path=path)
    others = dict.fromkeys(name.strip() for name in aliases)
    return Character(
        role=role,
        language=language or detect_language(" ".join(turn.content for turn in turns[:_SAMPLED])),
        turns=turns,
        aliases=tuple(name for name in others if name and fold(name) != fold(role)),
        script=script,
        made={"source": source} if source else {},
    )


def _speaks_as(turn: Turn, role: str) -> bool:
    return turn.kind == "speech" and is_role(turn.speaker, role)


def _called(path: Path, role: str) -> list[str]:
    """What the script calls the role, the commonest name first; the release's layout does not keep that."""
    found = Counter(
        str(value["speaker"])
        for _, value in read_jsonl(path)
        if value.get("kind") == "speech" and isinstance(value.get("speaker"), str) and is_role(value["role"], role)
    )
    return [name for name, _ in found.most_common()]


def _silent(turns: Sequence[Turn], role: str) -> str:
    speakers = Counter(turn.speaker for turn in turns if turn.kind == "speech")
    if not speakers:
        return f"nobody speaks in it, so {role} does not either; parse a script that has speech"
    alike = [name for name in speakers if squash(role) in squash(name)]
    if alike:
        return f"{role} never speaks in it; did you mean --role {alike[0]!r} ({speakers[alike[0]]} speeches)?"
    listed = ", ".join(f"{name} ({count})" for name, count in speakers.most_common(_NAMED))
    more = f" and {len(speakers) - _NAMED} more" if len(speakers) > _NAMED else ""
    return f"{role} never speaks in it; who does: {listed}{more}. Parse the script again for this role, or name another"
