"""A character as a card: the card that it came from with what was changed since, or a new one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rolellm.characters.cards.card import V1_FIELDS, Card, Spec, convert_card, format_card_json, wrap_data
from rolellm.characters.cards.convert import (
    FIRST_GREETING,
    LOGICS,
    MAX_NAME,
    CardNames,
    CardReading,
    choose_user_name,
    clean_name,
    clean_text,
    fill,
    format_block,
    join_blocks,
    read_as_character,
    refill,
    separate_talk,
)
from rolellm.characters.lore import compile_key
from rolellm.core.records import Lore, Profile, Turn
from rolellm.core.text import format_count
from rolellm.models.prompts.retrieval import find_exchanges

#: How much new example talk is written into a card, in characters, and the longest scene that is taken whole, in turns;
#: our choice: applications put all of it into each prompt.
EXAMPLES = 6_000
WHOLE_SCENE = 12
_MAX_ORDER = 1_000_000


@dataclass(frozen=True, slots=True)
class ExportedCard:
    """A character as a card.

    Attributes:
        text: The JSON.
        spec: The specification it follows.
        changed: The fields that differ from the card that the character came from; empty of a new card.
        notes: Notes for the user.
        chunks: The names of its card chunks, where it was written to a PNG.
        picture: The file whose picture that has; ``None`` for the plain one, and for JSON.
    """

    text: str
    spec: Spec
    changed: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    chunks: tuple[str, ...] = ()
    picture: Path | None = None


def export_character(character: Profile, card: Card | None = None, spec: Spec | None = None) -> ExportedCard:
    """Write a character as a card.

    Args:
        character: The character.
        card: The card that it came from. Only the fields that differ from the character change; a card that changes
            in nothing keeps its JSON to the byte.
        spec: By default the card's own; V2 of a new one.

    Raises:
        CardError: When the card cannot be read as a character.
    """
    if card is None:
        return _make_card(character, spec or "v2")
    reading = _read_as_imported(character, card)
    talk, notes = _change_talk(character, card, reading)
    edited = {name: talk[name] for name in ("description", "personality") if name in talk}
    description = _change_description(character, replace(card, **edited), reading)
    changes = description | talk | description
    for name in V1_FIELDS[1:]:
        if name in changes:
            changes[name] = refill(changes[name], clean_text(getattr(card, name)), reading.names)
    if character.lore != reading.character.lore:
        changes["character_book"] = _change_lorebook(character, card, reading)
    # SillyTavern writes the fields of V1 a second time, next to `data`: such copies change with their originals.
    copies = {
        name: changes[name] for name in V1_FIELDS if name in changes and card.raw.get(name) == card.data.get(name)
    }
    raw = {**card.raw, **copies}
    if card.spec == "v1":
        raw |= changes
    else:
        raw["data"] = {**card.data, **changes}
    target = spec or card.spec
    raw = convert_card(raw, card.spec, target)
    text = card.text if raw == card.raw else format_card_json(raw, like=card.text)
    return ExportedCard(text, target, tuple(changes), tuple(notes))


def _read_as_imported(character: Profile, card: Card) -> CardReading:
    """Read the card as it was read when it was imported, by the character's record of that."""
    origin = character.made.get("card")
    origin = origin if isinstance(origin, Mapping) else {}
    name, language = origin.get("given_name"), origin.get("language")
    if not isinstance(name, str):
        is_usable = clean_name(card.name[:MAX_NAME]) and len(card.name) <= MAX_NAME
        name = None if is_usable else character.role
    language = language if language in ("en", "zh") else character.language
    return read_as_character(card, role=name, language=language)


def _change_description(character: Profile, card: Card, reading: CardReading) -> dict[str, Any]:
    """Give the card's name and description, where the character's differ.

    The personality stays where the description still ends with it; else the description says it all. Example talk in
    either stays, at the end of the description.
    """
    changes = {}
    if character.role != reading.character.role:
        changes["name"] = character.role
    description = character.full_description or character.background or ""
    if description == (reading.character.full_description or ""):
        return changes
    _, talk = separate_talk(clean_text(card.description), reading.names)
    personality, more_talk = separate_talk(clean_text(card.personality), reading.names)
    end = f"\n\n{fill(personality, reading.names)}"
    keeps_personality = bool(personality) and description.endswith(end)
    if keeps_personality:
        description = description.removesuffix(end)
    else:
        talk += more_talk
    changes["description"] = "\n\n".join(filter(None, (description, join_blocks(talk))))
    return changes if keeps_personality or not card.personality else {**changes, "personality": ""}


def _make_card(character: Profile, spec: Spec) -> ExportedCard:
    names = CardNames(character.role, character.role, choose_user_name(character.language, character.role))
    texts, lines = _select_examples(_group_scenes(character.turns).values(), character, names)
    description = character.full_description or character.background or ""
    data: dict[str, Any] = {"name": character.role, "description": description, "mes_example": join_blocks(texts)}
    if character.lore:
        data["character_book"] = {"extensions": {}, "entries": _make_entries(character.lore)}
    notes = ["first_mes is empty: the character has no greeting; applications show one, so write it"]
    if not description:
        notes.append("description is empty: make one with `rolellm role build`")
    own = sum(map(character.owns, character.turns))
    notes.append(f"mes_example has {lines:,} of the role's {format_count(own, 'line')}")
    return ExportedCard(format_card_json(wrap_data(data, spec)), spec, (), tuple(notes))


def _change_lorebook(character: Profile, card: Card, reading: CardReading) -> dict[str, Any]:
    """Give the card's lorebook with the character's lore.

    Entries whose lore is gone are removed; disabled and empty entries stay.
    """
    last = max((entry.get("insertion_order", 0) for entry in card.entries), default=-1)
    order = int(min(last, _MAX_ORDER)) + 1
    book = card.data.get("character_book")
    if book is None or book.get("entries") is None:
        return {**({"extensions": {}} if book is None else book), "entries": _make_entries(character.lore, order)}
    entries = dict(enumerate(book["entries"]))
    pairs = _pair_lore(character.lore, reading.character.lore)
    for old_index, (index, decorators) in enumerate(reading.lore):
        if old_index not in pairs:
            del entries[index]
            continue
        lore, old = character.lore[pairs[old_index]], reading.character.lore[old_index]
        entry = entries[index]
        changes = _change_entry(lore, old, entry)
        if "content" in changes:
            text = clean_text(entry["content"][len(decorators) :])
            changes["content"] = decorators + refill(lore.content, text, reading.names)
        for name in {"keys", "secondary_keys"} & changes.keys():
            spellings = {fill(key, reading.names): key for key in entry.get(name) or ()}
            changes[name] = [spellings.get(key, key) for key in changes[name]]
        entries[index] = {**entry, **changes}
    paired = set(pairs.values())
    new = [lore for index, lore in enumerate(character.lore) if index not in paired]
    return {**book, "entries": [*entries.values(), *_make_entries(new, order)]}


def _pair_lore(new: Sequence[Lore], old: Sequence[Lore]) -> dict[int, int]:
    """Pair the indices of old lore with those of new lore: of equal items, else of the same name, keys or content."""
    likenesses: tuple[Callable[[Lore], Hashable], ...] = (
        lambda lore: lore,
        lambda lore: lore.name,
        lambda lore: lore.keys,
        lambda lore: lore.content,
    )
    pairs: dict[int, int] = {}
    unpaired = list(range(len(new)))
    for likeness in likenesses:
        candidates: dict[Hashable, list[int]] = defaultdict(list)
        for index in reversed(range(len(old))):
            if index not in pairs and likeness(old[index]):
                candidates[likeness(old[index])].append(index)
        pairs |= {same.pop(): index for index in unpaired if (same := candidates.get(likeness(new[index])))}
        paired = set(pairs.values())
        unpaired = [index for index in unpaired if index not in paired]
    return pairs


def _change_entry(lore: Lore, old: Lore, entry: Mapping[str, Any]) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    if lore.content != old.content:
        changes["content"] = lore.content
    if lore.keys != old.keys:
        changes["keys"] = list(lore.keys)
    if lore.secondary_keys != old.secondary_keys:
        changes |= {"secondary_keys": list(lore.secondary_keys), "selective": bool(lore.secondary_keys)}
    if lore.constant != old.constant:
        changes["constant"] = lore.constant
    settings = {
        "selectiveLogic": (LOGICS.index(lore.logic), LOGICS.index(old.logic)),
        "case_sensitive": (lore.case_sensitive, old.case_sensitive),
        "match_whole_words": (lore.whole_words, old.whole_words),
    }
    if extensions := {name: value for name, (value, old_value) in settings.items() if value != old_value}:
        changes["extensions"] = {**(entry.get("extensions") or {}), **extensions}
    if lore.name != old.name:
        changes["comment" if entry.get("comment") and not entry.get("name") else "name"] = lore.name
    return changes


def _make_entries(lore: Iterable[Lore], first: int = 0) -> list[dict[str, Any]]:
    """Make entries by V2 and V3. Without keys nothing would ever call one up, so its name has to."""
    entries = []
    for order, item in enumerate(lore, start=first):
        entry = {
            "keys": list(item.keys) or ([item.name] if item.name and not item.constant else []),
            "content": item.content,
            "extensions": {},
            "enabled": True,
            "insertion_order": order,
            "use_regex": any(map(compile_key, item.keys)),
            "name": item.name,
        }
        entries.append(entry | _change_entry(item, Lore(item.content, item.keys, item.name), entry))
    return entries


def _change_talk(character: Profile, card: Card, reading: CardReading) -> tuple[dict[str, Any], list[str]]:
    """Give the fields of the card that its character's turns no longer agree with, and notes for the user.

    A greeting follows its scene, as long as that holds one line of the role and no other. A block of example talk whose
    scene is as it was stays as it was, placeholders included; scenes that are new come within a budget.
    """
    old = _group_scenes(reading.character.turns)
    # The role may have been given another name since.
    new = _group_scenes(character.turns, {character.role: reading.names.role})
    if old == new:
        return {}, []
    changes: dict[str, Any] = {}
    greetings = list(card.alternate_greetings)
    scenes = dict(new)
    opening = min(old, default=0)
    role = reading.names.role
    for scene in [*reading.greetings, *([opening] if opening not in {*reading.examples, *reading.embedded} else [])]:
        scenario, greeting = _read_greeting(scenes.get(scene, []), role)
        if scene not in new or not (scenario or greeting) or (scene in reading.greetings) != bool(greeting):
            continue
        del scenes[scene]
        old_scenario, old_greeting = _read_greeting(old[scene], role)
        if scene == opening and scenario != old_scenario:
            changes["scenario"] = scenario
        if greeting != old_greeting:
            index = reading.greetings[scene]
            if index == FIRST_GREETING:
                changes["first_mes"] = greeting
            else:
                greetings[index] = refill(greeting, clean_text(greetings[index]), reading.names)
    if tuple(greetings) != card.alternate_greetings:
        changes["alternate_greetings"] = greetings
    for scene, block in reading.embedded.items():
        turns = new.get(scene, [])
        # A scene of another script has its number by chance.
        if turns != old[scene] and any(turn in old[scene] for turn in turns):
            new_block = format_block(scenes.pop(scene), reading.names).strip()
            for name in ("description", "personality"):
                text = changes.get(name, clean_text(getattr(card, name)))
                changes |= {name: text.replace(block, new_block, 1)} if block in text else {}
    examples, notes = _change_examples(scenes, old, character, reading)
    return changes | examples, notes


def _change_examples(
    scenes: dict[int, list[Turn]], old: dict[int, list[Turn]], character: Profile, reading: CardReading
) -> tuple[dict[str, Any], list[str]]:
    elsewhere = {*reading.greetings, *reading.embedded}
    scenes = {scene: turns for scene, turns in scenes.items() if scene not in elsewhere or turns != old[scene]}
    if list(scenes) == list(reading.examples) and all(turns == old[scene] for scene, turns in scenes.items()):
        return {}, []
    texts = [
        reading.examples[scene] if turns == old[scene] else format_block(turns, reading.names)
        for scene, turns in scenes.items()
        if scene in reading.examples
    ]
    new = [turns for scene, turns in scenes.items() if scene not in reading.examples]
    more, lines = _select_examples(new, replace(character, role=reading.names.role), reading.names)
    note = f"{format_count(lines, 'line')} of new scenes added to mes_example"
    return {"mes_example": join_blocks([*texts, *more])}, [note] if new else []


def _select_examples(scenes: Iterable[list[Turn]], character: Profile, names: CardNames) -> tuple[list[str], int]:
    """Select blocks of example talk within the budget, and count the role's lines in them."""
    blocks: list[str] = []
    budget, lines = EXAMPLES, 0
    for turns in scenes:
        if not any(map(character.owns, turns)):
            continue
        parts: Sequence[Sequence[Turn]] = [turns]
        if len(turns) > WHOLE_SCENE:
            scene = replace(character, turns=tuple(turns))
            parts = [(exchange.before, exchange.line) for exchange in find_exchanges(scene)]
        for part in parts:
            block = format_block(part, names)
            if len(block) <= budget:
                blocks.append(block)
                budget -= len(block)
                lines += sum(map(character.owns, part))
    return blocks, lines


def _read_greeting(turns: Sequence[Turn], role: str) -> tuple[str, str]:
    """Read the narration before a greeting, and the greeting; both empty where the scene is something else."""
    narration = [turn.content for turn in turns if turn.kind == "narration"]
    speech = [turn.content for turn in turns if turn.kind == "speech" and turn.speaker == role]
    if len(narration) + len(speech) != len(turns) or len(narration) > 1 or len(speech) > 1:
        return "", ""
    return "".join(narration), "".join(speech)


def _group_scenes(turns: Iterable[Turn], names: Mapping[str, str] | None = None) -> dict[int, list[Turn]]:
    """Group turns by scene, without their places in a script, and with speakers renamed where given."""
    scenes: dict[int, list[Turn]] = defaultdict(list)
    for turn in turns:
        speaker = (names or {}).get(turn.speaker, turn.speaker)
        scenes[turn.scene].append(Turn(speaker, turn.content, turn.kind))
    return dict(scenes)
