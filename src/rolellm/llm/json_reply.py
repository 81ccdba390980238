"""JSON in a model's reply, whatever surrounds it: prose, code fences, ``<think>`` blocks, trailing commas.

The first whole value of the wanted kind counts, from the first ``json`` fence on if there is one; never an inner piece
of a broken value. Of a list that was cut off, `items_of` keeps the complete items.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Literal, NamedTuple

from rolellm.llm.model import UnacceptableError, without_thoughts

Kind = Literal["object", "list"]

#: The longest reply that is read, in characters: five times what 32,000 tokens of English come to (our choice).
MAX_CHARACTERS = 500_000
# How many brackets may turn out not to open JSON (our choice); keeps the work linear in the reply's length.
_MAX_STARTS = 20
_START = re.compile(r"[{\[]")
_FENCE = re.compile("```json", re.IGNORECASE)
_TRAILING_COMMA = re.compile(r'("(?:[^"\\]|\\.)*+"?)|,(?=\s*[}\]])', re.DOTALL)
# What may be left of a text that ends within a word, a number or right before a closing fence.
_CUT = re.compile(r"[-+.\w]{0,5}[\s`]*")
_HALF_PAIR = re.compile(r"[\ud800-\udfff]|\\u[dD][89a-fA-F]")
_TYPES: dict[Kind, type] = {"object": dict, "list": list}


class Found(NamedTuple):
    """A JSON value in a text: the value, its source (without trailing commas), and the text before and after it."""

    value: Any
    source: str
    before: str
    after: str


def json_of(text: str, kind: Kind | None = None) -> Any:
    r"""The JSON value in a model's reply.

    Args:
        text: The reply.
        kind: Skip whole values of the other kind, such as ``[1]`` in prose.

    Raises:
        UnacceptableError: With the kind ``malformed``; says where the JSON breaks off or goes wrong.

    >>> json_of('Sure! Here it is:\n```json\n{"name": "Ahab", "ships": ["Pequod",]}\n```\nAnything else?')
    {'name': 'Ahab', 'ships': ['Pequod']}
    """
    if len(text) > MAX_CHARACTERS:
        raise _malformed(f"the reply has {len(text):,} characters; at most {MAX_CHARACTERS:,} are read")
    text = text.strip().removeprefix("\ufeff").strip()
    with suppress(json.JSONDecodeError):
        whole = _decode(text)
        if not whole.after.strip() and (kind is None or isinstance(whole.value, _TYPES[kind])):
            return whole.value
    return find_json(without_thoughts(text), kind).value


def find_json(text: str, kind: Kind | None = None) -> Found:
    """The first whole object or list in a text without thoughts.

    Raises:
        UnacceptableError: As `json_of`.
    """
    fence = _FENCE.search(text)
    at = fence.end() if fence and _START.search(text, fence.end()) else 0
    problem = f"no JSON in the reply, which starts with {text[:60].strip()!r}"
    for _ in range(_MAX_STARTS):
        start = _START.search(text, at)
        if start is None:
            break
        at = start.start()
        try:
            found = _decode(text[at:])
        except json.JSONDecodeError as error:
            tried = error.doc[: error.pos]
            if not re.search("[,:]", tried):  # brackets in prose
                at += 1
                continue
            cut = error.msg.startswith("Unterminated") or _CUT.fullmatch(error.doc, error.pos)
            shown = error.doc[error.pos : error.pos + 60].strip()
            problem = "the JSON is cut off" if cut else f"the JSON is invalid from here on: {shown!r}"
            if kind != "object" or "{" in tried:
                break
            at += max(error.pos, 1)
        else:
            if kind is None or isinstance(found.value, _TYPES[kind]):
                return found._replace(before=text[:at])
            problem = f"expected {'an object' if kind == 'object' else 'a list'}, found {_described(found.value)}"
            at = len(text) - len(found.after)
    raise _malformed(problem if text.strip() else "the reply is empty")


def items_of(text: str, key: str) -> list[Any]:
    """The items of a list in a reply; of a list that breaks off or goes wrong, the complete items before that place.

    Args:
        text: The reply.
        key: The list is under this key of an object, or it is the whole value.

    Raises:
        UnacceptableError: With the kind ``malformed``, for a reply without such a list or one complete item of it.

    >>> items_of('{"pairs": [{"q": "Who?"}, {"q": "Whe', "pairs")
    [{'q': 'Who?'}]
    """
    try:
        value = json_of(text, "object")
    except UnacceptableError as error:
        problem = error
    else:
        if isinstance(value.get(key), list):
            return list(value[key])
        raise _malformed(f"expected a list under {key}, found {_described(value)}")
    text = without_thoughts(text)
    opening = re.search(rf'(?:\A|```\w*)\s*\[|"{re.escape(key)}"\s*:\s*\[', text)
    if opening and (items := list(_complete_items(text[opening.end() :]))):
        return items
    with suppress(UnacceptableError):
        return list(json_of(text, "list"))
    raise problem


def _complete_items(text: str) -> Iterator[Any]:
    """The items of a list from just after its bracket, up to the first that is not complete."""
    with suppress(ValueError, UnacceptableError):
        while True:
            found = _decode(text.lstrip(" \t\r\n,"))
            if isinstance(found.value, int | float) and not found.after.strip():
                return  # perhaps only its first digits
            yield found.value
            text = found.after


def _decode(text: str) -> Found:
    """The value that a text starts with.

    Raises:
        json.JSONDecodeError: When it starts with something else.
        UnacceptableError: For a value that is nested too deep, or a number that nothing can hold.
    """
    try:
        try:
            value, end = _DECODER.raw_decode(text)
        except json.JSONDecodeError:
            if not re.search(r",\s*+[}\]]", text):
                raise
            text = _TRAILING_COMMA.sub(r"\1", text)
            value, end = _DECODER.raw_decode(text)
        return Found(_mended(value) if _HALF_PAIR.search(text) else value, text[:end], "", text[end:])
    except json.JSONDecodeError:
        raise
    except RecursionError:
        raise _malformed("the JSON is nested too deep") from None
    except ValueError as error:
        raise _malformed(f"the JSON cannot be read: {error!s:.120}") from None


def _finite(digits: str) -> float:
    if not math.isfinite(float(digits)):
        raise ValueError(f"{digits:.60} is not a finite number")
    return float(digits)


_DECODER = json.JSONDecoder(strict=False, parse_float=_finite, parse_constant=_finite)


def _mended(value: Any) -> Any:
    """A value without halves of surrogate pairs, which no file can hold."""
    if isinstance(value, str):
        return re.sub("[\ud800-\udfff]", "\ufffd", value)
    if isinstance(value, list):
        return [_mended(item) for item in value]
    return {_mended(key): _mended(item) for key, item in value.items()} if isinstance(value, dict) else value


def _described(value: Any) -> str:
    keys = ", ".join(map(repr, list(value)[:8])) or "no keys"
    return "a list" if isinstance(value, list) else f"an object with {keys}"


def _malformed(reason: str) -> UnacceptableError:
    return UnacceptableError(reason, "malformed")
