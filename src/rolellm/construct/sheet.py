"""A character, the record that the stages of making a role share, and the folder that holds one.

A character's folder has ``profile.json`` (everything but the dialogue), ``dialogue.jsonl`` (its turns, as
``rolellm role parse`` writes them), and what later stages put there: ``build/``, ``instruct/`` and ``respond/``, each a
run with its journal; ``card.json`` of an imported character card.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

from rolellm.construct.scripts.turns import read_turns, write_turns
from rolellm.core.errors import DataError, SettingsError
from rolellm.core.files import write_json
from rolellm.core.fingerprint import hash_json
from rolellm.core.jsonl import read_json
from rolellm.core.records import Language, Profile, Turn
from rolellm.core.text import half_in
from rolellm.core.typed_json import read_as
from rolellm.rolebench.release import Text

PROFILE = "profile.json"
DIALOGUE = "dialogue.jsonl"
CARD = "card.json"
#: As SillyTavern numbers them.
Logic = Literal["and_any", "not_all", "not_any", "and_all"]


@dataclass(frozen=True, slots=True)
class Lore:
    """Something to know about a character's world, such as an entry of a lorebook.

    Attributes:
        content: The text.
        keys: What calls it up, see `rolellm.construct.lore`; may be empty.
        name: What it is called; may be empty.
        secondary_keys: Further keys; they count only with `keys`.
        logic: Which of the secondary keys must be there, or must not.
        constant: Whether it needs no key.
        case_sensitive: Whether the keys' case counts.
        whole_words: Whether a key of one word must be a whole word in the text.
    """

    content: str
    keys: tuple[str, ...] = ()
    name: str = ""
    secondary_keys: tuple[str, ...] = ()
    logic: Logic = "and_any"
    constant: bool = False
    case_sensitive: bool = False
    whole_words: bool = True


@dataclass(frozen=True, slots=True)
class Sheet:
    """All that is known about a role.

    Attributes:
        role: Its name.
        language: ``en`` or ``zh``.
        turns: Its structured dialogue; the role's own lines carry `role` as speaker.
        description: Second person, without catchphrases.
        background: Third person without the name, which the description was made of.
        catchphrases: Short quotes, or none.
        lore: What retrieval may add to a prompt.
        aliases: Other names that the script has for the role.
        script: What it was read from, such as a file's name.
        made: How it was made: settings, model and hashes, for the manifest.
    """

    role: Text
    language: Language
    turns: tuple[Turn, ...] = ()
    description: str | None = None
    background: str | None = None
    catchphrases: tuple[str, ...] = ()
    lore: tuple[Lore, ...] = ()
    aliases: tuple[str, ...] = ()
    script: str | None = None
    made: Mapping[str, Any] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """The role's name, then its aliases; each once, and none that is blank."""
        return tuple(dict.fromkeys(name.strip() for name in (self.role, *self.aliases) if name.strip()))

    def named(self) -> str:
        """A pattern that finds the names in a text: the longest first, in English as whole words."""
        names = "|".join(re.escape(name) for name in sorted(self.names, key=lambda name: (-len(name), name)))
        return f"(?:{names})" if self.language == "zh" else rf"(?<!\w)(?:{names})(?!\w)"

    def described(self) -> str | None:
        """The description with catchphrases, as the release's ``desc.json`` has them."""
        if not self.description:
            return None
        if not self.catchphrases:
            return self.description
        quoted = " / ".join(f'"{phrase}"' for phrase in self.catchphrases)
        if self.language == "zh":
            return f"{self.description}你的口头禅是：{quoted}"
        verb = "catchphrase is" if len(self.catchphrases) == 1 else "catchphrases are"
        return f"{self.description} Your {verb}: {quoted}"

    @property
    def fingerprint(self) -> str:
        """A hash of what the stages after the profile are made from, which their manifests have as ``character``."""
        turns = [[turn.speaker, turn.content, turn.kind, turn.scene] for turn in self.turns if turn.content]
        lore = [[item.name, item.content] for item in self.lore]
        return hash_json([self.role, self.described(), self.background, turns, lore])

    def profile(self) -> Profile:
        """What prompts and retrieval need of it."""
        return Profile(self.role, self.language, self.turns, self.described())


def write_sheet(character: Sheet, folder: str | Path) -> Path:
    """Write ``profile.json`` and ``dialogue.jsonl`` into a folder, each complete or not at all; return the folder."""
    target = Path(folder)
    write_turns(target / DIALOGUE, character.turns, character.role)
    write_json(target / PROFILE, plain_fields(character))
    return target


def plain_fields(character: Sheet) -> dict[str, Any]:
    """A character's fields but for its turns, as JSON has them."""
    values = asdict(replace(character, turns=()))
    return {item.name: values[item.name] for item in fields(Sheet) if item.name != "turns"}


def read_sheet(folder: str | Path) -> Sheet:
    """Read a character's folder; ``dialogue.jsonl`` may be absent where the profile was not made from one.

    Raises:
        DataError: When ``profile.json`` is missing or invalid, or the dialogue is missing; says what was expected.
    """
    path = Path(folder) / PROFILE
    if not path.is_file():
        raise DataError(
            f"no {PROFILE} here; make one with `rolellm role build` or `rolellm role import-card`", path=folder
        )
    value = read_json(path)
    if problem := half_in(json.dumps(value, ensure_ascii=False)):
        raise DataError(problem, path=path)
    value = {name: item for name, item in value.items() if item is not None and name != "turns"}
    sheet = read_as(Sheet, value, "the profile", path=path)
    dialogue = Path(folder) / DIALOGUE
    if sheet.made.get("source") and not dialogue.is_file():
        raise DataError(
            f"{DIALOGUE} is missing; restore it, or make the role again with `rolellm role build`", path=folder
        )
    return replace(sheet, turns=tuple(read_turns(dialogue, sheet.role))) if dialogue.is_file() else sheet


def check_free(folder: Path, overwrite: bool, marks: Sequence[str] = (PROFILE,)) -> None:
    """Refuse a folder for a character that holds other files, or a character that may not be replaced.

    Args:
        folder: Need not be there.
        overwrite: Whether a character may be replaced.
        marks: Files by which a character is known.

    Raises:
        SettingsError: Says what the folder holds.
    """
    if folder.exists() and not folder.is_dir():
        raise SettingsError(f"{folder} is a file; a character needs a folder")
    if not folder.exists() or not any(folder.iterdir()):
        return
    if not any((folder / name).is_file() for name in marks):
        raise SettingsError(f"{folder} holds other files; choose a new folder")
    if not overwrite:
        raise SettingsError(
            f"{folder} holds a character already; choose another folder, or overwrite it (--overwrite, or "
            "overwrite=True in Python)"
        )


def check_run_folder(folder: str | Path, stage: str, *foreign: str) -> None:
    """Refuse a folder for a stage's run that is a character's, or another stage's: it would lose its manifest.

    Args:
        folder: The run's; need not be there.
        stage: ``instruct`` or ``respond``: how the names of its folders begin in a character's.
        foreign: Files that another stage leaves.

    Raises:
        SettingsError: Names the file that was found; or the folder's name would keep a release from finding it.
    """
    target = Path(folder)
    for name in (PROFILE, *foreign):
        if (target / name).is_file():
            raise SettingsError(f"{folder} holds {name}, so it cannot hold this run; name another folder (--out)")
    if (target.parent / PROFILE).is_file() and not target.name.startswith(stage):
        raise SettingsError(
            f"in a character's folder, a release finds only runs whose names begin with {stage!r}; name it "
            f"{target.parent / f'{stage}-{target.name}'} (--out)"
        )


def is_outdated(run: str | Path, character: Sheet) -> bool:
    """Whether a stage's run was made from another profile than the character's present one."""
    file = Path(run) / "manifest.json"
    known = read_json(file).get("character") if file.is_file() else None
    return known not in (None, character.fingerprint)
