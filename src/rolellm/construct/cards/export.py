"""A character as a card: the card that it came from with what was changed since, or a new one."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rolellm.construct.cards import convert, json_text
from rolellm.construct.cards.card import V1_FIELDS, Card, Spec, as_spec, new_card
from rolellm.construct.cards.convert import Names, Reading
from rolellm.construct.lore import pattern_of
from rolellm.construct.sheet import Lore, Sheet
from rolellm.core.records import Profile, Turn
from rolellm.core.text import number_of
from rolellm.prompts.retrieval import exchanges

_LATE = 1_000_000


def _new_entry(lore: Lore, order: int) -> dict[str, Any]:
    """An entry by V2 and V3. Without keys nothing would ever call it up, so its name has to."""
    entry = {
        "keys": list(lore.keys) or ([lore.name] if lore.name and not lore.constant else []),
        "content": lore.content,
        "extensions": {},
        "enabled": True,
        "insertion_order": order,
        "use_regex": any(map(pattern_of, lore.keys)),
        "name": lore.name,
    }
    return entry | _entry_changes(lore, Lore(lore.content, lore.keys, lore.name), entry)


def _new_entries(lore: Iterable[Lore], first: int = 0) -> list[dict[str, Any]]:
    return [_new_entry(item, order) for order, item in enumerate(lore, start=first)]


def _new_lorebook(character: Sheet, card: Card, reading: Reading) -> dict[str, Any]:
    """A card's lorebook with the character's lore; entries by their places, as `json_text.rewrite` takes them.

    An entry is known again by its content, keys and name, else by its name, else its keys, else its content; what is
    not in the lore any more is taken out of the book; disabled and empty entries stay.
    """
    last = max((entry.insertion_order for entry in card.entries), default=-1.0)
    first = int(min(last, _LATE)) + 1
    book = card.data.get("character_book")
    if book is None or book.get("entries") is None:
        return {**({"extensions": {}} if book is None else book), "entries": _new_entries(character.lore, first)}
    entries = book["entries"]
    changed, gone, new = _compared(character.lore, reading)
    places = {place: entry for place, entry in enumerate(entries) if place not in gone}
    for place, (now, was, decorators) in changed.items():
        values = _entry_changes(now, was, entries[place])
        if "content" in values:
            told = convert.plain(entries[place]["content"][len(decorators) :])
            values["content"] = decorators + convert.refill(now.content, told, reading.names)
        for name in {"keys", "secondary_keys"} & values.keys():
            written = {convert.fill(key, reading.names): key for key in entries[place].get(name) or ()}
            values[name] = [written.get(key, key) for key in values[name]]
        places[place] = {**entries[place], **values}
    places |= {len(entries) + number: _new_entry(lore, first + number) for number, lore in enumerate(new)}
    return {**book, "entries": places}


def _compared(
    lore: tuple[Lore, ...], reading: Reading
) -> tuple[dict[int, tuple[Lore, Lore, str]], set[int], list[Lore]]:
    """By place in the book, what an entry is now, was, and its decorators; the places of those gone; what is new."""
    was = reading.character.lore
    left, gone = list(range(len(lore))), dict.fromkeys(range(len(was)))
    changed: dict[int, tuple[Lore, Lore, str]] = {}
    likenesses: tuple[Callable[[Lore], Hashable], ...] = (
        lambda item: item,
        lambda item: item.name,
        lambda item: item.keys,
        lambda item: item.content,
    )
    for likeness in likenesses:
        known: dict[Hashable, list[int]] = {}
        for index in reversed(gone):
            if likeness(was[index]):
                known.setdefault(likeness(was[index]), []).append(index)
        still = []
        for number in left:
            found = known.get(likeness(lore[number]))
            if not found:
                still.append(number)
                continue
            index = found.pop()
            del gone[index]
            if lore[number] != was[index]:
                place, decorators = reading.lore[index]
                changed[place] = (lore[number], was[index], decorators)
        left = still
    return changed, {reading.lore[index][0] for index in gone}, [lore[number] for number in left]


def _entry_changes(now: Lore, was: Lore, entry: Mapping[str, Any]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    if now.content != was.content:
        values["content"] = now.content
    if now.keys != was.keys:
        values["keys"] = list(now.keys)
    if now.secondary_keys != was.secondary_keys:
        values |= {"secondary_keys": list(now.secondary_keys), "selective": bool(now.secondary_keys)}
    if now.constant != was.constant:
        values["constant"] = now.constant
    settings = {
        "selectiveLogic": (convert.LOGICS.index(now.logic), convert.LOGICS.index(was.logic)),
        "case_sensitive": (now.case_sensitive, was.case_sensitive),
        "match_whole_words": (now.whole_words, was.whole_words),
    }
    if changed := {name: new for name, (new, old) in settings.items() if new != old}:
        values["extensions"] = {**(entry.get("extensions") or {}), **changed}
    if now.name != was.name:
        values["comment" if entry.get("comment") and not entry.get("name") else "name"] = now.name
    return values


#: How much new example talk is written into a card, in characters, and the longest scene that is taken whole, in turns;
#: our choice: applications put all of it into each prompt.
EXAMPLES = 6_000
WHOLE_SCENE = 12


def talk_changes(character: Sheet, card: Card, reading: Reading) -> tuple[dict[str, Any], list[str]]:
    """The fields of the card that its character's turns no longer agree with, and what a user should know.

    A greeting follows its scene, as long as that holds one line of the role and no other. A block of example talk whose
    scene is as it was stays as it was, placeholders included; scenes that are new come within a budget.
    """
    was = _by_scene(reading.character.turns)
    # The role may have been given another name since.
    now = _by_scene(character.turns, {character.role: reading.names.role})
    if was == now:
        return {}, []
    changes: dict[str, Any] = {}
    greetings = list(card.alternate_greetings)
    rest = dict(now)
    opening = min(was, default=0)
    for scene in [*reading.greetings, *([opening] if opening not in {*reading.examples, *reading.described} else [])]:
        told, said = _greeting(rest.get(scene, []), reading.names.role)
        if scene not in now or not (told or said) or (scene in reading.greetings) != bool(said):
            continue
        del rest[scene]
        if scene == opening and told != _greeting(was[scene], reading.names.role)[0]:
            changes["scenario"] = told
        if said != _greeting(was[scene], reading.names.role)[1]:
            place = reading.greetings[scene]
            if place == convert.FIRST:
                changes["first_mes"] = said
            else:
                greetings[place] = convert.refill(said, convert.plain(greetings[place]), reading.names)
    if tuple(greetings) != card.alternate_greetings:
        changes["alternate_greetings"] = greetings
    for scene, block in reading.described.items():
        turns = now.get(scene, [])
        # A scene of another script has its number by chance.
        if turns != was[scene] and any(turn in was[scene] for turn in turns):
            new = convert.block_of(rest.pop(scene), reading.names).strip()
            for name in ("description", "personality"):
                text = changes.get(name, convert.plain(getattr(card, name)))
                changes |= {name: text.replace(block, new, 1)} if block in text else {}
    examples, notes = _examples(rest, was, character, reading)
    return changes | examples, notes


def _examples(
    rest: dict[int, list[Turn]], was: dict[int, list[Turn]], character: Sheet, reading: Reading
) -> tuple[dict[str, Any], list[str]]:
    elsewhere = {*reading.greetings, *reading.described}
    rest = {scene: turns for scene, turns in rest.items() if scene not in elsewhere or turns != was[scene]}
    if list(rest) == list(reading.examples) and all(rest[scene] == was[scene] for scene in rest):
        return {}, []
    texts: list[str] = []
    new: list[list[Turn]] = []
    for scene, turns in rest.items():
        if scene not in reading.examples:
            new.append(turns)
        else:
            same = turns == was[scene]
            texts.append(reading.examples[scene] if same else convert.block_of(turns, reading.names))
    owner = replace(character, role=reading.names.role)
    more, lines = _within_budget(new, owner, reading.names)
    note = f"{number_of(lines, 'line')} of new scenes added to mes_example"
    return {"mes_example": convert.joined([*texts, *more])}, [note] if new else []


def _within_budget(scenes: Iterable[list[Turn]], character: Sheet, names: Names) -> tuple[list[str], int]:
    texts: list[str] = []
    left, lines = EXAMPLES, 0
    for turns in scenes:
        profile = Profile(character.role, character.language, tuple(turns))
        if not any(profile.owns(turn) for turn in turns):
            continue
        parts: Sequence[Sequence[Turn]] = [turns]
        if len(turns) > WHOLE_SCENE:
            parts = [(exchange.before, exchange.line) for exchange in exchanges(profile)]
        for part in parts:
            text = convert.block_of(part, names)
            if len(text) <= left:
                texts.append(text)
                left -= len(text)
                lines += sum(profile.owns(turn) for turn in part)
    return texts, lines


def _greeting(turns: Sequence[Turn], role: str) -> tuple[str, str]:
    """What is told before a greeting, and the greeting; both empty where the scene is something else."""
    told = [turn.content for turn in turns if turn.kind == "narration"]
    said = [turn.content for turn in turns if turn.kind == "speech" and turn.speaker == role]
    if len(told) + len(said) != len(turns) or len(told) > 1 or len(said) > 1:
        return "", ""
    return "".join(told), "".join(said)


def _by_scene(turns: Iterable[Turn], names: Mapping[str, str] | None = None) -> dict[int, list[Turn]]:
    """The turns of each scene, without their places in a script, and with speakers under other names where given."""
    found: dict[int, list[Turn]] = {}
    for turn in turns:
        speaker = (names or {}).get(turn.speaker, turn.speaker)
        found.setdefault(turn.scene, []).append(Turn(speaker, turn.content, turn.kind))
    return found


@dataclass(frozen=True, slots=True)
class Exported:
    """A character as a card.

    Attributes:
        text: The JSON.
        spec: Which specification it follows.
        changed: The fields that differ from the card that the character came from; empty of a new card.
        notes: What a user should know.
        chunks: The names of its card chunks, where it was written to a PNG.
        picture: Whose picture that has; ``None`` for the plain one, and for JSON.
    """

    text: str
    spec: Spec
    changed: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    chunks: tuple[str, ...] = ()
    picture: Path | None = None


def export_character(character: Sheet, card: Card | None = None, spec: Spec | None = None) -> Exported:
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
    edited = {name: talk[name] for name in ("description", "personality") if name in talk}
    told = _told(character, replace(card, **edited), reading)
    values = told | talk | told
    for name in (name for name in V1_FIELDS[1:] if name in values):
        values[name] = convert.refill(values[name], convert.plain(getattr(card, name)), reading.names)
    if character.lore != reading.character.lore:
        values["character_book"] = _new_lorebook(character, card, reading)
    value = json_text.parse(card.text)
    if card.spec != "v1":
        # SillyTavern writes the fields of V1 a second time, next to `data`: such copies change with their originals.
        same = {name for name in V1_FIELDS if name in value and value[name] == card.data.get(name)}
        copies = {name: values[name] for name in values if name in same}
        value = {**value, **copies, "data": {**card.data, **values}}
    else:
        value |= values
    target = spec or card.spec
    text = as_spec(json_text.rewrite(card.text, value), card.spec, target)
    return Exported(text, target, tuple(values), tuple(notes))


def _as_imported(character: Sheet, card: Card) -> Reading:
    """The card as it was read when it was imported, by what the character says of that."""
    made = character.made.get("card")
    made = made if isinstance(made, Mapping) else {}
    name, language = made.get("given_name"), made.get("language")
    if not isinstance(name, str):
        usable = convert.clean_name(card.name[: convert.MAX_NAME]) and len(card.name) <= convert.MAX_NAME
        name = None if usable else character.role
    language = language if language in ("en", "zh") else character.language
    return convert.read_as_character(card, role=name, language=language)


def _told(character: Sheet, card: Card, reading: Reading) -> dict[str, Any]:
    """Name and description, where they are others than the card's.

    The personality stays where the description still ends with it; else the description says it all. Example talk in
    either stays, at the end of the description.
    """
    values = {}
    if character.role != reading.character.role:
        values["name"] = character.role
    told = character.described() or character.background or ""
    if told == (reading.character.described() or ""):
        return values
    _, talk = convert.talk_in(convert.plain(card.description), reading.names)
    personality, more = convert.talk_in(convert.plain(card.personality), reading.names)
    end = f"\n\n{convert.fill(personality, reading.names)}"
    kept = bool(personality) and told.endswith(end)
    said = convert.joined(talk if kept else [*talk, *more])
    values["description"] = "\n\n".join(filter(None, (told.removesuffix(end) if kept else told, said)))
    return values | ({"personality": ""} if card.personality and not kept else {})


def _new_card(character: Sheet, spec: Spec) -> Exported:
    names = Names(character.role, character.role, convert.user_name(character.language, character.role))
    texts, lines = _within_budget(_by_scene(character.turns).values(), character, names)
    described = character.described() or character.background or ""
    data: dict[str, Any] = {"name": character.role, "description": described, "mes_example": convert.joined(texts)}
    if character.lore:
        data["character_book"] = {"extensions": {}, "entries": _new_entries(character.lore)}
    notes = ["first_mes is empty: the character has no greeting; applications show one, so write it"]
    if not described:
        notes.append("description is empty: make one with `rolellm role build`")
    own = sum(turn.kind == "speech" and turn.speaker == character.role for turn in character.turns)
    notes.append(f"mes_example has {lines:,} of the role's {number_of(own, 'line')}")
    return Exported(new_card(data, spec), spec, (), tuple(notes))
