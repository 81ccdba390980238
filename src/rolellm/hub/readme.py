"""A repository's README: our card lies between two comments, and what a person wrote around it is kept.

The front matter is merged key by key and list item by list item, against what we wrote the last time: what is ours is
brought up to date, what somebody added stays, comments and order included.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import yaml

from rolellm.core.errors import HubError

BEGIN = "<!-- rolellm:begin – written by rolellm at each push; what stands outside these two comments is kept -->"
END = "<!-- rolellm:end -->"

_BEGIN = re.compile(r"<!-- rolellm:begin\b[^\n]*?-->")
_END = re.compile(re.escape(END))
# As the Hub reads it.
_FRONT_MATTER = re.compile(r"\A\s*---[ \t]*\r?\n(.*?)\r?\n?^---[ \t]*(?:\r?\n|\Z)", re.DOTALL | re.MULTILINE)
_COMMENTS = re.compile(r"^(?:(?:#[^\n]*)?\n)+\Z", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Card:
    """A README in its two parts.

    Attributes:
        data: The front matter.
        text: The Markdown after it.
    """

    data: dict[str, Any]
    text: str


def read_card(content: str) -> Card:
    """Take a README apart.

    Raises:
        HubError: When its front matter is not a YAML mapping.
    """
    front, text = _split(content)
    return Card(_load(front), text)


def merge_card(ours: Card, theirs: str | None, before: Mapping[str, Any]) -> str:
    """The README to publish.

    Args:
        ours: Our card.
        theirs: The README that is there, to the letter; ``None`` where there is none.
        before: The front matter that we wrote the last time; empty the first time.

    Raises:
        HubError: When the README there has front matter that is not YAML, or one of our two comments without the other.
    """
    newline = "\r\n" if theirs is not None and "\r\n" in theirs else "\n"
    text = ours.text.strip().replace("<!--", "&lt;!--")
    block = f"{BEGIN}\n\n{text}\n\n{END}".replace("\n", newline)
    front, body = _split(theirs or "")
    data = _load(front)
    merged = _merge_data(ours.data, data, before)
    if merged != data:
        front = _rewritten(front.replace("\r\n", "\n"), data, merged).replace("\n", newline)
    elif theirs is not None and front:
        front = front.rstrip("\r\n") + newline
    return f"---{newline}{front}---{newline}{_with_block(body, block, newline)}"


def _split(content: str) -> tuple[str, str]:
    """Front matter without its fences, empty where there is none, and the rest."""
    content = content.removeprefix("\ufeff")
    found = _FRONT_MATTER.match(content)
    return (found[1], content[found.end() :]) if found else ("", content)


def _load(front: str) -> dict[str, Any]:
    try:
        data = yaml.safe_load(front)
    except yaml.YAMLError as error:
        raise HubError(f"the README.md there begins with front matter that is not valid YAML: {error}") from error
    if data is not None and not isinstance(data, dict):
        raise HubError("the README.md there begins with front matter that is not a YAML mapping; fix it first")
    return data or {}


def _with_block(body: str, block: str, newline: str) -> str:
    begins, ends = list(_BEGIN.finditer(body)), list(_END.finditer(body))
    if not begins and not ends:
        return f"{body.rstrip()}{newline * 2 if body.strip() else newline}{block}{newline}"
    if len(begins) != 1 or len(ends) != 1 or begins[0].start() > ends[0].start():
        raise HubError(
            "the README.md there does not have exactly one `rolellm:begin` comment with a `rolellm:end` after it, so "
            "your part and ours cannot be told apart; restore the pair, or remove both"
        )
    return body[: begins[0].start()] + block + body[ends[0].end() :]


def _merge_data(ours: Mapping[str, Any], theirs: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for key, value in theirs.items():
        if key in ours or key not in before:
            merged[key] = value
        elif isinstance(value, list):  # We wrote it and write it no more: what others added stays.
            merged |= {key: kept} if (kept := _merge_value([], value, before[key])) else {}
        elif value != before[key]:
            merged[key] = value
    return merged | {key: _merge_value(value, theirs.get(key), before.get(key)) for key, value in ours.items()}


def _merge_value(ours: Any, theirs: Any, before: Any) -> Any:
    """Our value; of a list, with the items that somebody added to it."""
    if not isinstance(ours, list) or theirs is None:
        return ours
    known = [_name(item) for value in (ours, before) for item in _items(value)]
    return ours + [item for item in _items(theirs) if _name(item) not in known]


def _items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _name(item: Any) -> Any:
    """What tells items of a list apart: configs and model indexes have names, tags are names."""
    return item.get("config_name", item.get("name", item)) if isinstance(item, dict) else item


def _rewritten(front: str, data: Mapping[str, Any], merged: Mapping[str, Any]) -> str:
    """Front matter with the keys that change rewritten, and everything else as it was, to the letter."""
    front = f"{front}\n" if front.strip() else ""
    node = yaml.compose(front, Loader=yaml.SafeLoader)
    keys = node.value if isinstance(node, yaml.MappingNode) else []
    places = pairwise([*(key.start_mark.index for key, _ in keys), len(front)])
    out = [front[: keys[0][0].start_mark.index] if keys else front]
    for (key, _), (start, stop) in zip(keys, places, strict=True):
        # A comment before the next key belongs to that one.
        rest = _COMMENTS.search(front, start, stop)
        end = rest.start() if rest else stop
        if key.value in merged:
            kept = merged[key.value] == data.get(key.value)
            out.append(front[start:end] if kept else _dump({key.value: merged[key.value]}))
        out.append(front[end:stop])
    added = {key: value for key, value in merged.items() if key not in data}
    text = "".join(out) + (_dump(added) if added else "")
    # Anchors, two keys on a line, and other rarities: correct before pretty.
    return text if _same(text, merged) else _dump(dict(merged))


def _same(text: str, merged: Mapping[str, Any]) -> bool:
    try:
        return bool(yaml.safe_load(text) == merged)
    except yaml.YAMLError:
        return False


def _dump(value: dict[str, Any]) -> str:
    return str(yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=1_000_000))
