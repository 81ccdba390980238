"""JSON edited in place: what is not edited keeps its bytes, however its numbers, escapes and spaces are written.

A parser that gives values back cannot do this: ``1.0`` and ``1e0`` are one number to it, and of two members of one name
it keeps the last. So values are read with the standard library, and only the places of members are found by hand.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from rolellm.errors import CardError

_WHITE = re.compile(r"[ \t\n\r]*")
_SURROGATE = re.compile("[\ud800-\udfff]")
_DIGITS = 300


class Span(NamedTuple):
    """A value's place in a text, end exclusive."""

    start: int
    end: int


class Member(NamedTuple):
    """A member of an object: its name, where that stands, and where its value stands."""

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
