"""Which answers to show: a few a role, chosen by what they say and not by where they stand."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import zip_longest

from rolellm.core.fingerprint import hash_bytes
from rolellm.core.records import Row


def pick_examples(rows: Iterable[Row], per_role: int = 2) -> list[Row]:
    """Pick a few rows of each role, taking the two subsets by turns.

    Rows of a subset are ranked by the hash of role, subset and question (our choice), so that the same rows are picked
    in any order of the data; a question asked twice is shown once.

    Args:
        rows: Rows to choose among.
        per_role: Rows a role at most; odd numbers favour general instructions.

    Returns:
        The rows, by language, role, and then a general and a role-specific question by turns.
    """
    pools: dict[tuple[str, str], dict[str, dict[str, Row]]] = {}
    for row in rows:
        subsets = pools.setdefault((row.language, row.role), {"general": {}, "role_specific": {}})
        # A lone surrogate, which JSON can carry, has no UTF-8 of its own.
        key = hash_bytes("\0".join((row.role, row.subset, row.question)).encode("utf-8", "surrogatepass"))
        kept = subsets[row.subset].setdefault(key, row)
        # Two rows may ask the same; the smaller id stands for both in any order of the data.
        subsets[row.subset][key] = min(kept, row, key=lambda one: one.id)
    picked: list[Row] = []
    for _, subsets in sorted(pools.items()):
        ranked = ([pool[key] for key in sorted(pool)] for pool in subsets.values())
        by_turns = [row for pair in zip_longest(*ranked) for row in pair if row is not None]
        picked += by_turns[: max(per_role, 0)]
    return picked
