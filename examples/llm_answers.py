"""What the language model of `local_llm` says when nobody told it: text and JSON drawn from the request itself."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any

#: Makes the text of an answer of a request's body, or a whole body; the same request has to get the same answer.
Rule = Callable[[dict[str, Any]], "str | dict[str, Any]"]

_WORDS = (  # noqa: SIM905  # A list would be seventy lines.
    "amber anchor ash barrel bell bread bridge candle cellar clock coat crow dust ember feather ferry field "
    "flint fog garden glass harbour hill honey ink iron kettle ladder lamp letter market mirror moss needle "
    "oak oar orchard owl paper pear pepper quilt rain river road rope salt shadow ship silver smoke snow "
    "stone storm string tide tower valley wagon wall water wheel willow window wine winter wolf wood"
).split()
_DEPTH = 8


def invented(body: dict[str, Any]) -> str:
    """Words drawn from the messages and the seed; where a JSON schema is asked for, JSON that follows it."""
    about = [body.get("messages"), body.get("seed"), body.get("temperature"), body.get("model")]
    source = random.Random(sha256(json.dumps(about).encode()).digest())
    asked = body.get("response_format") or {}
    if asked.get("type") == "json_schema":
        return json.dumps(follow(asked["json_schema"].get("schema") or {}, source), ensure_ascii=False)
    if asked.get("type") == "json_object":
        return json.dumps({"answer": sentence(source)})
    return sentence(source)


def sentence(source: random.Random) -> str:
    """Eight to twenty words."""
    words = source.choices(_WORDS, k=source.randint(8, 20))
    return " ".join(words).capitalize() + "."


def follow(schema: Mapping[str, Any], source: random.Random, depth: int = 0) -> Any:
    """A value that follows a JSON schema without references, drawn from `source`."""
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return source.choice(schema["enum"])
    for several in ("anyOf", "oneOf"):
        if several in schema:
            return follow(source.choice(schema[several]), source, depth)
    kind = schema.get("type", "object" if "properties" in schema else "string")
    if isinstance(kind, list):
        kind = source.choice(kind)
    if kind == "object" and depth < _DEPTH:
        return {name: follow(part, source, depth + 1) for name, part in schema.get("properties", {}).items()}
    if kind == "array" and depth < _DEPTH:
        least = schema.get("minItems", 1)
        count = source.randint(least, max(schema.get("maxItems", 3), least))
        return [follow(schema.get("items", {}), source, depth + 1) for _ in range(count)]
    if kind in ("integer", "number"):
        low, high = schema.get("minimum", 1), schema.get("maximum", 10)
        return source.randint(low, high) if kind == "integer" else source.uniform(low, high)
    return {"boolean": bool(source.getrandbits(1)), "null": None, "object": {}, "array": []}.get(kind, sentence(source))


def tokens(text: str) -> int:
    """How many tokens a text has here: one for each four bytes."""
    return -(-len(text.encode("utf-8", "replace")) // 4)


def cut(text: str, most: int) -> str:
    """As much of a text as fits into a number of tokens."""
    return text.encode("utf-8", "replace")[: 4 * most].decode("utf-8", "ignore")
