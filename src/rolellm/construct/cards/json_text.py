"""JSON edited in place: what an edit does not concern keeps its bytes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from rolellm.core.errors import CardError

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
    rest = white(text, end)
    if rest != len(text):
        raise CardError(f"not valid JSON: something follows its end, at character {rest:,}")
    return value


def begin(text: str) -> int:
    """Where the value of a JSON text begins."""
    return white(text, 1 if text.startswith("\ufeff") else 0)


def parts(text: str, start: int) -> list[Part]:
    """The members of the object, or the items of the list, that begins there: in order, two of one name both."""
    found = []
    named, place = text[start] == "{", white(text, start + 1)
    while text[place] not in "}]":
        name, key_end = _value(text, place) if named else (None, place)
        key = (place, key_end)
        if named:
            place = white(text, white(text, key_end) + 1)
        _, end = _value(text, place)
        found.append(Part(name, key, (place, end)))
        place = white(text, end)
        if text[place] == ",":
            place = white(text, place + 1)
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


def white(text: str, start: int) -> int:
    """The first place from `start` on that is not white space."""
    found = _WHITE.match(text, start)
    return start if found is None else found.end()
