"""Who is served: roles, each with an adapter of its own or without one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from rolellm.characters.roles import Part, find_part
from rolellm.core.errors import SettingsError


@dataclass(frozen=True, slots=True)
class CastMember:
    """A role that is served.

    Attributes:
        part: The role.
        adapter: The path or Hub id of its adapter; empty for none.
    """

    part: Part
    adapter: str = ""

    @property
    def name(self) -> str:
        """The role's name."""
        return self.part.sheet.role


def read_cast(words: Iterable[str]) -> list[CastMember]:
    """Read roles as a command has them: ``ROLE`` or ``ROLE=ADAPTER``.

    Raises:
        SettingsError: For an unknown role: nothing says what its system turn is.
        DataError: For a folder or a card that cannot be read.
    """
    return list(map(_read_member, words))


def _read_member(word: str) -> CastMember:
    role, equals, adapter = word.rpartition("=")
    if not equals or Path(word).exists():
        return CastMember(find_part(word))
    if Path(adapter).is_dir():
        adapter = str(Path(adapter).absolute())
    try:
        return CastMember(find_part(role), adapter)
    except SettingsError as error:
        raise SettingsError(
            f"{error}. An adapter has no system prompt of its own: give the character's folder or card, "
            f"such as ada.json={adapter}"
        ) from error
