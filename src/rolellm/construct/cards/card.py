"""The character cards of SillyTavern and similar applications, read from JSON.

V1 is a flat object; V2 puts it into ``data``, beside ``spec`` and ``spec_version``, and adds the lorebook and more; V3
is a superset of V2. Where they leave a choice, it is ours, and ``docs/cards.md`` has it.

* V1 and V2: https://github.com/malfoyslastname/character-card-spec-v2 (``spec_v1.md``, ``spec_v2.md`` at 0b61e5bc)
* V3: https://github.com/kwaroran/character-card-spec-v3 (``SPEC_V3.md`` at f3a86af0)
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, NamedTuple

from rolellm.construct.cards.png import MAX_CARD
from rolellm.core.errors import CardError

_NAMED = 20


@dataclass(slots=True)
class Notes:
    """Notes on a card for the user; the first are kept, the rest counted."""

    texts: list[str] = field(default_factory=list)
    more: int = 0

    def add(self, text: str) -> None:
        """Add a note."""
        if len(self.texts) < _NAMED:
            self.texts.append(text)
        else:
            self.more += 1

    def all(self) -> tuple[str, ...]:
        """The notes, and how many more there were."""
        return (*self.texts, *([f"and {self.more:,} more such notes"] if self.more else []))


def shown(value: Any) -> str:
    """A value in a message: what cannot be seen is escaped, what is large is named by its kind."""
    if isinstance(value, dict):
        return f"an object of {len(value):,}"
    if isinstance(value, list):
        kinds = sorted({type(item).__name__ for item in value[:1000]})
        return f"a list of {len(value):,} ({', '.join(kinds) or 'empty'})"
    return ascii(value)[:60] if isinstance(value, str) else str(value)[:60]


_WHITE = re.compile(r"[ \t\n\r]*")
_SURROGATE = re.compile("[\ud800-\udfff]")
_DIGITS = 300

#: A value's place in a text, end exclusive.
Span = tuple[int, int]
#: Where a part of a text begins and ends, and what takes its place.
Edit = tuple[int, int, str]


class Part(NamedTuple):
    """A member of an object or an item of a list: its name, if any, and the places of name and value."""

    name: str | None
    key: Span
    value: Span


def _whole_number(digits: str) -> float:
    # Python refuses to make integers of thousands of digits; as a float such a number is endless, and no error.
    return int(digits) if len(digits) <= _DIGITS else float(digits)


def _no_number(word: str) -> Any:
    raise CardError(f"not valid JSON: {word} is not a value that JSON has")


_DECODER = json.JSONDecoder(parse_int=_whole_number, parse_constant=_no_number)


def parse(text: str) -> Any:
    """The value of a JSON text; a byte order mark before it is passed over.

    Raises:
        CardError: When it is not JSON, or is nested so deep that reading it would need more stack than there is.
    """
    value, end = _value(text, begin(text))
    rest = _white(text, end)
    if rest != len(text):
        raise CardError(f"not valid JSON: something follows its end, at character {rest:,}")
    return value


def begin(text: str) -> int:
    """Where the value of a JSON text begins."""
    return _white(text, 1 if text.startswith("\ufeff") else 0)


def parts(text: str, start: int) -> list[Part]:
    """The members of the object, or the items of the list, that begins there: in order, two of one name both."""
    found = []
    named, place = text[start] == "{", _white(text, start + 1)
    while text[place] not in "}]":
        name, key_end = _value(text, place) if named else (None, place)
        key = (place, key_end)
        if named:
            place = _white(text, _white(text, key_end) + 1)
        _, end = _value(text, place)
        found.append(Part(name, key, (place, end)))
        place = _white(text, end)
        if text[place] == ",":
            place = _white(text, place + 1)
    return found


def member(text: str, start: int, name: str) -> Span | None:
    """The place of the value of that name; of several the last, which is the one that readers use."""
    return next((found.value for found in reversed(parts(text, start)) if found.name == name), None)


def dump(value: Any, indent: int | None = None) -> str:
    """A new value as JSON; lone surrogates, which no file could hold, stay escaped."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    return json.dumps(value, indent=indent) if _SURROGATE.search(text) else text


def setting(text: str, start: int, values: Mapping[str, Any]) -> list[Edit]:
    """The edits that give members of the object at `start` new values; a member that is not there comes last."""
    there = parts(text, start)
    last = {found.name: found.value for found in there}
    edits = [(*last[name], dump(value)) for name, value in values.items() if name in last]
    new = [(name, dump(value)) for name, value in values.items() if name not in last]
    if not new:
        return edits
    if not there:
        inside = ", ".join(f"{dump(name)}: {value}" for name, value in new)
        return [*edits, (start + 1, start + 1, inside)]
    # As the first member is written, with its line break and indent, so is each new one.
    space = text[start + 1 : there[0].key[0]]
    colon = text[there[0].key[1] : there[0].value[0]]
    end = there[-1].value[1]
    added = "".join(f",{space or ' ' * (': ' in colon)}{dump(name)}{colon}{value}" for name, value in new)
    return [*edits, (end, end, added)]


def edited(text: str, edits: Iterable[Edit]) -> str:
    """The text after edits, which must not overlap; those at one place come in the order given."""
    pieces, place = [], 0
    for start, end, new in sorted(edits, key=lambda edit: edit[:2]):
        pieces += [text[place:start], new]
        place = end
    return "".join([*pieces, text[place:]])


def _value(text: str, start: int) -> tuple[Any, int]:
    try:
        return _DECODER.raw_decode(text, start)
    except json.JSONDecodeError as error:
        raise CardError(f"not valid JSON: {error}") from error
    except RecursionError as error:
        raise CardError("nested too deep to be read; a card is a few levels deep") from error


def _white(text: str, start: int) -> int:
    found = _WHITE.match(text, start)
    return start if found is None else found.end()


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
        comment: A note on it.
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
    comment: str = ""
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
        nickname: What ``{{char}}`` means, where it is not the name (V3).
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
    data, path = (value, "") if spec == "v1" else (value["data"], "data.")
    made = _known(Card, data, path, notes)
    entries = tuple(_entries(data, path, notes))
    return Card(**{"name": "", **made}, spec=spec, entries=entries, data=data, text=text, notes=notes.all())


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


#: By the type of a field, what it is called, and what has that type.
_KINDS: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "str": ("a text", lambda value: isinstance(value, str)),
    "bool": ("true or false", lambda value: isinstance(value, bool)),
    "float": ("a number", lambda value: isinstance(value, int | float) and not isinstance(value, bool)),
    "tuple[str, ...]": ("a list of texts", lambda value: _is_list(value, str)),
    "tuple[Mapping[str, Any], ...]": ("a list of objects", lambda value: _is_list(value, dict)),
    "Mapping[str, str]": (
        "an object of texts",
        lambda value: isinstance(value, dict) and _is_list(list(value.values()), str),
    ),
}
#: What becomes part of a character must have its type. Anything else of a wrong type is noted, and counts as absent.
_NEEDED = {*V1_FIELDS, "alternate_greetings", "nickname", "character_book", "entries", "content", "keys", "enabled"}


def _is_list(value: Any, kind: type) -> bool:
    return isinstance(value, list) and all(isinstance(item, kind) for item in value)


def _known(cls: type, values: Mapping[str, Any], path: str, notes: Notes) -> dict[str, Any]:
    """The members that a dataclass has as fields, where they are of its types; null counts as absent.

    Raises:
        CardError: When one that makes up the character has another type.
    """
    found = {}
    for item in fields(cls):
        kind = _KINDS.get(str(item.type).removesuffix(" | None"))
        value = values.get(item.name)
        if kind and value is not None and _is(value, *kind, path + item.name, notes):
            found[item.name] = tuple(value) if isinstance(value, list) else value
    return found


def _is(value: Any, expected: str, good: Callable[[Any], bool], path: str, notes: Notes) -> bool:
    if good(value):
        return True
    problem = f"expected `{path}` to be {expected}, found {shown(value)}"
    if path.rpartition(".")[2].partition("[")[0] in _NEEDED:
        raise CardError(f"{problem}; correct it in the card")
    notes.add(f"{problem}; it is kept in the card, and not used")
    return False


def _entries(data: Mapping[str, Any], path: str, notes: Notes) -> Iterator[Entry]:
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


# --- Another specification's card


#: What V2 asks for, with the values that stand for nothing.
V2_DEFAULTS: Mapping[str, Any] = {
    **dict.fromkeys((*V1_FIELDS, "creator_notes", "system_prompt", "post_history_instructions"), ""),
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
    edits: list[Edit] = []
    if now == "v1":
        data = text[begin(text) :].rstrip(" \t\r\n")
        text = f'{{"spec": {dump(head)}, "spec_version": {dump(version)}, "data": {data}}}\n'
    else:
        edits = setting(text, begin(text), {"spec": head, "spec_version": version})
    start = data_start(text, spec)
    there = {found.name for found in parts(text, start)}
    defaults = V3_DEFAULTS if spec == "v3" else V2_DEFAULTS
    edits += setting(text, start, {name: value for name, value in defaults.items() if name not in there})
    return edited(text, [*edits, *_with_regex(text, start)] if spec == "v3" else edits)


def backfilled(text: str) -> str:
    """A V3 card as the V2 card next to it in a PNG, with the warning that V3 asks for in its notes."""
    text = as_spec(text, "v3", "v2")
    start = data_start(text, "v2")
    notes = (place := member(text, start, "creator_notes")) and parse(text[slice(*place)])
    warned = f"{_BACKFILLED}\n\n{notes}" if notes and isinstance(notes, str) else _BACKFILLED
    return edited(text, setting(text, start, {"creator_notes": warned}))


def data_start(text: str, spec: Spec) -> int:
    """Where the object with the card's fields begins."""
    start = begin(text)
    data = None if spec == "v1" else member(text, start, "data")
    return data[0] if data else start


def entries_span(text: str, data: int) -> tuple[int | None, Span | None]:
    """Where the lorebook begins, and the place of its list of entries; each ``None`` where there is none."""
    book = member(text, data, "character_book")
    if book is None or text[book[0]] != "{":
        return None, None
    entries = member(text, book[0], "entries")
    return book[0], entries if entries and text[entries[0]] == "[" else None


def _with_regex(text: str, data: int) -> list[Edit]:
    """V3 wants each entry of a lorebook to say whether its keys are patterns."""
    _, entries = entries_span(text, data)
    edits = []
    for item in parts(text, entries[0]) if entries else []:
        value = parse(text[slice(*item.value)])
        if isinstance(value, dict) and "use_regex" not in value:
            place = _white(text, item.value[0] + 1)
            edits.append((place, place, '"use_regex": false' + (", " if value else "")))
    return edits
