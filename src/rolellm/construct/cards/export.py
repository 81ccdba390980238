"""A character as a card: the card that it came from with what was changed since, or a new one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rolellm.construct.cards.book import book_changes, new_book
from rolellm.construct.cards.card import V1_FIELDS, Card, Spec
from rolellm.construct.cards.convert import MAX_NAME, Reading, clean_name, plain, read_as_character
from rolellm.construct.cards.examples import Names, fill, user_name
from rolellm.construct.cards.json_text import Edit, begin, dump, edited, member, parse, setting
from rolellm.construct.cards.specs import HEADS, V2_DEFAULTS, V3_DEFAULTS, as_spec, data_start
from rolellm.construct.cards.talk import new_examples, talk_changes
from rolellm.construct.character import Character


@dataclass(frozen=True, slots=True)
class Exported:
    """A card's JSON.

    Attributes:
        text: The JSON.
        spec: Which specification it follows.
        changed: The fields that differ from the card that the character came from; empty of a new card.
        notes: What a user should know.
    """

    text: str
    spec: Spec
    changed: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def export_character(character: Character, card: Card | None = None, spec: Spec | None = None) -> Exported:
    """Write a character as a card.

    Args:
        character: What the card should say.
        card: The card that it came from. Its JSON is kept to the byte, but for the fields that do not say what the
            character does.
        spec: By default the card's own; V2 of a new one.

    Raises:
        CardError: When the card cannot be read as a character.
    """
    if card is None:
        return _new_card(character, spec or "v2")
    reading = _as_imported(character, card)
    talk, notes = talk_changes(character, card, reading)
    book, in_book = book_changes(character, card, reading)
    values = _told(character, card, reading) | talk | book
    fields = {name: dump(value) for name, value in values.items()}
    edits = [*setting(card.text, data_start(card.text, card.spec), fields), *_copies(card, values), *in_book]
    changed = (*values, *(["character_book"] if in_book else []))
    target = spec or card.spec
    return Exported(as_spec(edited(card.text, edits), card.spec, target), target, changed, tuple(notes))


def _as_imported(character: Character, card: Card) -> Reading:
    """The card as it was read when it was imported, by what the character says of that."""
    made = character.made.get("card") if isinstance(character.made, Mapping) else None
    made = made if isinstance(made, Mapping) else {}
    given, language = made.get("given_name"), made.get("language")
    name = given if isinstance(given, str) else None
    if name is None and (not clean_name(card.name[:MAX_NAME]) or len(card.name) > MAX_NAME):
        name = character.role
    return read_as_character(card, role=name, language=language if language in ("en", "zh") else character.language)


def _told(character: Character, card: Card, reading: Reading) -> dict[str, str]:
    """Name and description, where they are others than the card's.

    The personality stays where the description still ends with it; else the description says it all.
    """
    values = {}
    if character.role != reading.character.role:
        values["name"] = character.role
    told = character.described() or character.background or ""
    if told == (reading.character.described() or ""):
        return values
    personality = fill(plain(card.personality), reading.names)
    end = f"\n\n{personality}"
    if personality and told.endswith(end):
        return values | {"description": told.removesuffix(end)}
    return values | {"description": told} | ({"personality": ""} if card.personality else {})


def _copies(card: Card, values: Mapping[str, Any]) -> list[Edit]:
    """SillyTavern writes the fields of V1 a second time, beside ``data``: such copies change with their originals."""
    if card.spec == "v1":
        return []
    top = begin(card.text)
    copies = {}
    for name in V1_FIELDS:
        there = member(card.text, top, name) if name in values else None
        if there and parse(card.text[slice(*there.value)]) == card.data.get(name):
            copies[name] = dump(values[name])
    return setting(card.text, top, copies)


def _new_card(character: Character, spec: Spec) -> Exported:
    names = Names(character.role, character.role, user_name(character.language, character.role))
    examples, lines = new_examples(character, names)
    data = {
        **(V3_DEFAULTS if spec == "v3" else V2_DEFAULTS),
        "name": character.role,
        "description": character.described() or character.background or "",
        "mes_example": examples,
    }
    if character.lore:
        data["character_book"] = new_book(character.lore)
    head, version = HEADS["v3" if spec == "v3" else "v2"]
    value = {"spec": head, "spec_version": version, "data": data}
    notes = ["first_mes is empty: the character has no greeting; applications show one, so write it"]
    if not data["description"]:
        notes.append("description is empty: make one with `rolellm role build`")
    own = sum(turn.kind == "speech" and turn.speaker == character.role for turn in character.turns)
    notes.append(f"{lines:,} of the role's {own:,} lines are in mes_example")
    return Exported(dump(value, indent=2) + "\n", spec, (), tuple(notes))
