"""Content hashes, so that a number can say exactly which data, prompt and settings it came from; and draws by them."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any, TypeVar

_Item = TypeVar("_Item")


def hash_bytes(data: bytes) -> str:
    """SHA-256 of bytes, in hex."""
    return hashlib.sha256(data).hexdigest()


def hash_json(value: Any) -> str:
    """SHA-256 of a JSON value in canonical form (sorted keys, no spaces, UTF-8), in hex."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hash_bytes(text.encode("utf-8", "surrogatepass"))


def hash_file(path: str | Path) -> str:
    """SHA-256 of a file's content, in hex."""
    with Path(path).open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def draw_evenly(
    items: Sequence[_Item], count: int | None, key: Callable[[_Item], str], *groupings: Callable[[_Item], Hashable]
) -> list[int]:
    """Draw items evenly from groups: the same ones in whatever order they come, and among them those of a smaller draw.

    >>> draw_evenly(["a1", "a2", "a3", "b1"], 2, str, lambda item: item[0])
    [0, 3]

    Args:
        items: What to draw from.
        count: Items to draw; ``None`` for all.
        key: The order of a draw, such as a hash of an item's id.
        groupings: An item's group, coarse to fine: groups take turns, and so do the finer ones within each.

    Returns:
        Their places, ascending.
    """
    keys = list(map(key, items))
    order = sorted(range(len(items)), key=keys.__getitem__)
    for depth in range(len(groupings), 0, -1):
        groups: dict[Hashable, list[int]] = defaultdict(list)
        for index in order:
            group = tuple(get_group(items[index]) for get_group in groupings[:depth])
            groups[group].append(index)
        turns = chain.from_iterable(zip_longest(*groups.values()))
        order = [index for index in turns if index is not None]
    return sorted(order[:count])
