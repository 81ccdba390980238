"""The character cards of SillyTavern and its kin, read from JSON.

V1 is a flat object; V2 puts it into ``data``, beside ``spec`` and ``spec_version``, and adds the lorebook and more; V3
is a superset of V2. Where they leave a choice, it is ours, and ``docs/cards.md`` has it.

* V1 and V2: https://github.com/malfoyslastname/character-card-spec-v2 (``spec_v1.md``, ``spec_v2.md`` at 0b61e5bc)
* V3: https://github.com/kwaroran/character-card-spec-v3 (``SPEC_V3.md`` at f3a86af0)
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from rolellm.construct.cards.fields import Fields, Notes, shown
from rolellm.construct.cards.json_text import parse
from rolellm.construct.cards.png import MAX_CARD
from rolellm.errors import CardError

Spec = Literal["v1", "v2", "v3"]

#: What a card says of itself.
SPECS: Mapping[str, Spec] = {"chara_card_v2": "v2", "chara_card_v3": "v3"}
V1_FIELDS = ("name", "description", "personality", "scenario", "first_mes", "mes_example")

_VERSION = re.compile(r"chara_card_v([4-9]|[1-9][0-9]{1,3})")
_NUMBER = re.compile(r"[0-9]{1,6}(\.[0-9]{1,6})?")


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of a card's lorebook.

    Attributes:
        content: The text, as it is in the card.
        keys: Words that call it up; patterns where `use_regex` is set.
        enabled: Whether it is used at all.
        insertion_order: Lower comes first.
        name: What it is called, else its comment; may be empty.
        constant: Whether it is used without being called.
        selective: Whether a secondary key is needed, too.
        secondary_keys: See `selective`.
        use_regex: Whether the keys are patterns; they are never run.
    """

    content: str
    keys: tuple[str, ...] = ()
    enabled: bool = True
    insertion_order: float = 0.0
    name: str = ""
    constant: bool = False
    selective: bool = False
    secondary_keys: tuple[str, ...] = ()
    use_regex: bool = False


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
        system_prompt: For the application; nothing here uses it, nor the next one.
        post_history_instructions: For the application.
        alternate_greetings: Other openings.
        group_only_greetings: Openings for a talk of several characters (V3).
        tags: For sorting.
        creator: Who made it.
        character_version: Of the card.
        creator_notes: For people who use it.
        creator_notes_multilingual: The same by language code (V3).
        nickname: What ``{{char}}`` stands for, where it is not the name (V3).
        source: Where it is from, as it says itself (V3); never fetched.
        assets: Pictures and the like, as objects with a ``uri`` (V3); never fetched.
        creation_date: Unix time in seconds (V3).
        modification_date: Unix time in seconds (V3).
        entries: The lorebook, in the order of the card.
        data: Everything, as parsed; ``extensions`` and what no specification knows are here.
        text: The JSON as it came.
        notes: What was found to be odd.
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
    group_only_greetings: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    creator: str = ""
    character_version: str = ""
    creator_notes: str = ""
    creator_notes_multilingual: Mapping[str, str] = field(default_factory=dict)
    nickname: str = ""
    source: tuple[str, ...] = ()
    assets: tuple[Mapping[str, Any], ...] = ()
    creation_date: float | None = None
    modification_date: float | None = None
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
    value = parse(text)
    if not isinstance(value, dict):
        raise CardError(f"not a card: expected a JSON object, found {type(value).__name__}")
    notes = Notes()
    spec = _spec(value, notes)
    data = value if spec == "v1" else value["data"]
    return _card(spec, Fields(data, "" if spec == "v1" else "data.", notes), text)


def _spec(value: Mapping[str, Any], notes: Notes) -> Spec:
    said = value.get("spec")
    known = SPECS.get(said) if isinstance(said, str) else None
    if said == "lorebook_v3":
        raise CardError("a lorebook alone (spec lorebook_v3), not a character card; give the card that it belongs to")
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
        notes.add(f"its `spec` is {said}; it was read as V3" if later else "it has no `spec`; it was read as V2")
        return "v3" if later else "v2"
    version = value.get("spec_version")
    if known == "v3" and isinstance(version, str) and _NUMBER.fullmatch(version) and float(version) > 3:
        notes.add(f"its `spec_version` is {version}, newer than 3.0; what is new in it is kept, and not used")
    return known


def _card(spec: Spec, fields: Fields, text: str) -> Card:
    book = fields.object("character_book")
    return Card(
        spec=spec,
        name=fields.text("name"),
        description=fields.text("description"),
        personality=fields.text("personality"),
        scenario=fields.text("scenario"),
        first_mes=fields.text("first_mes"),
        mes_example=fields.text("mes_example"),
        system_prompt=fields.noted_text("system_prompt"),
        post_history_instructions=fields.noted_text("post_history_instructions"),
        alternate_greetings=fields.texts("alternate_greetings"),
        group_only_greetings=fields.noted_texts("group_only_greetings"),
        tags=fields.noted_texts("tags"),
        creator=fields.noted_text("creator"),
        character_version=fields.noted_text("character_version"),
        creator_notes=fields.noted_text("creator_notes"),
        creator_notes_multilingual=fields.noted_mapping("creator_notes_multilingual"),
        nickname=fields.text("nickname"),
        source=fields.noted_texts("source"),
        assets=fields.noted_objects("assets"),
        creation_date=fields.noted_number("creation_date"),
        modification_date=fields.noted_number("modification_date"),
        entries=tuple(_entry(item) for item in book.objects("entries")) if book else (),
        data=fields.values,
        text=text,
        notes=fields.notes.all(),
    )


def _entry(fields: Fields) -> Entry:
    return Entry(
        content=fields.text("content"),
        keys=fields.texts("keys"),
        enabled=fields.flag("enabled", True),
        insertion_order=fields.noted_number("insertion_order") or 0.0,
        name=fields.noted_text("name") or fields.noted_text("comment"),
        constant=fields.noted_flag("constant"),
        selective=fields.noted_flag("selective"),
        secondary_keys=fields.noted_texts("secondary_keys"),
        use_regex=fields.noted_flag("use_regex"),
    )
