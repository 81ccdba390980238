"""Cards as files, and in a character's folder.

``card.json`` holds the JSON as it came, ``card.png`` or ``card.charx`` the file that it came in.
"""

from __future__ import annotations

import shutil
import zipfile
from dataclasses import fields, replace
from pathlib import Path

from rolellm.construct.cards.card import Card, Spec, backfilled, parse_card
from rolellm.construct.cards.charx import read_charx, write_charx
from rolellm.construct.cards.convert import Reading, read_as_character
from rolellm.construct.cards.export import Exported, export_character
from rolellm.construct.cards.png import MAX_CARD, SIGNATURE, read_png, write_png
from rolellm.construct.sheet import CARD, PROFILE, check_free, read_sheet, write_sheet
from rolellm.core.errors import CardError, SettingsError
from rolellm.core.files import whole_binary_file, whole_file
from rolellm.core.records import Language

#: What a card may come in, by the ending of its file.
KEPT = {".png": "card.png", ".charx": "card.charx"}

_OTHERS = {
    b"RIFF": "a WEBP, which no specification of cards covers: export the card as PNG or JSON",
    b"\xff\xd8\xff": "a JPEG, which holds no card: give the PNG or JSON",
    b"GIF8": "a GIF, which holds no card: give the PNG or JSON",
}
#: What two cards of one picture may have of their own.
_OWN = {"spec", "creator", "character_version", "nickname", "assets", "data", "text", "notes"}


def load_card(path: str | Path) -> Card:
    """Read a card from a JSON, PNG or CHARX file, told apart by what is in it.

    Raises:
        CardError: When the file is missing or has no readable card; names the file.
    """
    file = Path(path)
    if not file.is_file():
        raise CardError("expected a file with a card (JSON, PNG or CHARX), found " + _instead(file), path=file)
    try:
        kind = _kind(file)
        if kind == ".png":
            return _of_png(file)
        if kind == ".charx":
            return parse_card(read_charx(file))
        with file.open("rb") as stream:
            raw = stream.read(MAX_CARD + 1)
        for magic, what in _OTHERS.items():
            if raw.startswith(magic):
                raise CardError(what)
        return parse_card(raw)
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
) -> Reading:
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
    try:
        reading = read_as_character(card, role=role, language=language, file=Path(path).name)
    except CardError as error:
        raise CardError(error.problem, path=path) from error
    with whole_file(target / CARD) as stream:
        stream.write(card.text)
    kind = _kind(Path(path))
    if kind in KEPT:
        with Path(path).open("rb") as source, whole_binary_file(target / KEPT[kind]) as out:
            shutil.copyfileobj(source, out)
    if Path(path).resolve() != (target / CARD).resolve():
        for name in (name for ending, name in KEPT.items() if ending != kind):
            (target / name).unlink(missing_ok=True)
    write_sheet(reading.character, target)
    return reading


def export_card(
    folder: str | Path,
    out: str | Path,
    *,
    spec: Spec | None = None,
    picture: str | Path | None = None,
    overwrite: bool = False,
) -> Exported:
    """Write a character's folder as a card: the card it came from with what was changed since, or a new one.

    Args:
        folder: The character's.
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
    if ending not in (".json", *KEPT):
        raise SettingsError(f"{target}: a card is a .json, .png or .charx file; use one of these endings")
    if picture is not None and ending != ".png":
        raise SettingsError("a picture goes into a .png only; leave it out, or write to a .png")
    if spec == "v2" and ending == ".charx":
        raise SettingsError("a .charx holds a card V3; leave --spec out, or write to a .json or .png")
    if target.is_dir() or (target.exists() and not overwrite):
        raise SettingsError(
            f"{target} exists already; choose another name, or overwrite it (--overwrite, or overwrite=True in Python)"
        )
    source = Path(folder)
    if target.resolve() == (source / PROFILE).resolve():
        raise SettingsError(f"{target} is the character itself; choose another name")
    character = read_sheet(source)
    card = load_card(source / CARD) if (source / CARD).exists() else None
    exported = export_character(character, card, "v3" if ending == ".charx" else spec)
    other = ".png" if ending == ".charx" else ".charx"
    if (source / KEPT[other]).is_file():
        lost = f"{KEPT[other]}, which it came in, is not copied into a {ending}; write a {other} to keep what is in it"
        exported = replace(exported, notes=(*exported.notes, lost))
    if ending == ".json":
        with whole_file(target) as stream:
            stream.write(exported.text)
        return exported
    kept = source / KEPT[ending]
    base = Path(picture) if picture is not None else kept if kept.is_file() else None
    if ending == ".charx":
        write_charx(target, exported.text.removeprefix("\ufeff"), base)
        with zipfile.ZipFile(target) as made:
            twice = "character_book" in exported.changed and "module.risum" in made.namelist()
        note = "the lorebook changed, but not its copy in module.risum, which RisuAI reads instead"
        return replace(exported, notes=(*exported.notes, note)) if twice else exported
    if base is not None and not base.is_file():
        raise CardError("expected a PNG, found " + _instead(base), path=base)
    cards = {"chara": exported.text}
    if exported.spec == "v3":
        cards = {"chara": backfilled(exported.text), "ccv3": exported.text}
    write_png(target, {name: text.removeprefix("\ufeff") for name, text in cards.items()}, base)
    return replace(exported, chunks=tuple(cards), picture=base)


def _of_png(file: Path) -> Card:
    cards, notes = read_png(file)
    first, *others = cards.values()
    card = parse_card(first)
    for other in others:
        notes += _disagreement(card, other)
    return replace(card, notes=(*card.notes, *notes))


def _disagreement(card: Card, other: bytes) -> list[str]:
    """What the V2 card next to a V3 one says otherwise; its creator's notes may, for they say that it is only that."""
    try:
        second = parse_card(other)
    except CardError as error:
        return [f"its `chara` chunk is not a card ({error.problem}); the `ccv3` chunk was read"]
    names = [item.name for item in fields(Card) if item.name not in _OWN]
    different = [name for name in names if getattr(card, name) != getattr(second, name)]
    if not different:
        return []
    return [f"its two cards disagree on {', '.join(different)}; V3 (`ccv3`) was read, V2 (`chara`) was ignored"]


def _instead(path: Path) -> str:
    return "a folder" if path.is_dir() else "something that is not a file" if path.exists() else "nothing there"


def _kind(path: Path) -> str:
    """The ending of a file of this kind; of what is neither picture nor zip that of JSON."""
    with path.open("rb") as stream:
        head = stream.read(len(SIGNATURE))
    if head == SIGNATURE:
        return ".png"
    # Some applications put a JPEG before the zip.
    return ".charx" if head.startswith(b"PK\x03\x04") or zipfile.is_zipfile(path) else ".json"
