"""A character made of a script's turns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rolellm.characters.scripts.parse import detect_language
from rolellm.characters.scripts.turns import read_turns
from rolellm.core.errors import DataError, ScriptError
from rolellm.core.fingerprint import hash_file
from rolellm.core.jsonl import read_jsonl
from rolellm.core.records import Language, Profile, Turn
from rolellm.core.text import fold, join_names

_NAMED = 8
_SAMPLED = 2000


def start_sheet(
    dialogue: str | Path | Iterable[Turn],
    role: str,
    *,
    language: Language | None = None,
    aliases: Sequence[str] = (),
    script: str | None = None,
) -> Profile:
    """Make a character of a script's turns.

    Args:
        dialogue: Turns, or a file of them as ``rolellm role parse`` writes it, in either layout.
        role: As the turns have it.
        language: Detected by default.
        aliases: Other names of the role; those by which the file's speeches of the role go are added.
        script: What the script is called; by default the file's name.

    Raises:
        DataError: For a missing file, or a line that is not a turn.
        ScriptError: When the role never speaks; names who does.
    """
    source: dict[str, Any] = {}
    if isinstance(dialogue, str | Path):
        path = Path(dialogue)
        if not path.is_file():
            raise DataError("no such file; make it with `rolellm role parse SCRIPT --role NAME`", path=path)
        try:
            turns = tuple(read_turns(path, role))
        except DataError as error:
            expected = "turns were expected, as `rolellm role parse SCRIPT --role NAME` writes them"
            raise DataError(f"{error.problem}; {expected}", path=error.path, line=error.line) from error
        aliases = [*aliases, *_list_names(path, role)]
        script = script or path.name
        source = {"file": path.name, "sha256": hash_file(path)}
    else:
        path = None
        turns = tuple(turn for turn in dialogue if turn.content)
    speakers = {turn.speaker for turn in turns if turn.kind == "speech"}
    if role not in speakers:
        raise ScriptError(_explain_silence(turns, role), path=path)
    other_names = dict.fromkeys(name.strip() for name in aliases)
    kept_names = tuple(name for name in other_names if name and fold(name) != fold(role))
    if language is None:
        language = detect_language(" ".join(turn.content for turn in turns[:_SAMPLED]))
    made = {"source": source} if source else {}
    return Profile(role, language, turns, aliases=kept_names, script=script, made=made)


def _list_names(path: Path, role: str) -> list[str]:
    """List what the script calls the role, the commonest name first; the release's layout does not keep that."""
    name_counts = Counter[str]()
    for _, value in read_jsonl(path):
        speaker = value.get("speaker")
        if value.get("kind") == "speech" and isinstance(speaker, str) and value["role"] == role:
            name_counts[speaker] += 1
    return [name for name, _ in name_counts.most_common()]


def _explain_silence(turns: Sequence[Turn], role: str) -> str:
    speakers = Counter(turn.speaker for turn in turns if turn.kind == "speech")
    if not speakers:
        return f"nobody speaks in it, including {role}; parse a script that has speech"
    counts = (f"{name} ({count})" for name, count in speakers.most_common())
    speaking = join_names(counts, _NAMED)
    return f"{role} never speaks in it; who does: {speaking}. Parse the script again for this role, or name another"
