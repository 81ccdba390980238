"""The folder that holds a character, and the cards that go in and out of it.

A character's folder has ``profile.json`` (everything but the dialogue), ``dialogue.jsonl`` (its turns, as
``rolellm role parse`` writes them), and what later stages put there: ``build/``, ``instruct/`` and ``respond/``, each a
run with its journal. Of an imported card, ``card.json`` holds the JSON as it came, and ``card.png`` or ``card.charx``
the file that it came in.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from rolellm.characters.cards.card import Card, detect_container, load_card, save_card
from rolellm.characters.cards.convert import CardReading, export_character, read_as_character
from rolellm.characters.scripts.source import read_source
from rolellm.characters.scripts.table import is_table
from rolellm.characters.scripts.turns import read_turns, write_turns
from rolellm.core.errors import CardError, DataError, ScriptError, SettingsError
from rolellm.core.files import open_atomic, open_atomic_binary, write_json
from rolellm.core.jsonl import read_json
from rolellm.core.records import Language, Profile
from rolellm.core.result import Result
from rolellm.core.text import find_surrogate
from rolellm.core.typed_json import read_as

PROFILE = "profile.json"
DIALOGUE = "dialogue.jsonl"
CARD = "card.json"
#: What a card may come in, by the ending of its file.
_ORIGINALS = {".png": "card.png", ".charx": "card.charx"}


def write_character(character: Profile, folder: str | Path) -> Path:
    """Write ``profile.json`` and ``dialogue.jsonl`` into a folder, each complete or not at all; return the folder."""
    target = Path(folder)
    write_turns(target / DIALOGUE, character.turns, character.role)
    write_json(target / PROFILE, dump_fields(character))
    return target


def dump_fields(character: Profile) -> dict[str, Any]:
    """A character's fields but for its turns, as JSON has them."""
    values = asdict(replace(character, turns=()))
    names = [item.name for item in fields(Profile) if item.name != "turns"]
    return {name: values[name] for name in names}


def read_character(folder: str | Path) -> Profile:
    """Read a character's folder; ``dialogue.jsonl`` may be absent where the profile was not made from one.

    Raises:
        DataError: When ``profile.json`` is missing or invalid, or the dialogue is missing; says what was expected.
    """
    path = Path(folder) / PROFILE
    if not path.is_file():
        raise DataError(f"no {PROFILE} here; make one with `rolellm role build` or `rolellm role card`", path=folder)
    value = read_json(path)
    problem = find_surrogate(json.dumps(value, ensure_ascii=False))
    if problem:
        raise DataError(problem, path=path)
    value = {name: item for name, item in value.items() if item is not None and name != "turns"}
    character = read_as(Profile, value, "the profile", path=path)
    if not character.role.strip():
        raise DataError("the profile is not valid at role: it has no name", path=path)
    dialogue = Path(folder) / DIALOGUE
    if character.made.get("source") and not dialogue.is_file():
        raise DataError(
            f"{DIALOGUE} is missing; restore it, or make the role again with `rolellm role build`", path=folder
        )
    if not dialogue.is_file():
        return character
    return replace(character, turns=tuple(read_turns(dialogue, character.role)))


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
    if not folder.exists() or all(path.name.endswith(".lock") for path in folder.iterdir()):
        return
    if not any((folder / name).is_file() for name in marks):
        raise SettingsError(f"{folder} holds other files; choose a new folder")
    if not overwrite:
        raise SettingsError(
            f"{folder} holds a character already; choose another folder, or overwrite it (--overwrite, or "
            "overwrite=True in Python)"
        )


def is_outdated(run: str | Path, character: Profile) -> bool:
    """Tell whether a stage's run was made from another profile than the character's present one."""
    file = Path(run) / "manifest.json"
    made_from = read_json(file).get("character") if file.is_file() else None
    return made_from not in (None, character.fingerprint)


def import_card(
    path: str | Path,
    folder: str | Path,
    *,
    role: str | None = None,
    language: Language | None = None,
    overwrite: bool = False,
) -> Path:
    """Make a character's folder of a card, and return it.

    Args:
        path: The card: JSON, PNG or CHARX.
        folder: Made where needed.
        role: A name in place of the card's.
        language: Detected by default.
        overwrite: Put the card in the place of the character that the folder holds.

    Raises:
        CardError: When the card cannot be read; nothing is written then.
        SettingsError: When the folder holds anything already and may not be overwritten, or the name given is none.
    """
    target = Path(folder)
    check_free(target, overwrite, (PROFILE, CARD))
    card = load_card(path)
    reading = _make_character(card, path, role, language)
    with open_atomic(target / CARD) as stream:
        stream.write(card.text)
    container = detect_container(Path(path))
    if container in _ORIGINALS:
        with Path(path).open("rb") as source, open_atomic_binary(target / _ORIGINALS[container]) as out:
            shutil.copyfileobj(source, out)
    is_own_card = Path(path).resolve() == (target / CARD).resolve()
    for ending, name in _ORIGINALS.items():
        if ending != container and not is_own_card:
            (target / name).unlink(missing_ok=True)
    return write_character(reading.character, target)


def _make_character(
    card: Card, path: str | Path, role: str | None = None, language: Language | None = None
) -> CardReading:
    try:
        return read_as_character(card, role=role, language=language, file=Path(path).name)
    except CardError as error:
        raise CardError(error.problem, path=path) from error


def is_card(path: str | Path) -> bool:
    """Tell whether a file can hold a card: a picture, a zip, or JSON by its name, unless that is a chat."""
    file = Path(path)
    if not file.is_file():
        return False
    if file.suffix.lower() != ".json":
        return detect_container(file) in _ORIGINALS
    try:
        return not is_table(read_source(file).text)
    except ScriptError:
        # Readers of cards say what is wrong.
        return True


def find_picture(source: str | Path) -> Path | None:
    """Find the picture of a card, or of the one that a character's folder was made of."""
    path = Path(source)
    if path.is_dir():
        path /= _ORIGINALS[".png"]
    return path if path.is_file() and detect_container(path) == ".png" else None


def open_character(
    character: str | Path, folder: str | Path | None = None, *, make: bool = False, overwrite: bool = False
) -> tuple[Profile, Path | None]:
    """Open a character's folder or a card, wherever a command takes one.

    Args:
        character: The folder, or the card's file.
        folder: Where a card's character is kept; by default next to the card, under its name.
        make: Import the card there unless that was done before.
        overwrite: Put the card in the place of another character there.

    Returns:
        The character, and its folder: of a card, the one that was made of it, ``None`` where there is none.

    Raises:
        DataError: When there is neither a folder with a character nor a card.
        SettingsError: When the folder to make holds something else.
    """
    path = Path(character)
    if not path.is_file():
        return read_character(path), path
    target = path.with_suffix("") if folder is None else Path(folder)
    card = load_card(path)
    is_imported = (target / PROFILE).is_file() and (target / CARD).is_file()
    if is_imported and load_card(target / CARD).text == card.text:
        return read_character(target), target
    if not make:
        return _make_character(card, path).character, None
    try:
        import_card(path, target, overwrite=overwrite)
    except SettingsError as error:
        way = f"import the card elsewhere: rolellm role card {path} --out FOLDER"
        raise SettingsError(f"{error}; or {way}") from error
    return read_character(target), target


@dataclass(frozen=True, slots=True, repr=False)
class WrittenCard(Result):
    """A character that was written as a card.

    Attributes:
        out: The file.
        changed: The fields that differ from the card that the character came from; empty of a new card.
        warnings: What the user should know.
    """

    out: Path
    changed: tuple[str, ...]
    warnings: tuple[str, ...]

    def remarks(self) -> list[str]:
        """Return what was written, and what changed."""
        remarks = [f"Wrote a card V3 to {self.out}."]
        if self.changed:
            remarks.append(f"Changed since it was imported: {', '.join(self.changed)}.")
        return remarks

    def notes(self) -> list[str]:
        """Return the warnings."""
        return [f"note: {warning}" for warning in self.warnings]


def export_card(
    folder: str | Path, out: str | Path, *, picture: str | Path | None = None, overwrite: bool = False
) -> WrittenCard:
    """Write a character's folder as a card V3: the card it came from with what was changed since, or a new one.

    Args:
        folder: The character's, or a card.
        out: The file; its ending, ``.json``, ``.png`` or ``.charx``, says which.
        picture: A PNG to put the card into; by default the one it came in, else a small plain one. Other cards in it
            are taken out.
        overwrite: Put it in the place of a file that is there.

    Raises:
        DataError: When the folder holds no character.
        CardError: When its ``card.json``, or the picture, cannot be read.
        SettingsError: When `out` has another ending, or is there already.
    """
    target = Path(out)
    ending = target.suffix.lower()
    if ending not in (".json", *_ORIGINALS):
        raise SettingsError(f"{target}: a card is a .json, .png or .charx file; use one of these endings")
    if picture is not None and ending != ".png":
        raise SettingsError("a picture goes into a .png only; leave it out, or write to a .png")
    if target.is_dir() or (target.exists() and not overwrite):
        raise SettingsError(
            f"{target} exists already; choose another name, or overwrite it (--overwrite, or overwrite=True in Python)"
        )
    if target.resolve() == (Path(folder) / PROFILE).resolve():
        raise SettingsError(f"{target} is the character itself; choose another name")
    character, home = open_character(folder)
    if home is None:
        with tempfile.TemporaryDirectory(prefix="rolellm-") as scratch:
            import_card(folder, scratch)
            return export_card(scratch, out, picture=picture, overwrite=overwrite)
    card = load_card(home / CARD) if (home / CARD).exists() else None
    exported = export_character(character, card)
    base = None
    if picture is not None:
        base = Path(picture)
    elif ending in _ORIGINALS and (home / _ORIGINALS[ending]).is_file():
        base = home / _ORIGINALS[ending]
    save_card(target, exported.value, base)
    return WrittenCard(target, exported.changed, exported.notes)
