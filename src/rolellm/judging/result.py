"""The result of a judging run: what `rolellm.judge` returns, ``result.json`` holds and a report shows.

A figure without data is ``None``, never 0. Shares run from 0 to 1. In JSON, the fields are the keys, and a figure with
intervals is an object of ``mean``, ``ci95``, ``ci95_new_roles``, ``n``, ``questions`` and
``method``.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Field, FiniteFloat

from rolellm.core.result import Result
from rolellm.core.table import PERCENT, Cell, Format, Interval, Table, TableRow, describe_intervals, format_number
from rolellm.core.text import format_count
from rolellm.core.typed_json import read_as
from rolellm.judging.records import Design, SystemKind
from rolellm.scoring.statistics.intervals import Measured, select_intervals

Number = FiniteFloat | None
#: What there is of each system, with the heads of tables; ``list_win_rate`` is the share of lists above the baseline.
MEASURES: Final[Mapping[str, str]] = {
    "win_rate": "Win rate, %",
    "lc_win_rate": "LC win rate, %",
    "list_win_rate": "Above base in lists, %",
    "average_rank": "Avg. rank",
    "consistency": "Consistency, %",
}
#: Biases of `Diagnostics` with their names, what an unbiased judge would show, and how they are written.
_BIASES: Final[Mapping[str, tuple[str, str, Format]]] = {
    "first_preferred": ("First answer of a pair preferred", "50 %", PERCENT),
    "consistency": ("Both orders of a pair agree", "100 %", PERCENT),
    "rank_slope": ("Rank by position in a list, slope", "0", Format(3)),
    "longer_preferred": ("Longer answer of a pair preferred", "50 %, if length is not quality", PERCENT),
    "fleiss_kappa": ("Agreement of the judges, Fleiss’ kappa", "1", Format(3)),
}
Group = Literal["by_role", "by_judge"]


@dataclass(frozen=True, slots=True)
class Pairwise:
    """A system against the baseline, in pairs.

    Attributes:
        win_rate: Mean over rows of the mean of both orders: 1 for a win, ½ for a tie, 0 for a loss (for a jury: the
            majority's).
        lc_win_rate: Win rate at equal length: σ(θ) of the fit P(win) = σ(θ + φ tanh(d / s)), with d the answer's
            characters minus the baseline's and s their standard deviation (the length term of AlpacaEval 2, arXiv
            2404.04475).
        length_problem: Why there is no win rate at equal length.
        consistency: Share of pairs whose two orders agree.
        by_role: Win rate by role.
        by_judge: Win rate by judge.
    """

    win_rate: Measured = None
    lc_win_rate: Measured = None
    length_problem: str | None = None
    consistency: Measured = None
    by_role: dict[str, Measured] = field(default_factory=dict)
    by_judge: dict[str, Measured] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Listwise:
    """A system in ranked lists.

    Attributes:
        average_rank: Mean rank over rotations, judges and rows; ties share the mean of their positions, and canaries
            are not counted.
        win_rate: Share of lists in which it ranks above the baseline, ties half (the paper's win rate).
    """

    average_rank: Measured = None
    win_rate: Measured = None


@dataclass(frozen=True, slots=True)
class SystemFigures:
    """The figures of one system.

    Attributes:
        name: As in the run.
        kind: Baseline, model or canary.
        model: What answered, where that is on record.
        family: The model's family, by its name.
        self_judged_by: Judges of the same family.
        answered: Number of its rows.
        pairwise: Its figures in pairs.
        listwise: Its figures in lists.
    """

    name: str
    kind: SystemKind = "model"
    model: str | None = None
    family: str | None = None
    self_judged_by: tuple[str, ...] = ()
    answered: int = 0
    pairwise: Pairwise | None = None
    listwise: Listwise | None = None

    @property
    def marks(self) -> tuple[str, ...]:
        """Words next to its name in tables: its kind if not a model, and whether its own family judged it."""
        marks = []
        # The name of a canary gives its kind.
        if self.kind != "model" and not self.name.startswith(self.kind):
            marks.append(str(self.kind))
        if self.self_judged_by:
            marks.append("judged by own family")
        return tuple(marks)

    @property
    def band(self) -> str:
        """Its group of rows in tables: canaries come below all others."""
        return self.kind if self.kind == "canary" else ""

    def measures(self) -> dict[str, Interval | None]:
        """Return its figure in each of `MEASURES`."""
        pairs, lists = self.pairwise or Pairwise(), self.listwise or Listwise()
        values = (pairs.win_rate, pairs.lc_win_rate, lists.win_rate, lists.average_rank, pairs.consistency)
        return dict(zip(MEASURES, values, strict=True))

    def group(self, group: Group) -> dict[str, Interval]:
        """Return its win rate in pairs by role or judge, in the result's order."""
        values: dict[str, Interval | None] = getattr(self.pairwise, group, {})
        return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True, slots=True)
class JudgedBy:
    """A judge model with its prompts by design.

    Attributes:
        name: Unique in the run.
        prompts: Its prompts by design.
        model: Identities of its endpoints.
        family: The model's family.
        flagged: The systems of its own family.
        certificate: The verdict of its `rolellm.judging.certificate.Certificate`, in words; ``None`` without one.
    """

    name: str
    prompts: dict[str, dict[str, Any]] = field(default_factory=dict)
    model: Any = None
    family: str | None = None
    flagged: tuple[str, ...] = ()
    certificate: str | None = None

    def describe(self) -> dict[str, Any]:
        """Return what its verdicts depend on: all but the certificate."""
        return {key: value for key, value in asdict(self).items() if key != "certificate"}

    def describe_certificate(self, limit: str = "") -> str:
        """Return a line with what its certificate says, or how to examine it.

        Args:
            limit: What it was examined by without one, after ``not examined``.
        """
        unknown = f"not examined{limit}; examine it with `rolellm judge --certify`, in this folder"
        return f"judge {self.name}: {self.certificate or unknown}"


@dataclass(frozen=True, slots=True)
class SystemTest:
    """A paired test of two systems.

    Attributes:
        measure: What is compared.
        a: One system.
        b: The other.
        difference: That of ``a`` minus ``b``.
        p: By a paired t test over questions.
        p_adjusted: ``p`` by Holm.
        p_new_roles: By one over roles and questions; ``None`` with fewer than two roles.
        p_adjusted_new_roles: ``p_new_roles`` by Holm.
    """

    measure: str
    a: str
    b: str
    difference: Measured = None
    p: Number = None
    p_adjusted: Number = None
    p_new_roles: Number = None
    p_adjusted_new_roles: Number = None


@dataclass(frozen=True, slots=True)
class Unscored:
    """Judgements without a verdict, except those copied from a canary.

    Attributes:
        count: How many.
        of: Of how many.
        share: The share.
        limit: The largest share with which a run is valid.
        by_reason: Counts by reason.
    """

    count: int = 0
    of: int = 0
    share: Number = None
    limit: Number = None
    by_reason: dict[str, int] = field(default_factory=dict)

    def describe(self) -> str:
        """Say how many verdicts are missing, and how many may be."""
        shares = f"{self.share or 0:.1%}; at most {self.limit or 0:.1%} may be"
        return f"{self.count:,} of {self.of:,} verdicts are missing ({shares})"


@dataclass(frozen=True, slots=True)
class Diagnostics:
    """The judges' own faults.

    Attributes:
        judgements: Counts of ``pairwise`` and ``listwise`` judgements.
        unscored: Judgements without a verdict.
        copied: Canary to the share of judgements that copied its verdict, of those that showed it.
        biases: ``first_preferred`` (share of pair judgements for the answer shown first, ties half), ``consistency``
            (share of pairs whose orders agree), ``rank_slope`` (how much the rank grows with each position down the
            list), ``longer_preferred`` (share of pairs won by the longer answer, ties half), ``fleiss_kappa``
            (agreement of several judges beyond chance).
        consistency_by_judge: Share of pairs of models whose orders agree.
    """

    judgements: dict[str, int] = field(default_factory=dict)
    unscored: Unscored = Unscored()
    copied: dict[str, Measured] = field(default_factory=dict)
    biases: dict[str, Measured] = field(default_factory=dict)
    consistency_by_judge: dict[str, Measured] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, repr=False)
class JudgingResult(Result):
    """The result of a judging run.

    Attributes:
        judges: The judge models.
        models: All systems: the baseline first, then models, then canaries.
        tests: Paired tests of every two models.
        diagnostics: The judges' own faults.
        valid: Whether the figures pass the run's own checks.
        problems: What a reader must know before the figures, in words.
        config: The dataset's config.
        split: The dataset's split.
        baseline: The system that win rates are against.
        rows: The number of judged rows.
        questions: The number of distinct questions among them.
        fingerprint: ``hash`` over all that decides the verdicts, and the ``dataset``.
        spent: Calls, tokens and cost, see `rolellm.llm.client.Spent`.
        folder: The run's folder, where the result is read from one or was just written to one.
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
    fingerprint: dict[str, Any] = field(default_factory=dict)
    spent: dict[str, Any] = field(default_factory=dict)
    folder: Annotated[Path | None, Field(exclude=True)] = None

    @classmethod
    def from_dict(cls, value: Mapping[str, Any], path: Path | None = None) -> JudgingResult:
        """Read a result from JSON.

        Args:
            value: The content of ``result.json``.
            path: That file, where there is one.

        Raises:
            DataError: When the value is not a judging run's result; names the first place that does not fit.
        """
        return replace(read_as(cls, value, "the result", path=path), folder=path and path.parent)

    def __post_init__(self) -> None:
        order = ("baseline", "model", "canary")
        models = sorted(self.models, key=lambda model: order.index(model.kind))
        object.__setattr__(self, "models", tuple(models))

    @property
    def leading(self) -> JudgingResult:
        """The result as tables show it: with the intervals that its config asks for as the only ones."""
        return select_intervals(self, self.config)

    def tables(self) -> tuple[Table, ...]:
        """Build the table of the systems, where there is any figure, and that of the judges' biases."""
        leading = self.leading
        biases = leading.build_bias_table()
        rows = []
        for model in leading.models:
            cells = tuple(model.measures().values())
            rows.append(TableRow((model.name,), cells, model.marks, model.band))
        against = f"against {self.baseline}" if self.baseline else "without a baseline"
        title = f"{format_count(self.rows, 'row')}, {against}"
        formats = {MEASURES["average_rank"]: Format(2)}
        table = Table(title, ("System",), tuple(MEASURES.values()), tuple(rows), formats=formats, folded=True)
        full = table.without_empty_columns()
        return (full, biases) if full.columns else (biases,)

    def build_bias_table(self) -> Table:
        """Build the table of the judges' biases, each next to what an unbiased judge would show."""
        scores: dict[str, Interval | None] = {}
        rows = []
        for key, (name, ideal, form) in _BIASES.items():
            scores[name] = self.diagnostics.biases.get(key)
            score = _format_score(scores[name], form)
            rows.append(TableRow((name,), (score, ideal)))
        heads = ("Found", "Without bias")
        note = describe_intervals(scores.items())
        return Table("The judges’ biases", ("Measure",), heads, tuple(rows), note, left=heads)

    def remarks(self) -> tuple[str, ...]:
        """Return what a reader must know before the figures."""
        warnings = [f"warning: {problem}" for problem in self.problems]
        return (*warnings, *self.certificates, f"{self.diagnostics.unscored.describe()}.")

    @property
    def continues_with(self) -> tuple[str, ...]:
        """The commands for a report, and for labels of one's own."""
        if self.folder is None:
            return ()
        folder = shlex.quote(str(self.folder))
        return (f"rolellm report {folder}", f"rolellm label {folder}")

    @property
    def certificates(self) -> tuple[str, ...]:
        """The certificate of each judge, a line each; see `rolellm.certify`."""
        limit = ""
        if any(model.kind == "canary" for model in self.models):
            limit = " beyond this run's canaries"
        return tuple(judge.describe_certificate(limit) for judge in self.judges)

    def judged(self, design: Design) -> list[SystemFigures]:
        """Select the systems that were judged in this design."""
        return [model for model in self.models if getattr(model, design) is not None]

    def list_groups(self, group: Group) -> tuple[str, ...]:
        """List roles or judges in order of appearance."""
        names: dict[str, None] = {}
        for model in self.models:
            names |= dict.fromkeys(model.group(group))
        return tuple(names)


def _format_score(score: Interval | None, form: Format) -> Cell:
    """Format a score with its own unit, since one column holds shares, slopes and kappas."""
    if score is None:
        return None
    text = format_number(score.mean * form.scale, form.digits)
    if form == PERCENT:
        text += " %"
    if score.ends is not None:
        text += f" {score.format_ends(form.digits, form.scale)}"
    if score.n:
        text += f", n = {score.n:,}"
    return text
