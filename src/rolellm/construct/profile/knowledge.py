"""What a model knows of a role by itself, kept for a person to read; the paper has a person check it first.

Nothing is judged here: a model that knows a role well may say it otherwise, and one that does not may be fluent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rolellm.construct.character import Character
from rolellm.construct.profile.requests import SAMPLING, knowledge_questions
from rolellm.files import whole_file
from rolellm.jsonl import write_jsonl
from rolellm.llm.client import Client
from rolellm.llm.model import Answer, Sampling

KNOWLEDGE: Final = "knowledge.md"
KNOWLEDGE_ROWS: Final = "knowledge.jsonl"
_HEADS: Final = {
    "en": (
        "What a model says of {role}",
        "Asked without the script, before the profile was made. Nobody has judged these answers: read them. Where they "
        "are wrong, what the model writes of this role rests on the script alone; think of another model, or go on "
        "knowing that.",
        "No answer",
    ),
    "zh": (
        "模型所知的{role}",
        "这些问题是在撰写人物小传之前、不给剧本的情况下提出的。没有人评判过这些回答，请您阅读。若回答有误，模型笔下的这个"
        "角色就只以剧本为据；请考虑换一个模型，或者心中有数地继续。",
        "没有回答",
    ),
}


@dataclass(frozen=True, slots=True)
class Known:
    """A question about a role, and what a model says.

    Attributes:
        question: As it was asked.
        answer: ``None`` where there is none.
        model: Who answered.
        problem: Why there is no answer.
    """

    question: str
    answer: str | None
    model: str | None = None
    problem: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """As one JSON object."""
        return {"question": self.question, "answer": self.answer, "model": self.model, "problem": self.problem}


def ask_knowledge(
    character: Character, client: Client, *, script: str | None = None, sampling: Sampling = SAMPLING
) -> list[Known]:
    """Ask a model basic questions about a role, without the script.

    Args:
        character: Whom they ask about.
        client: Asks.
        script: The name of the work, to be given in the questions.
        sampling: How replies are drawn.

    Raises:
        StoppedShortError: As `Client.ask`.
        EndpointError: As `Client.ask`.
    """
    found = []
    for outcome in client.ask(knowledge_questions(character, script, sampling), label="knowledge"):
        question = outcome.request.messages[-1].content
        if isinstance(outcome, Answer):
            found.append(Known(question, outcome.value, outcome.reply.model))
        else:
            found.append(Known(question, None, problem=outcome.reason))
    return found


def write_knowledge(folder: str | Path, character: Character, known: Sequence[Known]) -> Path:
    """Write ``knowledge.md``, to be read, and ``knowledge.jsonl``; return the first one's path."""
    target = Path(folder)
    write_jsonl(target / KNOWLEDGE_ROWS, (item.to_dict() for item in known))
    title, lead, nothing = _HEADS[character.language]
    parts = [f"# {_inert(title.format_map({'role': character.role}))}", lead]
    for number, item in enumerate(known, start=1):
        parts.append(f"## {number}. {_inert(item.question)}")
        said = _inert(item.answer) if item.answer is not None else f"{nothing}: {_inert(item.problem or '')}"
        parts.append("\n".join(f"> {line}" for line in said.splitlines()))
        parts += [f"({_inert(item.model)})"] if item.model else []
    with whole_file(target / KNOWLEDGE) as stream:
        stream.write("\n\n".join(parts) + "\n")
    return target / KNOWLEDGE


def _inert(text: str) -> str:
    """Text that does nothing in a terminal or a page."""
    shown = "".join(character if character.isprintable() or character == "\n" else "\ufffd" for character in text)
    return shown.replace("&", "&amp;").replace("<", "&lt;")
