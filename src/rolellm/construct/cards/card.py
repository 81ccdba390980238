"""The character cards of SillyTavern and similar applications, read from JSON.

V1 is a flat object; V2 puts it into ``data``, beside ``spec`` and ``spec_version``, and adds the lorebook and more; V3
is a superset of V2. Where they leave a choice, it is ours, and ``docs/cards.md`` has it.

* V1 and V2: https://github.com/malfoyslastname/character-card-spec-v2 (``spec_v1.md``, ``spec_v2.md`` at 0b61e5bc)
* V3: https://github.com/kwaroran/character-card-spec-v3 (``SPEC_V3.md`` at f3a86af0)
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from rolellm.construct.cards.png import MAX_CARD
from rolellm.core.errors import CardError

# --- Typed values of a card's JSON


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


@dataclass(frozen=True, slots=True)
class Fields:
    """The members of one object of a card.

    What becomes part of a character must have its type. Of anything else a wrong type is noted, and it counts as
    absent: it stays in the card as it is. A member that is null counts as absent, for many writers leave it so.

    Attributes:
        values: The object.
        path: Its place in the card, ending in a point; empty at the top.
        notes: What is noted.
    """

    values: Mapping[str, Any]
    path: str
    notes: Notes

    def text(self, name: str) -> str:
        """A text, empty where there is none.

        Raises:
            CardError: When it is something else.
        """
        value = self.values.get(name)
        if not isinstance(value, str | None):
            raise self._wrong(name, "a text", value)
        return value or ""

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of texts.

        Raises:
            CardError: When it is something else.
        """
        value = self.values.get(name)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self._wrong(name, "a list of texts", value)
        return tuple(value)

    def flag(self, name: str, default: bool) -> bool:
        """True or false.

        Raises:
            CardError: When it is something else.
        """
        value = self.values.get(name)
        if not isinstance(value, bool | None):
            raise self._wrong(name, "true or false", value)
        return default if value is None else value

    def objects(self, name: str) -> list[Fields]:
        """A list of objects.

        Raises:
            CardError: When it is something else.
        """
        value = self.values.get(name)
        if value is None:
            return []
        if not isinstance(value, list):
            raise self._wrong(name, "a list of objects", value)
        for place, item in enumerate(value):
            if not isinstance(item, dict):
                raise self._wrong(f"{name}[{place}]", "an object", item)
        return [Fields(item, f"{self.path}{name}[{place}].", self.notes) for place, item in enumerate(value)]

    def object(self, name: str) -> Fields | None:
        """An object, where there is one.

        Raises:
            CardError: When it is something else.
        """
        value = self.values.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self._wrong(name, "an object", value)
        return Fields(value, f"{self.path}{name}.", self.notes)

    def noted_text(self, name: str) -> str:
        """A text that nothing depends on; of anything else, a note."""
        return str(self._noted(name, "a text", "", self.values.get(name), isinstance(self.values.get(name), str)))

    def noted_flag(self, name: str) -> bool:
        """True or false, false where there is none; of anything else, a note."""
        value = self.values.get(name)
        return bool(self._noted(name, "true or false", False, value, isinstance(value, bool)))

    def noted_number(self, name: str) -> float | None:
        """A number that nothing depends on; of anything else, a note."""
        value = self.values.get(name)
        good = isinstance(value, int | float) and not isinstance(value, bool)
        found = self._noted(name, "a number", None, value, good)
        return None if found is None else float(found)

    def noted_texts(self, name: str) -> tuple[str, ...]:
        """Texts that nothing depends on; of anything else, a note."""
        value = self.values.get(name)
        good = isinstance(value, list) and all(isinstance(item, str) for item in value)
        return tuple(self._noted(name, "a list of texts", (), value, good))

    def noted_mapping(self, name: str) -> Mapping[str, str]:
        """An object of texts that nothing depends on; of anything else, a note."""
        value = self.values.get(name)
        good = isinstance(value, dict) and all(isinstance(item, str) for item in value.values())
        return dict(self._noted(name, "an object of texts", {}, value, good))

    def noted_objects(self, name: str) -> tuple[Mapping[str, Any], ...]:
        """Objects that nothing depends on; of anything else, a note."""
        value = self.values.get(name)
        good = isinstance(value, list) and all(isinstance(item, dict) for item in value)
        return tuple(self._noted(name, "a list of objects", (), value, good))

    def _noted(self, name: str, expected: str, default: Any, value: Any, good: bool) -> Any:
        if good:
            return value
        if value is not None:
            self.notes.add(f"{self._found(name, expected, value)}; it is kept in the card, and not used")
        return default

    def _wrong(self, name: str, expected: str, value: Any) -> CardError:
        return CardError(f"{self._found(name, expected, value)}; correct it in the card")

    def _found(self, name: str, expected: str, value: Any) -> str:
        return f"expected `{self.path}{name}` to be {expected}, found {shown(value)}"


def shown(value: Any) -> str:
    """A value in a message: what cannot be seen is escaped, what is large is named by its kind."""
    if isinstance(value, dict):
        return f"an object of {len(value):,}"
    if isinstance(value, list):
        kinds = sorted({type(item).__name__ for item in value[:1000]})
        return f"a list of {len(value):,} ({', '.join(kinds) or 'empty'})"
    return ascii(value)[:60] if isinstance(value, str) else str(value)[:60]


# --- JSON edited in place


_WHITE = re.compile(r"[ \t\n\r]*")
_SURROGATE = re.compile("[\ud800-\udfff]")
_DIGITS = 300


class Span(NamedTuple):
    """A value's place in a text, end exclusive."""

    start: int
    end: int


class Member(NamedTuple):
    """A member of an object: its name, and the places of name and value."""

    name: str
    key: Span
    value: Span


class Edit(NamedTuple):
    """A part of a text and what takes its place."""

    start: int
    end: int
    text: str


def _whole_number(digits: str) -> float:
    # Python refuses to make integers of thousands of digits; as a float such a number is endless, and no error.
    return int(digits) if len(digits) <= _DIGITS else float(digits)


def _no_number(word: str) -> Any:
    raise CardError(f"not valid JSON: {word} is no value that JSON has")


_DECODER = json.JSONDecoder(parse_int=_whole_number, parse_constant=_no_number)


def parse(text: str) -> Any:
    """The value of a JSON text; a byte order mark before it is passed over.

    Raises:
        CardError: When it is not JSON, or is nested so deep that reading it would need more stack than there is.
    """
    value, span = _value(text, begin(text))
    rest = _white(text, span.end)
    if rest != len(text):
        raise CardError(f"not valid JSON: something follows its end, at character {rest:,}")
    return value


def begin(text: str) -> int:
    """Where the value of a JSON text begins."""
    return _white(text, 1 if text.startswith("\ufeff") else 0)


def first(text: str, start: int) -> int:
    """Where the first member or item of the object or list that begins there stands, or would."""
    return _white(text, start + 1)


def members(text: str, start: int) -> list[Member]:
    """The members of the object that begins there, in their order, two of one name both."""
    found = []
    place = first(text, start)
    while text[place] != "}":
        name, key = _value(text, place)
        _, value = _value(text, _white(text, _white(text, key.end) + 1))
        found.append(Member(name, key, value))
        place = _next(text, value.end)
    return found


def items(text: str, start: int) -> list[Span]:
    """The items of the list that begins there."""
    found = []
    place = first(text, start)
    while text[place] != "]":
        _, value = _value(text, place)
        found.append(value)
        place = _next(text, value.end)
    return found


def member(text: str, start: int, name: str) -> Member | None:
    """The member of that name; of several the last, which is the one that readers use."""
    return next((found for found in reversed(members(text, start)) if found.name == name), None)


def dump(value: Any, indent: int | None = None) -> str:
    """A new value as JSON; lone surrogates, which no file could hold, stay escaped."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    return json.dumps(value, indent=indent) if _SURROGATE.search(text) else text


def setting(text: str, start: int, values: Mapping[str, str]) -> list[Edit]:
    """The edits that give members of the object at `start` new values; a member that is not there comes last.

    Args:
        text: The JSON text.
        start: Where the object begins.
        values: By name, the new value as JSON.
    """
    there = members(text, start)
    last = {found.name: found for found in there}
    edits = [Edit(*last[name].value, value) for name, value in values.items() if name in last]
    new = [(name, value) for name, value in values.items() if name not in last]
    if not new:
        return edits
    if not there:
        inside = ", ".join(f"{dump(name)}: {value}" for name, value in new)
        return [*edits, Edit(start + 1, start + 1, inside)]
    # As the first member is written, with its line break and indent, so is each new one.
    space = text[start + 1 : there[0].key.start]
    colon = text[there[0].key.end : there[0].value.start]
    end = there[-1].value.end
    added = "".join(f",{space or ' ' * (': ' in colon)}{dump(name)}{colon}{value}" for name, value in new)
    return [*edits, Edit(end, end, added)]


def edited(text: str, edits: Iterable[Edit]) -> str:
    """The text after edits, which must not overlap; those at one place come in the order given."""
    parts, place = [], 0
    for edit in sorted(edits, key=lambda edit: (edit.start, edit.end)):
        parts += [text[place : edit.start], edit.text]
        place = edit.end
    return "".join([*parts, text[place:]])


def _value(text: str, start: int) -> tuple[Any, Span]:
    try:
        value, end = _DECODER.raw_decode(text, start)
    except json.JSONDecodeError as error:
        raise CardError(f"not valid JSON: {error}") from error
    except RecursionError as error:
        raise CardError("nested too deep to be read; a card is a few levels deep") from error
    return value, Span(start, end)


def _white(text: str, start: int) -> int:
    found = _WHITE.match(text, start)
    return start if found is None else found.end()


def _next(text: str, end: int) -> int:
    place = _white(text, end)
    return _white(text, place + 1) if text[place] == "," else place


# --- Cards read from JSON


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


# --- Another specification's card


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
    """A V3 card as the V2 card next to it in a PNG, with the warning that V3 asks for in its notes."""
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
