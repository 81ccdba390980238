"""The prompts of a scene: those that ship, in the scene's language, or the user's own from a file."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

from rolellm.core.fingerprint import hash_json
from rolellm.core.records import Language
from rolellm.core.settings import read, read_file, settings
from rolellm.models.prompts.render import SLOT, load_template


@settings
class OwnPrompts:
    """The user's own prompts; what is left out is as it ships.

    Attributes:
        character: What a character is told of the scene, after its own system instruction, with the slots {role},
            {setting}, {topic}, {others} and {motivation}.
        environment: The instruction of the environment, with {setting}, {topic} and {names}.
        speaker: The instruction of the model that chooses the next speaker, with {setting}, {topic} and {names}.
        critique: The judge's instruction, with {book}, {plot}, {setting}, {profiles}, {original}, {names}, {dimension}
            and {criteria}.
    """

    character: str | None = None
    environment: str | None = None
    speaker: str | None = None
    critique: str | None = None


@dataclass(frozen=True, slots=True)
class ScenePrompts:
    """The prompts of a scene, each with its slots.

    Attributes:
        character: What a character is told of the scene.
        environment: The instruction of the environment.
        speaker: The instruction of the model that chooses the next speaker.
        critique: The instruction of CoSER's judge.
        own: The names of those that are the user's own.
    """

    character: str
    environment: str
    speaker: str
    critique: str
    own: tuple[str, ...] = ()

    @property
    def hash(self) -> str:
        """SHA-256 of all prompts, in hex."""
        return hash_json([self.character, self.environment, self.speaker, self.critique])


def load_scene_prompts(language: Language, path: str | Path | None = None) -> ScenePrompts:
    """Load the prompts of a scene.

    Args:
        language: ``en`` or ``zh``.
        path: A YAML file with prompts of the user's own, see `OwnPrompts`.

    Raises:
        SettingsError: For a file that cannot be read, or with an unknown key.
    """
    own = OwnPrompts()
    if path is not None:
        own = read(OwnPrompts, read_file(path), str(path))
    texts: dict[str, str] = {}
    own_names = []
    for name in (item.name for item in fields(own)):
        text = getattr(own, name)
        if text is None:
            text = load_template(language, f"scene_{name}").text
        else:
            own_names.append(name)
        texts[name] = text
    return ScenePrompts(**texts, own=tuple(own_names))


def fill_prompt(text: str, **slots: str) -> str:
    r"""Fill a prompt's slots; a line that names a slot without text is left out.

    >>> fill_prompt("Where: {setting}\nWhat: {topic}", setting="a hall", topic="")
    'Where: a hall'
    """
    lines = []
    for line in text.split("\n"):
        names = SLOT.findall(line)
        if all(slots.get(name, "x") for name in names):
            lines.append(SLOT.sub(lambda slot: slots.get(slot[1], slot[0]), line))
    return "\n".join(lines)
