"""From scores of single rows to CUS, RAW, SPE and their average: over everything, by role, subset and language.

CUS is a general row's prediction against its styled references, RAW the same prediction against the instruction's
role-free target, SPE a role-specific row's prediction against its references. ``avg`` is the plain mean of the three,
as in the published instruction-generalization tables to the last digit (the averages of LLaMA, Alpaca and Vicuna in the
published role-generalization table do not follow from their own rows). Where one of the three is absent, so is avg.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from rolellm.evaluation.statistics import Bootstrap, Interval, Sample, Stratum, bootstrap_stratum, mean_of_means

Metric = Literal["CUS", "RAW", "SPE"]
METRICS: tuple[Metric, ...] = ("CUS", "RAW", "SPE")
# CUS and RAW are the same predictions to the same questions, so they are drawn together; SPE has questions of its own.
_STRATA: tuple[tuple[Metric, ...], ...] = (("CUS", "RAW"), ("SPE",))

Summary = dict[str, Interval | None]


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
        question: Folded: rows with the same one form a cluster.
        metric: ``CUS``, ``RAW`` or ``SPE``.
        value: What counts: recall under ``paper``, F1 under ``rouge-score``.
        precision: Against the chosen reference.
        recall: Against the chosen reference.
        f1: Against the chosen reference.
        reference: Index of the chosen reference; ``None`` for a row that was not answered and counts as 0.
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
    reference: int | None

    def to_dict(self) -> dict[str, Any]:
        """The score as one JSON object."""
        return asdict(self)


def summarise(scores: Iterable[RowScore], bootstrap: Bootstrap) -> Summary:
    """CUS, RAW, SPE and avg of row scores; ``None`` for a metric that has no row, and for avg without all three."""
    values: dict[Metric, list[float]] = {metric: [] for metric in METRICS}
    questions: dict[Metric, list[str]] = {metric: [] for metric in METRICS}
    for score in scores:
        values[score.metric].append(score.value)
        questions[score.metric].append(score.question)
    summary: Summary = dict.fromkeys((*METRICS, "avg"))
    strata: list[Stratum] = []
    for key, names in enumerate(_STRATA):
        present = [metric for metric in names if values[metric]]
        if present:
            samples = [Sample(values[metric], questions[metric]) for metric in present]
            stratum = bootstrap_stratum(samples, bootstrap, key=key)
            summary.update(zip(present, stratum.intervals, strict=True))
            strata.append(stratum)
    if all(summary[metric] is not None for metric in METRICS):
        summary["avg"] = mean_of_means(strata, level=bootstrap.level)
    return summary


def summarise_by(
    scores: Sequence[RowScore], key: Callable[[RowScore], str | None], bootstrap: Bootstrap
) -> dict[str, Summary]:
    """A summary for each value of a key, in order of appearance; scores whose key is ``None`` are left out."""
    groups: dict[str, list[RowScore]] = defaultdict(list)
    for score in scores:
        name = key(score)
        if name is not None:
            groups[name].append(score)
    return {name: summarise(group, bootstrap) for name, group in groups.items()}


def metric_dict(interval: Interval | None) -> dict[str, Any] | None:
    """One metric as the contract's JSON object; ``ci95`` is null where one question alone cannot tell."""
    if interval is None:
        return None
    ends = None if interval.low is None else [interval.low, interval.high]
    return {"mean": interval.mean, "ci95": ends, "n": interval.n, "questions": interval.clusters}


def summary_dict(summary: Summary) -> dict[str, Any]:
    """CUS, RAW, SPE and avg as JSON objects or null; the average has no ``n`` of its own."""
    result: dict[str, Any] = {metric: metric_dict(summary[metric]) for metric in METRICS}
    average = metric_dict(summary["avg"])
    return {**result, "avg": average and {"mean": average["mean"], "ci95": average["ci95"]}}
