"""A card's JSON as another specification has it: what the new one asks for is added, and nothing is taken away."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rolellm.construct.cards.card import Spec
from rolellm.construct.cards.json_text import Edit, begin, dump, edited, first, items, member, members, parse, setting

#: What V2 asks for, with the values that stand for nothing.
V2_DEFAULTS: Mapping[str, Any] = {
    "name": "",
    "description": "",
    "personality": "",
    "scenario": "",
    "first_mes": "",
    "mes_example": "",
    "creator_notes": "",
    "system_prompt": "",
    "post_history_instructions": "",
    "alternate_greetings": [],
    "tags": [],
    "creator": "",
    "character_version": "",
    "extensions": {},
}
V3_DEFAULTS: Mapping[str, Any] = {**V2_DEFAULTS, "group_only_greetings": []}

#: What a card says of itself, by specification.
HEADS: Mapping[str, tuple[str, str]] = {"v2": ("chara_card_v2", "2.0"), "v3": ("chara_card_v3", "3.0")}
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
    head, version = HEADS[spec]
    if now == "v1":
        data = text[begin(text) :].rstrip(" \t\r\n")
        text = f'{{"spec": {dump(head)}, "spec_version": {dump(version)}, "data": {data}}}\n'
        edits = []
    else:
        edits = setting(text, begin(text), {"spec": dump(head), "spec_version": dump(version)})
    start = data_start(text, spec)
    defaults = V3_DEFAULTS if spec == "v3" else V2_DEFAULTS
    there = {found.name for found in members(text, start)}
    edits += setting(text, start, {name: dump(value) for name, value in defaults.items() if name not in there})
    if spec == "v3":
        edits += _with_regex(text, start)
    return edited(text, edits)


def backfilled(text: str) -> str:
    """A V3 card as the V2 card that stands beside it in a PNG, with the warning that V3 asks for in its notes."""
    text = as_spec(text, "v3", "v2")
    start = data_start(text, "v2")
    there = member(text, start, "creator_notes")
    notes = parse(text[slice(*there.value)]) if there else ""
    warned = f"{_BACKFILLED}\n\n{notes}" if notes and isinstance(notes, str) else _BACKFILLED
    return edited(text, setting(text, start, {"creator_notes": dump(warned)}))


def data_start(text: str, spec: Spec) -> int:
    """Where the object with the card's fields begins."""
    start = begin(text)
    if spec == "v1":
        return start
    data = member(text, start, "data")
    return start if data is None else data.value.start


def book_start(text: str, data: int) -> int | None:
    """Where the lorebook begins, where there is one."""
    book = member(text, data, "character_book")
    return book.value.start if book and text[book.value.start] == "{" else None


def _with_regex(text: str, data: int) -> list[Edit]:
    """V3 wants each entry of a lorebook to say whether its keys are patterns."""
    book = book_start(text, data)
    entries = None if book is None else member(text, book, "entries")
    if entries is None or text[entries.value.start] != "[":
        return []
    values = parse(text[slice(*entries.value)])
    return [
        Edit(first(text, item.start), first(text, item.start), '"use_regex": false' + (", " if value else ""))
        for item, value in zip(items(text, entries.value.start), values, strict=True)
        if isinstance(value, dict) and "use_regex" not in value
    ]
