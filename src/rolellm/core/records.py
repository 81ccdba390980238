"""The records that stages hand to each other. Frozen, so that no stage changes what another one holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

Language = Literal["en", "zh"]
Subset = Literal["general", "role_specific"]
TurnKind = Literal["speech", "narration", "direction"]

#: The speaker of what nobody could be found to say.
UNKNOWN = "?"


@dataclass(frozen=True, slots=True)
class Row:
    """One row of RoleBench: a question put to a role, with its reference replies.

    Attributes:
        id: Stable, unique in its config; survives re-builds.
        role: As released.
        language: ``en`` or ``zh``.
        subset: ``general`` or ``role_specific``.
        question: As released, white space kept.
        references: The released replies, in order; empty only in rows that were judged as plain lists.
        reference_types: ``script_based`` or ``script_agnostic`` per reference; empty for general rows.
        raw_reference: The instruction's role-free target (for RAW), where there is one.
        rolegpt: The released baseline's reply, where there is one.
        role_description: Second person, with catchphrases, where the release has one.
    """

    id: str
    role: str
    language: Language
    subset: Subset
    question: str
    references: tuple[str, ...]
    reference_types: tuple[str, ...] = ()
    raw_reference: str | None = None
    rolegpt: str | None = None
    role_description: str | None = None

    @classmethod
    def from_columns(cls, columns: Mapping[str, Any]) -> Row:
        """Make a row from a mapping of the data set's columns; other keys are ignored.

        Raises:
            KeyError: When a required column is missing; names the missing and the present ones.
        """
        names = {field.name for field in fields(cls)}
        missing = {"id", "role", "language", "subset", "question", "references"} - columns.keys()
        if missing:
            raise KeyError(f"columns missing: {sorted(missing)}; present: {sorted(columns)}")
        values = {name: columns[name] for name in names & columns.keys()}
        values["references"] = tuple(values["references"])
        values["reference_types"] = tuple(values.get("reference_types") or ())
        return cls(**values)


@dataclass(frozen=True, slots=True)
class Prediction:
    """One answer by a model, matched to rows by ``id`` or by (role, question).

    Attributes:
        prediction: The model's reply; may be empty.
        id: The row's id, when the file names it.
        role: The role, when the file names it.
        question: The question, when the file names it.
        line: Where it stood in its file, counted from 1; 0 when it came from memory.
    """

    prediction: str
    id: str | None = None
    role: str | None = None
    question: str | None = None
    line: int = 0


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of a script: something said, or something told.

    Attributes:
        speaker: Who speaks; what the role itself says carries the role's name to the letter. Of narration and
            directions, the name they go by in the script, such as ``scene`` or ``narrator``.
        content: The text, without white space around it. Empty only straight out of a script that has a name and
            nothing under it; such a turn is counted and written, and reading its file leaves it out.
        kind: ``speech``, ``narration`` (what a narrator tells) or ``direction`` (how something is staged or said).
        scene: Turns of one scene share it; they follow each other.
        start: Where the content begins in the decoded source, in characters; -1 when the source is not known.
        end: Where it ends there, exclusive; -1 when the source is not known.
    """

    speaker: str
    content: str
    kind: TurnKind = "speech"
    scene: int = 0
    start: int = -1
    end: int = -1


@dataclass(frozen=True, slots=True)
class Profile:
    """What is known of a role: its description, and the script it speaks in.

    Attributes:
        role: Its name, as the rows of the data set have it.
        language: ``en`` or ``zh``.
        turns: The structured dialogue, in the order of the script; the role speaks in it.
        description: Second person, with catchphrases, where there is one.
    """

    role: str
    language: Language
    turns: tuple[Turn, ...]
    description: str | None = None

    def owns(self, turn: Turn) -> bool:
        """Whether a turn is the role's own."""
        return turn.kind == "speech" and turn.speaker == self.role
