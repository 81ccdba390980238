"""Rows of any dataset with the needed columns, and what the dataset says about itself."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from operator import attrgetter
from typing import Any

from rolellm.core.errors import DataError, SettingsError
from rolellm.core.fingerprint import draw_evenly, hash_json
from rolellm.core.records import Row
from rolellm.core.text import HAN, find_name
from rolellm.core.typed_json import read_as


def read_dataset_rows(
    dataset: Iterable[Mapping[str, Any]],
    roles: Sequence[str] = (),
    subset: str | None = None,
    limit: int | None = None,
    *,
    needed: Sequence[str] = ("role", "question", "references"),
) -> list[Row]:
    """The rows of a dataset, in its order.

    Columns that are neither there nor needed get defaults: a number as ``id``, ``general`` as ``subset``, no role, a
    question of its own, and the language by whether the texts hold Chinese characters.

    Args:
        dataset: A ``datasets.Dataset``, or any rows as mappings, with the columns of RoleBench.
        roles: Only these roles, case, accents and punctuation aside; empty for all.
        subset: Only ``general`` or only ``role_specific``.
        limit: Only N rows of what is left, as `draw_rows` draws them.
        needed: Columns that must be there.

    Raises:
        SettingsError: For a needed column that is missing (says which are there), or a role that is not there (names
            the nearest).
        DataError: For a value of the wrong type, or when no row is left.
    """
    columns = list_columns(dataset)
    missing = [name for name in needed if name not in columns]
    if missing and columns:
        noun = "column" if len(missing) == 1 else "columns"
        raise SettingsError(f"the dataset lacks the {noun} {', '.join(missing)}; it has: {', '.join(columns)}")
    rows = [_read_row(number, values) for number, values in enumerate(dataset)]
    selected = rows
    if roles:
        role_names = _find_roles(roles, {row.role for row in rows})
        selected = [row for row in selected if row.role in role_names]
    if subset is not None:
        selected = [row for row in selected if row.subset == subset]
    chosen_rows = [selected[index] for index in draw_rows(selected, limit)]
    if not chosen_rows:
        raise DataError(f"no row of {len(rows)} matches the role, subset and limit" if rows else "there are no rows")
    return chosen_rows


def _find_roles(names: Iterable[str], candidates: set[str]) -> set[str]:
    """Find roles by name, case, accents and punctuation aside."""
    roles = set()
    for name in names:
        match = find_name(name, sorted(candidates))
        if match is None:
            near = get_close_matches(name, candidates, n=3, cutoff=0.4) or sorted(candidates)[:5]
            raise SettingsError(
                f"no role {name!r} among the {len(candidates)} of this split; nearest: {', '.join(near)}"
            )
        roles.add(match)
    return roles


def draw_rows(rows: Sequence[Row], limit: int | None) -> list[int]:
    """Draw the places of rows, evenly from subsets and roles and always the same; a larger limit adds to a smaller one.

    A split begins with one subset and few roles, so its first rows say little of the whole.
    """
    return draw_evenly(rows, limit, hash_place, attrgetter("subset"), attrgetter("role"))


def hash_place(row: Row) -> str:
    """The place of a row in a draw: the lowest come first."""
    return hash_json(["limit", row.id])


def list_columns(dataset: Any) -> list[str]:
    """The columns of a dataset.

    Raises:
        SettingsError: For what is not one table of rows.
    """
    if isinstance(dataset, Mapping):
        raise SettingsError(f"expected one split, found several: {', '.join(map(str, dataset))}; pass one of them")
    if hasattr(dataset, "column_names"):
        return list(dataset.column_names or ())
    if not isinstance(dataset, Sequence) or not all(isinstance(item, Mapping) for item in dataset):
        raise SettingsError(f"expected a datasets.Dataset or a list of rows, found {type(dataset).__name__}")
    return list(dataset[0]) if dataset else []


def _read_row(number: int, values: Mapping[str, Any]) -> Row:
    columns = {name: value for name, value in values.items() if value is not None}
    references = columns.get("references", ())
    columns["references"] = [references] if isinstance(references, str) else list(references)
    columns.setdefault("question", "")
    text = "".join(map(str, (columns["question"], *columns["references"])))
    language = "zh" if HAN.search(text) else "en"
    defaults = {"id": f"row-{number}", "role": "", "language": language, "subset": "general"}
    return read_as(Row, {**defaults, **columns}, f"row {number}")


def get_provenance(dataset: Any) -> dict[str, str]:
    """``config`` and ``split`` of a dataset that was loaded as RoleBench; nothing for any other."""
    info = getattr(dataset, "info", None)
    if info is None or getattr(info, "dataset_name", None) != "rolebench":
        return {}
    provenance = {"config": info.config_name}
    if dataset.split is not None:
        provenance["split"] = str(dataset.split)
    return provenance


def note_generation(dataset: Any, meta: Mapping[str, Any]) -> Any:
    """The dataset, with how its answers were made noted in ``info.description``, which survives `select` and such."""
    dataset.info.description = json.dumps({"generation": meta}, ensure_ascii=False)
    return dataset


def get_generation(dataset: Any) -> dict[str, Any] | None:
    """Read what `note_generation` noted; ``None`` where it noted nothing."""
    description = getattr(getattr(dataset, "info", None), "description", "")
    try:
        meta = json.loads(description)["generation"]
    except (ValueError, KeyError, TypeError):
        return None
    return meta if isinstance(meta, dict) else None
