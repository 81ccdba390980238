"""From a row to chat messages: the system instruction carries the role, the user turn carries the question.

The wording of the system instruction is ours; what it must say is in the paper's zero-shot prompt (arXiv 2310.00746).
A user who must match another wording brings a template of their own, and its hash goes into every fingerprint.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal, get_args

from rolellm.core.errors import DataError, SettingsError
from rolellm.core.fingerprint import hash_bytes
from rolellm.core.foreign import read_text
from rolellm.core.records import Language, Row, Turn
from rolellm.core.settings import read_packaged_yaml

SLOT: Final = re.compile(r"\{([a-z][a-z0-9_]*)\}")


@dataclass(frozen=True, slots=True)
class Template:
    """A prompt with slots.

    Attributes:
        text: With its slots.
        name: What it is called in messages.
        optional: Slots that may stay empty: the parts that name one are left out then, and other braces are text.
        between: What is between two parts: a new line, or a blank line.
    """

    text: str
    name: str = "template"
    optional: tuple[str, ...] = ()
    between: str = "\n"

    @property
    def hash(self) -> str:
        """SHA-256 of the template's text, in hex."""
        return hash_bytes(self.text.encode("utf-8"))

    @property
    def slots(self) -> frozenset[str]:
        """The names of its slots."""
        return frozenset(SLOT.findall(self.text))

    def fill(self, **slots: str | None) -> str:
        """Fill the slots, in one pass: what is filled in is never looked through for slots.

        Raises:
            SettingsError: When a slot gets no text, or a text has no slot.

        >>> Template("{role} says: {line}").fill(role="King", line="{role}")
        'King says: {role}'
        """
        values = {name: text or "" for name, text in slots.items()}
        text = self.text
        if self.optional:
            parts = text.split(self.between)
            for name in self.optional:
                values[name] = values.get(name, "").strip()
                if not values[name]:
                    parts = [part for part in parts if f"{{{name}}}" not in part]
            text = self.between.join(parts)
        else:
            self._check(frozenset(slots))
        return SLOT.sub(lambda slot: values.get(slot.group(1), slot.group()), text)

    def _check(self, names: frozenset[str]) -> None:
        problems: list[str] = []
        if names - self.slots:
            problems.append(f"has no slot {_list_slots(names - self.slots)}")
        if self.slots - names:
            problems.append(f"has {_list_slots(self.slots - names)}, which nothing fills")
        if problems:
            expected = _list_slots(names) or "none"
            raise SettingsError(f"{self.name} {' and '.join(problems)}; its slots have to be {expected}")


def _list_slots(slots: Collection[str]) -> str:
    return ", ".join(f"{{{slot}}}" for slot in sorted(slots))


@functools.cache
def load_template(language: Language, name: str) -> Template:
    """A template that ships.

    Args:
        language: ``en`` or ``zh``.
        name: The file's name in ``prompts/en`` or ``prompts/zh``, without ``.txt``.

    Raises:
        SettingsError: When there is no such template.
    """
    source = resources.files("rolellm.models.prompts").joinpath(language, f"{name}.txt")
    if not source.is_file():
        raise SettingsError(f"no prompt template {language}/{name}.txt ships with this library")
    return Template(source.read_text(encoding="utf-8").strip(), f"{language}/{name}.txt")


@functools.cache
def hash_templates(language: Language, prefix: str) -> dict[str, str]:
    """The hash of each file whose name begins so, and of the request for a repair, by its name without the ending."""
    files = resources.files("rolellm.models.prompts").joinpath(language).iterdir()
    hashes: dict[str, str] = {}
    for file in sorted(files, key=lambda file: file.name):
        if file.name.startswith((prefix, "repair")):
            hashes[file.name.partition(".")[0]] = hash_bytes(file.read_bytes())
    return hashes


def load_system_template(language: Language, path: str | Path | None = None, *, retrieval: bool = False) -> Template:
    """The system instruction for a language, or the user's own from a file.

    It has the slots ``{role}`` and ``{description}``; a line that names the description is left out for a role that has
    none. For retrieval they are ``{role}`` and ``{examples}``; the paragraph that names the examples is left out for a
    role that has none.

    Args:
        language: ``en`` or ``zh``.
        path: A UTF-8 text file with these slots; without retrieval, the description may be missing.
        retrieval: Whether it shows lines that were found for the question.

    Raises:
        SettingsError: When the file cannot be read, or lacks a slot.
    """
    optional, between = (("examples",), "\n\n") if retrieval else (("description",), "\n")
    if path is None:
        shipped = load_template(language, "retrieval" if retrieval else "system")
        return replace(shipped, optional=optional, between=between)
    try:
        text = read_text(path).strip()
    except DataError as error:
        raise SettingsError(
            f"no system template at {path} ({error}); give a UTF-8 text file, or leave it out to use the one that ships"
        ) from error
    required, needs = ["{role}"], "a system template needs it"
    if retrieval:
        required, needs = ["{role}", "{examples}"], "a template for retrieval needs both"
    lacking = [slot for slot in required if slot not in text]
    if lacking:
        raise SettingsError(f"{path} has no slot {' and no '.join(lacking)}; {needs}")
    return Template(text, str(path), optional, between)


def make_messages(row: Row, template: Template | None = None) -> list[dict[str, str]]:
    """The chat messages that ask a row's question of its role: one system turn, one user turn.

    Args:
        row: The row to ask.
        template: The system instruction; by default the one that ships, in the row's language.
    """
    chosen = template or load_system_template(row.language)
    system = chosen.fill(role=row.role, description=row.role_description)
    return [
        {"role": "system", "content": system},
        {"role": "user", "content": row.question},
    ]


class DescriptionPrompts:
    """Makes the messages that ask a row's question of its role, as `make_messages` does, from templates read once.

    Attributes:
        templates: The system instruction of each language.

    Args:
        path: A system instruction of the user's own, see `load_system_template`.
        retrieval: As there.
    """

    def __init__(self, path: str | Path | None = None, *, retrieval: bool = False) -> None:
        languages: tuple[Language, ...] = get_args(Language)
        self.templates = {language: load_system_template(language, path, retrieval=retrieval) for language in languages}

    @property
    def hashes(self) -> dict[str, str]:
        """The hash of each language's template."""
        return {language: template.hash for language, template in self.templates.items()}

    def __call__(self, row: Row) -> list[dict[str, str]]:
        """One system turn, one user turn."""
        return make_messages(row, self.templates[row.language])


def load_chat_template(name: str = "rolellama") -> str:
    """The Jinja chat template of a text form, for ``tokenizer.chat_template``.

    Args:
        name: ``rolellama``, the text form the paper tuned LLaMA on (``### Instruction:`` and so on), or ``chatglm2`` or
            ``chatglm3``, those chat models' own.

    Raises:
        SettingsError: For a form that does not ship; names those that do.
    """
    folder = resources.files("rolellm.models.prompts").joinpath("chat")
    files = [item.name for item in folder.iterdir() if item.name.endswith(".jinja")]
    names = sorted(file.removesuffix(".jinja") for file in files)
    if name not in names:
        raise SettingsError(f"unknown prompt form {name!r}; known: {', '.join(names)}")
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


def shorten_turn(text: str) -> str:
    """A text of up to `LONGEST` characters as it is; of a longer one the beginning, to the end of a word, and "…"."""
    if len(text) <= LONGEST:
        return text
    return _CUT_WORD.sub("", text[: LONGEST - 1]).rstrip() + "…"


def format_turn(turn: Turn, language: Language, *, is_full: bool = False) -> str:
    """A turn, shortened unless `is_full`, with its speaker's name; narration is in brackets, without a name.

    >>> format_turn(Turn("King", "A fine day."), "en")
    'King: A fine day.'
    """
    text = turn.content
    is_speech = turn.kind == "speech"
    if not is_speech and text[:1] + text[-1:] in _BRACKETED:
        text = text[1:-1].strip()
    if not is_full:
        text = shorten_turn(text)
    if is_speech:
        return f"{turn.speaker}{_COLON[language]}{text}"
    opening, closing = _BRACKETS[language]
    return f"{opening}{text}{closing}"


@functools.cache
def load_texts(
    name: Literal["boundary", "character_tests", "safety", "safety/training", "scenes"], language: Language
) -> Any:
    """Our texts for a check, or for mixing into training, in a language."""
    return read_packaged_yaml("rolellm.models.prompts", f"{name}/{language}.yaml")
