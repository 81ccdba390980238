"""Floors and a reference: what a score is read between.

Rouge-L counts shared words, and many of them need no model. So replies that were not made for the question are scored
as predictions are, on the same rows: floors, which a model must beat; the release's baseline; and one reference against
the others of its row, which is what replies of one author have in common. That is no ceiling: a model may do better.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Final, NamedTuple

from rolellm.core.errors import MissingExtraError
from rolellm.core.records import Row
from rolellm.core.text import fold
from rolellm.scoring.score_report import (
    METRICS,
    Metric,
    RowScore,
    ScaleMarker,
    ScalePosition,
    ScoreReport,
    ScoreScale,
    make_sample,
    summarize_scores,
)
from rolellm.scoring.statistics.intervals import compare_pairs

OTHER_ROLE: Final = "another role's reply"
NEAREST: Final = "nearest training reply"
QUESTION: Final = "the question itself"
ROLEGPT: Final = "RoleGPT"
REFERENCE: Final = "one reference against the others"
KINDS: Final = {OTHER_ROLE: "floor", NEAREST: "floor", QUESTION: "floor", ROLEGPT: "baseline", REFERENCE: "reference"}

_ABSENT: Final = {
    OTHER_ROLE: "no other role answers the same question",
    NEAREST: "there are no training rows; in Python, training=… takes them",
    QUESTION: "there are no questions",
    ROLEGPT: "the rows have none of its replies",
    REFERENCE: "no row has two different references",
}
#: A position holds for most of a metric's rows, or is not told.
_LEAST: Final = 0.5


#: A language and a role; `None` for any role.
_Voice = tuple[str, str | None]
#: The replies to each question.
_Replies = defaultdict[str, list[str]]
#: A row and a reply to score on it.
RowReply = tuple[Row, str]


class Markers(NamedTuple):
    """Scores that another score is read between.

    Attributes:
        scores: Name (see `KINDS`) to row scores, of which a row without such a reply has none.
        reasons: Why any are absent.
    """

    scores: Mapping[str, Sequence[RowScore]]
    reasons: Mapping[str, str]


def draw_marker_replies(
    every: Sequence[Row], scored: Container[str], training: Sequence[Row]
) -> tuple[dict[str, Sequence[RowReply]], dict[str, str]]:
    """Draw the replies of what a score is read between.

    Args:
        every: All rows of the split; another role's reply may be any of theirs.
        scored: The ids of those that were scored.
        training: Training rows; may be empty.

    Returns:
        Replies by name (see `KINDS`), and why any are absent.
    """
    rows = [row for row in every if row.id in scored]
    reasons = dict(_ABSENT)
    nearest: Sequence[RowReply] = ()
    try:
        nearest = list(_pick_nearest(rows, training))
    except MissingExtraError as error:
        reasons[NEAREST] = str(error)
    replies: dict[str, Sequence[RowReply]] = {
        OTHER_ROLE: list(_pick_other_roles(rows, (*every, *training))),
        NEAREST: nearest,
        QUESTION: [(row, row.question) for row in rows if row.question.strip()],
        ROLEGPT: [(row, row.rolegpt) for row in rows if row.rolegpt is not None],
        REFERENCE: list(_draw_references(rows)),
    }
    return replies, reasons


def _pick_other_roles(rows: Sequence[Row], among: Sequence[Row]) -> Iterator[RowReply]:
    """A reply that another role gives to the same question, drawn by the row's id."""
    rows_by_question = defaultdict(list)
    for row in among:
        rows_by_question[row.language, fold(row.question)].append(row)
    for row in rows:
        texts: list[str] = []
        for answered in rows_by_question[row.language, fold(row.question)]:
            if answered.role != row.role:
                texts += answered.references
        if texts:
            yield row, random.Random(row.id).choice(texts)


def _pick_nearest(rows: Sequence[Row], training: Sequence[Row]) -> Iterator[RowReply]:
    """A reply to the training question that is nearest by BM25: the role's own where it is trained on, else any role's.

    Raises:
        MissingExtraError: Without ``bm25s``.
    """
    from rolellm.models.prompts.retrieval import TextIndex

    if not training:
        return
    replies: defaultdict[_Voice, _Replies] = defaultdict(lambda: defaultdict(list))
    for row in training:
        question = fold(row.question)
        for role in (row.role, None):
            if row.references:
                replies[row.language, role][question] += row.references
    indices: dict[_Voice, TextIndex] = {}
    for row in rows:
        voice: _Voice = (row.language, row.role)
        if voice not in replies:
            voice = (row.language, None)
        if voice not in replies:
            continue
        questions = list(replies[voice])
        if voice not in indices:
            indices[voice] = TextIndex(questions, row.language, extra="llm")
        (nearest,) = indices[voice].rank(row.question, 1)
        texts = replies[voice][questions[nearest]]
        yield row, random.Random(row.id).choice(texts)


def _draw_references(rows: Sequence[Row]) -> Iterator[RowReply]:
    """A reference drawn by the row's id, and the row with the other ones; a role-free answer is none of them."""
    for row in rows:
        texts = list(dict.fromkeys(row.references))
        if len(texts) > 1:
            choice = random.Random(row.id).choice(texts)
            remaining = tuple(text for text in texts if text != choice)
            yield replace(row, references=remaining, raw_reference=None), choice


def add_scale(report: ScoreReport, scored: Markers) -> ScoreReport:
    """The report with floors, baseline and reference on the rows that it scored, and where the model is between them.

    Args:
        report: With its row scores.
        scored: Of these rows or more.
    """
    values = {(score.id, score.metric): score for score in report.scores}
    shared: dict[str, list[RowScore]] = {}
    markers: dict[str, ScaleMarker] = {}
    for name, scores in scored.scores.items():
        shared[name] = [score for score in scores if (score.id, score.metric) in values]
        if shared[name]:
            markers[name] = ScaleMarker(KINDS[name], summarize_scores(shared[name]))
    notes = []
    for name, reason in scored.reasons.items():
        if name not in markers:
            notes.append(f"No {KINDS[name]} “{name}”: {reason}")
    positions: dict[str, ScalePosition | None] = {}
    for metric in METRICS:
        positions[metric] = _locate_model(metric, report.scores, shared)
    scale = ScoreScale(markers, positions, tuple(notes))
    return replace(report, scale=scale)


def _locate_model(
    metric: Metric, scores: Sequence[RowScore], scores_by_marker: Mapping[str, Sequence[RowScore]]
) -> ScalePosition | None:
    """Locate the model above the highest floor, on the rows that have it."""
    own = _index_scores(metric, scores)
    floors: dict[str, dict[str, RowScore]] = {}
    means: dict[str, float] = {}
    for name, marker_scores in scores_by_marker.items():
        floor_scores = _index_scores(metric, marker_scores)
        is_enough = floor_scores and len(floor_scores) >= _LEAST * len(own)
        if KINDS[name] == "floor" and is_enough:
            floors[name] = floor_scores
            means[name] = fmean(score.value for score in floor_scores.values())
    if not floors:
        return None
    floor = max(means, key=lambda name: (means[name], name))
    low = make_sample(list(floors[floor].values()))
    model = make_sample([own[row] for row in floors[floor]])
    test = compare_pairs(model.values, low.values, model.clusters, model.roles, most=1.0)
    return ScalePosition(floor, means[floor], fmean(model.values), *test)


def _index_scores(metric: Metric, scores: Sequence[RowScore]) -> dict[str, RowScore]:
    return {score.id: score for score in scores if score.metric == metric}
