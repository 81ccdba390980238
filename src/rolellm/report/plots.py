"""Scores with their 95 % intervals as pictures: dots with whiskers, by system and by role.

``*_figure`` return a matplotlib ``Figure`` for a notebook or a file; ``*_svg`` return the same picture as one ``<svg>``
element that takes colours and fonts from the page around it, see :mod:`rolellm.report.canvas`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rolellm.core.sanitize import label, width
from rolellm.report.canvas import (
    EM,
    INK,
    MARKERS,
    MAX_ROLES,
    PANEL,
    SERIES,
    SVG_FONTS,
    Scale,
    installed_fonts,
    legend,
    panels,
    svg,
)
from rolellm.report.cells import ABSENT, interval, number
from rolellm.report.scores import MEANINGS, METRICS, Estimate, Reports, estimate, role_estimate, roles

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "MARKERS",
    "MAX_ROLES",
    "SERIES",
    "Dot",
    "dots_figure",
    "dots_svg",
    "intervals_figure",
    "intervals_svg",
    "role_intervals_figure",
    "role_intervals_svg",
]


@dataclass(frozen=True, slots=True)
class Dot:
    """A line of a picture: a name, its score in each panel, and the number of its colour and marker, from 0."""

    name: str
    scores: tuple[Estimate | None, ...]
    series: int = 0


def dots_figure(lines: Sequence[Dot], scales: Sequence[Scale], *, fonts: tuple[str, ...] | None = None) -> Figure:
    """Draw scores with their 95 % intervals, a line each, a panel a scale; the numbers stand above their dots.

    Args:
        lines: From top to bottom; as many scores as there are scales.
        scales: The panels, from left to right.
        fonts: Families for names; by default those that this computer has.

    Raises:
        MissingExtraError: Without matplotlib; names the extra that brings it.
    """
    figure, made = panels(scales, fonts or installed_fonts(), rows_high=0.46 * len(lines), left=0.12)
    if fonts is None:
        figure.set_facecolor("white")
    for at, panel in enumerate(made):
        panel.axes.set_ylim(len(lines) - 0.55, -0.75)
        for row, line in enumerate(lines):
            score, scale = line.scores[at], panel.scale
            panel.text(0, row, label(line.name, 28), shift=(0, 11))
            shown = ABSENT if score is None else _written(score, scale)
            panel.text(1, row, shown, shift=(0, 11), ha="right", alpha=0.75)
            panel.axes.axhline(row, color=INK, alpha=0.12, linewidth=0.8)
            if score is not None:
                panel.scores([(row, score)], line.series)
    return figure


def dots_svg(lines: Sequence[Dot], scales: Sequence[Scale], title: str) -> str:
    """The picture of :func:`dots_figure` as an ``<svg>`` element; the same bytes for the same scores."""
    return svg(dots_figure(lines, scales, fonts=SVG_FONTS), title)


def _written(score: Estimate, scale: Scale) -> str:
    mean = number(score.mean * scale.times, scale.digits)
    return f"{mean} {interval(score, scale.digits, scale.times)}".rstrip()


def intervals_figure(reports: Reports, *, metrics: Sequence[str] = METRICS) -> Figure:
    """Draw each system's score and 95 % interval, a panel a metric.

    Args:
        reports: System name to its score report.
        metrics: The panels, from left to right; all share the scale of the highest.

    Raises:
        MissingExtraError: Without matplotlib; names the extra that brings it.
        DataError: When a report has another shape.
    """
    return dots_figure(*_rouge_dots(reports, metrics))


def intervals_svg(reports: Reports, *, metrics: Sequence[str] = METRICS) -> str:
    """The picture of :func:`intervals_figure` as an ``<svg>`` element; the same bytes for the same scores."""
    return dots_svg(*_rouge_dots(reports, metrics), f"Rouge-L with 95 % intervals by system: {', '.join(metrics)}")


def _rouge_dots(reports: Reports, metrics: Sequence[str]) -> tuple[list[Dot], list[Scale]]:
    drawn = dict.fromkeys([*METRICS, *metrics])
    upper = _upper([estimate(report, metric) for report in reports.values() for metric in drawn])
    lines = [
        Dot(name, tuple(estimate(report, metric) for metric in metrics), series)
        for series, (name, report) in enumerate(reports.items())
    ]
    return lines, [_rouge_scale(metric, upper) for metric in metrics]


def role_intervals_figure(reports: Reports, *, metrics: Sequence[str] = METRICS, legend: bool = True) -> Figure:
    """Draw each role's score and 95 % interval, roles downwards, a colour and marker a system, a panel a metric.

    Chinese names need a Chinese font on this computer, or matplotlib warns and draws boxes; the SVG needs none.

    Args:
        reports: System name to its score report, with ``by_role``; the first 120 roles are drawn.
        metrics: The panels, from left to right; all share the scale of the highest.
        legend: Whether to say below which colour and marker is which system.

    Raises:
        MissingExtraError: Without matplotlib; names the extra that brings it.
        DataError: When a report has another shape.
    """
    figure = _role_intervals(reports, metrics, installed_fonts(), legend)
    figure.set_facecolor("white")
    return figure


def role_intervals_svg(reports: Reports, *, metrics: Sequence[str] = METRICS, legend: bool = True) -> str:
    """The picture of :func:`role_intervals_figure` as an ``<svg>`` element; the same bytes for the same scores."""
    title = f"Rouge-L with 95 % intervals by role: {', '.join(metrics)}"
    return svg(_role_intervals(reports, metrics, SVG_FONTS, legend), title)


def _role_intervals(reports: Reports, metrics: Sequence[str], fonts: tuple[str, ...], keyed: bool) -> Figure:
    shown = roles(reports)[:MAX_ROLES]
    drawn = dict.fromkeys([*METRICS, *metrics])
    every = [role_estimate(report, role, metric) for report in reports.values() for role in shown for metric in drawn]
    names = [label(role, 22) for role in shown]
    left = 0.2 + EM * max(map(width, names), default=0)
    high = 0.16 + 0.13 * len(reports)
    keys = [label(name, 30) for name in reports] if keyed else []
    # An entry of the legend takes its marker, a gap, and its name.
    in_a_line = max(1, int(PANEL * len(metrics) / (0.55 + EM * max(map(width, keys), default=0))))
    below = 0.2 * math.ceil(len(keys) / in_a_line) + 0.06 * keyed
    upper = _upper(every)
    scales = [_rouge_scale(metric, upper) for metric in metrics]
    figure, made = panels(scales, fonts, rows_high=high * len(shown), left=left, below=below)
    for metric, panel in zip(metrics, made, strict=True):
        panel.axes.set_ylim(max(len(shown), 1) - 0.5, -0.5)
        for row, role in enumerate(shown):
            if row % 2 == 0:
                panel.axes.axhspan(row - 0.5, row + 0.5, color=INK, alpha=0.045, linewidth=0)
            panel.text(0, row, names[row], shift=(-7, 0), ha="right")
            if not any(role_estimate(report, role, metric) for report in reports.values()):
                panel.text(0, row, ABSENT, shift=(4, 0), alpha=0.6)
        for series, report in enumerate(reports.values()):
            found = [role_estimate(report, role, metric) for role in shown]
            aside = (series - (len(reports) - 1) / 2) * 0.13 / high
            panel.scores([(row + aside, score) for row, score in enumerate(found) if score is not None], series)
    if keys:
        legend(figure, keys, in_a_line, fonts)
    return figure


def _rouge_scale(metric: str, upper: float) -> Scale:
    meaning = MEANINGS.get(metric)
    return Scale(f"{metric}: {meaning}" if meaning else metric, "Rouge-L (0 to 1)", high=upper)


def _upper(scores: Sequence[Estimate | None]) -> float:
    """The end of the shared scale: the highest end of any interval, up to the next tenth."""
    known = [score for score in scores if score is not None]
    highest = max((max(score.mean, *(score.interval or (score.mean,))) for score in known), default=0)
    return max(math.ceil(round(highest * 10, 6)) / 10, 0.1)
