"""Fame-free twins: a role's names, titles, people, places and works, replaced by invented ones of the same kind.

The names are our own and reviewed by reading: `twins.yaml`, by language and role. A row's twin keeps its ``id``, so
that the two can be compared row by row; what a role knows and how it speaks stays.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from rolellm.core.records import Language
from rolellm.core.text import find_name
from rolellm.core.typed_json import read_as

FILE = Path(str(resources.files("rolellm.data.rolebench"))) / "twins.yaml"
_SEPARATOR = re.compile(r"[\s_-]+")
# A name starts and ends a word, or a part of one as in #WhoIsTomRipley2; a plural's s may follow it.
_START = r"(?:(?<![^\W_])|(?<=[a-z])(?=[A-Z][a-z]))"
_END = r"(?:(?=(?:e?[sS])?(?![^\W\d_]))|(?<=[a-z])(?=s?[A-Z]))"


@dataclass(frozen=True, eq=False)
class Names:
    """The names of one role's world and their twins.

    Attributes:
        language: ``en`` (names are whole words, in the case listed or in capitals) or ``zh``.
        twins: Twin by name.
    """

    language: Language
    twins: Mapping[str, str]

    @functools.cached_property
    def pattern(self) -> re.Pattern[str]:
        """Finds the names, the longest first; in English those of several words also glued together, in any case."""
        names = sorted(self.twins, key=lambda name: (-len(name), name))
        if self.language == "zh":
            return re.compile("|".join(map(re.escape, names)))
        forms = "|".join(map(_compile_forms, names))
        return re.compile(f"{_START}(?:{forms}){_END}")

    @functools.cached_property
    def _by_key(self) -> dict[str, str]:
        return {_fold_key(name): name for name in reversed([*self.twins])}

    def _name(self, form: str) -> str:
        if form in self.twins:
            return form
        return self._by_key[_fold_key(form)]

    def find(self, *texts: str | None) -> set[str]:
        """The listed names that occur in texts."""
        names: set[str] = set()
        for text in texts:
            names.update(map(self._name, self.pattern.findall(text or "")))
        return names

    def rename(self, text: str, kept_names: Collection[str] = ()) -> str:
        """A text with every name replaced by its twin.

        Args:
            text: The text.
            kept_names: Listed names that stay.

        >>> Names("en", {"Robin Hood": "Martin Pell", "Marian": "Lilian"}).rename("ROBIN HOOD's Marian, #RobinHood")
        "MARTIN PELL's Lilian, #MartinPell"
        """

        def replace_name(match: re.Match[str]) -> str:
            matched = match.group()
            name = self._name(matched)
            twin = self.twins[name]
            if name in kept_names:
                return matched
            if " " in name and len(matched.split()) == 1:
                glue = _SEPARATOR.search(matched)
                twin = twin.replace(" ", glue.group() if glue else "")
            if matched.isupper() and not name.isupper():
                return twin.upper()
            return twin.lower() if matched.islower() else twin

        return self.pattern.sub(replace_name, text)


def _compile_forms(name: str) -> str:
    if " " in name:
        words = r"[\s_-]*".join(map(re.escape, name.split()))
        return f"(?i:{words})"
    if name.isupper():
        return re.escape(name)
    return f"{re.escape(name)}|{re.escape(name.upper())}"


def _fold_key(text: str) -> str:
    return _SEPARATOR.sub("", text).casefold()


@functools.cache
def load_names() -> dict[Language, dict[str, Names]]:
    """The reviewed names by language and role.

    Raises:
        DataError: When the file of names is not texts by name, role and language.
    """
    text = yaml.safe_load(FILE.read_text("utf-8"))
    listed = read_as(dict[Language, dict[str, dict[str, str]]], text, "names", path=FILE)
    names: dict[Language, dict[str, Names]] = {}
    for language, roles in listed.items():
        names[language] = {role: Names(language, twins) for role, twins in roles.items()}
    return names


def get_world_names(role: str, language: Language) -> Names | None:
    """The names of a role's world; nothing for a role that has no reviewed names."""
    by_role = load_names().get(language, {})
    return by_role.get(find_name(role, by_role) or "")


def make_twin(row: Mapping[str, Any]) -> dict[str, Any] | None:
    """The twin of a row of the data set, under the same id.

    A general instruction and its target are nobody's own: they stay as they are, and so do, in the replies, the names
    that they use.

    Returns:
        The row with its names replaced; nothing for a role without reviewed names, and for a general instruction that
        asks for the role itself.
    """
    names = get_world_names(row["role"], row["language"])
    if names is None:
        return None
    kept_names: set[str] = set()
    if row["subset"] == "general":
        kept_names = names.find(row["question"], row["raw_reference"])
    if kept_names & names.find(row["role"]):
        return None
    twin = {**row, "role": names.rename(row["role"])}
    for key in ("question", "raw_reference", "rolegpt"):
        if row[key]:
            twin[key] = names.rename(row[key], kept_names)
    twin["references"] = [names.rename(text, kept_names) for text in row["references"]]
    if row["role_description"]:
        twin["role_description"] = names.rename(row["role_description"])
    return twin
