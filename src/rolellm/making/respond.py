"""RoleGPT: several replies to each instruction in a role's voice, the last one held out (arXiv 2310.00746).

Of six replies five are references and the sixth is the RoleGPT baseline, as in the release. Replies that break one of
the four cleaning rules (`rolellm.characters.reply_rules`) are asked for again.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, get_args

from rolellm.characters.reply_rules import RULES, make_reply_acceptor
from rolellm.characters.role_prompts import RolePrompt, RolePrompts
from rolellm.characters.scripts.parse import detect_language
from rolellm.core.errors import DataError
from rolellm.core.fingerprint import hash_file, hash_json
from rolellm.core.records import Language, Profile
from rolellm.core.row_files import read_rows
from rolellm.core.text import find_surrogate
from rolellm.data.rolebench.schema import FOLDERS, SAMPLE
from rolellm.data.rolebench.source import sample_folder
from rolellm.llm.llm import LLM
from rolellm.llm.model import Answer, Outcome, Request
from rolellm.making.instruct.segments import QuestionType
from rolellm.making.instructions import detect_columns, read_pair
from rolellm.making.settings import RespondSettings
from rolellm.runs import Plan, Records, Round, Step


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction, or one question of Context-Instruct.

    Attributes:
        question: As it is put to the role.
        target: The instruction's role-free answer, where it has one.
        fields: What else its line had.
    """

    question: str
    target: str | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Instructions:
    """Instructions for a role, and their source, for the manifest."""

    asked: Sequence[Instruction]
    source: Mapping[str, Any] = field(default_factory=dict)


def read_instructions(instructions: Any, character: Profile, limit: int | None = None) -> Instructions:
    """Read instructions from a file, from texts, or from rows.

    Args:
        instructions: A file (JSON Lines, JSON, CSV, Parquet), of which other fields are kept; ``sample``: those of the
            embedded sample in the role's language; a list of texts; or a `datasets.Dataset`.
        character: Who is asked; rows that name another role are refused.
        limit: Take only the first N.

    Returns:
        In the order of the rows; of instructions that are equal to the letter, the first.

    Raises:
        DataError: When the file does not exist, or has a row without an instruction; names file and line.
    """
    path = Path(instructions) if isinstance(instructions, str | Path) else None
    if path == Path(SAMPLE) and not path.exists():
        path = sample_folder() / f"instructions-{FOLDERS[character.language]}" / "instructions-general.jsonl"
    rows: Iterable[tuple[int, Mapping[str, Any]]]
    if path is None:
        listed = [{"instruction": item} if isinstance(item, str) else _make_plain(item) for item in instructions]
        rows, source = enumerate(listed, start=1), {"file": None, "sha256": hash_json(listed)}
    elif path.is_file():
        rows, source = read_rows(path), {"file": path.name, "sha256": hash_file(path)}
    else:
        raise DataError(
            f"no such file; `{SAMPLE}` takes the embedded ones, and Python takes a list of texts or a Dataset, too",
            path=path,
        )
    questions: list[Instruction] = []
    for number, row in rows:
        try:
            questions.append(_read_row(row, character.role))
        except DataError as error:
            text = error.problem if path else f"instruction {number}: {error.problem}"
            raise DataError(text, path=path, line=number) from None
    if not questions:
        raise DataError("no instructions; give a list of texts, or rows with a text `instruction`")
    first: dict[str, Instruction] = {}
    for item in questions:
        first.setdefault(item.question, item)
    distinct = list(first.values())[:limit]
    return Instructions(distinct, {**source, "asked": len(distinct)})


def _read_row(row: Mapping[str, Any], role: str) -> Instruction:
    """Read an instruction with its role-free answer.

    Raises:
        DataError: For a row without an instruction, of another role, or with what no file can hold.
    """
    columns = detect_columns(map(str, row))
    if columns is None:
        keys = ", ".join(map(str, row)) or "none"
        raise DataError(f"expected a text `instruction` or `question` (keys: {keys})")
    if row.get("role") not in (None, role):
        raise DataError(
            f"this line is for {row['role']!r:.60}, and the profile is {role!r}; keep only the lines of one role"
        )
    if row.get("role") is not None or row.get("type") in get_args(QuestionType):
        # A question of Context-Instruct: its answer is in the role's own words.
        columns = replace(columns, target="target" if "target" in row else None)
    question, target = read_pair(row, columns)
    if not question:
        raise DataError(f"expected a text `{columns.instruction}`, found {row[columns.instruction]!r:.60}")
    # All of the row goes into the replies' file, which is written when they are paid for.
    if problem := find_surrogate(json.dumps(row, ensure_ascii=False, default=str)):
        raise DataError(problem)
    used = (*asdict(columns).values(), "target", "role")
    return Instruction(
        question, target or None, {name: value for name, value in _make_plain(row).items() if name not in used}
    )


def _make_plain(row: Mapping[str, Any]) -> dict[str, Any]:
    """Make text of what JSON cannot hold, such as dates."""
    plain: dict[str, Any] = json.loads(json.dumps(dict(row), default=str))
    return plain


def describe_language_mismatch(character: Profile, instructions: Iterable[Instruction]) -> str | None:
    """Warn of instructions that are not in the role's language; ``None`` if there are none."""
    counts = Counter(detect_language(item.question) for item in instructions)
    names = {"en": "English", "zh": "Chinese"}
    other_language: Language = "zh" if character.language == "en" else "en"
    if not counts[other_language]:
        return None
    return (
        f"{counts[other_language]:,} of {counts.total():,} instructions are {names[other_language]}, and "
        f"{character.role} speaks {names[character.language]}"
    )


REPLIES = "replies.jsonl"


#: An instruction with the replies to it, and where they come from: a line of ``replies.jsonl``.
ReplyRow = dict[str, Any]


def _make_receipt(prompt: RolePrompt, outcomes: Sequence[Outcome[str]]) -> dict[str, Any]:
    return {
        "prompt_hash": outcomes[0].request.prompt_hash,
        "prompt_tokens": prompt.tokens,
        "demonstrations": [
            {"place": item.place, "start": item.start, "end": item.end, "score": round(item.score, 4)}
            for item in prompt.demonstrations
        ],
        "lore": [note.place for note in prompt.notes],
        "dropped": {
            "demonstrations": [item.place for item in prompt.dropped],
            "lore": [note.place for note in prompt.dropped_notes],
        },
        "replies": [
            {"attempts": outcome.attempts, "refused": list(outcome.refused)}
            | (
                {"model": outcome.reply.model, "endpoint": outcome.reply.endpoint}
                if isinstance(outcome, Answer)
                else {"failed": outcome.kind, "reason": outcome.reason}
            )
            for outcome in outcomes
        ],
    }


@dataclass(frozen=True)
class Respond(Step[tuple[ReplyRow, ...]]):
    """RoleGPT for one role; the result has the replies in the order of the instructions.

    Attributes:
        character: Who answers.
        instructions: What to ask, from `read_instructions`.
        settings: How; by default the paper's.
    """

    character: Profile
    instructions: Instructions
    settings: RespondSettings = field(default_factory=RespondSettings)
    kind: ClassVar[str] = "respond"

    def plan(self, llm: LLM) -> Plan[tuple[ReplyRow, ...]]:
        """Ask each instruction several times over; a prompt's requests follow each other, for the server's cache."""
        prompts, replies = RolePrompts(self.character, self.settings, llm.counter), self.settings.replies
        rendered = [prompts(item.question) for item in self.instructions.asked]
        outcomes = yield Round(
            [
                Request(prompt.messages, self.settings.sampling, repeat, tag=f"respond/{self.character.role}/{number}")
                for number, prompt in enumerate(rendered)
                for repeat in range(replies)
            ],
            make_reply_acceptor(self.character, self.settings.rules),
            label=f"RoleGPT {self.character.role}",
            # A reply that is cut off breaks a rule like others do, and is counted among them.
            also=["length"],
        )
        return tuple(
            self._make_row(item, prompt, outcomes[number * replies : (number + 1) * replies])
            for number, (item, prompt) in enumerate(zip(self.instructions.asked, rendered, strict=True))
        )

    def _make_row(self, asked: Instruction, prompt: RolePrompt, outcomes: Sequence[Outcome[str]]) -> ReplyRow:
        """Make a row: the last reply is held out as the baseline; those that failed are left out."""
        texts = [outcome.value if isinstance(outcome, Answer) else None for outcome in outcomes]
        return {
            "role": self.character.role,
            "question": asked.question,
            "generated": [text for text in texts[:-1] if text is not None],
            "rolegpt": texts[-1],
            "target": asked.target,
            "strategy": self.settings.strategy,
            "missing": texts.count(None),
            "fields": dict(asked.fields),
            "receipt": _make_receipt(prompt, outcomes),
        }

    def records(self, result: tuple[ReplyRow, ...]) -> Records:
        """Return ``replies.jsonl``."""
        return {REPLIES: result}

    def describe(self, result: tuple[ReplyRow, ...]) -> dict[str, Any]:
        """Return the inputs and the templates."""
        return {
            "language": self.character.language,
            "instructions": self.instructions.source,
            "templates": RolePrompts(replace(self.character, turns=(), lore=()), self.settings).hashes,
            "made": dict(self.character.made),
            "character": self.character.fingerprint,
        }

    def summarize(self, result: tuple[ReplyRow, ...]) -> dict[str, Any]:
        """Count instructions, replies, the commonest reasons for missing ones, and rejections by rule."""
        replies = [reply for row in result for reply in row["receipt"]["replies"]]
        refused = Counter(reason for reply in replies for reason in reply["refused"])
        failed = Counter(reply["reason"] for reply in replies if "failed" in reply)
        return {
            "role": self.character.role,
            "strategy": self.settings.strategy,
            "instructions": len(result),
            "replies": len(replies) - failed.total(),
            "missing": failed.total(),
            "failed": dict(failed.most_common(10)),
            "complete": sum(not row["missing"] for row in result),
            "held_out": sum(row["rolegpt"] is not None for row in result),
            "turned_down": {
                **{rule: refused.pop(reason, 0) for rule, reason in RULES.items()},
                **dict(sorted(refused.items())),
            },
            "demonstrations_dropped": sum(len(row["receipt"]["dropped"]["demonstrations"]) for row in result),
            "lore_dropped": sum(len(row["receipt"]["dropped"]["lore"]) for row in result),
        }
