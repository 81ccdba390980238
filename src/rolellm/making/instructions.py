"""Instructions and their role-free answers, from rows under the usual names of columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

_INSTRUCTIONS: Final = ("instruction", "question", "prompt", "query", "definition", "problem", "input")
_INPUTS: Final = ("input", "inputs", "context")
_TARGETS: Final = ("target", "targets", "output", "outputs", "response", "answer", "answers", "completion", "solution")
_TALKS: Final = ("messages", "conversations", "conversation", "items")
_SIDES: Final = {"user": 0, "human": 0, "prompter": 0, "assistant": 1, "gpt": 1, "chatgpt": 1, "bot": 1}


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of the instruction and its answer.

    Attributes:
        instruction: The instruction's column; of conversations, their column.
        target: The answer's column; ``None`` with conversations, and where there are no answers.
        input: A column of what the instruction is about, which is put below it; blank in many rows.
    """

    instruction: str
    target: str | None
    input: str | None = None


def detect_columns(names: Iterable[str]) -> Columns | None:
    """Find the columns of instruction and answer by their usual names; ``None`` without an instruction."""
    by_name = {name.casefold(): name for name in reversed([*names])}
    talk = _pick_first(by_name, _TALKS)
    if talk is not None:
        return Columns(talk, None)
    column = _pick_first(by_name, _INSTRUCTIONS)
    if column is None:
        return None
    inputs = [name for name in _INPUTS if by_name.get(name) != column]
    return Columns(column, _pick_first(by_name, _TARGETS), _pick_first(by_name, inputs))


def _pick_first(by_name: Mapping[str, str], candidates: Sequence[str]) -> str | None:
    return next((by_name[name] for name in candidates if name in by_name), None)


def read_pair(row: Mapping[str, Any], columns: Columns) -> tuple[str, str]:
    """Read a row's instruction, with its input, and the answer; an empty text where there is none."""
    if columns.instruction.casefold() in _TALKS:
        return _read_talk(row.get(columns.instruction))
    question, answer, about = (
        _read_text(row.get(name)) if name else "" for name in (columns.instruction, columns.target, columns.input)
    )
    return "\n".join(filter(None, (question, about))) if question else "", answer


def _read_text(value: Any) -> str:
    if isinstance(value, list) and value:
        # Several answers; the first is as good as any.
        value = value[0]
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return ""
    return str(value).strip()


def _read_talk(value: Any) -> tuple[str, str]:
    """Read a conversation's first question and the answer to it; one that opens otherwise has neither."""
    items = value if isinstance(value, list) else []
    if not all(isinstance(item, Mapping) for item in items):
        return "", ""
    speakers = [_SIDES.get(str(item.get("role", item.get("from", ""))).casefold()) for item in items]
    # Whatever comes before the first turn of either side is a system message.
    first = next((index for index, speaker in enumerate(speakers) if speaker is not None), 0)
    if speakers[first : first + 2] != [0, 1]:
        return "", ""
    question, answer = (_read_text(item.get("content", item.get("value"))) for item in items[first : first + 2])
    return question, answer
