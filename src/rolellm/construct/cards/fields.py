"""Typed values out of a card's JSON, each named by its path when it is not what it should be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rolellm.errors import CardError

_NAMED = 20


@dataclass(slots=True)
class Notes:
    """What a user should know of a card; so many are kept, the rest are counted."""

    texts: list[str] = field(default_factory=list)
    more: int = 0

    def add(self, text: str) -> None:
        """Add a note."""
        if len(self.texts) < _NAMED:
            self.texts.append(text)
        else:
            self.more += 1

    def all(self) -> tuple[str, ...]:
        """The notes, and how many more there were."""
        return (*self.texts, *([f"and {self.more:,} more such notes"] if self.more else []))


@dataclass(frozen=True, slots=True)
class Fields:
    """The members of one object of a card.

    What becomes part of a character must have its type. Of anything else a wrong type is noted, and it counts as
    absent: it stays in the card as it is. A member that is null counts as absent, for many writers leave it so.

    Attributes:
        values: The object.
        path: Where it stands in the card, with a point behind it; empty at the top.
        notes: What is noted.
    """

    values: Mapping[str, Any]
    path: str
    notes: Notes

    def text(self, name: str) -> str:
        """A text, empty where there is none.

        Raises:
            CardError: When it is something else.
        """
        value = self.values.get(name)
        if not isinstance(value, str | None):
            raise self._wrong(name, "a text", value)
        return value or ""

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of texts.

        Raises:
            CardError: When it is something else.
        """
        value = self.values.get(name)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self._wrong(name, "a list of texts", value)
        return tuple(value)

    def flag(self, name: str, default: bool) -> bool:
        """True or false.

        Raises:
            CardError: When it is something else.
        """
        value = self.values.get(name)
        if not isinstance(value, bool | None):
            raise self._wrong(name, "true or false", value)
        return default if value is None else value

    def objects(self, name: str) -> list[Fields]:
        """A list of objects.

        Raises:
            CardError: When it is something else.
        """
        value = self.values.get(name)
        if value is None:
            return []
        if not isinstance(value, list):
            raise self._wrong(name, "a list of objects", value)
        for place, item in enumerate(value):
            if not isinstance(item, dict):
                raise self._wrong(f"{name}[{place}]", "an object", item)
        return [Fields(item, f"{self.path}{name}[{place}].", self.notes) for place, item in enumerate(value)]

    def object(self, name: str) -> Fields | None:
        """An object, where there is one.

        Raises:
            CardError: When it is something else.
        """
        value = self.values.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self._wrong(name, "an object", value)
        return Fields(value, f"{self.path}{name}.", self.notes)

    def noted_text(self, name: str) -> str:
        """A text that nothing depends on; of anything else, a note."""
        return str(self._noted(name, "a text", "", self.values.get(name), isinstance(self.values.get(name), str)))

    def noted_flag(self, name: str) -> bool:
        """True or false, false where there is none; of anything else, a note."""
        value = self.values.get(name)
        return bool(self._noted(name, "true or false", False, value, isinstance(value, bool)))

    def noted_number(self, name: str) -> float | None:
        """A number that nothing depends on; of anything else, a note."""
        value = self.values.get(name)
        good = isinstance(value, int | float) and not isinstance(value, bool)
        found = self._noted(name, "a number", None, value, good)
        return None if found is None else float(found)

    def noted_texts(self, name: str) -> tuple[str, ...]:
        """Texts that nothing depends on; of anything else, a note."""
        value = self.values.get(name)
        good = isinstance(value, list) and all(isinstance(item, str) for item in value)
        return tuple(self._noted(name, "a list of texts", (), value, good))

    def noted_mapping(self, name: str) -> Mapping[str, str]:
        """An object of texts that nothing depends on; of anything else, a note."""
        value = self.values.get(name)
        good = isinstance(value, dict) and all(isinstance(item, str) for item in value.values())
        return dict(self._noted(name, "an object of texts", {}, value, good))

    def noted_objects(self, name: str) -> tuple[Mapping[str, Any], ...]:
        """Objects that nothing depends on; of anything else, a note."""
        value = self.values.get(name)
        good = isinstance(value, list) and all(isinstance(item, dict) for item in value)
        return tuple(self._noted(name, "a list of objects", (), value, good))

    def _noted(self, name: str, expected: str, default: Any, value: Any, good: bool) -> Any:
        if good:
            return value
        if value is not None:
            self.notes.add(f"{self._found(name, expected, value)}; it is kept in the card, and not used")
        return default

    def _wrong(self, name: str, expected: str, value: Any) -> CardError:
        return CardError(f"{self._found(name, expected, value)}; correct it in the card")

    def _found(self, name: str, expected: str, value: Any) -> str:
        return f"expected `{self.path}{name}` to be {expected}, found {shown(value)}"


def shown(value: Any) -> str:
    """A value in a message: what cannot be seen is escaped, what is large is named by its kind."""
    if isinstance(value, dict):
        return f"an object of {len(value):,}"
    if isinstance(value, list):
        kinds = sorted({type(item).__name__ for item in value[:1000]})
        return f"a list of {len(value):,} ({', '.join(kinds) or 'empty'})"
    return ascii(value)[:60] if isinstance(value, str) else str(value)[:60]
