"""Scores with their 95 % intervals as pictures: dots with whiskers by system, and heat maps by role.

Each picture is one ``<svg>`` element: a few lines, shapes and texts, the same bytes for the same scores. It takes its
colors from the page around it (``currentColor``, ``--series-1`` to ``--series-6`` and ``--heat-1`` to ``--heat-11``
where the page sets them) and its font from the reader, so that Chinese names show wherever the reader has a font for
them. In a notebook: ``IPython.display.SVG(intervals_svg(reports, "CUS"))``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rolellm.core.sanitize import label, measure_width
from rolellm.core.table import ABSENT, Interval, format_number
from rolellm.judging.records import Design
from rolellm.judging.result import JudgingResult, SystemFigures
from rolellm.reporting.tables import roles_of
from rolellm.reporting.templates import environment
from rolellm.scoring.score_report import METRICS, ScoreReport

#: A color a system, distinct for color-blind readers (after Okabe and Ito, darkened for white paper).
SERIES = ("#0072b2", "#d55e00", "#008a64", "#aa4499", "#a97800", "#667085")

#: A marker a system, as text and as a path, so that color never carries the meaning alone. One more than there are
#: colors, so that the pairs of both repeat only after 42 systems.
MARKERS: Mapping[str, str] = {
    "●": "M-3.2 0a3.2 3.2 0 1 0 6.4 0a3.2 3.2 0 1 0-6.4 0z",
    "■": "M-2.8-2.8h5.6v5.6h-5.6z",
    "◆": "M0-3.9L3.9 0 0 3.9-3.9 0z",
    "▲": "M0-3.5L3.5 3h-7z",
    "▼": "M0 3.5L3.5-3h-7z",
    "✚": "M-1.2-3.4h2.4v2.2h2.2v2.4h-2.2v2.2h-2.4v-2.2h-2.2v-2.4h2.2z",
    "✖": "M-1.9-3.6L0-1.7 1.9-3.6 3.6-1.9 1.7 0 3.6 1.9 1.9 3.6 0 1.7-1.9 3.6-3.6 1.9-1.7 0-3.6-1.9z",
}

#: From least to most, in steps that a page may replace; the middle one says neither.
HEAT = (
    *("#e2935a", "#ebad80", "#f2c7a6", "#f7ddc8", "#faeee3"),
    "#f3f3ef",
    *("#e3eef6", "#c8deee", "#a5cae3", "#7fb3d6", "#5a9bc8"),
)

#: Roles drawn in one picture; a table has no such bound.
MAX_ROLES = 120

MEANINGS: Mapping[str, str] = {"CUS": "speaking style", "RAW": "accuracy", "SPE": "role knowledge"}

_PANEL, _FONT = 266.0, 9.0  # about the width of a phone's screen, in CSS pixels
_COLUMN = 0.56 * _FONT  # the width of a character, a little above the mean of sans-serif fonts
_ABOVE, _RIGHT = 24.0, 11.0


@dataclass(frozen=True, slots=True)
class Scale:
    """The axis of a panel.

    Attributes:
        title: Above the panel.
        axis: Under it.
        low: Where the axis begins, in the unit of the scores.
        high: Where it ends.
        digits: Digits of a number written next to a dot.
        times: What a score is multiplied by to be written, such as 100 for percent.
        center: Where a dashed line marks "no difference"; ``None`` for no such line.
    """

    title: str
    axis: str
    low: float = 0.0
    high: float = 1.0
    digits: int = 3
    times: float = 1.0
    center: float | None = None


@dataclass(frozen=True, slots=True)
class Dot:
    """A line of a picture: a name, its score, and the number of its color and marker, from 0."""

    name: str
    score: Interval | None
    series: int = 0


def sign(name: str, series: int) -> dict[str, Any]:
    """Return a system's name, and the color (``series``) and ``mark`` that it goes by in the pictures."""
    return {"name": name, "series": series % len(SERIES) + 1, "mark": list(MARKERS)[series % len(MARKERS)]}


def _mark(series: int) -> dict[str, str]:
    color = series % len(SERIES)
    shapes = list(MARKERS.values())
    return {"shape": shapes[series % len(MARKERS)], "fill": f"var(--series-{color + 1}, {SERIES[color]})"}


def _draw(template: str, title: str, high: float, **parts: Any) -> str:
    text = environment().get_template(template)
    return text.render(title=label(title, 400), wide=_PANEL, high=high, font=_FONT, **parts)


def _choose_ticks(low: float, high: float) -> list[float]:
    """Choose round numbers along an axis: at most six."""
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(times * power for times in (1, 2, 5, 10) if times * power >= rough * 0.999)
    first = math.ceil(round(low / step, 6))
    last = math.floor(round(high / step, 6))
    return [round(at * step, 10) for at in range(first, last + 1)]


def dots_svg(lines: Sequence[Dot], scale: Scale, title: str) -> str:
    """Draw scores with their 95 % intervals, a line each; the numbers are above their dots.

    Args:
        lines: From top to bottom.
        scale: The axis.
        title: What the picture shows, for those who cannot see it.
    """
    row, left, right = 33.0, _FONT, _PANEL - _RIGHT
    bottom = _ABOVE + row * max(len(lines), 0.5)

    def x(score: float) -> float:
        return left + (score - scale.low) / (scale.high - scale.low) * (right - left)

    dots = []
    for number, line in enumerate(lines):
        dot: dict[str, Any] = {"name": label(line.name, 28), "text": ABSENT, "x": None, "ends": None}
        dot |= {"y": _ABOVE + row * number + 23, "mark": _mark(line.series)}
        if line.score is not None:
            mean = format_number(line.score.mean * scale.times, scale.digits)
            dot["text"] = f"{mean} {line.score.format_ends(scale.digits, scale.times)}".rstrip()
            dot["x"] = x(line.score.mean)
            dot["ends"] = tuple(map(x, line.score.ends or ()))
        dots.append(dot)
    ticks = []
    for tick in _choose_ticks(scale.low * scale.times, scale.high * scale.times):
        ticks.append((x(tick / scale.times), f"{tick:g}".replace("-", "−")))
    edges: dict[str, float | None] = {"left": left, "right": right, "top": _ABOVE, "bottom": bottom}
    edges["center"] = None if scale.center is None else x(scale.center)
    return _draw("dots.svg.jinja", title, bottom + 30, scale=scale, lines=dots, ticks=ticks, **edges)


def intervals_svg(reports: Mapping[str, ScoreReport], metric: str) -> str:
    """Draw each system's score in a metric, and its 95 % interval; all metrics share the scale of the highest.

    Args:
        reports: System name to its score report.
        metric: ``CUS``, ``RAW`` or ``SPE``.
    """
    highest = 0.0
    for report in reports.values():
        for key in METRICS:
            score = report.metrics.get(key)
            if score:
                highest = max(highest, score.mean, *(score.ends or ()))
    # Up to the next tenth.
    upper = max(math.ceil(round(highest * 10, 6)) / 10, 0.1)
    lines = [Dot(name, reports[name].metrics.get(metric), number) for number, name in enumerate(reports)]
    scale = Scale(f"{metric}: {MEANINGS[metric]}", "Rouge-L (0 to 1)", high=upper)
    return dots_svg(lines, scale, f"Rouge-L with 95 % intervals by system: {metric}")


def heat_svg(
    title: str,
    rows: Sequence[str],
    values: Sequence[Mapping[str, Interval]],
    series: Sequence[int],
    *,
    ends: tuple[float, float] = (0.0, 1.0),
    digits: int = 0,
    times: float = 100.0,
) -> str:
    """Draw a heat map as an ``<svg>`` element: rows downwards, a column a system.

    Args:
        title: Above it.
        rows: Names, such as roles; the first 120 are drawn.
        values: A column's scores by row name.
        series: The number of each column's color and marker, which are at its head.
        ends: What gets the first color, and what the last one.
        digits: Digits of the numbers in the cells.
        times: What they are multiplied by.
    """
    shown_rows = list(rows)[:MAX_ROLES]
    names = [label(name, 20) for name in shown_rows]
    left, high = 14 + _COLUMN * max(map(measure_width, names), default=0), 16.0
    columns = []
    for number, column in zip(series, values, strict=True):
        cells = []
        for name in shown_rows:
            cell: dict[str, Any] = {"text": ABSENT, "fill": None}
            score = column.get(name)
            if score is not None:
                step = _pick_step(score.mean, *ends)
                cell["text"] = format_number(score.mean * times, digits)
                cell["fill"] = f"var(--heat-{step + 1}, {HEAT[step]})"
            cells.append(cell)
        columns.append({"mark": _mark(number), "cells": cells})
    size = {"left": left, "cell": (_PANEL - _RIGHT - left) / max(len(columns), 1), "row": high, "top": _ABOVE}
    return _draw(
        "heat.svg.jinja", title, _ABOVE + high * (len(shown_rows) + 1) + 4, names=names, columns=columns, **size
    )


def _pick_step(value: float, low: float, high: float) -> int:
    share = (value - low) / (high - low) if high != low else 0.5
    return int(min(max(share, 0), 0.999) * len(HEAT))


def rouge_heat(reports: Mapping[str, ScoreReport], metric: str, series: Mapping[str, int]) -> str | None:
    """Draw a heat map of a metric by role and system; ``None`` where no role has it."""
    roles = roles_of(reports.values())
    values: list[dict[str, Interval]] = []
    for report in reports.values():
        column = {}
        for role in roles:
            score = report.by_role.get(role, {}).get(metric)
            if score is not None:
                column[role] = score
        values.append(column)
    means = [score.mean for column in values for score in column.values()]
    if not means:
        return None
    highest = max(means) or 1.0
    title, numbers = f"{metric} by role: {MEANINGS[metric]}, ×100", [series[name] for name in reports]
    # From the palest step up: there is no "worse than nothing" in Rouge-L.
    return heat_svg(title, roles, values, numbers, ends=(-highest, highest))


def series_of(judged: JudgingResult) -> dict[str, int]:
    """Map each system to the number of its color and marker, the same in all pictures of a part."""
    return {system.name: at for at, system in enumerate(judged.models)}


def standing_plots(judged: JudgingResult) -> list[str]:
    """Plot win rates raw and length-controlled on one scale; share of lists above the baseline, and rank."""
    base = label(judged.baseline or "the baseline", 22)
    half = Scale(f"Win rate against {base}", "percent; both orders, ties half", digits=1, times=100, center=0.5)
    ranked, last = _get_last_ranks(judged)
    scales = {
        "win_rate": half,
        "lc_win_rate": replace(half, title="The same, length-controlled", axis="percent; at the baseline’s length"),
        "list_win_rate": replace(half, title=f"Ranked above {base}", axis="percent of lists; ties half"),
    }
    words = f"from 1 (best) to {last}"
    scales["average_rank"] = Scale("Average rank", words, low=1, high=last, digits=2, center=(1 + ranked) / 2)
    return _plot_measures(judged, scales)


def habit_plots(judged: JudgingResult) -> list[str]:
    """Plot what an unbiased judge would not show: positions and lengths that change verdicts."""
    biases = judged.diagnostics.biases
    half = Scale("Preference, whoever wrote it", "percent; 50 means no bias", digits=1, times=100, center=0.5)
    preferred = [
        ("the first answer shown", biases.get("first_preferred")),
        ("the longer answer", biases.get("longer_preferred")),
    ]
    agree = Scale("Both orders agree", "percent of pairs", digits=1, times=100)
    mean_ranks = judged.diagnostics.mean_rank_by_position
    middle = (1 + len(mean_ranks)) / 2
    words = f"rank; {middle:g} everywhere means no bias"
    ranks = Scale("Mean rank by position in the list", words, middle - 0.5, middle + 0.5, digits=2, center=middle)
    by_place = [(f"shown at position {at}", Interval(mean)) for at, mean in enumerate(mean_ranks, start=1)]
    pictures = _plot([Dot(name, score, 5) for name, score in preferred if score], half)
    pictures += _plot_measures(judged, {"consistency": agree})
    if len(mean_ranks) > 1:
        pictures += _plot([Dot(name, score, 5) for name, score in by_place], ranks)
    return pictures


def _plot_measures(judged: JudgingResult, scales: Mapping[str, Scale]) -> list[str]:
    """Plot each measure of the systems that were judged so; without the baseline, where it is measured from."""
    series, pictures = series_of(judged), []
    for measure, scale in scales.items():
        design: Design = "listwise" if measure in ("list_win_rate", "average_rank") else "pairwise"
        dots = []
        for system in judged.judged(design):
            if measure != "list_win_rate" or system.kind != "baseline":
                dots.append(Dot(_plot_name(system), system.measures()[measure], series[system.name]))
        pictures += _plot(dots, scale)
    return pictures


def _plot(lines: Sequence[Dot], scale: Scale) -> list[str]:
    """Plot lines on a scale that holds them all; nothing where there is nothing to draw."""
    scores = [line.score for line in lines]
    if not any(scores):
        return []
    step = 0.5 if scale.times == 1 else 0.1
    return [dots_svg(lines, spread(scale, scores, step=step), f"{scale.title}, {scale.axis}")]


def _plot_name(model: SystemFigures) -> str:
    """Return a system's name, and that it is a canary where the name does not say so."""
    return f"{label(model.name, 18)} (canary)" if model.band and model.band in model.marks else model.name


def spread(scale: Scale, scores: Sequence[Interval | None], *, step: float = 0.1) -> Scale:
    """Widen a scale in whole steps until it holds every interval and the center; never narrowed, never empty."""
    ends = [] if scale.center is None else [scale.center]
    for score in scores:
        if score is not None:
            ends += [score.mean, *(score.ends or ())]
    low, high = min(ends, default=scale.low), max(ends, default=scale.high)
    low = min(scale.low, math.floor(round(low / step, 6)) * step)
    high = max(scale.high, math.ceil(round(high / step, 6)) * step)
    if low == high:
        low, high = low - step, high + step
    return replace(scale, low=low, high=high)


def _get_last_ranks(judged: JudgingResult) -> tuple[int, int]:
    """Return the last rank of a model in the lists, and of all: a canary's, which is ranked among all the models."""
    lists = judged.judged("listwise")
    canaries = sum(system.kind == "canary" for system in lists)
    ranked = max(len(lists) - canaries, 2)
    return ranked, ranked + (canaries > 0)


def role_heat(judged: JudgingResult, design: Design) -> str | None:
    """Draw a heat map of roles by systems: win rates in pairs, average ranks in lists."""
    roles, models = judged.list_groups(design, "by_role"), judged.judged(design)
    if not roles:
        return None
    series = series_of(judged)
    values = [system.group(design, "by_role") for system in models]
    numbers = [series[system.name] for system in models]
    if design == "pairwise":
        return heat_svg("Win rate by role, %", roles, values, numbers)
    # Low ranks are good, and the colors of "more" mean good.
    ends = float(_get_last_ranks(judged)[1]), 1.0
    return heat_svg("Average rank by role", roles, values, numbers, ends=ends, digits=1, times=1.0)
