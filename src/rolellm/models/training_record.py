"""What a model was trained on, as ``manifest.json`` says it: written by training, read again before its answers count.

What training and evaluation have to agree on is here: the file's name, how an instruction is named in it, and when a
row counts as trained on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol

from pydantic import StringConstraints

from rolellm.core.errors import DataError
from rolellm.core.fingerprint import hash_bytes
from rolellm.core.jsonl import read_json
from rolellm.core.records import Row
from rolellm.core.text import fold
from rolellm.core.typed_json import read_as

MANIFEST = "manifest.json"
Part = Literal["role", "instruction"]
# An instruction in clear would match nothing, and its rows would pass for new.
_Hash = Annotated[str, StringConstraints(pattern="^[0-9a-f]{16}$")]


def hash_instruction(question: str) -> str:
    """16 hex digits for an instruction, white space and case folded; enough for millions without a clash."""
    return hash_bytes(fold(question).encode("utf-8", "surrogatepass"))[:16]


class Asked(Protocol):
    """What training shows a model: a row, or a conversation whose role may be unknown."""

    @property
    def role(self) -> str | None:
        """Who answers."""

    @property
    def question(self) -> str:
        """What is asked."""


@dataclass(frozen=True, slots=True)
class TrainedOn:
    """Roles and instructions that a model was trained on.

    Attributes:
        roles: By name.
        instructions: As `hash_instruction`.
        config: The data set's config, where a manifest names it.
        split: Its split, likewise.
        fingerprint: Its content hash, likewise.
    """

    roles: frozenset[str] = frozenset()
    instructions: frozenset[_Hash] = frozenset()
    config: str | None = None
    split: str | None = None
    fingerprint: str | None = None

    @classmethod
    def of(cls, rows: Iterable[Asked]) -> TrainedOn:
        """Record what training on these rows shows a model."""
        rows = list(rows)
        roles = frozenset(row.role for row in rows if row.role is not None)
        return cls(roles, frozenset(hash_instruction(row.question) for row in rows))

    def __or__(self, more: TrainedOn) -> TrainedOn:
        """All that either of two trainings showed, as those of an adapter and of its tuned base; it has no name."""
        roles = self.roles | more.roles
        return TrainedOn(roles, self.instructions | more.instructions)

    def find_parts(self, rows: Iterable[Row]) -> list[frozenset[Part]]:
        """Find what was trained on; names of roles and instructions compare with white space and case folded."""
        roles = {fold(name) for name in self.roles}

        def list_parts(row: Row) -> Iterator[Part]:
            if fold(row.role) in roles:
                yield "role"
            if hash_instruction(row.question) in self.instructions:
                yield "instruction"

        return [frozenset(list_parts(row)) for row in rows]

    def to_dict(self) -> dict[str, list[str]]:
        """``roles`` and ``instructions``, both sorted."""
        return {"roles": sorted(self.roles), "instructions": sorted(self.instructions)}

    @classmethod
    def from_dict(cls, value: Any) -> TrainedOn:
        """Read what `to_dict` gives; other keys are ignored.

        Raises:
            DataError: When it has another shape.
        """
        if not isinstance(value, dict):
            value = {}
        values = {name: value.get(name) for name in ("roles", "instructions")}
        return read_as(cls, values, "the record of training")


def read_manifest(path: Path) -> TrainedOn | None:
    """Read what a model was trained on, and what the data set is called.

    Args:
        path: A ``manifest.json``.

    Returns:
        ``None`` for a JSON object that is no manifest of ours; many programs have a file of that name.

    Raises:
        DataError: When it is not a JSON object, or a manifest of ours that does not say what it should; names the file.
    """
    content = read_json(path)
    if content.get("kind") != "rocit" and "trained_on" not in content:
        return None
    try:
        trained_on = TrainedOn.from_dict(content.get("trained_on"))
    except DataError as error:
        raise DataError(
            f'"trained_on" does not say what the model was trained on: {error.problem}', path=path
        ) from error
    data = content.get("data")
    if not isinstance(data, dict):
        return trained_on
    names = {key: data[key] for key in ("config", "split", "fingerprint") if isinstance(data.get(key), str)}
    return replace(trained_on, **names)
