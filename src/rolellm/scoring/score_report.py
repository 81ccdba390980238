"""A score and its parts: row scores, their summaries, the scale that a score is read on, and the report of them all."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from rolellm.core.errors import DataError
from rolellm.core.records import Row
from rolellm.core.result import Result
from rolellm.core.settings import dump, read
from rolellm.core.table import Table, TableRow
from rolellm.core.typed_json import read_as
from rolellm.scoring.predictions import MatchFinding
from rolellm.scoring.published import PublishedTable, published_for
from rolellm.scoring.settings import ScoreOptions
from rolellm.scoring.statistics.intervals import (
    SHARE,
    ClusteredSample,
    Interval,
    Measured,
    estimate_mean,
    name_clusters,
    select_intervals,
)

Metric = Literal["CUS", "RAW", "SPE"]
ReferenceKind = Literal["script_based", "script_agnostic", "mixed"]
METRICS: tuple[Metric, ...] = ("CUS", "RAW", "SPE")
#: What CUS is of turns of one's own dialogues.
LIKENESS = "likeness to what was said"
#: What a table of scores shows: the three scores and their mean.
COLUMNS = (*METRICS, "avg")


@dataclass(frozen=True, slots=True)
class RowScore:
    """The score of one prediction on one row under one metric.

    Attributes:
        id: The row's.
        role: The row's.
        language: The row's.
        subset: The row's.
        kind: ``script_based``, ``script_agnostic``, or ``mixed`` where a row's references are of both types; ``None``
            where they have no type, as in general rows.
        question: Folded, or the dialogue that the row is a turn of: rows with the same one form a cluster.
        metric: ``CUS``, ``RAW`` or ``SPE``.
        value: What counts: recall under ``paper``, F1 under ``rouge-score``.
        precision: Against the chosen reference.
        recall: Against the chosen reference.
        f1: Against the chosen reference.
        reference: Index of the chosen reference.
    """

    id: str
    role: str
    language: str
    subset: str
    kind: str | None
    question: str
    metric: Metric
    value: float
    precision: float
    recall: float
    f1: float
    reference: int


def get_reference_kind(row: Row) -> ReferenceKind | None:
    """Return the type that a row's references share, or ``mixed``; ``None`` where they have no type."""
    kinds: set[Any] = set(row.reference_types)
    return "mixed" if len(kinds) > 1 else next(iter(kinds), None)


def summarize_scores(scores: Iterable[RowScore]) -> Summary:
    """CUS, RAW, SPE and avg of row scores; ``None`` for a metric that has no row, and for avg without all three."""
    by_metric: dict[Metric, list[RowScore]] = {metric: [] for metric in METRICS}
    for score in scores:
        by_metric[score.metric].append(score)
    samples = []
    summary: Summary = dict.fromkeys(COLUMNS)
    for metric, metric_scores in by_metric.items():
        if metric_scores:
            sample = make_sample(metric_scores)
            summary[metric] = estimate_mean([sample], bounds=SHARE)
            samples.append(sample)
    if len(samples) == len(METRICS):
        weights = [1 / len(METRICS)] * len(METRICS)
        summary["avg"] = estimate_mean(samples, weights, SHARE)
    return summary


def make_sample(scores: Sequence[RowScore]) -> ClusteredSample:
    """Row scores of one metric with their questions and roles."""
    values = [score.value for score in scores]
    questions = [score.question for score in scores]
    return ClusteredSample(values, questions, [score.role for score in scores])


def summarize_by(scores: Sequence[RowScore], key: Callable[[RowScore], str | None]) -> dict[str, Summary]:
    """A summary for each value of a key, in order of appearance; scores whose key is ``None`` are left out."""
    groups: dict[str, list[RowScore]] = defaultdict(list)
    for score in scores:
        name = key(score)
        if name is not None:
            groups[name].append(score)
    return {name: summarize_scores(group) for name, group in groups.items()}


def _complete_summary(value: Any) -> Any:
    return dict.fromkeys(COLUMNS) | value if isinstance(value, dict) else value


#: CUS, RAW, SPE and avg; in JSON, a metric that is left out is ``None``.
Summary = Annotated[dict[str, Measured], BeforeValidator(_complete_summary)]


def summary_table(title: str, head: str, summaries: Mapping[str, Summary], note: str = "") -> Table:
    """Build a table of anything that has CUS, RAW, SPE and avg, a line each."""
    rows = []
    for name, summary in summaries.items():
        rows.append(TableRow((name,), tuple(map(summary.get, COLUMNS))))
    return Table(title, (head,), COLUMNS, tuple(rows), note)


def published_table(table: PublishedTable) -> Table:
    """Build a table of the paper in the form of ours; the paper gives neither intervals nor counts."""
    summaries: dict[str, Summary] = {}
    for system, scores in table.rows.items():
        summaries[system] = dict(zip(COLUMNS, map(Interval, scores), strict=True))
    note = f"Published: {table.source}; protocol {table.protocol}."
    return summary_table(table.title, "System", summaries, note)


@dataclass(frozen=True, slots=True)
class ScaleMarker:
    """The score of replies that no model gave to the question.

    Attributes:
        kind: ``floor``, ``baseline`` or ``reference``.
        metrics: Like those of the report, on those of its rows for which there is such a reply.
    """

    kind: str
    metrics: Summary

    def label(self, name: str) -> str:
        """Its name in a table, with its kind unless the name says it."""
        return name if self.kind in name else f"{self.kind}: {name}"


@dataclass(frozen=True, slots=True)
class ScalePosition:
    """A model above a floor, on the rows that have one.

    Attributes:
        floor: The name of the highest floor.
        low: That floor's mean.
        model: The model's.
        gain: The model's mean above that floor's.
        p: Of no gain, by a paired t test over questions.
        p_new_roles: By one over roles and questions.
    """

    floor: str
    low: float
    model: float
    gain: Measured = None
    p: float = 1.0
    p_new_roles: float | None = None


@dataclass(frozen=True, slots=True)
class ScoreScale:
    """Floors, baseline and reference that a score is read between; see `rolellm.scoring.floors`.

    Attributes:
        markers: Floors, baseline and reference by name.
        position: Where the model is, by metric; ``None`` where fewer than half of a metric's rows have a floor.
        notes: Which of them are absent, and why.
    """

    markers: dict[str, ScaleMarker]
    position: dict[str, ScalePosition | None]
    notes: tuple[str, ...] = ()


#: The fields of a report that hold intervals.
_MEASURED_FIELDS = ("metrics", "metrics_clean", "by_role", "by_language", "by_reference_type", "scale")
_JSON_OPTIONS = ("protocol", "config", "split")
_NotInJson = Field(exclude=True)


@dataclass(frozen=True, slots=True, repr=False)
class ScoreReport(Result):
    """A score with its breakdowns and recipe; one that was read back from JSON lacks single rows.

    Attributes:
        options: The scoring options.
        metrics: ``CUS``, ``RAW``, ``SPE`` and ``avg``; ``None`` where there are no rows, and avg without all three.
        unmatched: The number of ``predictions`` that answer no row, and of ``rows`` without a prediction.
        contamination: What is known of the model's training; see `rolellm.scoring.contamination`.
        metrics_clean: The metrics of the rows that the model is known not to be trained on; ``None`` where no row is
            known to be one that it was trained on.
        fingerprint: What the score depends on, with a ``hash``.
        by_role: Metrics of each role, in order of appearance.
        by_language: Metrics of each language, where there are several.
        by_reference_type: SPE by the type of a row's references (``script_agnostic``, ``script_based``, ``mixed``).
        counts: The count of each finding.
        warnings: What a reader must know about the score; to be shown with it.
        scale: Floors and what a reference reaches, and where the model is between them; ``None`` where nobody asked for
            them.
        findings: The warnings with their counts.
        answers: For each row, the index of its prediction or ``None``.
        scores: Scores of single rows.
        rows: All rows that were scored against.
    """

    options: Annotated[ScoreOptions, _NotInJson]
    metrics: Summary
    unmatched: dict[str, int] = field(default_factory=lambda: {"predictions": 0, "rows": 0})
    contamination: dict[str, Any] | None = None
    metrics_clean: Summary | None = None
    fingerprint: dict[str, Any] = field(default_factory=dict)
    by_role: dict[str, Summary] = field(default_factory=dict)
    by_language: dict[str, Summary] = field(default_factory=dict)
    by_reference_type: dict[str, Measured] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    scale: ScoreScale | None = None
    findings: Annotated[tuple[MatchFinding, ...], _NotInJson] = ()
    answers: Annotated[tuple[int | None, ...], _NotInJson] = ()
    scores: Annotated[tuple[RowScore, ...], _NotInJson] = ()
    rows: Annotated[tuple[Row, ...], _NotInJson] = ()

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> ScoreReport:
        """Read what `to_dict` wrote, such as the output of ``rolellm score --json``; single rows are not read.

        Raises:
            DataError: When the value is not a score report; names the first place that does not fit.
        """
        try:
            recipe = value.get("fingerprint", {})
            options = {key: value.get(key) for key in _JSON_OPTIONS}
            options["dataset_fingerprint"] = recipe.get("dataset", {}).get("fingerprint")
            fields = {**value, "options": read(ScoreOptions, options), "rows": ()}
            return read_as(cls, fields, "the report")
        except (AttributeError, TypeError, ValueError) as error:
            raise DataError(f"not a score report, as `rolellm score --json` prints it: {error}") from error

    def to_dict(self, *, rows: bool = False) -> dict[str, Any]:
        """Build the object that ``rolellm score --json`` prints.

        Args:
            rows: Add ``rows``: the score of each row under each metric.
        """
        value = {name: getattr(self.options, name) for name in _JSON_OPTIONS} | dump(self)
        if rows:
            value["rows"] = [asdict(score) for score in self.scores]
        return value

    @property
    def is_own(self) -> bool:
        """True where its rows are of a release of one's own."""
        return bool(self.fingerprint.get("dataset", {}).get("own"))

    @property
    def has_dialogues(self) -> bool:
        """True where its rows are turns of one's own dialogues, so that CUS is the likeness to what was said."""
        return any(row.dialogue for row in self.rows)

    @property
    def leading(self) -> ScoreReport:
        """The report as tables show it: with the intervals that its config asks for as the only ones."""
        measured = {name: getattr(self, name) for name in _MEASURED_FIELDS}
        if self.has_dialogues:
            return replace(self, **name_clusters(measured, "dialogue"))
        return replace(self, **select_intervals(measured, self.options.config))

    @property
    def parts(self) -> dict[str, Summary]:
        """The lines of a table: all rows, those not trained on, languages, types of references, floors and the like."""
        parts = {"all rows": self.metrics}
        if self.metrics_clean:
            parts["rows not trained on"] = self.metrics_clean
        for language, summary in self.by_language.items():
            parts[f"language {language}"] = summary
        for kind, metric in self.by_reference_type.items():
            # Role-specific rows have only SPE.
            parts[kind] = {"SPE": metric}
        if self.scale:
            for name, marker in self.scale.markers.items():
                parts[marker.label(name)] = marker.metrics
        return parts

    @property
    def recipe(self) -> str:
        """The scoring recipe, in a line to print under a table."""
        options = self.options
        fingerprint = self.fingerprint
        tokenizers = ", ".join(dict.fromkeys(fingerprint["tokenizer"].values()))
        protocol = f"protocol {options.protocol} ({fingerprint['value']}, {fingerprint['reference_choice']})"
        return f"{protocol}, tokenizer {tokenizers}, {options.where}, fingerprint {fingerprint['hash'][:12]}"

    @property
    def caption(self) -> str:
        """The recipe, and which floors and references are absent."""
        scale = self.scale.notes if self.scale else ()
        return ". ".join(filter(None, (self.recipe, *scale)))

    @property
    def published(self) -> PublishedTable | None:
        """The paper's table, where these rows and this protocol are the paper's."""
        scored_ids = {score.id for score in self.scores}
        rows = [row for row in self.rows if row.id in scored_ids]
        table = published_for(self.options.config, self.options.split, rows)
        return table if table and table.protocol == self.options.protocol else None

    def tables(self) -> Sequence[Table]:
        """Build the tables of all parts and of roles, and the paper's where it compares."""
        leading = self.leading
        tables = [summary_table("Rouge-L", "Rows", leading.parts, self.caption)]
        if len(self.by_role) > 1:
            tables.append(summary_table("By role", "Role", leading.by_role))
        published = self.published
        if published:
            tables.append(published_table(published))
        return tables

    def notes(self) -> Sequence[str]:
        """Return the findings about the join, each with examples."""
        notes = []
        for finding in self.findings:
            kind = "warning" if finding.refused else "note"
            lines = [f"{kind}: {finding.text}", *finding.examples]
            notes.append("\n  ".join(lines))
        return notes
