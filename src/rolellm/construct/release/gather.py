"""Reads a character's folder: who it is, the questions that Context-Instruct kept, and RoleGPT's replies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rolellm.construct.character import Character, read_character
from rolellm.construct.context_instruct.results import KEPT, Question, read_questions
from rolellm.construct.rolegpt.respond import REPLIES
from rolellm.errors import DataError
from rolellm.fingerprint import hash_file
from rolellm.jsonl import read_jsonl
from rolellm.records import Language
from rolellm.text import fold

INSTRUCT = "instruct"
RESPOND = "respond"


@dataclass(frozen=True, slots=True)
class Replies:
    """A general instruction with RoleGPT's replies to it.

    Attributes:
        question: The instruction.
        generated: The replies that serve as references; may be empty.
        rolegpt: The one held out as the RoleGPT baseline, where there is one.
        target: The instruction's role-free answer, where it has one.
    """

    question: str
    generated: tuple[str, ...]
    rolegpt: str | None = None
    target: str | None = None


@dataclass(frozen=True, slots=True)
class RoleData:
    """All that a release needs of one role.

    Attributes:
        character: Who it is.
        questions: Role-specific questions, in the order of their file.
        general: General instructions with replies, in the order of their file.
        baselines: RoleGPT's reply to a role-specific question, by the question folded, where it was asked for.
        sources: SHA-256 of each file read, by its path within the character's folder.
    """

    character: Character
    questions: tuple[Question, ...]
    general: tuple[Replies, ...]
    baselines: Mapping[str, str]
    sources: Mapping[str, str]

    @property
    def role(self) -> str:
        """The role's name."""
        return self.character.role

    @property
    def language(self) -> Language:
        """The role's language."""
        return self.character.language

    def describe(self) -> dict[str, Any]:
        """For the manifest: counts, sources, and how the character was made."""
        return {
            "role": self.role,
            "language": self.language,
            "questions": len(self.questions),
            "general": len(self.general),
            "sources": dict(self.sources),
            "made": dict(self.character.made),
        }


def gather(folder: str | Path) -> RoleData:
    """Read a character's folder: ``instruct*/kept.jsonl`` and ``respond*/replies.jsonl``, both of which may be absent.

    A reply to one of the role's own questions is RoleGPT's baseline for it; any other is to a general instruction.
    Where a question repeats, the first one counts.

    Raises:
        DataError: For a folder that holds no character, or a line that is not as those commands write it.
    """
    root = Path(folder)
    character = read_character(root)
    sources: dict[str, str] = {}
    questions: dict[str, Question] = {}
    for path in _files(root, INSTRUCT, KEPT, sources):
        for question in read_questions(path):
            questions.setdefault(fold(question.question), question)
    general: dict[str, Replies] = {}
    baselines: dict[str, str] = {}
    for path in _files(root, RESPOND, REPLIES, sources):
        for number, value in read_jsonl(path):
            replies = _replies(value, path, number)
            key = fold(replies.question)
            if key not in questions:
                general.setdefault(key, replies)
            elif (baseline := replies.rolegpt or next(iter(replies.generated), None)) is not None:
                baselines.setdefault(key, baseline)
    return RoleData(character, tuple(questions.values()), tuple(general.values()), baselines, sources)


def _files(root: Path, prefix: str, name: str, sources: dict[str, str]) -> Sequence[Path]:
    found = sorted(path for path in root.glob(f"{prefix}*/{name}") if path.is_file())
    for path in found:
        sources[path.relative_to(root).as_posix()] = hash_file(path)
    return found


def _replies(value: Mapping[str, Any], path: Path, number: int) -> Replies:
    question, generated = value.get("question"), value.get("generated")
    if not isinstance(question, str) or not question.strip():
        raise DataError(f"expected a text `question`, found {question!r:.60}", path=path, line=number)
    if not isinstance(generated, list) or not all(isinstance(reply, str) for reply in generated):
        raise DataError(f"expected a list of texts `generated`, found {generated!r:.60}", path=path, line=number)
    for key in ("rolegpt", "target"):
        if not isinstance(value.get(key), str | None):
            raise DataError(f"expected `{key}` to be a text or null, found {value[key]!r:.60}", path=path, line=number)
    return Replies(question, tuple(generated), value.get("rolegpt"), value.get("target"))
