"""From a row to chat messages: the system instruction carries the role, the user turn carries the question.

The wording of the system instruction is ours; what it must say is in the paper's zero-shot prompt (arXiv 2310.00746).
A user who must match another wording brings a template of their own, and its hash goes into every fingerprint.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from rolellm.errors import RecipeError
from rolellm.fingerprint import hash_bytes
from rolellm.prompts.template import fill_slots
from rolellm.records import Language, Row


@dataclass(frozen=True, slots=True)
class SystemTemplate:
    """A system instruction with the slots ``{role}`` and ``{description}``.

    A line that names ``{description}`` is left out for a role that has none. Slots are filled in one pass, so braces
    inside a role's own text stay text.
    """

    text: str

    @property
    def hash(self) -> str:
        """SHA-256 of the template's text, in hex."""
        return hash_bytes(self.text.encode("utf-8"))

    def fill(self, role: str, description: str | None) -> str:
        """Fill the slots.

        Args:
            role: The role's name.
            description: Second person, with catchphrases; ``None`` or blank drops the lines that ask for it.
        """
        values = {"role": role, "description": (description or "").strip()}
        lines = [line for line in self.text.splitlines() if values["description"] or "{description}" not in line]
        return fill_slots("\n".join(lines), values)


def system_template(language: Language, path: str | Path | None = None) -> SystemTemplate:
    """The system instruction for a language, or the user's own from a file.

    Args:
        language: ``en`` or ``zh``.
        path: A UTF-8 text file with the slots ``{role}`` and, optionally, ``{description}``.

    Raises:
        RecipeError: When the file is not there, or names no ``{role}``.
    """
    if path is None:
        source = resources.files("rolellm.prompts").joinpath(language, "system.txt")
        return SystemTemplate(source.read_text(encoding="utf-8").strip())
    file = Path(path)
    if not file.is_file():
        raise RecipeError(f"no system template at {file}; leave it out to use the one that ships")
    text = file.read_text(encoding="utf-8").strip()
    if "{role}" not in text:
        raise RecipeError(f"{file} has no slot {{role}}; a system template needs it, and may have {{description}}")
    return SystemTemplate(text)


def prompt_messages(row: Row, template: SystemTemplate | None = None) -> list[dict[str, str]]:
    """The chat messages that ask a row's question of its role: one system turn, one user turn.

    Args:
        row: The row to ask.
        template: The system instruction; by default the one that ships, in the row's language.
    """
    chosen = template or system_template(row.language)
    return [
        {"role": "system", "content": chosen.fill(row.role, row.role_description)},
        {"role": "user", "content": row.question},
    ]


def chat_template(name: str = "rolellama") -> str:
    """The Jinja chat template of a text form, for ``tokenizer.chat_template``.

    Args:
        name: ``rolellama``, the text form the paper tuned LLaMA on (``### Instruction:`` and so on), or ``chatglm2`` or
            ``chatglm3``, those chat models' own.

    Raises:
        RecipeError: For a form that does not ship; names those that do.
    """
    folder = resources.files("rolellm.prompts").joinpath("chat")
    known = sorted(item.name.removesuffix(".jinja") for item in folder.iterdir() if item.name.endswith(".jinja"))
    if name not in known:
        raise RecipeError(f"unknown prompt form {name!r}; known: {', '.join(known)}")
    return folder.joinpath(f"{name}.jinja").read_text(encoding="utf-8").strip()
