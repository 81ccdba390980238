"""Why a prompt shows what it shows: which lines were picked for an instruction, by which words, and what they cost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

from rolellm.construct.rolegpt.asked import Asked
from rolellm.construct.rolegpt.demonstrations import Demonstration, Note
from rolellm.construct.rolegpt.prompts import Prompt, RolePrompts


@dataclass(frozen=True, slots=True)
class Line:
    """Something that was picked for an instruction.

    Attributes:
        kind: ``demonstration`` or ``lore``.
        rank: Among its kind, from 1, the best.
        shown: Whether the prompt shows it; else the budget left it out.
        score: BM25.
        shared: The words that it shares with the instruction; of lore that a key called up, the keys.
        by: ``words`` or ``key``; ``order`` where nothing is shared, and the script's order decides.
        tokens: What it adds to the prompt, or would add.
        before: What was said before; of lore its name.
        text: The role's line; of lore its content.
        start: Where the line begins in the script, in characters; -1 where that is not known.
        end: Where it ends there.
    """

    kind: Literal["demonstration", "lore"]
    rank: int
    shown: bool
    score: float
    shared: tuple[str, ...]
    by: Literal["words", "key", "order"]
    tokens: int
    before: str
    text: str
    start: int = -1
    end: int = -1


@dataclass(frozen=True, slots=True)
class Explanation:
    """An instruction and what its prompt was made of.

    Attributes:
        question: The instruction.
        tokens: Of the whole prompt.
        base: Of the prompt without demonstrations and lore.
        limit: The most tokens allowed; ``None`` where there is no limit.
        exact: Whether tokens are counted by a tokenizer; else estimated.
        lines: Demonstrations best first, then lore best first.
    """

    question: str
    tokens: int
    base: int
    limit: int | None
    exact: bool
    lines: tuple[Line, ...]

    def to_dict(self) -> dict[str, Any]:
        """As one JSON object."""
        return asdict(self)


def explain(prompts: RolePrompts, instructions: Iterable[Asked | str]) -> Iterator[Explanation]:
    """Explain prompts; no model is asked.

    Raises:
        RecipeError: For an instruction that goes over the token budget.
    """
    for item in instructions:
        question = item if isinstance(item, str) else item.question
        yield _explained(prompts, question, prompts(question))


def _explained(prompts: RolePrompts, question: str, prompt: Prompt) -> Explanation:
    counted = prompts.counter.prompt
    base = counted(prompts.messages(question, (), ()))
    lines: list[Line] = []
    before = base
    for rank, item in enumerate((*prompt.demonstrations, *prompt.dropped), start=1):
        # What the rank-th best adds to those before it.
        best = (*prompt.demonstrations, *prompt.dropped)[:rank]
        tokens = counted(prompts.messages(question, best, ()))
        lines.append(_of_demonstration(item, rank, rank <= len(prompt.demonstrations), tokens - before))
        before = tokens
    before = base
    for rank, note in enumerate((*prompt.notes, *prompt.dropped_notes), start=1):
        tokens = counted(prompts.messages(question, (), (*prompt.notes, *prompt.dropped_notes)[:rank]))
        lines.append(_of_note(note, rank, rank <= len(prompt.notes), tokens - before))
        before = tokens
    limit = prompts.settings.max_tokens
    return Explanation(question, prompt.tokens, base, limit, prompts.counter.exact, tuple(lines))


def _of_demonstration(item: Demonstration, rank: int, shown: bool, tokens: int) -> Line:
    line = item.exchange.line
    return Line(
        kind="demonstration",
        rank=rank,
        shown=shown,
        score=item.score,
        shared=item.shared,
        by="words" if item.score > 0 else "order",
        tokens=tokens,
        before=item.exchange.before.content,
        text=line.content,
        start=line.start,
        end=line.end,
    )


def _of_note(note: Note, rank: int, shown: bool, tokens: int) -> Line:
    return Line("lore", rank, shown, note.score, note.shared, note.by, tokens, note.lore.name, note.lore.content)
