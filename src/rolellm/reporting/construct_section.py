"""What came of making roles out of scripts: counts by role, and a few pairs with their receipts.

The page shows it as a section, the terminal as a table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Receipt:
    """The origin of a pair, and what became of it.

    Attributes:
        source: What it was made from, in words, such as the script's name.
        lines: The lines of it that have most of the pair's words, with their numbers; 0 where lines have none.
        start: Where the whole segment begins in the script, in characters; -1 where it is not part of one.
        end: Where it ends there, exclusive.
        prompt: SHA-256 of the prompt.
        model: That answered.
        by: The filter that dropped the pair; ``None`` of one that was kept.
        reason: Why, in words.
    """

    source: str
    lines: tuple[tuple[int, str], ...]
    prompt: str
    model: str
    start: int = -1
    end: int = -1
    by: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class MadePair:
    """A question and its answer, as Context-Instruct made them.

    Attributes:
        question: Put to the role.
        answer: In the role's words.
        type: ``script_agnostic`` or ``script_based``.
        confidence: Both ratings with their reasons.
        receipt: Where it comes from.
    """

    question: str
    answer: str
    type: str
    confidence: str
    receipt: Receipt


@dataclass(frozen=True, slots=True)
class MadeRole:
    """Everything that was made of one role.

    Attributes:
        role: Its name.
        language: ``en`` or ``zh``.
        script: The script's name.
        format: What it was read as.
        turns: How many were found, by kind.
        own_lines: Those that the role says.
        offered: Phrases of the script that catchphrases could be picked from.
        catchphrases: Those picked.
        candidates: Pairs that were made.
        kept: Pairs that passed all filters.
        dropped: Pairs that each filter turned down.
        instructions: General instructions that were put to the role.
        replies: Replies to them, the held-out ones included.
        asked_again: Replies that broke a cleaning rule and were asked for again, by rule.
        rows: Rows of the data set as it loads, by split.
        calls: That went to the model, those for one reply to each of the role's own questions included.
        tokens: Of prompts and of replies.
        pairs: A few, with their receipts.
    """

    role: str
    language: str
    script: str
    format: str
    turns: Mapping[str, int]
    own_lines: int
    offered: int
    catchphrases: tuple[str, ...]
    candidates: int
    kept: int
    dropped: Mapping[str, int]
    instructions: int
    replies: int
    asked_again: Mapping[str, int]
    rows: Mapping[str, int]
    calls: int
    tokens: tuple[int, int]
    pairs: tuple[MadePair, ...] = ()


@dataclass(frozen=True, slots=True)
class Made:
    """All roles that were made, and by whom.

    Attributes:
        by: Who answered, in a sentence.
        release: The folder that loads as a data set.
        roles: In the order to show.
    """

    by: str
    release: str
    roles: tuple[MadeRole, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return one JSON object, without the pairs."""
        roles = [{name: value for name, value in asdict(role).items() if name != "pairs"} for role in self.roles]
        return {"by": self.by, "release": self.release, "roles": roles}


def made_table(result: Made) -> tuple[list[str], list[list[str]]]:
    """Return heads and lines of a table of counts, one column a role."""
    lines = [
        ("script, read as", lambda role: f"{role.script}, {role.format}"),
        ("turns found", lambda role: _list_counts(role.turns)),
        ("the role's own lines", lambda role: f"{role.own_lines:,}"),
        ("catchphrases picked", lambda role: f"{len(role.catchphrases):,} of {role.offered:,} offered"),
        ("question pairs made", lambda role: f"{role.candidates:,}"),
        ("kept", lambda role: f"{role.kept:,}"),
        ("dropped", lambda role: _list_counts(role.dropped)),
        ("replies to general instructions", lambda role: f"{role.replies:,} to {role.instructions:,}"),
        ("asked again", lambda role: _list_counts(role.asked_again)),
        ("rows in the data set", lambda role: _list_counts(role.rows)),
        ("calls", lambda role: f"{role.calls:,}"),
        ("tokens, estimated", lambda role: f"{role.tokens[0]:,} in, {role.tokens[1]:,} out"),
    ]
    return ["", *(role.role for role in result.roles)], [[name, *map(cell, result.roles)] for name, cell in lines]


def _list_counts(counts: Mapping[str, int]) -> str:
    """List counts that are not 0, each with its name."""
    return ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in counts.items() if count) or "none"
