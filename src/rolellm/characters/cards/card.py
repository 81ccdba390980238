"""The character cards of SillyTavern and similar applications, read from JSON.

V1 is a flat object; V2 puts it into ``data``, next to ``spec`` and ``spec_version``, and adds the lorebook and more; V3
is a superset of V2. Where they leave a choice, it is ours, and ``docs/characters.md`` has it.

* V1 and V2: https://github.com/malfoyslastname/character-card-spec-v2 (``spec_v1.md``, ``spec_v2.md`` at 0b61e5bc)
* V3: https://github.com/kwaroran/character-card-spec-v3 (``SPEC_V3.md`` at f3a86af0)
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from rolellm.core.errors import CardError
from rolellm.core.text import find_surrogate

Spec = Literal["v1", "v2", "v3"]

#: What a card says of itself, by specification.
_HEADS: Mapping[Spec, tuple[str, str]] = {"v2": ("chara_card_v2", "2.0"), "v3": ("chara_card_v3", "3.0")}
V1_FIELDS = ("name", "description", "personality", "scenario", "first_mes", "mes_example")

_VERSION = re.compile(r"chara_card_v([4-9]|[1-9][0-9]{1,3})")
_INDENT = re.compile(r"\s*\{\r?\n([ \t]*)")
_MAX_NOTES = 20
_MAX_DIGITS = 300


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
        raw: The whole object, as parsed; ``extensions`` and what no specification knows are here.
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
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False)
    text: str = field(default="", repr=False)
    notes: tuple[str, ...] = ()

    @property
    def data(self) -> Mapping[str, Any]:
        """The object that holds the card's fields."""
        data: Mapping[str, Any] = self.raw if self.spec == "v1" else self.raw["data"]
        return data


def parse_card(raw: bytes) -> Card:
    """Read a card from its JSON.

    Args:
        raw: UTF-8, with or without a byte order mark.

    Raises:
        CardError: When it is not JSON, or not a card; or when a field that makes up the character has a
            wrong type. Says what was found and what was expected.
    """
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
    spec = _detect_spec(value, notes)
    data, path = (value, "") if spec == "v1" else (value["data"], "data.")
    values = {"name": ""} | _read_fields(_CARD_FIELDS, data, path, notes)
    entries = tuple(_read_entries(data, f"{path}character_book", notes))
    return Card(**values, spec=spec, entries=entries, raw=value, text=text, notes=limit_notes(notes))


def limit_notes(notes: list[str]) -> tuple[str, ...]:
    """Keep the first notes on a card for the user, and say how many more there are."""
    more = len(notes) - _MAX_NOTES
    return (*notes[:_MAX_NOTES], *([f"and {more:,} more such notes"] if more > 0 else []))


def describe_value(value: Any) -> str:
    """Describe a value in a message: invisible characters are escaped, large values are named by their kind."""
    return f"a {type(value).__name__} of {len(value):,}" if isinstance(value, dict | list) else ascii(value)[:60]


def _detect_spec(value: Mapping[str, Any], notes: list[str]) -> Spec:
    head = value.get("spec")
    spec = next((spec for spec, (name, _) in _HEADS.items() if name == head), None)
    if isinstance(value.get("persona"), dict):
        raise CardError("a character in Agnai's own format, not a card; in Agnai, export it as Tavern")
    if not isinstance(value.get("data"), dict):
        if spec is None and isinstance(value.get("name"), str) and any(name in value for name in V1_FIELDS[1:]):
            return "v1"
        names = ", ".join(ascii(name)[1:-1][:30] for name in list(value)[:8]) or "none"
        raise CardError(
            f"not a character card: expected an object `data` (V2, V3), or `name` with `description`, `first_mes` or "
            f"another field of V1; found the members {names}"
        )
    if spec is None:
        later = isinstance(head, str) and _VERSION.fullmatch(head)
        if head is not None and not later:
            raise CardError(
                f"not a character card: expected `spec` chara_card_v2 or chara_card_v3, found {describe_value(head)}"
            )
        notes.append(f"its `spec` is {head}; it was read as V3" if later else "it has no `spec`; it was read as V2")
        return "v3" if later else "v2"
    return spec


def _is_list(value: Any, kind: type) -> bool:
    return isinstance(value, list) and all(isinstance(item, kind) for item in value)


#: The kinds of a card's fields: in words, and the check.
_KINDS: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "text": ("a text", lambda value: isinstance(value, str)),
    "flag": ("true or false", lambda value: isinstance(value, bool)),
    "number": ("a number", lambda value: isinstance(value, int | float) and not isinstance(value, bool)),
    "object": ("an object", lambda value: isinstance(value, dict)),
    "list": ("a list of objects", lambda value: isinstance(value, list)),
    "texts": ("a list of texts", lambda value: _is_list(value, str)),
    "objects": ("a list of objects", lambda value: _is_list(value, dict)),
}
_CARD_FIELDS: Mapping[str, str] = {
    **dict.fromkeys((*V1_FIELDS, "system_prompt", "post_history_instructions"), "text"),
    **dict.fromkeys(("creator", "character_version", "nickname"), "text"),
    **dict.fromkeys(("alternate_greetings", "tags"), "texts"),
    "assets": "objects",
}
#: V3's ``use_regex`` says nothing: SillyTavern sets it on every entry.
_ENTRY_FIELDS: Mapping[str, str] = {
    **dict.fromkeys(("content", "name", "comment", "position"), "text"),
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
            fields[name] = tuple(value) if isinstance(value, list) else value
    return fields


def _check_kind(value: Any, kind: str, path: str, notes: list[str]) -> bool:
    expected, is_kind = _KINDS[kind]
    if is_kind(value):
        return True
    problem = f"expected `{path}` to be {expected}, found {describe_value(value)}"
    if path.rpartition(".")[2].partition("[")[0] in _REQUIRED_TYPES:
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


_V2: Mapping[str, Any] = {
    **dict.fromkeys((*V1_FIELDS, "creator_notes", "system_prompt", "post_history_instructions"), ""),
    "alternate_greetings": [],
    "tags": [],
    "creator": "",
    "character_version": "",
    "extensions": {},
}
#: The fields that a specification requires, with their empty values.
_DEFAULTS: Mapping[Spec, Mapping[str, Any]] = {"v2": _V2, "v3": {**_V2, "group_only_greetings": []}}
_BACKFILLED = (
    "This card was made for Character Card V3 and is read as V2 here; an application that reads V3 shows all of it."
)


def convert_card(raw: Mapping[str, Any], now: Spec, spec: Spec) -> dict[str, Any]:
    """Convert a card to another specification; V1 is put whole into ``data``.

    Args:
        raw: The card's object.
        now: Its specification.
        spec: The one to convert to; never ``v1``, unless it is that already.
    """
    if now == spec:
        return dict(raw)
    data = raw if now == "v1" else raw["data"]
    book = data.get("character_book")
    if spec == "v3" and book and isinstance(book.get("entries"), list):
        # V3 wants each entry of a lorebook to say whether its keys are patterns.
        data = {
            **data,
            "character_book": {**book, "entries": [{"use_regex": False, **item} for item in book["entries"]]},
        }
    return {**({} if now == "v1" else raw), **wrap_data(data, spec)}


def wrap_data(data: Mapping[str, Any], spec: Spec) -> dict[str, Any]:
    """Wrap a card's fields as a specification requires, with those that it requires and `data` does not have."""
    head, version = _HEADS[spec]
    absent = {name: value for name, value in _DEFAULTS[spec].items() if name not in data}
    return {"spec": head, "spec_version": version, "data": {**data, **absent}}


def backfill_v2(text: str) -> str:
    """Write a V3 card as the V2 card next to it in a PNG, with the warning that V3 asks for in its notes."""
    value = convert_card(_parse_json(text), "v3", "v2")
    notes = value["data"]["creator_notes"]
    value["data"]["creator_notes"] = f"{_BACKFILLED}\n\n{notes}" if notes and isinstance(notes, str) else _BACKFILLED
    return format_card_json(value, like=text)


def _parse_int(digits: str) -> float:
    # Python refuses to make integers of thousands of digits; as a float such a number is infinite, and no error.
    return int(digits) if len(digits) <= _MAX_DIGITS else float(digits)


def _refuse_constant(word: str) -> Any:
    raise CardError(f"not valid JSON: {word} is not a value that JSON has")


def _parse_json(text: str) -> Any:
    try:
        return json.loads(text.removeprefix("\ufeff"), parse_int=_parse_int, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise CardError(f"not valid JSON: {error}") from error
    except RecursionError as error:
        raise CardError("nested too deep to be read; a card is a few levels deep") from error


def format_card_json(value: Mapping[str, Any], like: str = "{\n  ") -> str:
    """Write a card's JSON, indented and spaced as another text is; half surrogate pairs stay escaped.

    Raises:
        CardError: When it has a number too large for JSON readers, such as 1e999.
    """
    indent = _INDENT.match(like.removeprefix("\ufeff"))
    layout: dict[str, Any] = {"indent": indent[1]} if indent else {}
    if not indent and '": ' not in like:
        layout["separators"] = (",", ":")
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, **layout)
        text = json.dumps(value, **layout) if find_surrogate(text) else text
    except ValueError as error:
        raise CardError("a number in the card is too large to be written again; correct it in the card") from error
    return text + "\n" if indent else text
