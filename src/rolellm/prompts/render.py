"""From a row to chat messages: the system instruction carries the role, the user turn carries the question.

The wording of the system instruction is ours; what it must say is in the paper's zero-shot prompt (arXiv 2310.00746).
A user who must match another wording brings a template of their own, and its hash goes into every fingerprint.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import Final

from rolellm.core.errors import SettingsError
from rolellm.core.fingerprint import hash_bytes
from rolellm.core.records import Language, Row, Turn

_SLOT = re.compile(r"\{([a-z][a-z0-9_]*)\}")


@dataclass(frozen=True, slots=True)
class Template:
    """A prompt with slots.

    Attributes:
        text: With its slots.
        name: What it is called in messages.
    """

    text: str
    name: str = "template"

    @property
    def hash(self) -> str:
        """SHA-256 of the template's text, in hex."""
        return hash_bytes(self.text.encode("utf-8"))

    @property
    def slots(self) -> frozenset[str]:
        """The names of its slots."""
        return frozenset(_SLOT.findall(self.text))

    def fill(self, **slots: str) -> str:
        """Fill the slots, in one pass: what is filled in is never looked through for slots.

        Raises:
            SettingsError: When a slot gets no text, or a text has no slot.

        >>> Template("{role} says: {line}").fill(role="King", line="{role}")
        'King says: {role}'
        """
        _check(self.name, found=self.slots, expected=frozenset(slots))
        return fill_slots(self.text, slots)


def fill_slots(text: str, values: Mapping[str, str]) -> str:
    """Fill the slots that have a value, in one pass; other text in braces stays as it is."""
    return _SLOT.sub(lambda slot: values.get(slot.group(1), slot.group()), text)


def load_template(language: Language, name: str, *, path: str | Path | None = None) -> Template:
    """A template that ships, or the user's own in its place.

    Args:
        language: ``en`` or ``zh``.
        name: The file's name in ``prompts/en`` or ``prompts/zh``, without ``.txt``.
        path: A UTF-8 text file with the same slots.

    Raises:
        SettingsError: When there is no such template or file, or the file's slots are not those of the one that ships.
    """
    shipped = _shipped(language, name)
    if path is None:
        return shipped
    file = Path(path)
    try:
        own = Template(file.read_text(encoding="utf-8-sig").strip(), str(file))
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(
            f"cannot read the template {file} ({error}); give a UTF-8 text file, or leave it out for the built-in one"
        ) from error
    _check(own.name, found=own.slots, expected=shipped.slots)
    return own


@functools.cache
def _shipped(language: Language, name: str) -> Template:
    source = resources.files("rolellm.prompts").joinpath(language, f"{name}.txt")
    if not source.is_file():
        raise SettingsError(f"no prompt template {language}/{name}.txt ships with this library")
    return Template(source.read_text(encoding="utf-8").strip(), f"{language}/{name}.txt")


def _check(name: str, *, found: frozenset[str], expected: frozenset[str]) -> None:
    """Raise `SettingsError` when a template's slots are not those that it is to have."""
    lacking, unknown = sorted(expected - found), sorted(found - expected)
    if lacking or unknown:
        said = [f"has no slot {_listed(lacking)}"] * bool(lacking)
        said += [f"has {_listed(unknown)}, which nothing fills"] * bool(unknown)
        raise SettingsError(f"{name} {' and '.join(said)}; its slots have to be {_listed(sorted(expected)) or 'none'}")


def _listed(slots: list[str]) -> str:
    return ", ".join(f"{{{slot}}}" for slot in slots)


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
        SettingsError: When the file is not there, or names no ``{role}``.
    """
    if path is None:
        source = resources.files("rolellm.prompts").joinpath(language, "system.txt")
        return SystemTemplate(source.read_text(encoding="utf-8").strip())
    file = Path(path)
    if not file.is_file():
        raise SettingsError(f"no system template at {file}; leave it out to use the one that ships")
    text = file.read_text(encoding="utf-8").strip()
    if "{role}" not in text:
        raise SettingsError(f"{file} has no slot {{role}}; a system template needs it, and may have {{description}}")
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
        SettingsError: For a form that does not ship; names those that do.
    """
    folder = resources.files("rolellm.prompts").joinpath("chat")
    known = sorted(item.name.removesuffix(".jinja") for item in folder.iterdir() if item.name.endswith(".jinja"))
    if name not in known:
        raise SettingsError(f"unknown prompt form {name!r}; known: {', '.join(known)}")
    return folder.joinpath(f"{name}.jinja").read_text(encoding="utf-8").strip()


#: Replaces another speaker's line, by language: when the role opens a scene, and when it continues.
OPENING: Final = MappingProxyType({"en": "(You speak first.)", "zh": "（你先开口。）"})
ONWARD: Final = MappingProxyType({"en": "(You go on.)", "zh": "（你接着说。）"})

#: Characters of a turn that a prompt shows (our choice): a speech of two pages would leave no room for anything else.
LONGEST: Final = 400

_COLON: Final = MappingProxyType({"en": ": ", "zh": "："})
_BRACKETS: Final = MappingProxyType({"en": ("(", ")"), "zh": ("（", "）")})
_BRACKETED: Final = ("()", "[]", "（）", "【】", "［］")
_CUT_WORD: Final = re.compile(r"\s\S{0,30}\Z")


def shorten(text: str) -> str:
    """A text of up to `LONGEST` characters as it is; of a longer one the beginning, to the end of a word, and "…"."""
    if len(text) <= LONGEST:
        return text
    return _CUT_WORD.sub("", text[: LONGEST - 1]).rstrip() + "…"


def script_line(turn: Turn, language: Language, *, whole: bool = False) -> str:
    """A turn, shortened unless `whole`, with its speaker's name; narration is in one pair of brackets, without a name.

    >>> script_line(Turn("King", "A fine day."), "en")
    'King: A fine day.'
    """
    text = turn.content
    if turn.kind == "speech":
        return f"{turn.speaker}{_COLON[language]}{text if whole else shorten(text)}"
    if text[:1] + text[-1:] in _BRACKETED:
        text = text[1:-1].strip()
    opening, closing = _BRACKETS[language]
    return f"{opening}{text if whole else shorten(text)}{closing}"
