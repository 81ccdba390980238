"""Prompt templates: text files with named slots, filled in one pass so that braces in a script stay text.

A slot is a lower-case name in braces, such as ``{role}``. Other braces (JSON in an example) are text.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from rolellm.errors import RecipeError
from rolellm.fingerprint import hash_bytes
from rolellm.records import Language

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
            RecipeError: When a slot gets no text, or a text has no slot.

        >>> Template("{role} says: {line}").fill(role="King", line="{role}")
        'King says: {role}'
        """
        _check(self.name, found=self.slots, expected=frozenset(slots))
        return fill_slots(self.text, slots)


def fill_slots(text: str, values: Mapping[str, str]) -> str:
    """Fill the slots that have a value, in one pass; what else stands in braces is left as it is."""
    return _SLOT.sub(lambda slot: values.get(slot.group(1), slot.group()), text)


def load_template(language: Language, name: str, *, path: str | Path | None = None) -> Template:
    """A template that ships, or the user's own in its place.

    Args:
        language: ``en`` or ``zh``.
        name: The file's name in ``prompts/en`` or ``prompts/zh``, without ``.txt``.
        path: A UTF-8 text file with the same slots.

    Raises:
        RecipeError: When there is no such template or file, or the file's slots are not those of the one that ships.
    """
    shipped = _shipped(language, name)
    if path is None:
        return shipped
    file = Path(path)
    try:
        own = Template(file.read_text(encoding="utf-8-sig").strip(), str(file))
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(
            f"no template can be read at {file} ({error}); give a UTF-8 text file, or none for the one that ships"
        ) from error
    _check(own.name, found=own.slots, expected=shipped.slots)
    return own


@functools.cache
def _shipped(language: Language, name: str) -> Template:
    source = resources.files("rolellm.prompts").joinpath(language, f"{name}.txt")
    if not source.is_file():
        raise RecipeError(f"no prompt template {language}/{name}.txt ships with this library")
    return Template(source.read_text(encoding="utf-8").strip(), f"{language}/{name}.txt")


def _check(name: str, *, found: frozenset[str], expected: frozenset[str]) -> None:
    """Raise `RecipeError` when a template's slots are not those that it is to have."""
    lacking, unknown = sorted(expected - found), sorted(found - expected)
    if lacking or unknown:
        said = [f"has no slot {_listed(lacking)}"] * bool(lacking)
        said += [f"has {_listed(unknown)}, which nothing fills"] * bool(unknown)
        raise RecipeError(f"{name} {' and '.join(said)}; its slots have to be {_listed(sorted(expected)) or 'none'}")


def _listed(slots: list[str]) -> str:
    return ", ".join(f"{{{slot}}}" for slot in slots)
