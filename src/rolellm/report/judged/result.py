"""A judging run's result as tables and pictures read it: one estimate a cell, and nothing invented where none is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from rolellm.core.errors import DataError
from rolellm.report.scores import Estimate

Design = Literal["pairwise", "listwise"]
Group = Literal["by_role", "by_category", "by_judge"]


@dataclass(frozen=True, slots=True)
class Model:
    """One contestant's figures.

    Attributes:
        name: Its name.
        kind: ``model``, ``baseline`` or ``canary``.
        value: Its object in the result.
    """

    name: str
    kind: str
    value: Mapping[str, Any]

    @property
    def marks(self) -> tuple[str, ...]:
        """What stands beside its name in tables: what it is where it is no model, and who of its family judged it."""
        # A canary's own name says so already.
        kind = () if self.kind == "model" or self.name.startswith(self.kind) else (self.kind,)
        judges = self.value.get("self_judged_by") or ()
        return (*kind, "own family judges") if judges else kind

    @property
    def band(self) -> str:
        """The kind of lines that it stands among in tables: canaries below all others."""
        return self.kind if self.kind == "canary" else ""

    def estimate(self, design: Design, measure: str) -> Estimate | None:
        """A measure of one design; ``None`` where it was not judged so, or has nothing.

        Raises:
            DataError: When the value has another shape.
        """
        return Estimate.from_json((self.value.get(design) or {}).get(measure), f"{self.name}, {measure}")

    @property
    def strength(self) -> Estimate | None:
        """Its Bradley-Terry strength; the baseline's, which is 0 because all are measured from it, has no interval."""
        found = self.estimate("listwise", "strength")
        measured_from = self.kind == "baseline" and found is not None and found.mean == 0
        return Estimate(0.0, None, found.n) if found and measured_from else found

    def number(self, design: Design, measure: str) -> Estimate | None:
        """A measure that has no interval, such as a share of rows."""
        value = (self.value.get(design) or {}).get(measure)
        return None if value is None else Estimate.from_json({"mean": value}, f"{self.name}, {measure}")

    def group(self, design: Design, group: Group) -> dict[str, Estimate]:
        """A measure broken down: role, category or judge to its estimate, in the result's order."""
        found = (self.value.get(design) or {}).get(group) or {}
        read = {name: Estimate.from_json(value, f"{self.name}, {name}") for name, value in found.items()}
        return {name: value for name, value in read.items() if value is not None}


@dataclass(frozen=True)
class Judged:
    """A result, read.

    Attributes:
        result: What ``rolellm judge --json`` prints.
    """

    result: Mapping[str, Any]

    def __post_init__(self) -> None:
        missing = [key for key in ("judges", "models", "tests", "diagnostics", "valid") if key not in self.result]
        if missing:
            raise DataError(f"not the result of a judging run: it lacks {', '.join(missing)}; judge again")

    @cached_property
    def models(self) -> tuple[Model, ...]:
        """All contestants: the baseline first, then models, then canaries; each as in the result."""
        try:
            found = [Model(one["name"], one["kind"], one) for one in self.result["models"]]
        except (KeyError, TypeError) as error:
            raise DataError(f"a model of the result has another shape ({error!r:.80}); judge again") from error
        order = {"baseline": 0, "model": 1, "canary": 2}
        return tuple(sorted(found, key=lambda one: order.get(one.kind, 1)))

    @property
    def baseline(self) -> str | None:
        """Whom win rates are against."""
        return self.result.get("baseline")

    @property
    def valid(self) -> bool:
        """Whether the run's own checks let its figures stand."""
        return bool(self.result["valid"])

    @property
    def problems(self) -> list[str]:
        """What speaks against the figures, in words."""
        return [str(one) for one in self.result.get("problems") or ()]

    @property
    def judges(self) -> Sequence[Mapping[str, Any]]:
        """Who judged."""
        return list(self.result["judges"])

    def judged(self, design: Design) -> list[Model]:
        """The contestants that were judged so."""
        return [one for one in self.models if one.value.get(design)]

    def diagnostic(self, *path: str) -> Any:
        """A value of the diagnostics; ``None`` where any step of the path is absent or null."""
        value: Any = self.result["diagnostics"]
        for step in path:
            value = value.get(step) if isinstance(value, Mapping) else None
        return value

    def bias(self, *path: str) -> Estimate | None:
        """The same as an estimate."""
        return Estimate.from_json(self.diagnostic(*path), " ".join(path))

    def places(self, design: Design, group: Group) -> tuple[str, ...]:
        """Roles, categories or judges, as first met."""
        return tuple(dict.fromkeys(place for one in self.models for place in one.group(design, group)))

    def attacks(self) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
        """Contestant, kind of attack, and what became of it."""
        for name, kinds in (self.diagnostic("attacks") or {}).items():
            for kind, found in kinds.items():
                yield name, kind, found
