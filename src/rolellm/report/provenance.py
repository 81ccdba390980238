"""How a number came about, laid out to be compared: what all systems share, and what sets each apart."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rolellm.core.sanitize import shorten
from rolellm.report.scores import Report, Reports

Fact = tuple[str, str]
"""A dotted name and its value as text."""

_MAX_FACTS = 400
_MAX_VALUE = 1_000


@dataclass(frozen=True, slots=True)
class Provenance:
    """The recipes of several systems.

    Attributes:
        shared: What is the same for all of them; empty for a single system.
        apart: System name to what is its own.
    """

    shared: tuple[Fact, ...]
    apart: Mapping[str, tuple[Fact, ...]]


def provenance(reports: Reports) -> Provenance:
    """Lay out protocol, config, split and fingerprint of each report.

    Args:
        reports: System name to its score report.
    """
    every = {name: facts(_recipe(report)) for name, report in reports.items()}
    known = [set(own) for own in every.values()]
    common = set.intersection(*known) if len(known) > 1 else set()
    first = next(iter(every.values()), ())
    apart = {name: tuple(fact for fact in own if fact not in common) for name, own in every.items()}
    return Provenance(tuple(fact for fact in first if fact in common), apart)


def _recipe(report: Report) -> dict[str, Any]:
    """What the report says of itself; its fingerprint repeats the names, so they are not shown twice."""
    named = {field: report.get(field) for field in ("protocol", "config", "split")}
    return named | dict(report.get("fingerprint") or {})


def facts(value: Mapping[str, Any]) -> tuple[Fact, ...]:
    r"""Flatten a JSON object to dotted names and values; at most 400, saying how many more there are.

    >>> facts({"decoding": {"sample": False, "stops": ["\n"]}, "seed": None})
    (('decoding.sample', 'false'), ('decoding.stops', '"\\n"'), ('seed', 'null'))
    """
    found = [(name, shorten(text, _MAX_VALUE)) for name, text in _flat("", value)]
    more = len(found) - _MAX_FACTS
    return tuple(found) if more <= 0 else (*found[:_MAX_FACTS], ("…", f"{more:,} more"))


def _flat(name: str, value: Any) -> list[Fact]:
    if isinstance(value, Mapping) and value:
        return [fact for key, item in value.items() for fact in _flat(f"{name}.{key}" if name else str(key), item)]
    if isinstance(value, Sequence) and not isinstance(value, str):
        if any(isinstance(item, (Mapping, list, tuple)) for item in value):
            return [fact for at, item in enumerate(value) for fact in _flat(f"{name}[{at}]", item)]
        return [(name, ", ".join(map(_json, value)))]
    return [(name, value if isinstance(value, str) else _json(value))]


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
