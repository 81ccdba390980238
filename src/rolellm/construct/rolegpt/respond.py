"""RoleGPT: several replies to each instruction in a role's voice, the last one held out (arXiv 2310.00746).

Of six replies five are references and the sixth is the RoleGPT baseline, as in the release. Replies that break one of
the four cleaning rules (`rolellm.construct.clean`) are asked for again.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rolellm.construct.clean import RULES, clean_replies
from rolellm.construct.rolegpt.prompts import Prompt, RolePrompts
from rolellm.construct.scripts.parse import detect_language
from rolellm.construct.settings import RespondSettings
from rolellm.construct.sheet import Sheet, check_run_folder
from rolellm.core.errors import DataError
from rolellm.core.files import write_json
from rolellm.core.fingerprint import hash_file, hash_json
from rolellm.core.jsonl import read_jsonl, write_jsonl
from rolellm.core.records import Language
from rolellm.core.text import half_in
from rolellm.llm.client import Client
from rolellm.llm.llm import LLM
from rolellm.llm.model import Answer, Failure, Finish, Outcome, Request
from rolellm.llm.tokens import TokenCounter
from rolellm.version import __version__

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


@dataclass(frozen=True, slots=True)
class Instructions:
    """What a role is asked, and where it comes from, for the manifest."""

    asked: list[Asked]
    source: dict[str, Any]


def instructions_of(given: Any, role: str, limit: int | None = None) -> Instructions:
    """Instructions from a file, from texts, or from rows.

    A line or a row has a text ``instruction`` (or ``question``), and may have a text ``target``, as in the release's
    ``instructions-general.jsonl``, in what ``rolellm instructions sample`` writes, and in ``kept.jsonl``.

    Args:
        given: A JSON Lines file, whose other fields are kept; a list of texts; or a `datasets.Dataset`.
        role: Who is asked; lines that name another role are refused.
        limit: Take only the first N.

    Returns:
        In the order given; of instructions that are equal to the letter, the first.

    Raises:
        DataError: When the file does not exist, has no line, or has a line without an instruction; names file and line.
    """
    path = Path(given) if isinstance(given, str | Path) else None
    rows: Iterable[tuple[int, Mapping[str, Any]]]
    if path is None:
        listed = [{"instruction": item} if isinstance(item, str) else _known_fields(item) for item in given]
        rows, source = enumerate(listed, start=1), {"file": None, "sha256": hash_json(listed)}
    elif path.is_file():
        rows, source = read_jsonl(path), {"file": path.name, "sha256": hash_file(path)}
    else:
        raise DataError(
            "no such file; `rolellm instructions sample` makes one, and Python takes a list of texts or a Dataset, too",
            path=path,
        )
    found: list[Asked] = []
    for number, value in rows:
        problem = _problem(value, role)
        if problem:
            raise DataError(problem if path else f"instruction {number}: {problem}", path=path, line=number)
        key = next(key for key in _QUESTIONS if key in value)
        rest = {name: item for name, item in value.items() if name not in (key, "target", "role")}
        found.append(Asked(value[key], value.get("target"), rest))
    if not found:
        raise DataError("no instructions; expected objects with a text `instruction`", path=path)
    asked = distinct(found)[:limit]
    return Instructions(asked, {**source, "asked": len(asked)})


def language_note(character: Sheet, asked: Iterable[Asked]) -> str | None:
    """What to tell a user where instructions are not in the role's language; nothing where all are."""
    found = Counter(detect_language(item.question) for item in asked)
    names = {"en": "English", "zh": "Chinese"}
    other: Language = "zh" if character.language == "en" else "en"
    if not found[other]:
        return None
    return (
        f"{found[other]:,} of {found.total():,} instructions are {names[other]}, and {character.role} speaks "
        f"{names[character.language]}; `rolellm instructions sample --language {character.language}` draws others"
    )


def _known_fields(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """A data set may have columns that JSON cannot hold; without an instruction all names are kept, for the message."""
    known = {name: row[name] for name in (*_QUESTIONS, "target", "role") if name in row}
    return known if any(name in known for name in _QUESTIONS) else row


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
        return f"this line is for {other!r:.60}, and the profile is {role!r}; keep only the lines of one role"
    # All of the line goes into the replies' file, which is written when they are paid for.
    return half_in(json.dumps(value, ensure_ascii=False))


REPLIES = "replies.jsonl"
MANIFEST = "manifest.json"


@dataclass(frozen=True, slots=True)
class Responded:
    """An instruction with the replies to it.

    Attributes:
        asked: The instruction.
        prompt: What was asked.
        outcomes: Of each reply, in the order of `rolellm.llm.model.Request.repeat`.
    """

    asked: Asked
    prompt: Prompt
    outcomes: tuple[Outcome[str], ...]

    @property
    def references(self) -> tuple[str, ...]:
        """The replies but for the last one; those that failed are left out."""
        return tuple(item.value for item in self.outcomes[:-1] if isinstance(item, Answer))

    @property
    def held_out(self) -> str | None:
        """The last reply, where it did not fail."""
        last = self.outcomes[-1]
        return last.value if isinstance(last, Answer) else None

    @property
    def missing(self) -> int:
        """How many replies failed."""
        return sum(not isinstance(item, Answer) for item in self.outcomes)

    def to_dict(self, role: str, strategy: str) -> dict[str, Any]:
        """As a line of ``replies.jsonl``."""
        return {
            "role": role,
            "question": self.asked.question,
            "generated": list(self.references),
            "rolegpt": self.held_out,
            "target": self.asked.target,
            "strategy": strategy,
            "missing": self.missing,
            "fields": dict(self.asked.fields),
            "receipt": self._receipt(),
        }

    def _receipt(self) -> dict[str, Any]:
        return {
            "prompt_hash": self.outcomes[0].request.prompt_hash,
            "prompt_tokens": self.prompt.tokens,
            "demonstrations": [
                {"place": item.place, "start": item.start, "end": item.end, "score": round(item.score, 4)}
                for item in self.prompt.demonstrations
            ],
            "lore": [note.place for note in self.prompt.notes],
            "dropped": {
                "demonstrations": [item.place for item in self.prompt.dropped],
                "lore": [note.place for note in self.prompt.dropped_notes],
            },
            "replies": [_reply_receipt(item) for item in self.outcomes],
        }


def _reply_receipt(outcome: Outcome[str]) -> dict[str, Any]:
    shared = {"attempts": outcome.attempts, "refused": list(outcome.refused)}
    if isinstance(outcome, Answer):
        return {"model": outcome.reply.model, "endpoint": outcome.reply.endpoint, **shared}
    return {"failed": outcome.kind, "reason": outcome.reason, **shared}


@dataclass(frozen=True, slots=True)
class RespondResult:
    """What came of it.

    Attributes:
        character: Who was asked.
        settings: How.
        rows: In the order of the instructions.
        templates: SHA-256 of each template by its name.
    """

    character: Sheet
    settings: RespondSettings
    rows: tuple[Responded, ...]
    templates: Mapping[str, str]

    def summary(self) -> dict[str, Any]:
        """Counts: instructions, replies, the commonest reasons for those that failed, and for those turned down."""
        outcomes = [item for row in self.rows for item in row.outcomes]
        refused = Counter(reason for item in outcomes for reason in item.refused)
        failed = Counter(item.reason for item in outcomes if isinstance(item, Failure))
        return {
            "role": self.character.role,
            "strategy": self.settings.strategy,
            "instructions": len(self.rows),
            "replies": sum(isinstance(item, Answer) for item in outcomes),
            "missing": sum(row.missing for row in self.rows),
            "failed": dict(failed.most_common(10)),
            "complete": sum(not row.missing for row in self.rows),
            "held_out": sum(row.held_out is not None for row in self.rows),
            "held_out_among_references": sum(row.held_out in row.references for row in self.rows),
            "turned_down": {
                **{rule: refused.pop(reason, 0) for rule, reason in RULES.items()},
                **dict(sorted(refused.items())),
            },
            "demonstrations_dropped": sum(len(row.prompt.dropped) for row in self.rows),
            "lore_dropped": sum(len(row.prompt.dropped_notes) for row in self.rows),
        }

    def write(self, folder: str | Path, **more: Any) -> Path:
        """Write ``replies.jsonl`` and ``manifest.json``, each complete or not at all.

        Args:
            folder: The run's folder.
            more: What else the manifest is to say: instructions, models, what was spent.

        Returns:
            The path of ``replies.jsonl``.
        """
        target = Path(folder)
        strategy = self.settings.strategy
        write_jsonl(target / REPLIES, (row.to_dict(self.character.role, strategy) for row in self.rows))
        manifest = {
            "stage": "respond",
            "rolellm": __version__,
            "language": self.character.language,
            "settings": self.settings.to_dict(),
            "templates": dict(self.templates),
            "made": dict(self.character.made),
            "character": self.character.fingerprint,
            "summary": self.summary(),
            **more,
        }
        write_json(target / MANIFEST, manifest)
        return target / REPLIES


def respond(
    character: Sheet,
    instructions: Iterable[Asked | str],
    client: Client,
    settings: RespondSettings | None = None,
    counter: TokenCounter | None = None,
) -> RespondResult:
    """Ask a role each instruction several times over.

    Args:
        character: Who is asked.
        instructions: What; of those that ask the same, the first.
        client: Asks, and keeps every reply in its folder.
        settings: How; by default the paper's.
        counter: Counts tokens for the budget of a prompt; by default an estimate.

    Returns:
        The replies in the order of the instructions; nothing is written but the client's journal.

    Raises:
        SettingsError: For an instruction that goes over the token budget.
        StoppedShortError: As `rolellm.llm.client.Client.ask`.
        EndpointError: As `rolellm.llm.client.Client.ask`.
    """
    chosen = settings or RespondSettings()
    prompts = RolePrompts(character, chosen, counter)
    asked = _asked(instructions)
    made = [prompts(item.question) for item in asked]
    requests = list(_requests(character.role, made, chosen))
    # A reply that is cut off breaks a rule like others do, and is counted among them.
    also: tuple[Finish, ...] = ("length",)
    outcomes = client.ask(
        requests, clean_replies(character, chosen.rules), label=f"RoleGPT {character.role}", also=also
    )
    each = chosen.replies
    rows = tuple(
        Responded(item, prompt, tuple(outcomes[number * each : (number + 1) * each]))
        for number, (item, prompt) in enumerate(zip(asked, made, strict=True))
    )
    return RespondResult(character, chosen, rows, prompts.hashes)


def respond_folder(
    character: Sheet, instructions: Instructions, folder: str | Path, settings: RespondSettings, llm: LLM
) -> tuple[RespondResult, dict[str, Any]]:
    """Run `respond` in a folder that keeps every reply, and write the result there.

    Args:
        character: Who is asked.
        instructions: From `instructions_of`.
        folder: The run's; a run that stopped short continues from what is in it.
        settings: How.
        llm: Who is asked.

    Returns:
        The result, and its summary with ``out`` and ``spent``.

    Raises:
        SettingsError: When the folder holds something else.
        RoleLLMError: As `respond`.
    """
    check_run_folder(folder, "respond", "kept.jsonl")
    with Client(folder, llm.models, llm.options) as client:
        result = respond(character, instructions.asked, client, settings, llm.counter)
        spent = client.spent.to_dict()
        path = result.write(folder, instructions=instructions.source, models=llm.describe(), spent=spent)
    return result, {"out": str(path), **result.summary(), "spent": spent}


def planned_requests(
    character: Sheet,
    instructions: Iterable[Asked | str],
    settings: RespondSettings | None = None,
    counter: TokenCounter | None = None,
) -> list[Request]:
    """What `respond` would ask, for an estimate; no model is asked.

    Raises:
        SettingsError: For an instruction that goes over the token budget.
    """
    chosen = settings or RespondSettings()
    prompts = RolePrompts(character, chosen, counter)
    return list(_requests(character.role, [prompts(item.question) for item in _asked(instructions)], chosen))


def _asked(instructions: Iterable[Asked | str]) -> list[Asked]:
    return distinct(Asked(item) if isinstance(item, str) else item for item in instructions)


def _requests(role: str, prompts: Sequence[Prompt], settings: RespondSettings) -> Iterator[Request]:
    """Those with one prompt stand together, so that a server that has just seen it has it at hand."""
    for number, prompt in enumerate(prompts):
        for repeat in range(settings.replies):
            yield Request(prompt.messages, settings.sampling, repeat, tag=f"respond/{role}/{number}")


_TOLD = ("kind", "score", "shared", "by", "before", "text", "start", "end")


def explain(prompts: RolePrompts, instructions: Iterable[Asked | str]) -> Iterator[dict[str, Any]]:
    """Explain prompts; no model is asked.

    Yields:
        For each instruction the ``tokens`` of its prompt, those of the ``base`` without demonstrations and lore, their
        ``limit``, and whether they are ``exact``, as counted by a tokenizer. Then ``lines``, demonstrations best first
        and lore best first: a `Found`, its ``rank`` from 1, whether it is ``shown`` or the budget left it out, and the
        ``tokens`` that it adds or would add.

    Raises:
        SettingsError: For an instruction that goes over the token budget.
    """
    for item in _asked(instructions):
        yield _explained(prompts, item.question)


def _explained(prompts: RolePrompts, question: str) -> dict[str, Any]:
    prompt = prompts(question)
    demonstrations, notes = (*prompt.demonstrations, *prompt.dropped), (*prompt.notes, *prompt.dropped_notes)

    def cost(kind: str, most: int) -> int:
        """Tokens of the prompt with the best of one kind alone."""
        shown = (demonstrations[:most], ()) if kind == "demonstration" else ((), notes[:most])
        return prompts.counter.prompt(prompts.messages(question, *shown))

    lines = [
        {
            **{name: getattr(found, name) for name in _TOLD},
            "rank": rank,
            "shown": found in (*prompt.demonstrations, *prompt.notes),
            # What the rank-th best adds to those before it.
            "tokens": cost(found.kind, rank) - cost(found.kind, rank - 1),
        }
        for picks in (demonstrations, notes)
        for rank, found in enumerate(picks, start=1)
    ]
    limit, exact = prompts.settings.max_prompt_tokens, prompts.counter.exact
    numbers = {"tokens": prompt.tokens, "base": cost("lore", 0), "limit": limit, "exact": exact}
    return {"question": question, **numbers, "lines": lines}
