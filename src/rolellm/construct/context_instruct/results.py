"""The files of a run: ``kept.jsonl``, ``dropped.jsonl`` and ``manifest.json``, and the reader of the first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from rolellm.construct.context_instruct.prompts import prompts_hash
from rolellm.construct.context_instruct.run import InstructResult
from rolellm.construct.context_instruct.schedule import TOKENS_A_PAIR
from rolellm.construct.context_instruct.segments import QuestionType
from rolellm.errors import DataError
from rolellm.files import write_json
from rolellm.fingerprint import hash_file, hash_json
from rolellm.jsonl import read_jsonl, write_jsonl
from rolellm.llm.client import Client
from rolellm.llm.no_secrets import described
from rolellm.version import __version__

KEPT = "kept.jsonl"
DROPPED = "dropped.jsonl"
MANIFEST = "manifest.json"
_TYPES = ("script_agnostic", "script_based")


@dataclass(frozen=True, slots=True)
class Question:
    """A pair that was kept.

    Attributes:
        id: Unique in its file.
        question: Put to the role.
        answer: In the role's words.
        type: ``script_agnostic`` or ``script_based``.
        confidence: Both ratings with their reasons, as text.
        receipt: Where it comes from, and what the filters said.
    """

    id: str
    question: str
    answer: str
    type: QuestionType
    confidence: str = ""
    receipt: Mapping[str, Any] = field(default_factory=dict)


def write_result(result: InstructResult, folder: str | Path, client: Client) -> dict[str, Any]:
    """Write a run's files into its folder, each complete or not at all; return what the manifest says.

    Args:
        result: Of `rolellm.construct.context_instruct.run.context_instruct`.
        folder: The run's.
        client: That asked; its models and what was spent go into the manifest.
    """
    target = Path(folder)
    language = result.character.language
    write_jsonl(target / KEPT, (verdict.to_dict(language) for verdict in result.kept))
    write_jsonl(target / DROPPED, (verdict.to_dict(language) for verdict in result.dropped))
    manifest = {
        "role": result.character.role,
        "language": language,
        "counts": result.counts(),
        "shortfall": result.shortfall,
        "settings": {**result.settings.to_dict(), "tokens_a_pair": TOKENS_A_PAIR},
        "segments": _segments(result),
        "rounds": list(result.rounds),
        "prompts": prompts_hash(language),
        "character": _fingerprint(result),
        "models": [described(model) for model in client.models],
        "failed": len(result.failures),
        "spent": client.spent.to_dict(),
        "files": {name: hash_file(target / name) for name in (KEPT, DROPPED)},
        "version": __version__,
    }
    write_json(target / MANIFEST, manifest)
    return manifest


def _segments(result: InstructResult) -> dict[str, Any]:
    kinds = ("profile", "script", "lore")
    return {
        "found": {kind: sum(item.kind == kind for item in result.segments) for kind in kinds},
        "without_the_role": sum(not item.about_role for item in result.segments),
        "hash": hash_json([[item.id, item.text] for item in result.segments]),
    }


def _fingerprint(result: InstructResult) -> str:
    character = result.character
    turns = [[turn.speaker, turn.content, turn.kind, turn.scene] for turn in character.turns]
    lore = [[item.name, item.content] for item in character.lore]
    return hash_json([character.role, character.described(), character.background, turns, lore])


def read_questions(path: str | Path) -> list[Question]:
    """Read ``kept.jsonl``.

    Args:
        path: The file, or the folder of its run.

    Raises:
        DataError: Where there is none, or at a line that is no pair; names file and line.
    """
    file = Path(path) / KEPT if Path(path).is_dir() else Path(path)
    if not file.is_file():
        raise DataError(f"no {KEPT} here; make it with `rolellm instruct PROFILE`", path=path)
    found = []
    for number, value in read_jsonl(file):
        for key in ("id", "question", "answer"):
            if not isinstance(value.get(key), str) or not value[key].strip():
                raise DataError(f"expected a text `{key}`, found {value.get(key)!r:.60}", path=file, line=number)
        if value.get("type") not in _TYPES:
            problem = f"expected `type` to be one of {', '.join(_TYPES)}, found {value.get('type')!r:.60}"
            raise DataError(problem, path=file, line=number)
        kind = cast(QuestionType, value["type"])
        confidence, receipt = value.get("confidence"), value.get("receipt")
        found.append(
            Question(
                value["id"],
                value["question"],
                value["answer"],
                kind,
                confidence if isinstance(confidence, str) else "",
                receipt if isinstance(receipt, dict) else {},
            )
        )
    return found
