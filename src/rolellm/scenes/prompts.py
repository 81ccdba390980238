"""The prompts of a scene: those that ship, in the scene's language, or the user's own from a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rolellm.core.fingerprint import hash_json
from rolellm.core.records import Language
from rolellm.core.settings import read, read_file, settings
from rolellm.models.prompts.render import Template, load_template


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


#: The slots of each prompt; a line that names one without a text is left out.
_SLOTS: Final[Mapping[str, tuple[str, ...]]] = {
    "character": ("role", "setting", "topic", "others", "motivation"),
    "environment": ("setting", "topic", "names"),
    "speaker": ("setting", "topic", "names"),
    "critique": ("book", "plot", "setting", "profiles", "original", "names", "dimension", "criteria"),
}


@dataclass(frozen=True, slots=True)
class ScenePrompts:
    """The prompts of a scene.

    Attributes:
        character: What a character is told of the scene.
        environment: The instruction of the environment.
        speaker: The instruction of the model that chooses the next speaker.
        critique: The instruction of CoSER's judge.
        own: The names of those that are the user's own.
    """

    character: Template
    environment: Template
    speaker: Template
    critique: Template
    own: tuple[str, ...] = ()

    @property
    def hash(self) -> str:
        """SHA-256 of all prompts, in hex."""
        return hash_json([getattr(self, name).text for name in _SLOTS])


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
    templates: dict[str, Template] = {}
    own_names = []
    for name, slots in _SLOTS.items():
        text = getattr(own, name)
        if text is None:
            text = load_template(language, f"scene_{name}").text
        else:
            own_names.append(name)
        templates[name] = Template(text, f"scene_{name}", optional=slots)
    return ScenePrompts(**templates, own=tuple(own_names))
