"""RoleGPT: several replies to each instruction in a role's voice, the last one held out (arXiv 2310.00746).

Of six replies five are references and the sixth is the RoleGPT baseline, as in the release. Replies that break one of
the four cleaning rules (`rolellm.characters.reply_rules`) are asked for again.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Final, get_args

from rolellm.characters.reply_rules import RULES, make_reply_acceptor
from rolellm.characters.role_prompts import RolePrompt, RolePrompts
from rolellm.characters.scripts.parse import detect_language
from rolellm.core.errors import DataError
from rolellm.core.fingerprint import hash_file, hash_json
from rolellm.core.records import Profile
from rolellm.core.result import Result
from rolellm.core.row_files import read_rows
from rolellm.core.table import Table
from rolellm.core.text import find_surrogate
from rolellm.data.rolebench.schema import FOLDERS, SAMPLE
from rolellm.data.rolebench.source import sample_folder
from rolellm.llm.llm import LLM
from rolellm.llm.model import Answer, Outcome, Request
from rolellm.making.instruct.segments import QuestionType
from rolellm.making.settings import RespondSettings
from rolellm.runs import Plan, Records, Round, Step

#: Usual names of the columns of an instruction, of what it is about, and of its answer.
_INSTRUCTIONS: Final = ("instruction", "question", "prompt", "query")
_INPUTS: Final = ("input", "context")
_TARGETS: Final = ("target", "output", "response", "answer", "completion")


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
    rows: Iterable[tuple[int, Mapping[str, Any]]]
    path = None
    if not isinstance(instructions, str | Path):
        listed = [{"instruction": item} if isinstance(item, str) else _make_plain(item) for item in instructions]
        rows = enumerate(listed, start=1)
        source = {"file": None, "sha256": hash_json(listed)}
    else:
        path = Path(instructions)
        if path == Path(SAMPLE) and not path.exists():
            path = sample_folder() / f"instructions-{FOLDERS[character.language]}" / "instructions-general.jsonl"
        if not path.is_file():
            raise DataError(
                f"no such file; `{SAMPLE}` takes the embedded ones, and Python takes a list of texts or a Dataset, too",
                path=path,
            )
        rows = read_rows(path)
        source = {"file": path.name, "sha256": hash_file(path)}
    questions: list[Instruction] = []
    for number, row in rows:
        try:
            questions.append(_read_row(row, character.role))
        except DataError as error:
            text = error.problem
            if not path:
                text = f"instruction {number}: {error.problem}"
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
    plain = _make_plain(row)
    names = {name.casefold(): name for name in plain}
    column = _pick_column(names, _INSTRUCTIONS)
    if column is None:
        keys = ", ".join(plain) or "none"
        raise DataError(f"expected a text `instruction` or `question` (keys: {keys})")
    if plain.get("role") not in (None, role):
        raise DataError(
            f"this line is for {plain['role']!r:.60}, and the profile is {role!r}; keep only the lines of one role"
        )
    question = _read_text(plain[column])
    if not question:
        raise DataError(f"expected a text `{column}`, found {plain[column]!r:.60}")
    # All of the row goes into the replies' file, which is written when they are paid for.
    problem = find_surrogate(json.dumps(plain, ensure_ascii=False))
    if problem:
        raise DataError(problem)
    input_column = _pick_column(names, _INPUTS)
    if input_column is not None:
        question = f"{question}\n{_read_text(plain[input_column])}".rstrip()
    target_column = _pick_column(names, _TARGETS)
    if plain.get("role") is not None or plain.get("type") in get_args(QuestionType):
        # A question of Context-Instruct: its answer is in the role's own words.
        target_column = _pick_column(names, ("target",))
    target = _read_text(plain[target_column]) if target_column else ""
    used = (column, input_column, target_column, "role")
    fields = {name: value for name, value in plain.items() if name not in used}
    return Instruction(question, target or None, fields)


def _pick_column(names: Mapping[str, str], candidates: Sequence[str]) -> str | None:
    return next((names[name] for name in candidates if name in names), None)


def _read_text(value: Any) -> str:
    return value.strip() if isinstance(value, str) else ""


def _make_plain(row: Mapping[str, Any]) -> dict[str, Any]:
    """Make text of what JSON cannot hold, such as dates."""
    plain: dict[str, Any] = json.loads(json.dumps(dict(row), default=str))
    return plain


def describe_language_mismatch(character: Profile, instructions: Iterable[Instruction]) -> str | None:
    """Warn of instructions that are not in the role's language; ``None`` if there are none."""
    counts = Counter(detect_language(item.question) for item in instructions)
    native = "English"
    foreign = "Chinese"
    if character.language == "zh":
        native, foreign = foreign, native
    mismatches = counts.total() - counts[character.language]
    if not mismatches:
        return None
    return f"{mismatches:,} of {counts.total():,} instructions are {foreign}, and {character.role} speaks {native}"


REPLIES = "replies.jsonl"
#: An instruction with the replies to it, and where they come from: a line of ``replies.jsonl``.
ReplyRow = dict[str, Any]


@dataclass(frozen=True, repr=False)
class RespondResult(Result):
    """Replies of one role.

    Attributes:
        role: Who replied.
        strategy: How the prompts showed the role.
        rows: In the order of the instructions.
    """

    role: str
    strategy: str
    rows: tuple[ReplyRow, ...]

    def to_dict(self) -> dict[str, Any]:
        """Count instructions, replies, the commonest reasons for missing ones, and rejections by rule."""
        replies = [reply for row in self.rows for reply in row["receipt"]["replies"]]
        refused = Counter(reason for reply in replies for reason in reply["refused"])
        failed = Counter(reply["reason"] for reply in replies if "failed" in reply)
        turned_down = {rule: refused.pop(reason, 0) for rule, reason in RULES.items()}
        turned_down |= dict(sorted(refused.items()))
        held_out = sum(row["rolegpt"] is not None for row in self.rows)
        return {
            "role": self.role,
            "strategy": self.strategy,
            "instructions": len(self.rows),
            "replies": len(replies) - failed.total(),
            "missing": failed.total(),
            "failed": dict(failed.most_common(10)),
            "held_out": held_out,
            "turned_down": turned_down,
        }

    @property
    def has_passed(self) -> bool:
        """Whether there is any reply."""
        return any(row["generated"] or row["rolegpt"] is not None for row in self.rows)

    def notes(self) -> list[str]:
        """Return the commonest reason for missing replies."""
        counts = self.to_dict()
        if not counts["missing"]:
            return []
        reason, count = next(iter(counts["failed"].items()))
        return [f"note: {counts['missing']:,} replies are missing, most often ({count:,}): {reason}"]

    def tables(self) -> tuple[Table]:
        """Build the table of counts."""
        counts = self.to_dict()
        planned = counts["replies"] + counts["missing"]
        rows: list[tuple[str, str | int]] = [
            ("instructions", counts["instructions"]),
            ("replies", f"{counts['replies']:,} of {planned:,}"),
            ("held out as the baseline", counts["held_out"]),
        ]
        rows += [(f"rejected by the rule {name}", count) for name, count in counts["turned_down"].items()]
        return (Table.from_rows(f"{self.role}, {self.strategy}", ("", ""), rows),)


@dataclass(frozen=True)
class Respond(Step[RespondResult]):
    """RoleGPT for one role.

    Attributes:
        character: Who answers.
        instructions: What to ask, from `read_instructions`.
        settings: How; by default the paper's.
    """

    character: Profile
    instructions: Instructions
    settings: RespondSettings = field(default_factory=RespondSettings)
    kind: ClassVar[str] = "respond"

    def plan(self, llm: LLM) -> Plan[RespondResult]:
        """Ask each instruction several times over; a prompt's requests follow each other, for the server's cache."""
        role = self.character.role
        count = self.settings.replies
        build_prompt = RolePrompts(self.character, self.settings, llm.counter)
        prompts = [build_prompt(item.question) for item in self.instructions.asked]
        requests = []
        for number, prompt in enumerate(prompts):
            for repeat in range(count):
                tag = f"respond/{role}/{number}"
                requests.append(Request(prompt.messages, self.settings.sampling, repeat, tag=tag))
        accept = make_reply_acceptor(self.character)
        # A reply that is cut off breaks a rule like others do, and is counted among them.
        outcomes = yield Round(requests, accept, label=f"RoleGPT {role}", also=["length"])
        rows = []
        for number, (item, prompt) in enumerate(zip(self.instructions.asked, prompts, strict=True)):
            own = outcomes[number * count : (number + 1) * count]
            rows.append(self._make_row(item, prompt, own))
        return RespondResult(role, self.settings.strategy, tuple(rows))

    def _make_row(self, instruction: Instruction, prompt: RolePrompt, outcomes: Sequence[Outcome[str]]) -> ReplyRow:
        """Make a row: the last reply is held out as the baseline; those that failed are left out."""
        texts = [outcome.value if isinstance(outcome, Answer) else None for outcome in outcomes]
        *references, baseline = texts
        generated = [text for text in references if text is not None]
        receipt = _make_receipt(prompt, outcomes)
        return {
            "role": self.character.role,
            "question": instruction.question,
            "generated": generated,
            "rolegpt": baseline,
            "target": instruction.target,
            "strategy": self.settings.strategy,
            "missing": texts.count(None),
            "fields": dict(instruction.fields),
            "receipt": receipt,
        }

    def records(self, result: RespondResult) -> Records:
        """Return ``replies.jsonl``."""
        return {REPLIES: result.rows}

    def describe(self, result: RespondResult) -> dict[str, Any]:
        """Return the inputs and the templates."""
        bare = replace(self.character, turns=(), lore=())
        return {
            "language": self.character.language,
            "instructions": self.instructions.source,
            "templates": RolePrompts(bare, self.settings).hashes,
            "character": self.character.fingerprint,
        }

    def summarize(self, result: RespondResult) -> dict[str, Any]:
        """Return the counts."""
        return result.to_dict()


def _make_receipt(prompt: RolePrompt, outcomes: Sequence[Outcome[str]]) -> dict[str, Any]:
    replies: list[dict[str, Any]] = []
    for outcome in outcomes:
        reply: dict[str, Any] = {"attempts": outcome.attempts, "refused": list(outcome.refused)}
        if isinstance(outcome, Answer):
            reply |= {"model": outcome.reply.model, "endpoint": outcome.reply.endpoint}
        else:
            reply |= {"failed": outcome.kind, "reason": outcome.reason}
        replies.append(reply)
    prompt_hash = outcomes[0].request.prompt_hash
    note_indices = [note.place for note in prompt.notes]
    return {
        "prompt_hash": prompt_hash,
        "demonstrations": list(prompt.demonstrations),
        "lore": note_indices,
        "replies": replies,
    }
