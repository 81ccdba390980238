"""A progress bar for work on files, which stays away where there is little of it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, TypeVar

_Item = TypeVar("_Item")


def counted(items: Collection[_Item], label: str) -> Iterator[_Item]:
    """The items, with a bar on standard error once they have taken two seconds."""
    from huggingface_hub import utils

    bar: Any = utils.tqdm  # type: ignore[attr-defined]  # public, but not in __all__
    return iter(bar(items, desc=label, unit=" files", delay=2.0))
