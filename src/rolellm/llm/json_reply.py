"""JSON objects in models' replies, whatever surrounds them: prose, code fences, ``<think>`` blocks.

A schema is sent to servers that constrain decoding by it. For those that do not, the prompt itself has to ask for JSON
of this form; what then comes back is read tolerantly, and checked by the schema as well (`accept_json`).

The first whole object counts, from the first ``json`` fence on if there is one; never an inner piece of a broken value.
An object with quotes or commas that are wrong is repaired by json-repair, and accepted only if no word and no bracket
of it changes. Of a list that was cut off, `parse_items` keeps the complete items.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from rolellm.core.errors import SettingsError, require
from rolellm.core.text import replace_surrogates
from rolellm.core.typed_json import map_strings
from rolellm.llm.model import Accept, Json, Reply, Request, Schema, T, UnacceptableError, strip_thoughts

# How many brackets may turn out not to open JSON; keeps the work linear in the reply's length.
_MAX_STARTS = 20
# Characters and brackets of what is repaired: json-repair takes over a second for more, where they are nested.
_MOST_REPAIRED, _MOST_BRACKETS = 20_000, 500
_START = re.compile(r"[{\[]")
# Such as {role}.
_PROSE = re.compile(r"[{\[][^\[\]{}:,'\"]*[}\]]")
_FENCE = re.compile("```json", re.IGNORECASE)
_ESCAPE = re.compile(r"\\[\"\\/bfnrt]")
# Brackets and words; what is between them is quotes, commas, colons and white space.
_WORD = re.compile(r"""[{}\[\]]|[^\s{}\[\]:,'"\\]+""")


class DecodedJson(NamedTuple):
    """A JSON object in a text: the value, its source (repaired), and the text before and after it."""

    value: dict[str, Any]
    source: str
    before: str
    after: str


def parse_json(text: str) -> dict[str, Any]:
    r"""The JSON object in a model's reply.

    Raises:
        UnacceptableError: With the kind ``malformed``; says where the JSON breaks off or goes wrong.

    >>> parse_json('Sure! Here it is:\n```json\n{"name": "Ahab", "ships": ["Pequod",]}\n```\nAnything else?')
    {'name': 'Ahab', 'ships': ['Pequod']}
    """
    return find_json(strip_thoughts(text)).value


def find_json(text: str) -> DecodedJson:
    """The first whole object in a text without thoughts.

    Raises:
        UnacceptableError: As `parse_json`.
    """
    if not text.strip():
        raise _make_malformed("the reply is empty")
    problem = f"no JSON in the reply, which starts with {text[:60].strip()!r}"
    fence = _FENCE.search(text)
    position = fence.end() if fence and _START.search(text, fence.end()) else 0
    for _ in range(_MAX_STARTS):
        match = _START.search(text, position)
        if match is None:
            break
        start = match.start()
        source = text[start:]
        try:
            value, length = _decode(source)
        except json.JSONDecodeError as error:
            end = source.rfind("}") + 1
            repaired = _repair(source[:end])
            if repaired is not None:
                return DecodedJson(repaired, json.dumps(repaired), text[:start], source[end:])
            if not _PROSE.match(source) and "{" in source[: error.pos]:
                problem = f"the JSON is cut off or invalid: {error!s:.120}"
                break
            position = start + max(error.pos, 1)
            continue
        if isinstance(value, dict):
            return DecodedJson(value, source[:length], text[:start], source[length:])
        problem = "expected an object, found a list"
        position = start + length
    raise _make_malformed(problem)


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
        value = parse_json(text)
    except UnacceptableError as error:
        problem = error
    else:
        if isinstance(value.get(key), list):
            return list(value[key])
        keys = ", ".join(map(repr, list(value)[:8])) or "no keys"
        raise _make_malformed(f"expected a list under {key}, found an object with {keys}")
    text = strip_thoughts(text)
    opening = re.search(rf'"{re.escape(key)}"\s*:\s*\[', text) or re.search(r"\[", text)
    items = list(_iterate_items(text[opening.end() :])) if opening else []
    if not items:
        raise problem
    return items


def _iterate_items(text: str) -> Iterator[Any]:
    """The items of a list from just after its bracket, up to the first that is not complete."""
    with suppress(ValueError, UnacceptableError):
        while True:
            text = text.lstrip(" \t\r\n,")
            item, length = _decode(text)
            text = text[length:]
            if isinstance(item, int | float) and not text.strip():
                return  # perhaps only its first digits
            yield item


def _decode(text: str) -> tuple[Any, int]:
    """The value that a text starts with, and its length.

    Raises:
        json.JSONDecodeError: When it starts with something else.
        UnacceptableError: For a value that is nested too deep, or a number that nothing can hold.
    """
    try:
        value, end = _DECODER.raw_decode(text)
        return map_strings(value, replace_surrogates), end
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


def _repair(source: str) -> dict[str, Any] | None:
    """An object whose quotes or commas are wrong; ``None`` where a repair would change more than these."""
    braces, brackets = source.count("{"), source.count("[")
    is_balanced = braces == source.count("}") and brackets == source.count("]")
    if not is_balanced or len(source) > _MOST_REPAIRED or braces + brackets > _MOST_BRACKETS:
        return None
    import json_repair

    try:
        value = json_repair.loads(source, skip_json_loads=True)
        written = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict) or _list_words(written) != _list_words(source):
        return None
    repaired: dict[str, Any] = map_strings(value, replace_surrogates)
    return repaired


def _list_words(source: str) -> list[str]:
    # Python writes True where JSON has true.
    return _WORD.findall(_ESCAPE.sub(" ", source).casefold())


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
    require("jsonschema", "json_repair", extra="llm")
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import best_match

    validator = Draft202012Validator(dict(schema.schema))

    def accept(_: Request, reply: Reply) -> T:
        if reply.finish == "length":
            raise UnacceptableError("the reply is cut off: it used up max_tokens", "malformed")
        value = parse_json(reply.text)
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
