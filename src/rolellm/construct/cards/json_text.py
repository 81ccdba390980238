"""JSON edited in place: what an edit does not concern keeps its bytes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
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
    """The value of a JSON text; a byte order mark before it is ignored.

    Raises:
        CardError: When it is not JSON, or is nested so deep that reading it would need more stack than there is.
    """
    value, end = _value(text, begin(text))
    rest = _white(text, end)
    if rest != len(text):
        raise CardError(f"not valid JSON: extra text after the value, at character {rest:,}")
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


def dump(value: Any, indent: int | None = None) -> str:
    """A new value as JSON; lone surrogates, which no file could hold, stay escaped."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    return json.dumps(value, indent=indent) if _SURROGATE.search(text) else text


def rewrite(text: str, new: Any) -> str:
    """The text with its value changed into another; what stays as it is keeps its bytes, new members come last.

    Args:
        text: The JSON text.
        new: Its new value. A list in it is written again, unless its items are given by their places, as a dict: those
            that stay keep their bytes, and higher places come last.
    """
    pieces, place = [], 0
    for start, end, piece in sorted(_edits(text, begin(text), parse(text), new), key=lambda edit: edit[:2]):
        pieces += [text[place:start], piece]
        place = end
    return "".join([*pieces, text[place:]])


def _edits(text: str, start: int, old: Any, new: Any) -> Iterator[Edit]:
    """What to change in the value that begins there; edits at one place come in their order."""
    if isinstance(old, list) and isinstance(new, dict):
        yield from _list_edits(text, start, old, new)
    elif not isinstance(old, dict) or not isinstance(new, dict):
        if old != new:
            yield start, _value(text, start)[1], dump(new)
    else:
        there = parts(text, start)
        # Of two members of one name the last counts, to every reader.
        last = {found.name: found.value[0] for found in there}
        for name, place in last.items():
            yield from _edits(text, place, old[name], new[name])
        added = [(dump(name), dump(value)) for name, value in new.items() if name not in last]
        if not there:
            yield start + 1, start + 1, ", ".join(map(": ".join, added))
            return
        # As the first member is written, with its line break and indent, so is each new one.
        space = text[start + 1 : there[0].key[0]]
        colon = text[there[0].key[1] : there[0].value[0]]
        lead = f",{space or ' ' * (': ' in colon)}"
        end = there[-1].value[1]
        yield end, end, "".join(lead + colon.join(item) for item in added)


def _list_edits(text: str, start: int, old: list[Any], new: Mapping[int, Any]) -> Iterator[Edit]:
    spans = [item.value for item in parts(text, start)]
    added = [dump(value) for place, value in new.items() if place >= len(old)]
    kept = [place for place in range(len(old)) if place in new]
    if not kept:
        if old or added:
            yield start, _value(text, start)[1], f"[{', '.join(added)}]"
        return
    for place in kept:
        yield from _edits(text, spans[place][0], old[place], new[place])
    for place in range(kept[-1]):
        if place not in new:
            yield spans[place][0], spans[place + 1][0], ""
    space = text[start + 1 : spans[0][0]] or " "
    yield spans[kept[-1]][1], spans[-1][1], "".join(f",{space}{item}" for item in added)


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
