"""Cards as files, and in a character's folder.

``card.json`` holds the JSON as it came, ``card.png`` or ``card.charx`` the file that it came in.
"""

from __future__ import annotations

import shutil
import tempfile
import zipfile
from dataclasses import replace
from pathlib import Path

from rolellm.characters.cards.card import Card, Spec, backfill_v2, parse_card
from rolellm.characters.cards.containers import MAX_CARD, SIGNATURE, read_charx, read_png, write_charx, write_png
from rolellm.characters.cards.convert import CardReading, read_as_character
from rolellm.characters.cards.export import ExportedCard, export_character
from rolellm.characters.folder import CARD, PROFILE, check_free, read_character, write_character
from rolellm.core.errors import CardError, SettingsError
from rolellm.core.files import open_atomic, open_atomic_binary
from rolellm.core.foreign import read_limited
from rolellm.core.records import Language, Profile

#: What a card may come in, by the ending of its file.
ORIGINALS = {".png": "card.png", ".charx": "card.charx"}


def load_card(path: str | Path) -> Card:
    """Read a card from a JSON, PNG or CHARX file, told apart by what is in it.

    Raises:
        CardError: When the file is missing or has no readable card; names the file.
    """
    file = Path(path)
    try:
        kind = _detect_kind(file)
        if kind == ".png":
            return _read_png_card(file)
        if kind == ".charx":
            return parse_card(read_charx(file))
        return parse_card(read_limited(file, MAX_CARD, error=CardError))
    except CardError as error:
        raise error if error.path else CardError(error.problem, path=file) from error
    except OSError as error:
        raise CardError(f"cannot be read ({error.strerror})", path=file) from error


def import_card(
    path: str | Path,
    folder: str | Path,
    *,
    role: str | None = None,
    language: Language | None = None,
    overwrite: bool = False,
) -> CardReading:
    """Make a character's folder of a card.

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
    kind = _detect_kind(Path(path))
    if kind in ORIGINALS:
        with Path(path).open("rb") as source, open_atomic_binary(target / ORIGINALS[kind]) as out:
            shutil.copyfileobj(source, out)
    if Path(path).resolve() != (target / CARD).resolve():
        for name in (name for ending, name in ORIGINALS.items() if ending != kind):
            (target / name).unlink(missing_ok=True)
    write_character(reading.character, target)
    return reading


def _make_character(
    card: Card, path: str | Path, role: str | None = None, language: Language | None = None
) -> CardReading:
    try:
        return read_as_character(card, role=role, language=language, file=Path(path).name)
    except CardError as error:
        raise CardError(error.problem, path=path) from error


def is_card(path: str | Path) -> bool:
    """Tell whether a file can hold a card: a picture, a zip, or JSON by its name."""
    file = Path(path)
    return file.is_file() and (file.suffix.lower() == ".json" or _detect_kind(file) in ORIGINALS)


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
    if (target / PROFILE).is_file() and (target / CARD).is_file() and load_card(target / CARD).text == card.text:
        return read_character(target), target
    if not make:
        return _make_character(card, path).character, None
    try:
        return import_card(path, target, overwrite=overwrite).character, target
    except SettingsError as error:
        way = f"import the card elsewhere: rolellm role card {path} --out FOLDER"
        raise SettingsError(f"{error}; or {way}") from error


def export_card(
    folder: str | Path,
    out: str | Path,
    *,
    spec: Spec | None = None,
    picture: str | Path | None = None,
    overwrite: bool = False,
) -> ExportedCard:
    """Write a character's folder as a card: the card it came from with what was changed since, or a new one.

    Args:
        folder: The character's, or a card.
        out: The file; its ending, ``.json``, ``.png`` or ``.charx``, says which.
        spec: ``v2`` or ``v3``; by default as the card it came from, else ``v2``; of a CHARX ``v3``.
        picture: A PNG to put the card into; by default the one it came in, else a small plain one. Other cards in it
            are taken out.
        overwrite: Put it in the place of a file that is there.

    Raises:
        DataError: When the folder holds no character.
        CardError: When its ``card.json``, or the picture, cannot be read.
        SettingsError: When `out` is neither, or is there already.
    """
    target = Path(out)
    ending = target.suffix.lower()
    _check_target(target, spec, has_picture=picture is not None, overwrite=overwrite)
    if target.resolve() == (Path(folder) / PROFILE).resolve():
        raise SettingsError(f"{target} is the character itself; choose another name")
    character, home = open_character(folder)
    if home is None:
        with tempfile.TemporaryDirectory(prefix="rolellm-") as scratch:
            import_card(folder, scratch)
            return export_card(scratch, out, spec=spec, picture=picture, overwrite=overwrite)
    card = load_card(home / CARD) if (home / CARD).exists() else None
    exported = export_character(character, card, "v3" if ending == ".charx" else spec)
    other_ending = ".png" if ending == ".charx" else ".charx"
    if (home / ORIGINALS[other_ending]).is_file():
        note = (
            f"{ORIGINALS[other_ending]}, which it came in, is not copied into a {ending}; write a {other_ending} to "
            "keep what is in it"
        )
        exported = replace(exported, notes=(*exported.notes, note))
    if ending == ".json":
        with open_atomic(target) as stream:
            stream.write(exported.text)
        return exported
    original = home / ORIGINALS[ending]
    base = Path(picture) if picture is not None else original if original.is_file() else None
    if ending == ".charx":
        write_charx(target, exported.text.removeprefix("\ufeff"), base)
        return exported
    return _write_png_card(target, exported, base)


def _check_target(target: Path, spec: Spec | None, *, has_picture: bool, overwrite: bool) -> None:
    ending = target.suffix.lower()
    if ending not in (".json", *ORIGINALS):
        raise SettingsError(f"{target}: a card is a .json, .png or .charx file; use one of these endings")
    if has_picture and ending != ".png":
        raise SettingsError("a picture goes into a .png only; leave it out, or write to a .png")
    if spec == "v2" and ending == ".charx":
        raise SettingsError("a .charx holds a card V3; leave --spec out, or write to a .json or .png")
    if target.is_dir() or (target.exists() and not overwrite):
        raise SettingsError(
            f"{target} exists already; choose another name, or overwrite it (--overwrite, or overwrite=True in Python)"
        )


def _write_png_card(target: Path, exported: ExportedCard, base: Path | None) -> ExportedCard:
    cards = {"chara": exported.text}
    if exported.spec == "v3":
        cards = {"chara": backfill_v2(exported.text), "ccv3": exported.text}
    write_png(target, {name: text.removeprefix("\ufeff") for name, text in cards.items()}, base)
    return replace(exported, chunks=tuple(cards), picture=base)


def _read_png_card(file: Path) -> Card:
    cards, notes = read_png(file)
    card = parse_card(next(iter(cards.values())))
    return replace(card, notes=(*card.notes, *notes))


def _detect_kind(path: Path) -> str:
    """The ending of a file of this kind; of what is neither picture nor zip that of JSON."""
    with path.open("rb") as stream:
        head = stream.read(len(SIGNATURE))
    if head == SIGNATURE:
        return ".png"
    # Some applications put a JPEG before the zip.
    return ".charx" if head.startswith(b"PK\x03\x04") or zipfile.is_zipfile(path) else ".json"
