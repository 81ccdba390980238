"""Scores with their 95 % intervals as pictures: dots with whiskers by measure and system.

Each picture is one ``<svg>`` element: a few lines, shapes and texts, the same bytes for the same scores. It takes its
colors from the page around it (``currentColor``, and ``--series-1`` to ``--series-6`` where the page sets them) and its
font from the reader, so that Chinese names show wherever the reader has a font for them. In a notebook:
``IPython.display.SVG(plot_scores(reports, series))``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rolellm.core.sanitize import label
from rolellm.core.table import ABSENT, PERCENT, Format, Interval, format_number
from rolellm.judging.result import MEASURES, JudgingResult
from rolellm.reporting.templates import environment
from rolellm.scoring.score_report import LIKENESS, METRICS, ScoreReport

#: A color a system, distinct for color-blind readers (after Okabe and Ito, darkened for white paper).
SERIES = ("#0072b2", "#d55e00", "#008a64", "#aa4499", "#a97800", "#667085")

#: A marker a system, as a path, so that color never carries the meaning alone: a disk, a square, a diamond, triangles
#: and crosses. One more than there are colors, so that the pairs of both repeat only after 42 systems.
MARKERS = (
    "M-3.2 0a3.2 3.2 0 1 0 6.4 0a3.2 3.2 0 1 0-6.4 0z",
    "M-2.8-2.8h5.6v5.6h-5.6z",
    "M0-3.9L3.9 0 0 3.9-3.9 0z",
    "M0-3.5L3.5 3h-7z",
    "M0 3.5L3.5-3h-7z",
    "M-1.2-3.4h2.4v2.2h2.2v2.4h-2.2v2.2h-2.4v-2.2h-2.2v-2.4h2.2z",
    "M-1.9-3.6L0-1.7 1.9-3.6 3.6-1.9 1.7 0 3.6 1.9 1.9 3.6 0 1.7-1.9 3.6-3.6 1.9-1.7 0-3.6-1.9z",
)

MEANINGS: Mapping[str, str] = {"CUS": "speaking style", "RAW": "accuracy", "SPE": "role knowledge"}
ROUGE = Format(3)

#: Widths in units of a picture, which a phone's screen shows as CSS pixels.
_NAMES, _PLOT, _FIGURES, _WIDE = 92.0, 140.0, 106.0, 340.0
_FONT = 9.5
#: Heights of a line and of a heading.
_LINE, _HEADING = 15.0, 20.0


@dataclass(frozen=True, slots=True)
class PlotMeasure:
    """The scores of systems in one measure.

    Attributes:
        title: The measure.
        scores: By system; ``None`` where a system has none.
        floor: What can be had without answering; marked by a dashed line.
        center: An even result; likewise.
    """

    title: str
    scores: Mapping[str, Interval | None] = field(default_factory=dict)
    floor: float | None = None
    center: float | None = None


def _mark(series: int) -> dict[str, str]:
    color = series % len(SERIES)
    fill = f"var(--series-{color + 1}, {SERIES[color]})"
    return {"shape": MARKERS[series % len(MARKERS)], "fill": fill}


def draw_dots(title: str, measures: Sequence[PlotMeasure], series: Mapping[str, int], form: Format = ROUGE) -> str:
    """Draw scores with their 95 % intervals, a line each under the heading of their measure.

    Names are left of the axis and figures right of it, so that no line crosses a text.

    Args:
        title: What the picture shows, for those who cannot see it, too.
        measures: From top to bottom, on one scale from 0 to above the highest.
        series: The number of each system's color and marker.
        form: How figures are written.
    """
    values = [0.1]
    for measure in measures:
        values += [measure.floor or 0.0, measure.center or 0.0]
        for score in measure.scores.values():
            if score is not None:
                values += [score.mean, *(score.ends or ())]
    # Up to the next tenth.
    tenths = math.ceil(round(max(values) * 10, 6))
    scale = _PLOT * 10 / tenths

    def find_x(value: float) -> float:
        return _NAMES + value * scale

    y = _HEADING
    groups = []
    for measure in measures:
        group: dict[str, Any] = {"title": measure.title, "floor": None, "center": None}
        group["y"] = y + _HEADING / 2
        group["start"] = y = y + _HEADING
        lines = []
        for name, score in measure.scores.items():
            line = _draw_line(name, score, series[name], form)
            line["y"] = y + _LINE / 2
            line["xs"] = list(map(find_x, line["values"]))
            lines.append(line)
            y += _LINE
        group["lines"] = lines
        group["end"] = y
        if measure.floor is not None:
            group["floor"] = find_x(measure.floor)
            group["floor_text"] = format_number(measure.floor * form.scale, form.digits)
        if measure.center is not None:
            group["center"] = find_x(measure.center)
        groups.append(group)
    ticks = []
    step = 1 if tenths <= 5 else 2
    for tenth in range(0, tenths + 1, step):
        tick = tenth / 10
        ticks.append((find_x(tick), f"{tick * form.scale:g}"))
    edges = {"left": _NAMES, "right": _NAMES + _PLOT, "top": _HEADING, "bottom": y}
    sizes = {"wide": _WIDE, "high": y + _HEADING, "font": _FONT, **edges}
    template = environment().get_template("dots.svg.jinja")
    return template.render(title=label(title, 400), groups=groups, ticks=ticks, **sizes)


def _draw_line(name: str, score: Interval | None, series: int, form: Format) -> dict[str, Any]:
    """Return a line of a picture: texts, marker, and the values of mean and ends."""
    line: dict[str, Any] = {"name": label(name, 17), "mark": _mark(series)}
    line |= {"text": ABSENT, "values": []}
    if score is not None:
        mean = format_number(score.mean * form.scale, form.digits)
        ends = score.format_ends(form.digits, form.scale)
        line["text"] = f"{mean} {ends}"
        line["values"] = [score.mean, *(score.ends or ())]
    return line


def plot_scores(reports: Mapping[str, ScoreReport], series: Mapping[str, int]) -> str | None:
    """Plot each system's scores with the highest floor of each; ``None`` where there are none."""
    measures = []
    for metric in METRICS:
        scores: dict[str, Interval | None] = {}
        floors = [0.0]
        for name, report in reports.items():
            scores[name] = report.metrics.get(metric)
            position = report.scale.position.get(metric) if report.scale else None
            if position:
                floors.append(position.low)
        if not any(scores.values()):
            continue
        meaning = MEANINGS[metric]
        if any(report.has_dialogues for report in reports.values()):
            meaning = LIKENESS
        title = f"{metric}: {meaning}"
        measures.append(PlotMeasure(title, scores, max(floors) or None))
    title = "Rouge-L by system, 0 to 1, with 95 % intervals"
    return draw_dots(title, measures, series) if measures else None


def plot_verdicts(judged: JudgingResult, series: Mapping[str, int]) -> str | None:
    """Plot win rates raw and length-controlled, and shares of lists, without the baseline and canaries.

    The highest canary of a measure is its floor.
    """
    measures = []
    for name in ("win_rate", "lc_win_rate", "list_win_rate"):
        scores: dict[str, Interval | None] = {}
        floors = []
        for system in judged.models:
            score = system.measures()[name]
            if system.kind == "canary" and score is not None:
                floors.append(score.mean)
            elif system.kind == "model":
                scores[system.name] = score
        if any(scores.values()):
            floor = max(floors, default=None)
            measures.append(PlotMeasure(MEASURES[name], scores, floor, center=0.5))
    baseline = label(judged.baseline or "the baseline", 22)
    title = f"Judged against {baseline}, with 95 % intervals"
    return draw_dots(title, measures, series, PERCENT) if measures else None
