"""A scene: where it is set, who takes part and when, how it begins, who speaks next, and when it ends."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Literal

from rolellm.core.errors import SettingsError
from rolellm.core.records import Language
from rolellm.core.settings import Field, describe_alternatives, read, read_file, settings

#: The name under which what no character does is told, as in CoSER (arXiv 2502.09082).
ENVIRONMENT: Final = "Environment"
_SPAN: Final = re.compile(r"(\d+)(?:\s*-\s*(\d+)?)?")
_FOREVER: Final = 1 << 30


@settings
class SceneCharacter:
    """A character of a scene.

    Attributes:
        name: Its name in the scene.
        card: A character's folder, a card, or the name of a role of RoleBench; defaults to `description` alone.
        description: What the character is; without a card.
        motivation: What it wants in this scene; only it knows.
        known_as: What those who meet it know of it.
        present: Turns at which it is there, such as ``1-4, 9-``; defaults to all. Opening lines count as turns.
    """

    name: str = Field(min_length=1)
    card: str | None = None
    description: str = ""
    motivation: str = ""
    known_as: str = ""
    present: str | int = ""

    def __post_init__(self) -> None:
        if not self.card and not self.description.strip():
            raise SettingsError(f"{self.name} has neither a card nor a description; give one of them")
        list(self._spans())

    def is_present(self, turn: int) -> bool:
        """Tell whether the character is there at a turn, counted from 1."""
        return any(first <= turn <= last for first, last in self._spans())

    def meets(self, other: SceneCharacter) -> bool:
        """Tell whether there is a turn at which both are there."""
        for first, last in self._spans():
            for other_first, other_last in other._spans():
                if max(first, other_first) <= min(last, other_last):
                    return True
        return False

    def _spans(self) -> Iterator[tuple[int, int]]:
        present = str(self.present)
        if not present.strip():
            yield 1, _FOREVER
            return
        for part in present.split(","):
            match = _SPAN.fullmatch(part.strip())
            if match is None:
                raise SettingsError(f"{self.name}: present is {self.present!r}; write turns, such as 1-4, 9-")
            first = int(match[1])
            last = first
            if "-" in part:
                last = int(match[2] or _FOREVER)
            if not 1 <= first <= last:
                raise SettingsError(f"{self.name}: there are no turns {part.strip()}; they count from 1")
            yield first, last


@settings
class Secret:
    """Words that only some characters know when the scene begins.

    Attributes:
        words: The words, as they would be said.
        known_by: Who knows them.
    """

    words: str = Field(min_length=2)
    known_by: tuple[str, ...] = ()


@settings
class Scene:
    """A scene.

    Attributes:
        setting: Where and when it is, and what has happened; everybody knows it.
        characters: Who takes part, in the order in which they speak if nothing else decides.
        title: Its name in tables; defaults to the file's.
        topic: What it is about; everybody knows it.
        language: ``en`` or ``zh``.
        opening: The first lines, each ``NAME: line``.
        first: Who speaks first after them; defaults to whoever is next.
        environment: Whether a model tells what happens around the characters.
        speakers: Who speaks next: the next one ``in turn``, who was last ``named``, or as a ``model`` says.
        turns: Maximum turns, the opening included.
        secrets: What only some know, to check who knows what it did not witness.
        min_turns: The turns before which a model that chooses the speakers cannot end the scene.

    Raises:
        SettingsError: For two characters of one name, an opening line of nobody in the scene or of somebody who is
            away, an opening that takes all turns, and a turn at which nobody is there.
    """

    setting: str = Field(min_length=1)
    characters: tuple[SceneCharacter, ...] = Field(min_length=1)
    title: str = ""
    topic: str = ""
    language: Language = "en"
    opening: tuple[dict[str, str] | str, ...] = ()
    first: str = ""
    environment: bool = False
    speakers: Literal["in turn", "named", "model"] = "in turn"
    turns: int = Field(default=20, ge=1, le=1000)
    min_turns: int = Field(default=6, ge=0)
    secrets: tuple[Secret, ...] = ()

    def __post_init__(self) -> None:
        names = [character.name for character in self.characters]
        for name in names:
            if names.count(name) > 1:
                raise SettingsError(f"two characters are named {name}; give each a name of its own")
            if name == ENVIRONMENT:
                raise SettingsError(f"{ENVIRONMENT} is not a character's name; set `environment: true` for it")
        speakers = [name for name, _ in self.opening_lines]
        opening = len(speakers)
        if self.first:
            speakers.append(self.first)
        for name in (*speakers, *(name for secret in self.secrets for name in secret.known_by)):
            if name != ENVIRONMENT:
                self.character(name)
        for turn, name in enumerate(speakers, start=1):
            if name != ENVIRONMENT and not self.character(name).is_present(turn):
                raise SettingsError(f"{name} speaks at turn {turn} but is not there; change `present` or the line")
        if opening >= self.turns:
            raise SettingsError(f"the opening takes {opening} of {self.turns} turns; raise `turns`")
        for turn in range(opening + 1, self.turns + 1):
            if not self.environment and not self.list_present(turn):
                raise SettingsError(
                    f"nobody is there at turn {turn}; change `present`, or end with `turns: {turn - 1}`"
                )

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the characters."""
        return tuple(character.name for character in self.characters)

    @property
    def is_directed(self) -> bool:
        """True if a model chooses the speakers, or tells what happens around them."""
        return self.environment or self.speakers == "model"

    @property
    def opening_lines(self) -> list[tuple[str, str]]:
        """The speaker and the text of each opening line."""
        lines: list[tuple[str, str]] = []
        for line in self.opening:
            if isinstance(line, str):
                # A colon of Chinese, or a line in quotes, makes no section of YAML.
                name, *text = re.split(r"\s*[:：]\s*", line, maxsplit=1)
                line = {name: "".join(text)}
            lines += line.items()
        return lines

    def character(self, name: str) -> SceneCharacter:
        """Return a character by name.

        Raises:
            SettingsError: When nobody in the scene has the name.
        """
        for character in self.characters:
            if character.name == name:
                return character
        raise SettingsError(f"{name} is not in the scene{describe_alternatives(name, self.names)}")

    def describe_others(self, name: str) -> str:
        """Tell whom a character meets, as far as it knows them."""
        character = self.character(name)
        others = []
        for other in self.characters:
            if other.name == name or not character.meets(other):
                continue
            others.append(f"{other.name} ({other.known_as})" if other.known_as else other.name)
        return "; ".join(others)

    def introduce(self, me: str | None = None) -> str:
        """Tell an onlooker, or the person who plays a character, what the scene is about."""
        lines = [self.setting, self.topic]
        if me is not None:
            others = self.describe_others(me)
            lines += [f"You are {me}.", others and f"You meet: {others}", self.character(me).motivation]
        return "\n\n".join(filter(None, lines))

    def list_present(self, turn: int) -> list[str]:
        """List who is there at a turn, counted from 1."""
        return [character.name for character in self.characters if character.is_present(turn)]


def read_scene(path: str | Path) -> Scene:
    """Read a scene's file.

    Cards are looked for next to the file first.

    Raises:
        SettingsError: For a file that cannot be read, and a key or value that it may not have; names the key.
    """
    file = Path(path)
    values = read_file(file)
    characters = values.get("characters")
    for character in characters if isinstance(characters, list) else ():
        _resolve_card(character, file.parent)
    values.setdefault("title", file.stem)
    return read(Scene, values, str(file))


def _resolve_card(character: Any, folder: Path) -> None:
    card = character.get("card") if isinstance(character, dict) else None
    if isinstance(card, str) and (folder / card).exists():
        character["card"] = str(folder / card)
