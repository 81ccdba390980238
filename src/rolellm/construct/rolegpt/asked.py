"""The instructions that a role is asked: read from JSON Lines of this library's, the release's or the user's own."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rolellm.errors import DataError
from rolellm.jsonl import read_jsonl
from rolellm.text import half_in

_QUESTIONS = ("instruction", "question")


@dataclass(frozen=True, slots=True)
class Asked:
    """One instruction, or one question of Context-Instruct.

    Attributes:
        question: As it is put to the role.
        target: The instruction's role-free answer, where it has one.
        fields: What else its line had.
    """

    question: str
    target: str | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)


def read_asked(path: str | Path, role: str) -> list[Asked]:
    """Read instructions: objects with a text ``instruction`` (or ``question``), and perhaps a text ``target``.

    That is the form of the release's ``instructions-general.jsonl``, of ``rolellm instructions sample``, and of what
    Context-Instruct kept (``kept.jsonl``). All other fields are kept.

    Args:
        path: The file.
        role: Who is to be asked; lines that name another role are refused.

    Returns:
        In the order of the file; of lines that ask the same to the letter, the first.

    Raises:
        DataError: When there is no such file, no line, or a line that is no instruction; names file and line.
    """
    if not Path(path).is_file():
        raise DataError("no such file; `rolellm instructions sample` makes one", path=path)
    found: list[Asked] = []
    for number, value in read_jsonl(path):
        problem = _problem(value, role)
        if problem:
            raise DataError(problem, path=path, line=number)
        key = next(key for key in _QUESTIONS if key in value)
        rest = {name: item for name, item in value.items() if name not in (key, "target", "role")}
        found.append(Asked(value[key], value.get("target"), rest))
    if not found:
        raise DataError("no instruction in it; expected one JSON object a line with a text `instruction`", path=path)
    return distinct(found)


def distinct(asked: Iterable[Asked]) -> list[Asked]:
    """Of those with one question, the first."""
    first: dict[str, Asked] = {}
    for item in asked:
        first.setdefault(item.question, item)
    return list(first.values())


def _problem(value: Mapping[str, Any], role: str) -> str | None:
    key = next((key for key in _QUESTIONS if key in value), None)
    if key is None:
        return f"expected a text `instruction` or `question` (keys: {', '.join(map(str, value)) or 'none'})"
    if not isinstance(value[key], str) or not value[key].strip():
        return f"expected a text `{key}`, found {value[key]!r:.60}"
    if not isinstance(value.get("target"), str | None):
        return f"expected `target` to be a text or null, found {value['target']!r:.60}"
    other = value.get("role")
    if other not in (None, role):
        return f"this line asks {other!r:.60} and the profile is {role!r}; take the lines of one role"
    # All of the line goes into the replies' file, which is written when they are paid for.
    return half_in(json.dumps(value, ensure_ascii=False))
