"""Structured output: the schema that a reply has to follow, and replies checked against it.

A schema is sent to servers that constrain decoding by it. For those that do not, the prompt itself has to ask for JSON
of this form; what then comes back is read tolerantly (`rolellm.llm.json_reply`), and checked by the schema as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rolellm.core.errors import SettingsError, require
from rolellm.llm.json_reply import Kind, json_of
from rolellm.llm.model import Accept, Json, Reply, Request, Schema, T, UnacceptableError

#: Keywords that servers in strict mode refuse, or drop without a word (OpenAI's guide on structured outputs, as quoted
#: by several projects in 2026; which of them differs by server, so all are left to `make`).
_NOT_STRICT = {
    *("allOf", "oneOf", "not", "if", "then", "else", "dependentRequired", "dependentSchemas", "prefixItems"),
    *("patternProperties", "propertyNames", "minProperties", "maxProperties", "unevaluatedProperties"),
    *("unevaluatedItems", "contains", "minContains", "maxContains", "uniqueItems", "minLength", "maxLength"),
}
_DEEPEST = 10


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
        value = json_of(reply.text, kind)
        problem = best_match(validator.iter_errors(value))
        if problem is not None:
            raise UnacceptableError(f"{problem.json_path:.160}: {problem.message:.160}", "malformed")
        return make(value)

    return accept


def strict(schema: Schema) -> Schema:
    """A schema in the form that strict mode asks for: no key but those named, and every one of them required.

    ``additionalProperties`` and ``required`` are put in where they are missing. What may be absent has to be a key that
    may be ``null``: ``{"type": ["string", "null"]}``.

    Raises:
        SettingsError: For a schema that strict mode cannot state: one that is no object at its root, leaves a key
            optional, lets other keys in, has a keyword that such servers refuse, or is nested over ten deep. Names the
            place.

    >>> strict(Schema("pair", {"type": "object", "properties": {"q": {"type": "string"}}})).schema["required"]
    ['q']
    """
    if schema.schema.get("type") != "object":
        raise SettingsError(
            f"schema {schema.name}: at its root there has to be an object, with the list in it under a key"
        )
    return Schema(schema.name, _strict(schema.schema, f"schema {schema.name}: $", 0))


def _strict(node: Json, place: str, depth: int) -> dict[str, Any]:
    if depth > _DEEPEST:
        raise SettingsError(f"{place}: nested more than {_DEEPEST} levels deep")
    refused = sorted(_NOT_STRICT & node.keys())
    if refused:
        raise SettingsError(f"{place}: strict mode knows no {', '.join(refused)}; check it when the value is made")
    made = dict(node)
    if node.get("type") == "object":
        names = list(node.get("properties", {}))
        if node.get("additionalProperties", False) is not False:
            raise SettingsError(f"{place}: strict mode takes additionalProperties: false only")
        if odd := set(node.get("required", names)) ^ set(names):
            raise SettingsError(
                f"{place}: strict mode requires every key and no other, which fails for {', '.join(sorted(odd))}; let "
                "it be null"
            )
        made |= {"properties": {}, "required": node.get("required", names), "additionalProperties": False}
    for key in ("properties", "$defs"):
        if key in node:
            named = node[key].items()
            made[key] = {name: _strict(value, f"{place}.{name}", depth + 1) for name, value in named}
    if "items" in node:
        made["items"] = _strict(node["items"], f"{place}[]", depth + 1)
    if "anyOf" in node:
        made["anyOf"] = [_strict(value, f"{place}|{number}", depth + 1) for number, value in enumerate(node["anyOf"])]
    return made
