"""A character's lore as the lorebook of a card."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

from rolellm.construct.cards.card import Card
from rolellm.construct.cards.convert import Reading
from rolellm.construct.cards.json_text import Edit, Span, dump, items, member, setting
from rolellm.construct.cards.specs import book_start, data_start
from rolellm.construct.character import Character, Lore

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


def book_changes(character: Character, card: Card, reading: Reading) -> tuple[dict[str, Any], list[Edit]]:
    """What turns a card's lorebook into its character's lore: new values of the card's fields, and edits of its JSON.

    An entry is known again by its content, keys and name, else by its name, else its keys, else its content; what is
    not in the lore any more is taken out of the book; disabled and empty entries stay.
    """
    if character.lore == reading.character.lore:
        return {}, []
    data = data_start(card.text, card.spec)
    book = book_start(card.text, data)
    last = max((entry.insertion_order for entry in card.entries), default=-1.0)
    first = int(min(last, _LATE)) + 1
    if book is None:
        return {"character_book": new_book(character.lore, first)}, []
    entries = member(card.text, book, "entries")
    if entries is None or card.text[entries.value.start] != "[":
        made = dump(new_book(character.lore, first)["entries"])
        return {}, setting(card.text, book, {"entries": made})
    changed, gone, new = _compared(character.lore, reading)
    spans = items(card.text, entries.value.start)
    edits = []
    for place, (now, was, decorators) in changed.items():
        edits += setting(card.text, spans[place].start, _entry_changes(now, was, decorators, card, place))
    added = [dump(new_entry(lore, order)) for order, lore in enumerate(new, start=first)]
    return {}, [*edits, *_list_edits(card.text, entries.value, spans, gone, added)]


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


def _entry_changes(now: Lore, was: Lore, decorators: str, card: Card, place: int) -> dict[str, str]:
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
    return {name: dump(value) for name, value in values.items()}


def _list_edits(text: str, whole: Span, spans: Sequence[Span], gone: set[int], added: Sequence[str]) -> list[Edit]:
    """The edits that take items out of a list and add others at its end."""
    kept = [place for place in range(len(spans)) if place not in gone]
    if not kept:
        return [Edit(whole.start, whole.end, f"[{', '.join(added)}]")] if gone or added else []
    last = kept[-1]
    space = text[whole.start + 1 : spans[0].start] or " "
    end = "".join(f",{space}{item}" for item in added)
    edits = [Edit(spans[place].start, spans[place + 1].start, "") for place in gone if place < last]
    return [*edits, Edit(spans[last].end, spans[-1].end, end)] if end or last < len(spans) - 1 else edits
