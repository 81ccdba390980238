"""Choosing rows of a split by role, subset and number."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from itertools import islice
from typing import Any

from rolellm.errors import DataError, RecipeError
from rolellm.records import Row


def select_rows(
    columns: Iterable[Mapping[str, Any]], roles: Sequence[str] = (), subset: str | None = None, limit: int | None = None
) -> list[Row]:
    """The rows to answer, in the data set's order.

    Args:
        columns: A data set with the columns of RoleBench.
        roles: Only these; empty for all.
        subset: Only ``general`` or only ``role_specific``.
        limit: Only the first so many of what is left.

    Raises:
        RecipeError: For a config without questions, or a role that is not there (names the nearest).
        DataError: When nothing is left.
    """
    try:
        rows = [Row.from_columns(item) for item in columns]
    except KeyError as error:
        raise RecipeError(f"this config holds no questions to answer ({error.args[0]})") from error
    known = {row.role for row in rows}
    for name in roles:
        if name not in known:
            near = get_close_matches(name, known, n=3, cutoff=0.4) or sorted(known)[:5]
            raise RecipeError(f"no role {name!r} among the {len(known)} of this split; near it: {', '.join(near)}")
    kept = (row for row in rows if (not roles or row.role in roles) and subset in (None, row.subset))
    chosen = list(islice(kept, limit))
    if not chosen:
        raise DataError(f"none of the {len(rows)} rows is left by role, subset and limit")
    return chosen
