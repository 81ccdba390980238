"""The character cards of SillyTavern and similar applications, read from JSON, PNG and CHARX, and written as V3.

V1 is a flat object; V2 puts it into ``data``, next to ``spec`` and ``spec_version``, and adds the lorebook and more; V3
is a superset of V2. Where they leave a choice, it is ours, and ``docs/characters.md`` has it.

* V1 and V2: https://github.com/malfoyslastname/character-card-spec-v2 (``spec_v1.md``, ``spec_v2.md`` at 0b61e5bc)
* V3: https://github.com/kwaroran/character-card-spec-v3 (``SPEC_V3.md`` at f3a86af0)

A PNG has the JSON in base64 in a text named ``chara`` (V1, V2) or ``ccv3`` (V3); Pillow reads and writes these, and
bounds pictures and texts. A CHARX is a zip with ``card.json``; the assets next to it are copied and never read.
"""

from __future__ import annotations

import base64
import io
import json
import shutil
import warnings
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rolellm.core.errors import CardError
from rolellm.core.files import open_atomic, open_atomic_binary
from rolellm.core.foreign import read_limited
from rolellm.core.text import find_surrogate

if TYPE_CHECKING:
    from PIL import Image

Spec = Literal["v1", "v2", "v3"]
Container = Literal[".json", ".png", ".charx"]

_HEADS: Mapping[str, Spec] = {"chara_card_v2": "v2", "chara_card_v3": "v3"}
V1_FIELDS = ("name", "description", "personality", "scenario", "first_mes", "mes_example")

#: The longest card, in bytes of JSON. A book of 100,000 entries has 11 MiB, and a PNG with two cards of this length in
#: base64 stays under Pillow's own limit for texts, 64 MiB.
MAX_CARD = 16 * 2**20
#: The largest file, and the most files in a zip: no picture or card of any user has come near.
_MAX_FILE, _MAX_MEMBERS = 256 * 2**20, 100_000

_PNG_START = b"\x89PNG\r\n\x1a\n"
_ZIP_START = b"PK\x03\x04"
_MAX_NOTES = 20


@dataclass(frozen=True, slots=True)
class Card:
    """A character card. Texts are as in the card, placeholders such as ``{{char}}`` included.

    Attributes:
        spec: Which specification it follows.
        name: As it is there; a character needs one.
        description: The character.
        personality: In short.
        scenario: The circumstances of the talk.
        first_mes: How the character opens it.
        mes_example: Example talk, in blocks that begin with ``<START>``.
        system_prompt: For who plays it; nothing in this room uses it, nor the next one.
        post_history_instructions: Likewise.
        alternate_greetings: Other openings.
        tags: For sorting.
        creator: Who made it.
        character_version: The version of the card.
        nickname: What ``{{char}}`` means, where it is not the name (V3).
        assets: Pictures and the like, as objects with a ``uri`` (V3); never fetched.
        entries: The lorebook's entries in the order of the card, each with the members that have the right type.
        extensions: What applications keep in a card.
        raw: The whole object, as parsed; what no specification knows is here.
        text: The JSON as it came.
        notes: Anything odd about it.
    """

    spec: Spec
    name: str
    description: str = ""
    personality: str = ""
    scenario: str = ""
    first_mes: str = ""
    mes_example: str = ""
    system_prompt: str = ""
    post_history_instructions: str = ""
    alternate_greetings: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    creator: str = ""
    character_version: str = ""
    nickname: str = ""
    assets: tuple[Mapping[str, Any], ...] = ()
    entries: tuple[Mapping[str, Any], ...] = ()
    extensions: Mapping[str, Any] = field(default_factory=dict, repr=False)
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False)
    text: str = field(default="", repr=False)
    notes: tuple[str, ...] = ()

    @property
    def data(self) -> Mapping[str, Any]:
        """The object that holds the card's fields."""
        if self.spec == "v1":
            return self.raw
        data: Mapping[str, Any] = self.raw["data"]
        return data


def parse_card(raw: bytes) -> Card:
    """Read a card from its JSON.

    Args:
        raw: UTF-8, with or without a byte order mark.

    Raises:
        CardError: When it is too long, not JSON, or not a card; or when a field that makes up the character has a
            wrong type. Says what was found and what was expected.
    """
    if len(raw) > MAX_CARD:
        raise CardError(f"the card has over {MAX_CARD:,} bytes of JSON, the maximum; shorten it")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CardError(
            f"not a card: expected a PNG or CHARX, or JSON in UTF-8 ({error.reason}); export it again as one of these"
        ) from error
    value = _parse_json(text)
    if not isinstance(value, dict):
        raise CardError(f"not a card: expected a JSON object, found {type(value).__name__}")
    notes: list[str] = []
    spec = _detect_spec(value)
    if spec == "v1":
        data, path = value, ""
    else:
        data, path = value["data"], "data."
    values = {"name": ""} | _read_fields(_CARD_FIELDS, data, path, notes)
    entries = tuple(_read_entries(data, f"{path}character_book", notes))
    return Card(**values, spec=spec, entries=entries, raw=value, text=text, notes=limit_notes(notes))


def limit_notes(notes: list[str]) -> tuple[str, ...]:
    """Keep the first notes on a card for the user, and say how many more there are."""
    if len(notes) <= _MAX_NOTES:
        return tuple(notes)
    return (*notes[:_MAX_NOTES], f"and {len(notes) - _MAX_NOTES:,} more such notes")


def describe_value(value: Any) -> str:
    """Describe a value in a message: invisible characters are escaped, large values are named by their kind."""
    if isinstance(value, dict | list):
        return f"a {type(value).__name__} of {len(value):,}"
    return ascii(value)[:60]


def _detect_spec(value: Mapping[str, Any]) -> Spec:
    head = value.get("spec")
    spec = _HEADS.get(head) if isinstance(head, str) else None
    if isinstance(value.get("persona"), dict):
        raise CardError("a character in Agnai's own format, not a card; in Agnai, export it as Tavern")
    if not isinstance(value.get("data"), dict):
        has_fields = isinstance(value.get("name"), str) and not value.keys().isdisjoint(V1_FIELDS[1:])
        if spec is None and has_fields:
            return "v1"
        shown = [ascii(name)[1:-1][:30] for name in list(value)[:8]]
        names = ", ".join(shown) or "none"
        raise CardError(
            f"not a character card: expected an object `data` (V2, V3), or `name` with `description`, `first_mes` or "
            f"another field of V1; found the members {names}"
        )
    if head is None:
        return "v2"
    if spec is None:
        raise CardError(
            f"not a character card: expected `spec` chara_card_v2 or chara_card_v3, found {describe_value(head)}"
        )
    return spec


#: The kinds of a card's fields in words.
_KINDS = {
    "text": "a text",
    "flag": "true or false",
    "number": "a number",
    "object": "an object",
    "list": "a list of objects",
    "texts": "a list of texts",
    "objects": "a list of objects",
}
_TYPES: Mapping[str, type] = {"text": str, "flag": bool, "object": dict, "list": list}
_ITEMS: Mapping[str, type] = {"texts": str, "objects": dict}


def _is_kind(value: Any, kind: str) -> bool:
    if kind == "number":
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind in _TYPES:
        return isinstance(value, _TYPES[kind])
    return isinstance(value, list) and all(isinstance(item, _ITEMS[kind]) for item in value)


_CARD_FIELDS: Mapping[str, str] = {
    **dict.fromkeys((*V1_FIELDS, "system_prompt", "post_history_instructions"), "text"),
    **dict.fromkeys(("creator", "character_version", "nickname"), "text"),
    **dict.fromkeys(("alternate_greetings", "tags"), "texts"),
    "assets": "objects",
    "extensions": "object",
}
#: V3's ``use_regex`` says nothing: SillyTavern sets it on every entry.
_ENTRY_FIELDS: Mapping[str, str] = {
    **dict.fromkeys(("content", "name", "comment"), "text"),
    **dict.fromkeys(("enabled", "selective", "constant", "case_sensitive"), "flag"),
    **dict.fromkeys(("keys", "secondary_keys"), "texts"),
    "insertion_order": "number",
    "extensions": "object",
}
#: Fields that become part of a character must have the right type. Any other is noted, and counts as absent.
_REQUIRED_TYPES = {
    *V1_FIELDS,
    "alternate_greetings",
    "nickname",
    "content",
    "keys",
    "enabled",
    "character_book",
    "entries",
}


def _read_fields(kinds: Mapping[str, str], values: Mapping[str, Any], path: str, notes: list[str]) -> dict[str, Any]:
    """Read the fields that have the right type, lists as tuples; null counts as absent.

    Raises:
        CardError: When one that makes up the character has another type.
    """
    fields = {}
    for name, kind in kinds.items():
        value = values.get(name)
        if value is not None and _check_kind(value, kind, path + name, notes):
            fields[name] = value
            if isinstance(value, list):
                fields[name] = tuple(value)
    return fields


def _check_kind(value: Any, kind: str, path: str, notes: list[str]) -> bool:
    if _is_kind(value, kind):
        return True
    problem = f"expected `{path}` to be {_KINDS[kind]}, found {describe_value(value)}"
    name = path.rpartition(".")[2].partition("[")[0]
    if name in _REQUIRED_TYPES:
        raise CardError(f"{problem}; correct it in the card")
    notes.append(f"{problem}; it stays in the card but is not used")
    return False


def _read_entries(data: Mapping[str, Any], path: str, notes: list[str]) -> Iterator[dict[str, Any]]:
    book = data.get("character_book")
    if book is None or not _check_kind(book, "object", path, notes):
        return
    entries = book.get("entries")
    if entries is None or not _check_kind(entries, "list", f"{path}.entries", notes):
        return
    for index, entry in enumerate(entries):
        entry_path = f"{path}.entries[{index}]"
        _check_kind(entry, "object", entry_path, notes)
        yield _read_fields(_ENTRY_FIELDS, entry, f"{entry_path}.", notes)


def _refuse_constant(word: str) -> Any:
    raise CardError(f"not valid JSON: {word} is not a value that JSON has")


def _parse_json(text: str) -> Any:
    try:
        return json.loads(text.removeprefix("\ufeff"), parse_constant=_refuse_constant)
    except RecursionError as error:
        raise CardError("nested too deep to be read; a card is a few levels deep") from error
    except CardError:
        raise
    except ValueError as error:
        raise CardError(f"not valid JSON: {error}") from error


def format_card(value: Mapping[str, Any]) -> str:
    """Write a card as JSON; half surrogate pairs stay escaped.

    Raises:
        CardError: When it has a number too large for JSON readers, such as 1e999.
    """
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, indent=2)
    except ValueError as error:
        raise CardError("a number in the card is too large to be written again; correct it in the card") from error
    if find_surrogate(text):
        text = json.dumps(value, indent=2)
    return text + "\n"


def load_card(path: str | Path) -> Card:
    """Read a card from a JSON, PNG or CHARX file, told apart by what is in it.

    Raises:
        CardError: When the file is missing or has no readable card; names the file.
    """
    file = Path(path)
    try:
        container = detect_container(file)
        if container == ".png":
            return _read_png_card(file)
        if container == ".charx":
            return parse_card(_read_charx(file))
        return parse_card(read_limited(file, MAX_CARD, error=CardError))
    except CardError as error:
        if error.path:
            raise
        raise CardError(error.problem, path=file) from error
    except OSError as error:
        raise CardError(f"cannot be read ({error.strerror})", path=file) from error


def save_card(path: Path, value: Mapping[str, Any], base: Path | None = None) -> None:
    """Write a card V3, complete or not at all.

    Args:
        path: The file; its ending, ``.json``, ``.png`` or ``.charx``, says which. May be the base's own.
        value: The card's object.
        base: The PNG whose picture, or the CHARX whose other files, come along.

    Raises:
        CardError: When the base cannot be read.
    """
    text = format_card(value)
    if path.suffix.lower() == ".png":
        # Applications that know no V3 read the other text.
        older = {**value, "spec": "chara_card_v2", "spec_version": "2.0"}
        _write_png(path, {"chara": format_card(older), "ccv3": text}, base)
    elif path.suffix.lower() == ".charx":
        _write_charx(path, text, base)
    else:
        with open_atomic(path) as stream:
            stream.write(text)


def detect_container(path: Path) -> Container:
    """Tell what a file is by its first bytes; what is neither picture nor zip is taken for JSON."""
    with path.open("rb") as stream:
        start = stream.read(len(_PNG_START))
    if start == _PNG_START:
        return ".png"
    # Some applications put a JPEG before the zip.
    if start.startswith(_ZIP_START) or zipfile.is_zipfile(path):
        return ".charx"
    return ".json"


def _open_picture(path: Path) -> Image.Image:
    """Read a PNG, and verify its checksums; Pillow reads the texts behind the pixels only with these."""
    from PIL import Image, UnidentifiedImageError

    data = read_limited(path, _MAX_FILE, error=CardError)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            Image.open(io.BytesIO(data), formats=["PNG"]).verify()
            picture = Image.open(io.BytesIO(data), formats=["PNG"])
            picture.load()
    except UnidentifiedImageError as error:
        raise CardError("not a PNG, or damaged at its beginning", path=path) from error
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise CardError(f"the picture is too large ({error}); scale it down", path=path) from error
    except (OSError, SyntaxError, ValueError, EOFError, zlib.error) as error:
        raise CardError(f"cut off or damaged ({error})", path=path) from error
    return picture


def _read_texts(picture: Image.Image) -> dict[str, str]:
    texts: dict[str, str] = getattr(picture, "text", {})
    return texts


def _read_png_card(path: Path) -> Card:
    picture = _open_picture(path)
    texts = {keyword.lower(): text for keyword, text in _read_texts(picture).items()}
    problems: list[str] = []
    for keyword in ("ccv3", "chara"):
        if keyword not in texts:
            continue
        # Some writers break the lines of base64.
        encoded = "".join(texts[keyword].split())
        try:
            raw = base64.b64decode(encoded, validate=True)
        except ValueError as error:
            problems.append(f"its `{keyword}` text is not base64 ({error})")
            continue
        card = parse_card(raw)
        notes = [f"{problem}; the `{keyword}` text was read" for problem in problems]
        return replace(card, notes=(*card.notes, *notes))
    raise CardError("; ".join(problems) or "a picture without a card: it has no text named chara or ccv3")


def _write_png(path: Path, cards: Mapping[str, str], base: Path | None) -> None:
    from PIL import Image
    from PIL.PngImagePlugin import PngInfo

    # A grey picture in the shape that the applications show cards in.
    picture = _open_picture(base) if base else Image.new("L", (400, 600), 200)
    texts = PngInfo()
    for keyword, text in _read_texts(picture).items():
        if keyword.lower() not in cards:
            texts.add_text(keyword, text)
    for keyword, text in cards.items():
        texts.add_text(keyword, base64.b64encode(text.encode("utf-8")).decode("ascii"))
    with open_atomic_binary(path) as out:
        picture.save(out, "PNG", pnginfo=texts, save_all=getattr(picture, "is_animated", False))


_CARD = "card.json"
_WAY = "export it again as CHARX, PNG or JSON"


def _read_charx(path: Path) -> bytes:
    with _open_charx(path) as archive, archive.open(_CARD) as stream:
        # With a bound: what the zip says of the size need not be so.
        return stream.read(MAX_CARD + 1)


def _write_charx(path: Path, text: str, base: Path | None) -> None:
    with open_atomic_binary(path) as out, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        # With a date of its own, the same card would be another file each time.
        archive.writestr(zipfile.ZipInfo(_CARD), text)
        if base is None:
            return
        with _open_charx(base) as base_archive:
            for item in base_archive.infolist():
                if item.filename == _CARD:
                    continue
                with base_archive.open(item) as source, archive.open(item, "w") as copy:
                    shutil.copyfileobj(source, copy)


@contextmanager
def _open_charx(path: Path) -> Iterator[zipfile.ZipFile]:
    try:
        with zipfile.ZipFile(path) as archive:
            _check_charx(archive, path)
            yield archive
    except (zipfile.BadZipFile, NotImplementedError, EOFError, zlib.error) as error:
        raise CardError(f"damaged, or not a zip as CHARX is ({error}); {_WAY}", path=path) from error


def _check_charx(archive: zipfile.ZipFile, path: Path) -> None:
    items = archive.infolist()
    if _CARD not in archive.namelist():
        raise CardError(
            f"a zip without {_CARD}, so not a CHARX; {_WAY}; of a Word file or an e-book, save the text", path=path
        )
    for item in items:
        # Python unpacks other kinds at once, whatever comes out of a few bytes.
        is_packed_as_usual = item.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
        if item.flag_bits & 1 or not is_packed_as_usual:
            raise CardError(f"its files are encrypted or packed in a way that CHARX does not use; {_WAY}", path=path)
    size = sum(item.file_size for item in items)
    if len(items) > _MAX_MEMBERS or size > _MAX_FILE:
        problem = f"over {_MAX_FILE:,} bytes or {_MAX_MEMBERS:,} files; remove some of its assets"
        raise CardError(problem, path=path)
