"""RoleGPT: several replies to each instruction in a role's voice, the last one held out (arXiv 2310.00746).

Of six replies five are references and the sixth is the RoleGPT baseline, as in the release. Replies that break one of
the four cleaning rules (`rolellm.construct.clean`) are asked for again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from rolellm.construct.character import Character
from rolellm.construct.clean import RULES, Rule, clean_text, is_machine
from rolellm.construct.rolegpt.asked import Asked, distinct
from rolellm.construct.rolegpt.prompts import Prompt, PromptSettings, RolePrompts
from rolellm.errors import RecipeError
from rolellm.files import write_json
from rolellm.jsonl import write_jsonl
from rolellm.llm.client import Client
from rolellm.llm.model import Accept, Answer, Failure, Finish, Outcome, Request, Sampling
from rolellm.llm.tokens import TokenCounter
from rolellm.version import __version__

REPLIES = "replies.jsonl"
MANIFEST = "manifest.json"
_REASONS: Final = 10
_JUDGED: Final[tuple[Finish, ...]] = ("length",)


@dataclass(frozen=True, slots=True)
class RespondSettings:
    """How a role is asked.

    Attributes:
        prompts: Strategy, demonstrations, lore and token budget.
        replies: How many for each instruction; the last one is held out as the RoleGPT baseline. The paper's 6.
        sampling: How replies are drawn; the paper's, by secondary notes.
        rules: Those that replies are held to.

    Raises:
        RecipeError: For a value out of range, or several replies without chance.
    """

    prompts: PromptSettings = field(default_factory=PromptSettings)
    replies: int = 6
    sampling: Sampling = field(default_factory=Sampling)
    rules: Collection[Rule] = tuple(RULES)

    def __post_init__(self) -> None:
        if self.replies < 1:
            raise RecipeError(f"{self.replies} replies for each instruction; it has to be 1 or more")
        if self.replies > 1 and self.sampling.temperature == 0:
            raise RecipeError(
                f"a temperature of 0 gives one reply {self.replies} times over, and the held-out one would be among "
                "the references; raise it, or ask for one reply (--replies 1)"
            )

    def to_dict(self) -> dict[str, Any]:
        """For the manifest."""
        template = self.prompts.system_template
        prompts = {**asdict(self.prompts), "system_template": None if template is None else Path(template).name}
        return {
            "prompts": prompts,
            "replies": self.replies,
            "sampling": asdict(self.sampling),
            "rules": list(self.rules),
        }


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
                {"place": item.place, "start": item.exchange.line.start, "end": item.exchange.line.end}
                | {"score": round(item.score, 4)}
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

    character: Character
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
            "strategy": self.settings.prompts.strategy,
            "instructions": len(self.rows),
            "replies": sum(isinstance(item, Answer) for item in outcomes),
            "missing": sum(row.missing for row in self.rows),
            "failed": dict(failed.most_common(_REASONS)),
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
        strategy = self.settings.prompts.strategy
        write_jsonl(target / REPLIES, (row.to_dict(self.character.role, strategy) for row in self.rows))
        manifest = {
            "stage": "respond",
            "rolellm": __version__,
            "language": self.character.language,
            "settings": self.settings.to_dict(),
            "templates": dict(self.templates),
            "made": dict(self.character.made),
            "summary": self.summary(),
            **more,
        }
        write_json(target / MANIFEST, manifest)
        return target / REPLIES


def respond(
    character: Character,
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
        RecipeError: For an instruction that goes over the token budget.
        StoppedShortError: As `rolellm.llm.client.Client.ask`.
        EndpointError: As `rolellm.llm.client.Client.ask`.
    """
    chosen = settings or RespondSettings()
    prompts = RolePrompts(character, chosen.prompts, counter)
    asked = _asked(instructions)
    made = [prompts(item.question) for item in asked]
    requests = list(_requests(character.role, made, chosen))
    # A reply that is cut off breaks a rule like others do, and is counted among them.
    outcomes = client.ask(requests, accepts(character, chosen), label=f"RoleGPT {character.role}", also=_JUDGED)
    each = chosen.replies
    rows = tuple(
        Responded(item, prompt, tuple(outcomes[number * each : (number + 1) * each]))
        for number, (item, prompt) in enumerate(zip(asked, made, strict=True))
    )
    return RespondResult(character, chosen, rows, prompts.hashes)


def planned_requests(
    character: Character,
    instructions: Iterable[Asked | str],
    settings: RespondSettings | None = None,
    counter: TokenCounter | None = None,
) -> list[Request]:
    """What `respond` would ask, for an estimate; nobody is asked.

    Raises:
        RecipeError: For an instruction that goes over the token budget.
    """
    chosen = settings or RespondSettings()
    prompts = RolePrompts(character, chosen.prompts, counter)
    return list(_requests(character.role, [prompts(item.question) for item in _asked(instructions)], chosen))


def accepts(character: Character, settings: RespondSettings) -> Accept[str]:
    """What takes a role's replies: the cleaning rules, but for what the role itself is or says."""
    return clean_text(
        character.language,
        machine=is_machine(character.described(), character.language),
        own=character.catchphrases,
        rules=settings.rules,
    )


def _asked(instructions: Iterable[Asked | str]) -> list[Asked]:
    return distinct(Asked(item) if isinstance(item, str) else item for item in instructions)


def _requests(role: str, prompts: Sequence[Prompt], settings: RespondSettings) -> Iterator[Request]:
    """Those with one prompt stand together, so that a server that has just seen it has it at hand."""
    for number, prompt in enumerate(prompts):
        for repeat in range(settings.replies):
            yield Request(prompt.messages, settings.sampling, repeat, tag=f"respond/{role}/{number}")
