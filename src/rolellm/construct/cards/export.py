"""A character as a card: the card that it came from with what was changed since, or a new one."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from rolellm.construct.cards.card import (
    HEADS,
    V1_FIELDS,
    V2_DEFAULTS,
    V3_DEFAULTS,
    Card,
    Edit,
    Spec,
    as_spec,
    begin,
    data_start,
    dump,
    edited,
    entries_span,
    member,
    parse,
    parts,
    setting,
)
from rolellm.construct.cards.convert import (
    FIRST,
    MAX_NAME,
    Names,
    Reading,
    block_of,
    clean_name,
    fill,
    joined,
    plain,
    read_as_character,
    user_name,
)
from rolellm.construct.sheet import Lore, Sheet
from rolellm.core.records import Profile, Turn
from rolellm.prompts.retrieval import exchanges

# --- Lore as a lorebook


_LATE = 1_000_000


def new_book(lore: Iterable[Lore], first: int = 0) -> dict[str, Any]:
    """A lorebook by V2 and V3; `first` is the order of its first entry."""
    entries = [new_entry(item, order) for order, item in enumerate(lore, start=first)]
    return {"extensions": {}, "entries": entries}


def new_entry(lore: Lore, order: int) -> dict[str, Any]:
    """An entry by V2 and V3. Without keys nothing would ever call it up, so its name has to."""
    return {
        "keys": list(lore.keys) or ([lore.name] if lore.name else []),
        "content": lore.content,
        "extensions": {},
        "enabled": True,
        "insertion_order": order,
        "use_regex": False,
        "name": lore.name,
    }


def book_changes(character: Sheet, card: Card, reading: Reading) -> tuple[dict[str, Any], list[Edit]]:
    """What turns a card's lorebook into its character's lore: new values of the card's fields, and edits of its JSON.

    An entry is known again by its content, keys and name, else by its name, else its keys, else its content; what is
    not in the lore any more is taken out of the book; disabled and empty entries stay.
    """
    if character.lore == reading.character.lore:
        return {}, []
    data = data_start(card.text, card.spec)
    book, entries = entries_span(card.text, data)
    last = max((entry.insertion_order for entry in card.entries), default=-1.0)
    first = int(min(last, _LATE)) + 1
    if book is None:
        return {"character_book": new_book(character.lore, first)}, []
    if entries is None:
        return {}, setting(card.text, book, {"entries": new_book(character.lore, first)["entries"]})
    changed, gone, new = _compared(character.lore, reading)
    spans = [item.value for item in parts(card.text, entries[0])]
    edits = []
    for place, (now, was, decorators) in changed.items():
        edits += setting(card.text, spans[place][0], _entry_changes(now, was, decorators, card, place))
    added = [dump(new_entry(lore, order)) for order, lore in enumerate(new, start=first)]
    return {}, [*edits, *_list_edits(card.text, entries, spans, gone, added)]


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


def _entry_changes(now: Lore, was: Lore, decorators: str, card: Card, place: int) -> dict[str, Any]:
    entry = card.data["character_book"]["entries"][place]
    values: dict[str, Any] = {}
    if now.content != was.content:
        values["content"] = decorators + now.content
    if now.keys != was.keys:
        values["keys"] = list(now.keys)
        if entry.get("use_regex"):
            values["use_regex"] = False
    if now.name != was.name:
        values["comment" if entry.get("comment") and not entry.get("name") else "name"] = now.name
    return values


def _list_edits(
    text: str, whole: tuple[int, int], spans: Sequence[tuple[int, int]], gone: set[int], added: Sequence[str]
) -> list[Edit]:
    """The edits that take items out of a list and add others at its end."""
    kept = [place for place in range(len(spans)) if place not in gone]
    if not kept:
        return [(*whole, f"[{', '.join(added)}]")] if gone or added else []
    last = kept[-1]
    space = text[whole[0] + 1 : spans[0][0]] or " "
    end = "".join(f",{space}{item}" for item in added)
    edits = [(spans[place][0], spans[place + 1][0], "") for place in gone if place < last]
    return [*edits, (spans[last][1], spans[-1][1], end)] if end or last < len(spans) - 1 else edits


# --- Turns as a card's scenario, greetings and example talk


#: How much new example talk is written into a card, in characters, and the longest scene that is taken whole, in turns;
#: our choice: applications put all of it into each prompt.
EXAMPLES = 6_000
WHOLE_SCENE = 12


def new_examples(character: Sheet, names: Names) -> tuple[str, int]:
    """The first scenes of a character as ``mes_example``, within `EXAMPLES`; and how many of its lines are in them."""
    texts, lines = _within_budget(_by_scene(character.turns).values(), character, names)
    return joined(texts), lines


def talk_changes(character: Sheet, card: Card, reading: Reading) -> tuple[dict[str, Any], list[str]]:
    """The fields of the card that its character's turns no longer agree with, and what a user should know.

    A greeting follows its scene, as long as that holds one line of the role and no other. A block of example talk whose
    scene is as it was stays as it was, placeholders included; scenes that are new come within a budget.
    """
    was = _by_scene(reading.character.turns)
    now = _by_scene(_own(character, reading.names.role))
    if _said(was) == _said(now):
        return {}, []
    changes: dict[str, Any] = {}
    greetings = list(card.alternate_greetings)
    rest = dict(now)
    opening = min(was, default=0)
    for scene in [*reading.greetings, *([opening] if opening not in reading.examples else [])]:
        told, said = _greeting(rest.get(scene, []), reading.names.role)
        if scene not in now or not (told or said) or (scene in reading.greetings) != bool(said):
            continue
        del rest[scene]
        if scene == opening and told != _greeting(was[scene], reading.names.role)[0]:
            changes["scenario"] = told
        if said != _greeting(was[scene], reading.names.role)[1]:
            place = reading.greetings[scene]
            if place == FIRST:
                changes["first_mes"] = said
            else:
                greetings[place] = said
    if tuple(greetings) != card.alternate_greetings:
        changes["alternate_greetings"] = greetings
    examples, notes = _examples(rest, was, character, reading)
    return changes | examples, notes


def _examples(
    rest: dict[int, list[Turn]], was: dict[int, list[Turn]], character: Sheet, reading: Reading
) -> tuple[dict[str, Any], list[str]]:
    rest = {scene: turns for scene, turns in rest.items() if scene not in reading.greetings or turns != was[scene]}
    if list(rest) == list(reading.examples) and all(_same(rest[scene], was[scene]) for scene in rest):
        return {}, []
    texts: list[str] = []
    new: list[list[Turn]] = []
    for scene, turns in rest.items():
        if scene not in reading.examples:
            new.append(turns)
        else:
            same = _same(turns, was[scene])
            texts.append(reading.examples[scene] if same else block_of(turns, reading.names))
    owner = replace(character, role=reading.names.role)
    more, lines = _within_budget(new, owner, reading.names)
    note = f"{lines:,} lines of scenes that the card did not have came into its mes_example"
    return {"mes_example": joined([*texts, *more])}, [note] if new else []


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
            text = block_of(part, names)
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


def _own(character: Sheet, role: str) -> list[Turn]:
    """The turns with the role under the name it had in the card, in case it was given another since."""
    return [replace(turn, speaker=role) if turn.speaker == character.role else turn for turn in character.turns]


def _by_scene(turns: Iterable[Turn]) -> dict[int, list[Turn]]:
    found: dict[int, list[Turn]] = {}
    for scene, group in groupby(turns, key=lambda turn: turn.scene):
        found.setdefault(scene, []).extend(group)
    return found


def _said(scenes: dict[int, list[Turn]]) -> dict[int, list[tuple[str, str, str]]]:
    return {scene: [(turn.speaker, turn.content, turn.kind) for turn in turns] for scene, turns in scenes.items()}


def _same(turns: list[Turn], others: list[Turn]) -> bool:
    return _said({0: turns}) == _said({0: others})


# --- A character as a card


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
    book, in_book = book_changes(character, card, reading)
    values = _told(character, card, reading) | talk | book
    edits = [*setting(card.text, data_start(card.text, card.spec), values), *_copies(card, values), *in_book]
    changed = (*values, *(["character_book"] if in_book else []))
    target = spec or card.spec
    return Exported(as_spec(edited(card.text, edits), card.spec, target), target, changed, tuple(notes))


def _as_imported(character: Sheet, card: Card) -> Reading:
    """The card as it was read when it was imported, by what the character says of that."""
    made = character.made.get("card") if isinstance(character.made, Mapping) else None
    made = made if isinstance(made, Mapping) else {}
    given, language = made.get("given_name"), made.get("language")
    name = given if isinstance(given, str) else None
    if name is None and (not clean_name(card.name[:MAX_NAME]) or len(card.name) > MAX_NAME):
        name = character.role
    return read_as_character(card, role=name, language=language if language in ("en", "zh") else character.language)


def _told(character: Sheet, card: Card, reading: Reading) -> dict[str, str]:
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
    there = {name: member(card.text, top, name) for name in V1_FIELDS if name in values}
    same = {name for name, span in there.items() if span and parse(card.text[slice(*span)]) == card.data.get(name)}
    return setting(card.text, top, {name: values[name] for name in values if name in same})


def _new_card(character: Sheet, spec: Spec) -> Exported:
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
