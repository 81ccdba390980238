"""The records that stages hand to each other. Frozen, so that no stage changes what another one holds."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from rolellm.core.fingerprint import hash_json

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
        dialogue: The dialogue that it is a turn of, for rows of one's own; they depend on each other.
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
    dialogue: str | None = None

    @classmethod
    def from_columns(cls, columns: Mapping[str, Any]) -> Row:
        """Make a row from a mapping of the data set's columns; other keys are ignored.

        Raises:
            KeyError: When a required column is missing; names the missing and the present ones.
        """
        names = {item.name for item in fields(cls)}
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


#: As SillyTavern numbers them.
Logic = Literal["and_any", "not_all", "not_any", "and_all"]


@dataclass(frozen=True, slots=True)
class Lore:
    """Something to know about a character's world, such as an entry of a lorebook.

    Attributes:
        content: The text.
        keys: Words and patterns that call it up, see `rolellm.characters.lore`; may be empty.
        name: Its name; may be empty.
        secondary_keys: Further keys; they count only with `keys`.
        logic: Which of the secondary keys must be in the text, or must not.
        constant: Needs no key.
        case_sensitive: The keys' case counts.
        whole_words: A key of one word must be a whole word in the text.
    """

    content: str
    keys: tuple[str, ...] = ()
    name: str = ""
    secondary_keys: tuple[str, ...] = ()
    logic: Logic = "and_any"
    constant: bool = False
    case_sensitive: bool = False
    whole_words: bool = True


@dataclass(frozen=True, slots=True)
class Profile:
    """Everything known about a role: its description, and the script it speaks in.

    Attributes:
        role: Its name, as the rows of a data set have it.
        language: ``en`` or ``zh``.
        turns: The structured dialogue, in the order of the script; the role's own lines carry `role` as speaker.
        description: Second person; with catchphrases where the release has it so.
        background: Third person without the name, which the description was made of.
        catchphrases: Short quotes, or none.
        lore: Knowledge that retrieval may add to a prompt.
        aliases: Other names that the script has for the role.
        script: The source it was read from, such as a file's name.
        made: Settings, model and hashes that it was made with, for the manifest.
    """

    role: str
    language: Language
    turns: tuple[Turn, ...] = ()
    description: str | None = None
    background: str | None = None
    catchphrases: tuple[str, ...] = ()
    lore: tuple[Lore, ...] = ()
    aliases: tuple[str, ...] = ()
    script: str | None = None
    made: Mapping[str, Any] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """The role's name, then its aliases; each once, and none that is blank."""
        return tuple(dict.fromkeys(name.strip() for name in (self.role, *self.aliases) if name.strip()))

    @property
    def name_pattern(self) -> str:
        """A pattern that finds the names in a text: the longest first, in English as whole words."""
        names = "|".join(re.escape(name) for name in sorted(self.names, key=lambda name: (-len(name), name)))
        return f"(?:{names})" if self.language == "zh" else rf"(?<!\w)(?:{names})(?!\w)"

    @property
    def full_description(self) -> str | None:
        """The description with catchphrases, as the release's ``desc.json`` has them."""
        if not self.description or not self.catchphrases:
            return self.description or None
        quoted = " / ".join(f'"{phrase}"' for phrase in self.catchphrases)
        if self.language == "zh":
            return f"{self.description}你的口头禅是：{quoted}"
        verb = "catchphrase is" if len(self.catchphrases) == 1 else "catchphrases are"
        return f"{self.description} Your {verb}: {quoted}"

    @property
    def fingerprint(self) -> str:
        """A hash of the content that later stages are made from, which their manifests have as ``character``."""
        turns = [[turn.speaker, turn.content, turn.kind, turn.scene] for turn in self.turns if turn.content]
        lore = [[item.name, item.content] for item in self.lore]
        return hash_json([self.role, self.full_description, self.background, turns, lore])

    def owns(self, turn: Turn) -> bool:
        """Tell whether a turn is the role's own."""
        return turn.kind == "speech" and turn.speaker == self.role
