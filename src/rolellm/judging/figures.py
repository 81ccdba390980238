"""The result of a judging run as typed objects: what `rolellm.judge` returns, and what a report is made of.

A figure of which there is nothing is ``None``, never 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, FiniteFloat

from rolellm.core.shown import Shown
from rolellm.core.typed_json import read_as
from rolellm.evaluation.score import Measured
from rolellm.evaluation.statistics.bootstrap import Interval
from rolellm.judging.types import Design, SystemKind

Number = FiniteFloat | None
#: What `JudgingResult.to_pandas` gives of each system; ``list_win_rate`` is the share of lists above the baseline.
MEASURES = ("win_rate", "lc_win_rate", "consistency", "list_win_rate", "average_rank", "strength")
# What was not measured is null in the file.
_OrNothing = BeforeValidator(lambda value: {} if value is None else value)
Group = Literal["by_role", "by_category", "by_judge"]


@dataclass(frozen=True, slots=True)
class Pairwise:
    """A system against the baseline, in pairs; shares of rows run from 0 to 1."""

    win_rate: Measured = None
    wins: Number = None
    ties: Number = None
    losses: Number = None
    sign_test_p: Number = None
    lc_win_rate: Measured = None
    length_coefficient: Measured = None
    length_problem: str | None = None
    consistency: Measured = None
    by_role: dict[str, Measured] = field(default_factory=dict)
    by_category: dict[str, Measured] = field(default_factory=dict)
    by_judge: dict[str, Measured] = field(default_factory=dict)
    name_effect: Measured = None


@dataclass(frozen=True, slots=True)
class Listwise:
    """A system in ranked lists; ``win_rate`` is the share of lists above the baseline."""

    average_rank: Measured = None
    win_rate: Measured = None
    strength: Measured = None
    by_role: dict[str, Measured] = field(default_factory=dict)
    by_category: dict[str, Measured] = field(default_factory=dict)
    by_judge: dict[str, Measured] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SystemFigures:
    """One system's figures."""

    name: str
    kind: SystemKind = "model"
    self_judged_by: tuple[str, ...] = ()
    characters: Measured = None
    pairwise: Pairwise | None = None
    listwise: Listwise | None = None

    @property
    def marks(self) -> tuple[str, ...]:
        """What is next to its name in tables: what it is if not a model, and whether its own family judged it."""
        # A canary's own name says so already.
        kind = () if self.kind == "model" or self.name.startswith(self.kind) else (self.kind,)
        return (*kind, "judged by own family") if self.self_judged_by else kind

    @property
    def band(self) -> str:
        """Its group of lines in tables: canaries come below all others."""
        return self.kind if self.kind == "canary" else ""

    @property
    def strength(self) -> Interval | None:
        """Its Bradley-Terry strength; the baseline's, which is 0 by definition, has no interval."""
        found = None if self.listwise is None else self.listwise.strength
        measured_from = self.kind == "baseline" and found is not None and found.mean == 0
        return found._replace(low=None, high=None) if found and measured_from else found

    def measures(self) -> dict[str, Interval | None]:
        """Its figure in each of `MEASURES`, and its ``name_effect``."""
        pairs, lists = self.pairwise or Pairwise(), self.listwise or Listwise()
        found = (pairs.win_rate, pairs.lc_win_rate, pairs.consistency, lists.win_rate, lists.average_rank)
        return dict(zip((*MEASURES, "name_effect"), (*found, self.strength, pairs.name_effect), strict=True))

    def group(self, design: Design, group: Group) -> dict[str, Interval]:
        """Its win rate in pairs or average rank in lists by role, category or judge, in the result's order."""
        figures = self.pairwise if design == "pairwise" else self.listwise
        found: dict[str, Interval | None] = {} if figures is None else getattr(figures, group)
        return {name: value for name, value in found.items() if value is not None}


@dataclass(frozen=True, slots=True)
class JudgePrompt:
    """A judge's prompt."""

    name: str | None = None
    version: Any = None
    hash: str | None = None


@dataclass(frozen=True, slots=True)
class JudgedBy:
    """Who judged, with which prompts, and which systems are of its model family."""

    name: str
    prompts: dict[str, JudgePrompt] = field(default_factory=dict)
    family: str | None = None
    flagged: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SystemTest:
    """A paired test of two systems."""

    measure: str
    a: str
    b: str
    difference: Measured = None
    p: Number = None
    p_adjusted: Number = None


@dataclass(frozen=True, slots=True)
class Unscored:
    """Judgements without a verdict; a run with a larger share of them than ``limit`` is not valid."""

    count: int = 0
    of: int = 0
    share: Number = None
    limit: Number = None
    by_reason: dict[str, int] = field(default_factory=dict)
    by_judge: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PairBias:
    """How the place in a pair bends verdicts."""

    first_preferred: Measured = None
    consistency: Measured = None


@dataclass(frozen=True, slots=True)
class ListBias:
    """How the place in a list bends ranks."""

    mean_rank_by_place: tuple[Annotated[float, Field(ge=1, le=1e6)], ...] = ()
    slope: Measured = None


@dataclass(frozen=True, slots=True)
class PositionBias:
    """Both of these."""

    pairwise: Annotated[PairBias, _OrNothing] = PairBias()
    listwise: Annotated[ListBias, _OrNothing] = ListBias()


@dataclass(frozen=True, slots=True)
class LengthBias:
    """How an answer's length bends verdicts."""

    longer_preferred: Measured = None
    coefficient: Measured = None


@dataclass(frozen=True, slots=True)
class NameBias:
    """How showing the names bends verdicts."""

    changed: Measured = None


@dataclass(frozen=True, slots=True)
class Jury:
    """How far several judges agree."""

    fleiss_kappa: Measured = None


@dataclass(frozen=True, slots=True)
class Attack:
    """Answers of one kind that try the judge."""

    answers: int
    judgements: int
    win_rate: Measured = None


@dataclass(frozen=True, slots=True)
class CanaryEffect:
    """What a canary did to the judges: shares of the judgements that show it."""

    copied: Measured = None
    unscored: Measured = None


@dataclass(frozen=True, slots=True)
class Diagnostics:
    """The judges' own faults."""

    unscored: Unscored = Unscored()
    position: Annotated[PositionBias, _OrNothing] = PositionBias()
    length: Annotated[LengthBias, _OrNothing] = LengthBias()
    name: Annotated[NameBias, _OrNothing] = NameBias()
    attacks: dict[str, dict[str, Attack]] = field(default_factory=dict)
    jury: Annotated[Jury, _OrNothing] = Jury()
    canaries: dict[str, CanaryEffect] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, repr=False)
class JudgingResult(Shown):
    """The result of a judging run.

    Attributes:
        judges: Who judged.
        models: All systems: the baseline first, then models, then canaries.
        tests: Paired tests of any two models.
        diagnostics: The judges' own faults.
        valid: Whether the run's own checks let its figures stand.
        problems: What speaks against the figures, in words.
        config: The data set's config.
        split: Its split.
        baseline: Whom win rates are against.
        rows: Rows that were judged.
        questions: Distinct questions among them.
        folder: The run's folder, where the result is read from one or was just written to one.
        value: The JSON object that all of this comes from.
    """

    judges: tuple[JudgedBy, ...]
    models: tuple[SystemFigures, ...]
    tests: tuple[SystemTest, ...]
    diagnostics: Diagnostics
    valid: bool
    problems: tuple[str, ...] = ()
    config: str | None = None
    split: str | None = None
    baseline: str | None = None
    rows: int = 0
    questions: int = 0
    folder: Path | None = None
    value: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_dict(cls, value: Mapping[str, Any], path: Path | None = None) -> JudgingResult:
        """A result as typed objects.

        Args:
            value: What ``result.json`` holds.
            path: That file, where there is one.

        Raises:
            DataError: When the value is not a judging run's result; names the first place that does not fit.
        """
        return replace(read_as(cls, value, "the result", path=path), value=value, folder=path and path.parent)

    def to_dict(self) -> dict[str, Any]:
        """What ``rolellm judge --json`` prints; docs/judging.md lists the keys."""
        return dict(self.value)

    def to_pandas(self) -> Any:
        """A ``pandas.DataFrame``: ``system``, ``kind``, ``measure``, ``mean``, ``low``, ``high`` and ``n``.

        One line for each of `MEASURES` that a system has; shares run from 0 to 1.
        """
        import pandas

        lines = [
            {"system": one.name, "kind": one.kind, "measure": measure}
            | {"mean": found.mean, "low": found.low, "high": found.high, "n": found.n}
            for one in self.models
            for measure in MEASURES
            if (found := one.measures()[measure]) is not None
        ]
        return pandas.DataFrame(lines, columns=["system", "kind", "measure", "mean", "low", "high", "n"])

    def _table(self) -> tuple[Any, str, tuple[str, ...]]:
        import pandas

        caption = f"{self.rows:,} rows, against {self.baseline or 'no baseline'}; 95 % intervals"
        names = [", ".join((one.name, *one.marks)) for one in self.models]
        frame = pandas.DataFrame([one.measures() for one in self.models], names).map(_cell)
        shown = frame.loc[:, (frame != "–").any()].rename(columns=lambda name: name.replace("_", " "))
        return shown, caption, self.problems

    def __post_init__(self) -> None:
        order = ("baseline", "model", "canary")
        object.__setattr__(self, "models", tuple(sorted(self.models, key=lambda one: order.index(one.kind))))

    def judged(self, design: Design) -> list[SystemFigures]:
        """The systems that were judged so."""
        return [one for one in self.models if (one.pairwise if design == "pairwise" else one.listwise)]

    def places(self, design: Design, group: Group) -> tuple[str, ...]:
        """Roles, categories or judges, as first met."""
        return tuple(dict.fromkeys(place for one in self.models for place in one.group(design, group)))


def _cell(score: Interval | None) -> str:
    return "–" if score is None else f"{score.mean:.3f} {score.brackets(3)}".rstrip()
