"""Floors and a ceiling: what a score is read between.

Rouge-L counts shared words, and many of them need no model. So replies that were not made for the question are scored
as predictions are, on the same rows: floors, which a model must beat; the release's baseline; and a ceiling, one
reference against the others of its row, which is what replies of one author have in common.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from rolellm.core.errors import MissingExtraError
from rolellm.core.records import Row
from rolellm.core.text import fold
from rolellm.core.typed_json import read_as
from rolellm.evaluation.score import (
    METRICS,
    Metric,
    RowScore,
    Scale,
    ScoreReport,
    metric_dict,
    row_scores,
    summarize,
    summary_dict,
)
from rolellm.evaluation.settings import ScoreOptions
from rolellm.evaluation.statistics.bootstrap import LEVEL, Interval, Sample, bootstrap_stratum, percentiles

OTHER_ROLE: Final = "another role's reply"
NEAREST: Final = "nearest training reply"
QUESTION: Final = "the question itself"
ROLEGPT: Final = "RoleGPT"
CEILING: Final = "one reference against the others"
KINDS: Final = {OTHER_ROLE: "floor", NEAREST: "floor", QUESTION: "floor", ROLEGPT: "baseline", CEILING: "ceiling"}

_ABSENT: Final = {
    OTHER_ROLE: "no other role answers the same question",
    NEAREST: "there are no training rows; in Python, training=… takes them",
    QUESTION: "there are no questions",
    ROLEGPT: "the rows have none of its replies",
    CEILING: "no row has two different references",
}
#: A floor that fewer of the rows have says little of the others (our choice).
_LEAST: Final = 0.5


@dataclass(frozen=True, slots=True)
class Markers:
    """The scores of floors, baseline and ceiling.

    Attributes:
        scores: Name (see `KINDS`) to row scores; a row without such a reply has none.
        notes: Which are absent, and why.
    """

    scores: Mapping[str, tuple[RowScore, ...]]
    notes: tuple[str, ...]


def markers(every: Sequence[Row], scored: Container[str], options: ScoreOptions, training: Sequence[Row]) -> Markers:
    """Score what a score is read between.

    Args:
        every: All rows of the split; another role's reply may be any of theirs.
        scored: The ids of those that were scored.
        options: How they were scored.
        training: Training rows; may be empty.
    """
    rows = [row for row in every if row.id in scored]
    why = dict(_ABSENT)
    pairs: dict[str, Iterable[tuple[Row, str]]] = {
        OTHER_ROLE: _other_roles(rows, (*every, *training)),
        NEAREST: [],
        QUESTION: [(row, row.question) for row in rows if row.question.strip()],
        ROLEGPT: [(row, row.rolegpt) for row in rows if row.rolegpt is not None],
        CEILING: _one_of_several(rows),
    }
    try:
        pairs[NEAREST] = list(_nearest(rows, training)) if training else []
    except MissingExtraError as error:
        why[NEAREST] = str(error)
    found = {name: row_scores(list(given), options, f"scoring {name}") for name, given in pairs.items()}
    absent = [f"No {KINDS[name]} “{name}”: {why[name]}" for name, scores in found.items() if not scores]
    return Markers({name: scores for name, scores in found.items() if scores}, tuple(absent))


def _other_roles(rows: Sequence[Row], among: Sequence[Row]) -> Iterator[tuple[Row, str]]:
    """A reply that another role gives to the same question, drawn by the row's id."""
    spoken: dict[tuple[str, str], list[tuple[str, str]]] = defaultdict(list)
    for row in among:
        spoken[row.language, fold(row.question)] += [(row.role, text) for text in row.references]
    for row in rows:
        others = [text for role, text in spoken[row.language, fold(row.question)] if role != row.role]
        if others:
            yield row, random.Random(row.id).choice(others)


def _nearest(rows: Sequence[Row], training: Sequence[Row]) -> Iterator[tuple[Row, str]]:
    """A reply to the training question that is nearest by BM25: the role's own where it is trained on, else any role's.

    Raises:
        MissingExtraError: Without ``bm25s``.
    """
    from rolellm.prompts.retrieval import TextIndex

    replies: dict[tuple[str, str | None], dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for row in (row for row in training if row.references):
        for role in (row.role, None):
            replies[row.language, role][fold(row.question)] += row.references
    indices: dict[tuple[str, str | None], TextIndex] = {}
    for row in rows:
        key = (row.language, row.role if (row.language, row.role) in replies else None)
        if key in replies:
            known = list(replies[key])
            if key not in indices:
                indices[key] = TextIndex(known, row.language, extra="llm")
            (place,) = indices[key].top(row.question, 1)
            yield row, random.Random(row.id).choice(replies[key][known[place]])


def _one_of_several(rows: Sequence[Row]) -> Iterator[tuple[Row, str]]:
    """A reference drawn by the row's id, and the row with the other ones."""
    for row in rows:
        texts = list(dict.fromkeys(row.references))
        if len(texts) > 1:
            drawn = random.Random(row.id).choice(texts)
            yield replace(row, references=tuple(text for text in texts if text != drawn)), drawn


def with_scale(report: ScoreReport, found: Markers) -> ScoreReport:
    """The report with floors, baseline and ceiling on the rows that it scored, and where the model is between them.

    Args:
        report: With its row scores.
        found: Of these rows or more.
    """
    values = {(score.id, score.metric): score for score in report.scores}
    kept = {name: [one for one in scores if (one.id, one.metric) in values] for name, scores in found.scores.items()}
    value = {
        "markers": {
            name: {"kind": KINDS[name], "metrics": summary_dict(summarize(scores, report.options))}
            for name, scores in kept.items()
            if scores
        },
        "position": {metric: _position(metric, values, kept, report.options) for metric in METRICS},
        "notes": list(found.notes),
    }
    return replace(report, value={**report.value, "scale": value}, scale=read_as(Scale, value, "the scale"))


def _position(
    metric: Metric,
    values: Mapping[tuple[str, Metric], RowScore],
    kept: Mapping[str, Sequence[RowScore]],
    options: ScoreOptions,
) -> dict[str, Any] | None:
    """How far from the highest floor to the ceiling the model is, on the rows that have all three."""
    by_name = {name: {one.id: one for one in scores if one.metric == metric} for name, scores in kept.items()}
    ceiling = by_name.pop(CEILING, {})
    best: tuple[float, str, list[str]] | None = None
    for name, scores in by_name.items():
        shared = sorted(scores.keys() & ceiling.keys())
        if KINDS[name] == "floor" and shared and len(shared) >= _LEAST * len(ceiling):
            mean = math.fsum(scores[row].value for row in shared) / len(shared)
            best = max(best or (mean, name, shared), (mean, name, shared))
    if best is None:
        return None
    _, floor, rows = best
    lines = [
        [values[row, metric] for row in rows],
        [by_name[floor][row] for row in rows],
        [ceiling[row] for row in rows],
    ]
    samples = [Sample([one.value for one in line], [one.question for one in line]) for line in lines]
    stratum = bootstrap_stratum(samples, options)
    first = stratum.intervals[0]
    if first.clusters < 2:
        return None
    model, low, high = (interval.mean for interval in stratum.intervals)
    drawn = stratum.means
    with np.errstate(invalid="ignore", divide="ignore"):
        shares = np.where(drawn[2] > drawn[1], (drawn[0] - drawn[1]) / (drawn[2] - drawn[1]), np.nan)
    # Where the ceiling may well be the floor, a share between them is noise.
    is_apart = high > low and float(np.mean(drawn[2] > drawn[1])) >= 1 - (1 - LEVEL) / 2
    share = Interval((model - low) / (high - low), *percentiles(shares)) if is_apart else None
    share = share and share._replace(n=first.n, clusters=first.clusters)
    return {"floor": floor, "low": low, "model": model, "high": high, "share": metric_dict(share)}
