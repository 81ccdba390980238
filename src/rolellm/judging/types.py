"""What judging passes on: who takes part, what was asked and answered, and what each judge said of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from rolellm.core.records import Row
from rolellm.scoring.score_report import get_reference_kind

SystemKind = Literal["model", "baseline", "canary"]
#: ``pairwise``: a system against the baseline. ``listwise``: all systems ranked at once.
Design = Literal["pairwise", "listwise"]
#: What a reader may filter by: ``general``, or the type of a role-specific row's references.
Category = Literal["general", "script_based", "script_agnostic", "mixed", "role_specific"]


@dataclass(frozen=True, slots=True)
class System:
    """Someone whose answers are judged.

    Attributes:
        name: Unique in the run; shown in reports, never to a judge but in the probe of the name's effect.
        kind: ``model``, ``baseline`` (what win rates are against), or ``canary`` (an attacker that must not win).
        model: What gave the answers, as their sidecar names it; ``None`` where nothing says.
        family: The model's family, such as ``llama``, where one is recognized.
        source: Where the answers came from: files with their SHA-256 and sidecars, or what made them.
    """

    name: str
    kind: SystemKind = "model"
    model: str | None = None
    family: str | None = None
    source: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Rows, and what every system answered.

    Attributes:
        rows: What was asked, in the data set's order.
        systems: The baseline among them, where pairs are judged.
        answers: System name to row id to answer; a row that a system did not answer is absent.
    """

    rows: Sequence[Row]
    systems: Sequence[System]
    answers: Mapping[str, Mapping[str, str]]

    @property
    def baseline(self) -> str | None:
        """The name of the system that pairs are against."""
        return next((system.name for system in self.systems if system.kind == "baseline"), None)

    @property
    def canaries(self) -> frozenset[str]:
        """The names of the attackers."""
        return frozenset(system.name for system in self.systems if system.kind == "canary")


@dataclass(frozen=True, slots=True)
class Judgement:
    """One verdict of one judge on the answers to one row.

    Attributes:
        row: The row's id.
        judge: The judge's name in the run.
        design: ``pairwise`` or ``listwise``.
        order: Names of the systems in the order in which they were shown.
        ranks: A rank for each, in the same order, from 1 (best); those who tie share the mean of their places. ``None``
            where there is no verdict.
        reasons: The judge's reason for each, in the same order; empty where there is none.
        named: Whether the judge was shown the names: a probe, which counts in nothing but the name's effect.
        unscored: Why there is no verdict, in words; ``None`` where there is one.
        touched: Which answers were changed or cut for showing, or look like an attack: system name to kinds of it.
        key: What the journal has the reply under; empty where there was none.
        attempts: Replies until this verdict.
        copied: Whose answer the judge repeated a verdict from, instead of giving one.
        lead: Of a pair judged by odds: log odds of the first answer over the second.
    """

    row: str
    judge: str
    design: Design
    order: tuple[str, ...]
    ranks: tuple[float, ...] | None
    reasons: tuple[str, ...] = ()
    named: bool = False
    unscored: str | None = None
    touched: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    key: str = ""
    attempts: int = 1
    copied: str | None = None
    lead: float | None = None


def get_category(row: Row) -> Category:
    """Return what a row is filed under: ``general``, or the type that its references share."""
    return "general" if row.subset == "general" else get_reference_kind(row) or "role_specific"
