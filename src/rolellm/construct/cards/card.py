"""The character cards of SillyTavern and similar applications, read from JSON.

V1 is a flat object; V2 puts it into ``data``, next to ``spec`` and ``spec_version``, and adds the lorebook and more; V3
is a superset of V2. Where they leave a choice, it is ours, and ``docs/cards.md`` has it.

* V1 and V2: https://github.com/malfoyslastname/character-card-spec-v2 (``spec_v1.md``, ``spec_v2.md`` at 0b61e5bc)
* V3: https://github.com/kwaroran/character-card-spec-v3 (``SPEC_V3.md`` at f3a86af0)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from rolellm.construct.cards import json_text
from rolellm.construct.cards.png import MAX_CARD
from rolellm.core.errors import CardError

_NAMED = 20


def first_notes(notes: list[str]) -> tuple[str, ...]:
    """The first notes on a card for the user, and how many more there are."""
    more = len(notes) - _NAMED
    return (*notes[:_NAMED], *([f"and {more:,} more such notes"] if more > 0 else []))


def shown(value: Any) -> str:
    """A value in a message: what cannot be seen is escaped, what is large is named by its kind."""
    if isinstance(value, dict):
        return f"an object of {len(value):,}"
    if isinstance(value, list):
        kinds = sorted({type(item).__name__ for item in value[:1000]})
        return f"a list of {len(value):,} ({', '.join(kinds) or 'empty'})"
    return ascii(value)[:60] if isinstance(value, str) else str(value)[:60]


Spec = Literal["v1", "v2", "v3"]

#: What a card says of itself, by specification.
_HEADS: Mapping[Spec, tuple[str, str]] = {"v2": ("chara_card_v2", "2.0"), "v3": ("chara_card_v3", "3.0")}
V1_FIELDS = ("name", "description", "personality", "scenario", "first_mes", "mes_example")

_VERSION = re.compile(r"chara_card_v([4-9]|[1-9][0-9]{1,3})")
_NUMBER = re.compile(r"[0-9]{1,6}(\.[0-9]{1,6})?")


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of a card's lorebook.

    Attributes:
        content: The text, as it is in the card.
        keys: Words and patterns that call it up, see `rolellm.construct.lore`; V3's ``use_regex`` says nothing, for
            SillyTavern sets it on every entry.
        enabled: Whether it is used at all.
        insertion_order: Lower comes first.
        name: What it is called, else its comment; may be empty.
        comment: A note on it.
        selective: Whether `secondary_keys` count.
        secondary_keys: Further keys.
        constant: Whether it needs no key.
        case_sensitive: Whether the keys' case counts; None leaves it to the application.
        position: ``before_char`` or ``after_char``.
        extensions: SillyTavern's further settings.
    """

    content: str
    keys: tuple[str, ...] = ()
    enabled: bool = True
    insertion_order: float = 0.0
    name: str = ""
    comment: str = ""
    selective: bool = False
    secondary_keys: tuple[str, ...] = ()
    constant: bool = False
    case_sensitive: bool | None = None
    position: str = ""
    extensions: dict[str, Any] = field(default_factory=dict)


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
        character_version: Of the card.
        nickname: What ``{{char}}`` means, where it is not the name (V3).
        assets: Pictures and the like, as objects with a ``uri`` (V3); never fetched.
        entries: The lorebook, in the order of the card.
        data: Everything, as parsed; ``extensions`` and what no specification knows are here.
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
    entries: tuple[Entry, ...] = ()
    data: Mapping[str, Any] = field(default_factory=dict, repr=False)
    text: str = field(default="", repr=False)
    notes: tuple[str, ...] = ()


def parse_card(raw: bytes) -> Card:
    """Read a card from its JSON.

    Args:
        raw: UTF-8, with or without a byte order mark.

    Raises:
        CardError: When it is too large, no JSON, or no card; or when a field that makes up the character has a wrong
            type. Says what was found and what was expected.
    """
    if len(raw) > MAX_CARD:
        raise CardError(f"over {MAX_CARD:,} bytes of JSON; a card has a few thousand")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CardError(f"not a card: expected JSON in UTF-8, found other bytes ({error.reason})") from error
    value = json_text.parse(text)
    if not isinstance(value, dict):
        raise CardError(f"not a card: expected a JSON object, found {type(value).__name__}")
    notes: list[str] = []
    spec = _spec(value, notes)
    data, path = (value, "") if spec == "v1" else (value["data"], "data.")
    made = _known(Card, data, path, notes)
    entries = tuple(_entries(data, path, notes))
    notes += _unused(data.get("extensions"), f"{path}extensions")
    return Card(**{"name": "", **made}, spec=spec, entries=entries, data=data, text=text, notes=first_notes(notes))


def _unused(extensions: Any, path: str) -> Iterator[str]:
    """What SillyTavern does with a card's extensions, and prompts here do not."""
    found = extensions if isinstance(extensions, Mapping) else {}
    depth = found.get("depth_prompt")
    if isinstance(depth, Mapping) and depth.get("prompt"):
        yield f"`{path}.depth_prompt`, a note for the model in the midst of a talk, stays in the card but is not used"
    if found.get("regex_scripts"):
        yield f"`{path}.regex_scripts`, which change what is shown or sent, stay in the card but are not used"


def _spec(value: Mapping[str, Any], notes: list[str]) -> Spec:
    said = value.get("spec")
    known = next((spec for spec, (head, _) in _HEADS.items() if head == said), None)
    if said == "lorebook_v3":
        raise CardError("a lorebook alone (spec lorebook_v3), not a character card; give the card that it belongs to")
    if isinstance(value.get("persona"), dict):
        raise CardError("a character in Agnai's own format, not a card; in Agnai, export it as Tavern")
    if not isinstance(value.get("data"), dict):
        if known is None and isinstance(value.get("name"), str) and any(name in value for name in V1_FIELDS[1:]):
            return "v1"
        names = ", ".join(ascii(name)[1:-1][:30] for name in list(value)[:8]) or "none"
        raise CardError(
            f"not a character card: expected an object `data` (V2, V3), or `name` with `description`, `first_mes` or "
            f"another field of V1; found the members {names}"
        )
    if known is None:
        later = isinstance(said, str) and _VERSION.fullmatch(said)
        if said is not None and not later:
            raise CardError(
                f"not a character card: expected `spec` chara_card_v2 or chara_card_v3, found {shown(said)}"
            )
        notes.append(f"its `spec` is {said}; it was read as V3" if later else "it has no `spec`; it was read as V2")
        return "v3" if later else "v2"
    version = value.get("spec_version")
    if known == "v3" and isinstance(version, str) and _NUMBER.fullmatch(version) and float(version) > 3:
        notes.append(f"its `spec_version` is {version}, newer than 3.0; what is new in it is kept, and not used")
    return known


#: By the type of a field, what it is called, and what has that type.
_KINDS: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "str": ("a text", lambda value: isinstance(value, str)),
    **dict.fromkeys(("bool", "bool | None"), ("true or false", lambda value: isinstance(value, bool))),
    "dict[str, Any]": ("an object", lambda value: isinstance(value, dict)),
    "float": ("a number", lambda value: isinstance(value, int | float) and not isinstance(value, bool)),
    "tuple[str, ...]": ("a list of texts", lambda value: _is_list(value, str)),
    "tuple[Mapping[str, Any], ...]": ("a list of objects", lambda value: _is_list(value, dict)),
}
#: What becomes part of a character must have its type. Anything else of a wrong type is noted, and counts as absent.
_NEEDED = {*V1_FIELDS, "alternate_greetings", "nickname", "character_book", "entries", "content", "keys", "enabled"}


def _is_list(value: Any, kind: type) -> bool:
    return isinstance(value, list) and all(isinstance(item, kind) for item in value)


def _known(cls: type, values: Mapping[str, Any], path: str, notes: list[str]) -> dict[str, Any]:
    """The members that a dataclass has as fields, where they are of its types; null counts as absent.

    Raises:
        CardError: When one that makes up the character has another type.
    """
    found = {}
    for item in fields(cls):
        kind = _KINDS.get(str(item.type))
        value = values.get(item.name)
        if kind and value is not None and _is(value, *kind, path + item.name, notes):
            found[item.name] = tuple(value) if isinstance(value, list) else value
    return found


def _is(value: Any, expected: str, good: Callable[[Any], bool], path: str, notes: list[str]) -> bool:
    if good(value):
        return True
    problem = f"expected `{path}` to be {expected}, found {shown(value)}"
    if path.rpartition(".")[2].partition("[")[0] in _NEEDED:
        raise CardError(f"{problem}; correct it in the card")
    notes.append(f"{problem}; it stays in the card but is not used")
    return False


def _entries(data: Mapping[str, Any], path: str, notes: list[str]) -> Iterator[Entry]:
    book, path = data.get("character_book"), f"{path}character_book"
    if book is None:
        return
    _is(book, "an object", lambda value: isinstance(value, dict), path, notes)
    entries, path = book.get("entries"), f"{path}.entries"
    if entries is None:
        return
    _is(entries, "a list of objects", lambda value: isinstance(value, list), path, notes)
    for place, item in enumerate(entries):
        _is(item, "an object", lambda value: isinstance(value, dict), f"{path}[{place}]", notes)
        made = _known(Entry, item, f"{path}[{place}].", notes)
        yield Entry(**{"content": "", **made, "name": made.get("name") or made.get("comment", "")})


_V2: Mapping[str, Any] = {
    **dict.fromkeys((*V1_FIELDS, "creator_notes", "system_prompt", "post_history_instructions"), ""),
    "alternate_greetings": [],
    "tags": [],
    "creator": "",
    "character_version": "",
    "extensions": {},
}
#: What a specification asks for, with the values that mean nothing is given.
_DEFAULTS: Mapping[Spec, Mapping[str, Any]] = {"v2": _V2, "v3": {**_V2, "group_only_greetings": []}}
_BACKFILLED = (
    "This card was made for Character Card V3 and is read as V2 here; an application that reads V3 shows all of it."
)


def as_spec(text: str, now: Spec, spec: Spec) -> str:
    """The same card by another specification; V1 is put whole into ``data``.

    Args:
        text: The card's JSON.
        now: What it is.
        spec: What it should be; never ``v1``, unless it is that already.
    """
    if now == spec:
        return text
    if now == "v1":
        whole = text[json_text.begin(text) :].rstrip(" \t\r\n")
        text = f'{{"spec": "", "spec_version": "", "data": {whole}}}\n'
    value = json_text.parse(text)
    data = value["data"]
    book = data.get("character_book")
    if spec == "v3" and book and isinstance(book.get("entries"), list):
        # V3 wants each entry of a lorebook to say whether its keys are patterns.
        entries = {place: {"use_regex": False, **entry} for place, entry in enumerate(book["entries"])}
        data = {**data, "character_book": {**book, "entries": entries}}
    return json_text.rewrite(text, value | _headed(data, spec))


def new_card(data: Mapping[str, Any], spec: Spec) -> str:
    """A new card's JSON, with what the specification asks for and `data` does not have."""
    return json_text.dump(_headed(data, spec), indent=2) + "\n"


def _headed(data: Mapping[str, Any], spec: Spec) -> dict[str, Any]:
    head, version = _HEADS[spec]
    return {"spec": head, "spec_version": version, "data": {**_DEFAULTS[spec], **data}}


def backfilled(text: str) -> str:
    """A V3 card as the V2 card next to it in a PNG, with the warning that V3 asks for in its notes."""
    text = as_spec(text, "v3", "v2")
    value = json_text.parse(text)
    notes = value["data"]["creator_notes"]
    warned = f"{_BACKFILLED}\n\n{notes}" if notes and isinstance(notes, str) else _BACKFILLED
    return json_text.rewrite(text, {**value, "data": {**value["data"], "creator_notes": warned}})
