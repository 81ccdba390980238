"""A repository's README: our card lies between two comments, and what a person wrote around it is kept.

The front matter is merged key by key and list item by list item, against what we wrote the last time: what is ours is
brought up to date, what somebody added stays. Front matter that changes is written anew, without its comments.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from rolellm.core.errors import HubError

BEGIN = "<!-- rolellm:begin – written by rolellm at each push; what stands outside these two comments is kept -->"
END = "<!-- rolellm:end -->"

_BEGIN = re.compile(r"<!-- rolellm:begin\b[^\n]*?-->")
_END = re.compile(re.escape(END))
# As the Hub reads it.
_FRONT_MATTER = re.compile(r"\A\s*---[ \t]*\r?\n(.*?)\r?\n?^---[ \t]*(?:\r?\n|\Z)", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Readme:
    """A README in its two parts.

    Attributes:
        data: The front matter.
        text: The Markdown after it.
    """

    data: dict[str, Any]
    text: str


def read_card(content: str) -> Readme:
    """Take a README apart.

    Raises:
        HubError: When its front matter is not a YAML mapping.
    """
    front, text = _split(content)
    return Readme(_load(front), text)


def merge_card(card: Readme, current: str | None, before: Mapping[str, Any]) -> str:
    """The README to publish.

    Args:
        card: Our card.
        current: The README that is there, to the letter; ``None`` where there is none.
        before: The front matter that we wrote the last time; empty the first time.

    Raises:
        HubError: When the README there has front matter that is not YAML, or one of our two comments without the other.
    """
    newline = "\r\n" if current is not None and "\r\n" in current else "\n"
    text = card.text.strip().replace("<!--", "&lt;!--")
    block = f"{BEGIN}\n\n{text}\n\n{END}".replace("\n", newline)
    front, body = _split(current or "")
    data = _load(front)
    merged = _merge_data(card.data, data, before)
    if merged != data:
        front = yaml.safe_dump(merged, sort_keys=False, allow_unicode=True, width=1_000_000).replace("\n", newline)
    elif front:
        front = front.rstrip("\r\n") + newline
    return f"---{newline}{front}---{newline}{_put_block(body, block, newline)}"


def _split(content: str) -> tuple[str, str]:
    """Split off the front matter, without its fences and empty where there is none, from the rest."""
    content = content.removeprefix("\ufeff")
    match = _FRONT_MATTER.match(content)
    if match is None:
        return "", content
    return match[1], content[match.end() :]


def _load(front: str) -> dict[str, Any]:
    try:
        data = yaml.safe_load(front)
    except yaml.YAMLError as error:
        raise HubError(f"the README.md there begins with front matter that is not valid YAML: {error}") from error
    if data is not None and not isinstance(data, dict):
        raise HubError("the README.md there begins with front matter that is not a YAML mapping; fix it first")
    return data or {}


def _put_block(body: str, block: str, newline: str) -> str:
    """Put our part into a text: in the place of the earlier one, else at the end."""
    begins, ends = list(_BEGIN.finditer(body)), list(_END.finditer(body))
    if not begins and not ends:
        gap = newline * 2 if body.strip() else newline
        return f"{body.rstrip()}{gap}{block}{newline}"
    is_one_part = len(begins) == len(ends) == 1 and begins[0].start() < ends[0].start()
    if not is_one_part:
        raise HubError(
            "the README.md there does not have exactly one `rolellm:begin` comment with a `rolellm:end` after it, so "
            "your part and ours cannot be told apart; restore the pair, or remove both"
        )
    before, after = body[: begins[0].start()], body[ends[0].end() :]
    return before + block + after


def _merge_data(our_data: Mapping[str, Any], hub_data: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for key, value in hub_data.items():
        if key in our_data or key not in before:
            merged[key] = value
        elif isinstance(value, list):
            # We wrote it and write it no more: what others added stays.
            added = _merge_value([], value, before[key])
            if added:
                merged[key] = added
        elif value != before[key]:
            merged[key] = value
    for key, value in our_data.items():
        merged[key] = _merge_value(value, hub_data.get(key), before.get(key))
    return merged


def _merge_value(our_value: Any, hub_value: Any, before: Any) -> Any:
    """Return our value; of a list, with the items that somebody added to it."""
    if not isinstance(our_value, list) or hub_value is None:
        return our_value
    our_names = [_name(item) for item in (*our_value, *_list_items(before))]
    return our_value + [item for item in _list_items(hub_value) if _name(item) not in our_names]


def _list_items(value: Any) -> list[Any]:
    if isinstance(value, list):
        return value
    return [] if value is None else [value]


def _name(item: Any) -> Any:
    """Get the key of a list item: configs and model indexes have names, tags are names."""
    return item.get("config_name", item.get("name", item)) if isinstance(item, dict) else item
