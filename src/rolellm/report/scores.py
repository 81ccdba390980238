"""Score reports as the pictures and tables read them: one estimate a cell, and nothing invented where none is.

A report is the object that ``rolellm score --json`` prints, with ``by_role`` beside ``metrics``; several systems are a
mapping from the system's name to its report, in the order in which they are to be shown.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from rolellm.core.errors import DataError
from rolellm.evaluation.score import METRICS as _METRICS

Report = Mapping[str, Any]
Reports = Mapping[str, Report]

METRICS: tuple[str, ...] = _METRICS
"""The paper's three Rouge-L scores; each has an interval and a count."""

COLUMNS = (*METRICS, "avg")
"""What a score table shows: the three scores and their mean."""

MEANINGS: Mapping[str, str] = MappingProxyType(
    {
        "CUS": "speaking style",
        "RAW": "accuracy",
        "SPE": "role knowledge",
        "avg": "mean of the three",
    }
)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean, and where they are known its 95 % interval and the number of rows behind it.

    Attributes:
        mean: The score; Rouge-L runs from 0 to 1.
        interval: Both ends of the 95 % interval, low first.
        n: Rows averaged.
    """

    mean: float
    interval: tuple[float, float] | None = None
    n: int | None = None

    @classmethod
    def from_json(cls, value: Any, where: str) -> Estimate | None:
        """Read ``{"mean", "ci95": [low, high] or null, "n"}``; ``null`` stays nothing.

        Args:
            value: The JSON value.
            where: What is being read, for the error's words.

        Raises:
            DataError: When the value has another shape, or a number in it is not finite.
        """
        if value is None:
            return None
        try:
            mean, ends, n = float(value["mean"]), value.get("ci95"), value.get("n")
            interval = None if ends is None else (float(ends[0]), float(ends[1]))
            count = None if n is None else int(n)
        except (AttributeError, KeyError, IndexError, TypeError, ValueError) as error:
            raise DataError(f'{where}: expected {{"mean", "ci95", "n"}} or null, found {value!r:.200}') from error
        if not all(math.isfinite(number) for number in (mean, *(interval or ()))):
            raise DataError(f"{where}: a score must be finite; what has no rows is null (found {value!r:.200})")
        return cls(mean, interval, count)


def estimate(report: Report, metric: str) -> Estimate | None:
    """A metric of a report over all its rows; ``None`` where the report has no rows for it.

    Raises:
        DataError: When the report has no ``metrics``, or the metric has another shape.
    """
    metrics = report.get("metrics")
    if not isinstance(metrics, Mapping):
        raise DataError(f'not a score report: expected an object with "metrics", found the keys {sorted(report)}')
    return Estimate.from_json(metrics.get(metric), metric)


def role_estimate(report: Report, role: str, metric: str) -> Estimate | None:
    """A metric of a report over one role's rows; ``None`` where there are none.

    Raises:
        DataError: When the metric has another shape.
    """
    metrics = _by_role(report).get(role) or {}
    if not isinstance(metrics, Mapping):
        raise DataError(f"by_role, {role}: expected an object of metrics, found {metrics!r:.200}")
    return Estimate.from_json(metrics.get(metric), f"{role}, {metric}")


def roles(reports: Reports) -> tuple[str, ...]:
    """The roles that any of the reports breaks down, as first met."""
    return tuple({role: None for report in reports.values() for role in _by_role(report)})


def _by_role(report: Report) -> Mapping[str, Any]:
    found = report.get("by_role") or {}
    if not isinstance(found, Mapping):
        raise DataError(f'"by_role": expected an object of roles, found {found!r:.200}')
    return found


def disagreements(reports: Reports) -> dict[str, tuple[str, ...]]:
    """What must be equal for the numbers to be comparable and is not: field to the values found.

    Fields looked at are ``protocol``, ``config`` and ``split``.
    """
    found = {}
    for field in ("protocol", "config", "split"):
        values = tuple(dict.fromkeys(str(report.get(field)) for report in reports.values()))
        if len(values) > 1:
            found[field] = values
    return found
