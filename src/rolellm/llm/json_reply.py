"""JSON in a model's reply, whatever surrounds it: prose, code fences, ``<think>`` blocks, trailing commas.

A schema is sent to servers that constrain decoding by it. For those that do not, the prompt itself has to ask for JSON
of this form; what then comes back is read tolerantly, and checked by the schema as well (`accept_json`).

The first whole value of the wanted kind counts, from the first ``json`` fence on if there is one; never an inner piece
of a broken value. Of a list that was cut off, `parse_items` keeps the complete items.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Literal, NamedTuple

from rolellm.core.errors import SettingsError, require
from rolellm.core.text import replace_surrogates
from rolellm.core.typed_json import map_strings
from rolellm.llm.model import Accept, Json, Reply, Request, Schema, T, UnacceptableError, strip_thoughts

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
_TYPES: dict[Kind, type] = {"object": dict, "list": list}


class DecodedJson(NamedTuple):
    """A JSON value in a text: the value, its source (without trailing commas), and the text before and after it."""

    value: Any
    source: str
    before: str
    after: str


def parse_json(text: str, kind: Kind | None = None) -> Any:
    r"""The JSON value in a model's reply.

    Args:
        text: The reply.
        kind: Skip whole values of the other kind, such as ``[1]`` in prose.

    Raises:
        UnacceptableError: With the kind ``malformed``; says where the JSON breaks off or goes wrong.

    >>> parse_json('Sure! Here it is:\n```json\n{"name": "Ahab", "ships": ["Pequod",]}\n```\nAnything else?')
    {'name': 'Ahab', 'ships': ['Pequod']}
    """
    if len(text) > MAX_CHARACTERS:
        raise _make_malformed(f"the reply has {len(text):,} characters; at most {MAX_CHARACTERS:,} are read")
    text = text.strip().removeprefix("\ufeff").strip()
    with suppress(json.JSONDecodeError):
        decoded = _decode(text)
        if not decoded.after.strip() and (kind is None or isinstance(decoded.value, _TYPES[kind])):
            return decoded.value
    return find_json(strip_thoughts(text), kind).value


def find_json(text: str, kind: Kind | None = None) -> DecodedJson:
    """The first whole object or list in a text without thoughts.

    Raises:
        UnacceptableError: As `parse_json`.
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
            decoded = _decode(text[at:])
        except json.JSONDecodeError as error:
            tried = error.doc[: error.pos]
            if not re.search("[,:]", tried):  # brackets in prose
                at += 1
                continue
            cut = error.msg.startswith("Unterminated") or _CUT.fullmatch(error.doc, error.pos)
            excerpt = error.doc[error.pos : error.pos + 60].strip()
            problem = "the JSON is cut off" if cut else f"the JSON is invalid from here on: {excerpt!r}"
            if kind != "object" or "{" in tried:
                break
            at += max(error.pos, 1)
        else:
            if kind is None or isinstance(decoded.value, _TYPES[kind]):
                return decoded._replace(before=text[:at])
            problem = (
                f"expected {'an object' if kind == 'object' else 'a list'}, found {_describe_value(decoded.value)}"
            )
            at = len(text) - len(decoded.after)
    raise _make_malformed(problem if text.strip() else "the reply is empty")


def parse_items(text: str, key: str) -> list[Any]:
    """The items of a list in a reply; of a list that breaks off or goes wrong, the complete items before that place.

    Args:
        text: The reply.
        key: The list is under this key of an object, or it is the whole value.

    Raises:
        UnacceptableError: With the kind ``malformed``, for a reply without such a list or one complete item of it.

    >>> parse_items('{"pairs": [{"q": "Who?"}, {"q": "Whe', "pairs")
    [{'q': 'Who?'}]
    """
    try:
        value = parse_json(text, "object")
    except UnacceptableError as error:
        problem = error
    else:
        if isinstance(value.get(key), list):
            return list(value[key])
        raise _make_malformed(f"expected a list under {key}, found {_describe_value(value)}")
    text = strip_thoughts(text)
    opening = re.search(rf'(?:\A|```\w*)\s*\[|"{re.escape(key)}"\s*:\s*\[', text)
    if opening and (items := list(_iterate_items(text[opening.end() :]))):
        return items
    with suppress(UnacceptableError):
        return list(parse_json(text, "list"))
    raise problem


def _iterate_items(text: str) -> Iterator[Any]:
    """The items of a list from just after its bracket, up to the first that is not complete."""
    with suppress(ValueError, UnacceptableError):
        while True:
            item = _decode(text.lstrip(" \t\r\n,"))
            if isinstance(item.value, int | float) and not item.after.strip():
                return  # perhaps only its first digits
            yield item.value
            text = item.after


def _decode(text: str) -> DecodedJson:
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
        return DecodedJson(map_strings(value, replace_surrogates), text[:end], "", text[end:])
    except json.JSONDecodeError:
        raise
    except RecursionError:
        raise _make_malformed("the JSON is nested too deep") from None
    except ValueError as error:
        raise _make_malformed(f"the JSON cannot be read: {error!s:.120}") from None


def _parse_finite(digits: str) -> float:
    if not math.isfinite(float(digits)):
        raise ValueError(f"{digits:.60} is not a finite number")
    return float(digits)


_DECODER = json.JSONDecoder(strict=False, parse_float=_parse_finite, parse_constant=_parse_finite)


def _describe_value(value: Any) -> str:
    keys = ", ".join(map(repr, list(value)[:8])) or "no keys"
    return "a list" if isinstance(value, list) else f"an object with {keys}"


def _make_malformed(reason: str) -> UnacceptableError:
    return UnacceptableError(reason, "malformed")


def accept_json(schema: Schema, make: Callable[[Any], T]) -> Accept[T]:
    """An `accept` that reads a reply as JSON, checks it against a schema and makes a value of it.

    Args:
        schema: What the JSON has to follow.
        make: Makes the value; may raise `UnacceptableError` for what no schema can say.

    Returns:
        A function that raises `UnacceptableError` with the kind ``malformed`` for a reply that was cut off, holds no
        JSON, or does not follow the schema; the reason names the place, such as ``$.pairs[3].answer``.

    Raises:
        MissingExtraError: Without jsonschema.
    """
    require("jsonschema", extra="llm")
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import best_match

    validator = Draft202012Validator(dict(schema.schema))
    kinds: Mapping[Any, Kind] = {"object": "object", "array": "list"}
    kind = kinds.get(schema.schema.get("type"))

    def accept(_: Request, reply: Reply) -> T:
        if reply.finish == "length":
            raise UnacceptableError("the reply is cut off: it used up max_tokens", "malformed")
        value = parse_json(reply.text, kind)
        problem = best_match(validator.iter_errors(value))
        if problem is not None:
            raise UnacceptableError(f"{problem.json_path:.160}: {problem.message:.160}", "malformed")
        return make(value)

    return accept


def make_object_schema(name: str, **properties: Json) -> Schema:
    """Make the schema of an object with these keys and no other, in the form that strict mode asks for."""
    return make_strict(Schema(name, {"type": "object", "properties": properties}))


def make_strict(schema: Schema) -> Schema:
    """A schema in the form that strict mode asks for: no key but those named, and every one of them required.

    What may be absent has to be a key that may be ``null``: ``{"type": ["string", "null"]}``.

    Raises:
        SettingsError: For a schema that is no object at its root.

    >>> make_strict(Schema("pair", {"type": "object", "properties": {"q": {"type": "string"}}})).schema["required"]
    ['q']
    """
    if schema.schema.get("type") != "object":
        raise SettingsError(
            f"schema {schema.name}: at its root there has to be an object, with the list in it under a key"
        )
    return Schema(schema.name, _close_objects(schema.schema))


def _close_objects(node: Any) -> Any:
    if isinstance(node, list):
        return [_close_objects(item) for item in node]
    if not isinstance(node, Mapping):
        return node
    closed = {key: _close_objects(item) for key, item in node.items()}
    if closed.get("type") == "object":
        closed |= {"required": list(closed.setdefault("properties", {})), "additionalProperties": False}
    return closed
