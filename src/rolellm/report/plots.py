"""Scores with their 95 % intervals as pictures: dots with whiskers, by system and by role, and heat maps.

Each picture is one ``<svg>`` element, written here: a few lines, shapes and texts, the same bytes for the same scores.
It takes its colors from the page around it (``currentColor``, ``--series-1`` to ``--series-6`` and ``--heat-1`` to
``--heat-11`` where the page sets them) and its font from the reader, so that Chinese names show wherever the reader
has a font for them. In a notebook: ``IPython.display.SVG(intervals_svg(reports))``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from types import MappingProxyType

from rolellm.core.sanitize import label, width
from rolellm.evaluation.score import METRICS, ScoreReport, Summary
from rolellm.evaluation.statistics.bootstrap import Interval
from rolellm.judging.figures import (
    JudgingResult,
    LengthBias,
    ListBias,
    Listwise,
    Metric,
    PairBias,
    PositionBias,
    SystemFigures,
)
from rolellm.judging.types import Design
from rolellm.report.score_table import ABSENT, interval, number, roles_of

SERIES = ("#0072b2", "#d55e00", "#008a64", "#aa4499", "#a97800", "#667085")
"""A color a system, distinct for color-blind readers (after Okabe and Ito, darkened for white paper)."""

MARKERS = MappingProxyType(
    {
        "●": "M-3.2 0a3.2 3.2 0 1 0 6.4 0a3.2 3.2 0 1 0-6.4 0z",
        "■": "M-2.8-2.8h5.6v5.6h-5.6z",
        "◆": "M0-3.9L3.9 0 0 3.9-3.9 0z",
        "▲": "M0-3.5L3.5 3h-7z",
        "▼": "M0 3.5L3.5-3h-7z",
        "✚": "M-1.2-3.4h2.4v2.2h2.2v2.4h-2.2v2.2h-2.4v-2.2h-2.2v-2.4h2.2z",
        "✖": "M-1.9-3.6L0-1.7 1.9-3.6 3.6-1.9 1.7 0 3.6 1.9 1.9 3.6 0 1.7-1.9 3.6-3.6 1.9-1.7 0-3.6-1.9z",
    }
)
"""A marker a system, as text and as a path, so that color never carries the meaning alone.

One more than there are colors, so that the pairs of both repeat only after 42 systems.
"""

HEAT = (
    *("#e2935a", "#ebad80", "#f2c7a6", "#f7ddc8", "#faeee3"),
    "#f3f3ef",
    *("#e3eef6", "#c8deee", "#a5cae3", "#7fb3d6", "#5a9bc8"),
)
"""From least to most, in steps that a page may replace; the middle one says neither."""

MAX_ROLES = 120
"""Roles drawn in one picture; a table has no such bound."""

MEANINGS = MappingProxyType({"CUS": "speaking style", "RAW": "accuracy", "SPE": "role knowledge"})

NAMESPACE = ' xmlns="http://www.w3.org/2000/svg"'
_PANEL, _FONT = 266.0, 9.0  # about the width of a phone's screen, in CSS pixels
_COLUMN = 0.56 * _FONT  # the width of a character, a little above the mean of sans-serif fonts
_ABOVE, _BELOW, _RIGHT = 24.0, 30.0, 11.0


@dataclass(frozen=True, slots=True)
class Scale:
    """What a panel shows along its axis.

    Attributes:
        title: Above the panel.
        axis: Under it.
        low: Where the axis begins, in the unit of the scores.
        high: Where it ends.
        digits: Of a number written next to a dot.
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
    """A line of a picture: a name, its score in each panel, and the number of its color and marker, from 0."""

    name: str
    scores: tuple[Interval | None, ...]
    series: int = 0


@dataclass(frozen=True, slots=True)
class Heat:
    """A heat map: rows downwards, a column a system.

    Attributes:
        title: Above it.
        rows: Names, such as roles; the first 120 are drawn.
        values: A column's scores by row name.
        series: The number of each column's color and marker, which are at its head.
        low: What gets the first color.
        high: What gets the last one.
        digits: Of the numbers in the cells.
        times: What they are multiplied by.
    """

    title: str
    rows: Sequence[str]
    values: Sequence[Mapping[str, Interval]]
    series: Sequence[int]
    low: float = 0.0
    high: float = 1.0
    digits: int = 0
    times: float = 100.0


@dataclass(frozen=True, slots=True)
class Sign:
    """A system's name and the color and marker it goes by in the pictures."""

    name: str
    series: int
    marker: str


def signs(series: Mapping[str, int]) -> list[Sign]:
    """The signs of systems, by the number of each."""
    markers = list(MARKERS)
    return [Sign(name, at % len(SERIES) + 1, markers[at % len(markers)]) for name, at in series.items()]


@dataclass
class _Drawing:
    """The elements of a picture, in pixels from its upper left corner."""

    wide: float
    high: float
    elements: list[str] = field(default_factory=list)

    def text(self, x: float, y: float, words: str, *, anchor: str = "", style: str = "") -> None:
        """Write on one line, ``y`` its middle; ``anchor`` as in SVG, the start by default."""
        anchored = f' text-anchor="{anchor}"' if anchor else ""
        self.elements.append(f"<text x={_at(x)} y={_at(y + 0.35 * _FONT)}{anchored}{style}>{escape(words)}</text>")

    def rule(self, x0: float, y0: float, x1: float, y1: float, *, style: str) -> None:
        self.elements.append(f'<path d="M{_n(x0)} {_n(y0)}L{_n(x1)} {_n(y1)}"{style}/>')

    def box(self, x: float, y: float, wide: float, high: float, *, style: str) -> None:
        self.elements.append(f"<rect x={_at(x)} y={_at(y)} width={_at(wide)} height={_at(high)}{style}/>")

    def mark(self, x: float, y: float, series: int) -> None:
        shape = list(MARKERS.values())[series % len(MARKERS)]
        self.elements.append(
            f'<path class="mark" d="{shape}" transform="translate({_n(x)} {_n(y)})" fill={_color(series)}/>'
        )

    def svg(self, title: str) -> str:
        """The picture as one element, a well-formed file by itself; ``title`` is for those who cannot see it."""
        size = f'viewBox="0 0 {_n(self.wide)} {_n(self.high)}"'
        style = f'font-family="sans-serif" font-size="{_FONT:g}" fill="currentColor" stroke-linejoin="round"'
        body = "\n".join(self.elements)
        return f'<svg{NAMESPACE} {size} role="img" aria-label="{escape(label(title, 400))}" {style}>\n{body}\n</svg>\n'


@dataclass(frozen=True, slots=True)
class _Panel:
    """A part of a drawing with an axis of its own, ``left`` and ``right`` its ends."""

    drawing: _Drawing
    scale: Scale
    left: float
    right: float

    @classmethod
    def framed(cls, drawing: _Drawing, at: int, scale: Scale, *, names: float, bottom: float) -> _Panel:
        """The panel at a place, with room for names at its left; title, axis and grid are drawn."""
        panel = cls(drawing, scale, at * _PANEL + names, (at + 1) * _PANEL - _RIGHT)
        drawing.text(panel.left, _ABOVE / 2 - 3, scale.title, style=' font-size="10" font-weight="bold"')
        for tick in _ticks(scale.low * scale.times, scale.high * scale.times):
            x = panel.x(tick / scale.times)
            drawing.rule(x, _ABOVE, x, bottom, style=' stroke="currentColor" stroke-opacity=".14" stroke-width=".6"')
            drawing.text(x, bottom + 8, f"{tick:g}".replace("-", "−"), anchor="middle", style=' font-size="8.5"')
        drawing.rule(panel.left, bottom, panel.right, bottom, style=' stroke="currentColor" stroke-opacity=".4"')
        if scale.center is not None:
            dashed = ' stroke="currentColor" stroke-opacity=".55" stroke-dasharray="4 3"'
            drawing.rule(panel.x(scale.center), _ABOVE, panel.x(scale.center), bottom, style=dashed)
        drawing.text((panel.left + panel.right) / 2, bottom + 21, scale.axis, anchor="middle", style=' font-size="8.5"')
        return panel

    def x(self, score: float) -> float:
        share = (score - self.scale.low) / (self.scale.high - self.scale.low)
        return self.left + share * (self.right - self.left)

    def score(self, y: float, score: Interval, series: int) -> None:
        """A dot, and a whisker over the 95 % interval where it is known."""
        if score.ends is not None:
            style = f' class="whisker" stroke={_color(series)} stroke-width="1.8"'
            self.drawing.rule(self.x(score.ends[0]), y, self.x(score.ends[1]), y, style=style)
        self.drawing.mark(self.x(score.mean), y, series)


def _n(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _at(value: float) -> str:
    return f'"{_n(value)}"'


def _color(series: int) -> str:
    at = series % len(SERIES)
    return f'"var(--series-{at + 1}, {SERIES[at]})"'


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers along an axis: at most six."""
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(times * power for times in (1, 2, 5, 10) if times * power >= rough * 0.999)
    first, last = math.ceil(round(low / step, 6)), math.floor(round(high / step, 6))
    return [round(at * step, 10) for at in range(first, last + 1)]


def dots_svg(lines: Sequence[Dot], scales: Sequence[Scale], title: str) -> str:
    """Scores with their 95 % intervals, a line each, a panel a scale; the numbers are above their dots.

    Args:
        lines: From top to bottom; as many scores as there are scales.
        scales: The panels, from left to right.
        title: What the picture shows, for those who cannot see it.
    """
    row = 33.0
    bottom = _ABOVE + row * max(len(lines), 0.5)
    drawing = _Drawing(_PANEL * len(scales), bottom + _BELOW)
    for at, scale in enumerate(scales):
        panel = _Panel.framed(drawing, at, scale, names=_FONT, bottom=bottom)
        for number_, line in enumerate(lines):
            score, y = line.scores[at], _ABOVE + row * number_ + 23
            drawing.text(panel.left, y - 12, label(line.name, 28))
            shown = ABSENT if score is None else _written(score, scale)
            halo = ' fill-opacity=".75" stroke="var(--paper, #fff)" stroke-width="3" paint-order="stroke"'
            drawing.text(panel.right, y - 12, shown, anchor="end", style=halo)
            drawing.rule(panel.left, y, panel.right, y, style=' stroke="currentColor" stroke-opacity=".12"')
            if score is not None:
                panel.score(y, score, line.series)
    return drawing.svg(title)


def _written(score: Interval, scale: Scale) -> str:
    mean = number(score.mean * scale.times, scale.digits)
    return f"{mean} {interval(score, scale.digits, scale.times)}".rstrip()


def intervals_svg(reports: Mapping[str, ScoreReport], *, metrics: Sequence[str] = METRICS) -> str:
    """Each system's score and 95 % interval, a panel a metric; all share the scale of the highest.

    Args:
        reports: System name to its score report.
        metrics: The panels, from left to right.
    """
    upper = _upper(report.metrics for report in reports.values())
    lines = [
        Dot(name, tuple(report.metrics.get(metric) for metric in metrics), series)
        for series, (name, report) in enumerate(reports.items())
    ]
    scales = [_rouge_scale(metric, upper) for metric in metrics]
    return dots_svg(lines, scales, f"Rouge-L with 95 % intervals by system: {', '.join(metrics)}")


def role_intervals_svg(reports: Mapping[str, ScoreReport], *, metrics: Sequence[str] = METRICS) -> str:
    """Each role's score and 95 % interval, roles downwards, a color and marker a system, a panel a metric.

    Args:
        reports: System name to its score report; the first 120 roles are drawn.
        metrics: The panels, from left to right; all share the scale of the highest.
    """
    shown = roles_of(reports.values())[:MAX_ROLES]
    names = [label(role, 22) for role in shown]
    left = 14 + _COLUMN * max(map(width, names), default=0)
    row, aside = 12 + 9.4 * len(reports), 9.4
    bottom = _ABOVE + row * max(len(shown), 1)
    keys = [label(name, 30) for name in reports]
    across = max(1, int(_PANEL * len(metrics) / (24 + _COLUMN * max(map(width, keys), default=0))))
    drawing = _Drawing(_PANEL * len(metrics), bottom + _BELOW + 14 * math.ceil(len(keys) / across))
    upper = _upper(summary for report in reports.values() for summary in report.by_role.values())
    for at, metric in enumerate(metrics):
        panel = _Panel.framed(drawing, at, _rouge_scale(metric, upper), names=left, bottom=bottom)
        for place, role in enumerate(shown):
            y = _ABOVE + row * (place + 0.5)
            if place % 2 == 0:
                drawing.box(panel.left, y - row / 2, panel.right - panel.left, row, style=' fill-opacity=".045"')
            drawing.text(panel.left - 7, y, names[place], anchor="end")
            found = [report.by_role.get(role, {}).get(metric) for report in reports.values()]
            if not any(found):
                drawing.text(panel.left + 4, y, ABSENT, style=' fill-opacity=".6"')
            for series, score in enumerate(found):
                if score is not None:
                    panel.score(y + (series - (len(found) - 1) / 2) * aside, score, series)
    for at, key in enumerate(keys):
        x, y = _FONT + (at % across) * drawing.wide / across, bottom + _BELOW + 14 * (at // across) + 5
        drawing.mark(x, y, at)
        drawing.text(x + 8, y, key)
    return drawing.svg(f"Rouge-L with 95 % intervals by role: {', '.join(metrics)}")


def _rouge_scale(metric: str, upper: float) -> Scale:
    meaning = MEANINGS.get(metric)
    return Scale(f"{metric}: {meaning}" if meaning else metric, "Rouge-L (0 to 1)", high=upper)


def _upper(summaries: Iterable[Summary]) -> float:
    """The end of the shared scale: the highest end of any interval, up to the next tenth."""
    known = [score for summary in summaries for score in summary.values() if score is not None]
    highest = max((max(score.mean, *(score.ends or (score.mean,))) for score in known), default=0)
    return max(math.ceil(round(highest * 10, 6)) / 10, 0.1)


def heat_svg(heat: Heat) -> str:
    """The heat map as an ``<svg>`` element."""
    shown = list(heat.rows)[:MAX_ROLES]
    names = [label(name, 20) for name in shown]
    left, row = 14 + _COLUMN * max(map(width, names), default=0), 16.0
    cell = (_PANEL - _RIGHT - left) / max(len(heat.values), 1)
    drawing = _Drawing(_PANEL, _ABOVE + row * (len(shown) + 1) + 4)
    drawing.text(_FONT, _ABOVE / 2 - 3, heat.title, style=' font-size="10" font-weight="bold"')
    for column, (series, values) in enumerate(zip(heat.series, heat.values, strict=True)):
        x = left + cell * column
        drawing.mark(x + cell / 2, _ABOVE + row / 2, series)
        for place, name in enumerate(shown, start=1):
            score, y = values.get(name), _ABOVE + row * place
            if score is not None:
                step = _step(score.mean, heat)
                color = f' fill="var(--heat-{step + 1}, {HEAT[step]})"'
                drawing.box(x + 0.03 * cell, y + 0.8, 0.94 * cell, row - 1.6, style=color)
            text = ABSENT if score is None else number(score.mean * heat.times, heat.digits)
            faint = ' fill-opacity=".6"' if score is None else ""
            drawing.text(x + cell / 2, y + row / 2, text, anchor="middle", style=f' font-size="8"{faint}')
    for place, name in enumerate(names, start=1):
        drawing.text(left - 6, _ABOVE + row * (place + 0.5), name, anchor="end")
    return drawing.svg(heat.title)


def _step(value: float, heat: Heat) -> int:
    share = (value - heat.low) / (heat.high - heat.low) if heat.high != heat.low else 0.5
    return int(min(max(share, 0), 0.999) * len(HEAT))


def rouge_heat(reports: Mapping[str, ScoreReport], metric: str, series: Mapping[str, int]) -> Heat | None:
    """A metric by role and system; ``None`` where no role has it."""
    roles = roles_of(reports.values())
    values = [
        {role: score for role in roles if (score := report.by_role.get(role, {}).get(metric)) is not None}
        for report in reports.values()
    ]
    if not any(values):
        return None
    highest = max(score.mean for column in values for score in column.values()) or 1.0
    # From the palest step up: there is no "worse than nothing" in Rouge-L.
    numbers = [series[name] for name in reports]
    return Heat(f"{metric} by role: {MEANINGS[metric]}, ×100", roles, values, numbers, -highest, highest)


def series_of(judged: JudgingResult) -> dict[str, int]:
    """System to the number of its color and marker, the same in all pictures of a part."""
    return {one.name: at for at, one in enumerate(judged.models)}


def standing_plots(judged: JudgingResult) -> list[str]:
    """Win rates raw and length-controlled on one scale; share of lists above the baseline, rank and strength."""
    base = label(judged.baseline or "the baseline", 22)
    half = Scale(f"Win rate against {base}", "percent; both orders, ties half", digits=1, times=100, center=0.5)
    free = replace(half, title="The same, length-controlled", axis="percent; at the baseline’s length")
    above = replace(half, title=f"Ranked above {base}", axis="percent of lists; ties half")
    ranked, last = _last_places(judged)
    rank = Scale("Average rank", f"from 1 (best) to {last}", low=1, high=last, digits=2, center=(1 + ranked) / 2)
    zero = f"{base} is 0" if judged.baseline else "their mean is 0"
    strength = Scale("Strength (Bradley-Terry)", f"log-odds; {zero}", low=0, high=0, digits=2, center=0)
    lists = judged.judged("listwise")
    others = [one for one in lists if one.kind != "baseline"]
    return [
        *_paired(judged, "win_rate", half),
        *_paired(judged, "lc_win_rate", free),
        *_dots(judged, others, lambda one: (one.listwise or Listwise()).win_rate, above),
        *_dots(judged, lists, lambda one: (one.listwise or Listwise()).average_rank, rank),
        *_dots(judged, lists, lambda one: one.strength, strength),
    ]


def habit_plots(judged: JudgingResult, lengths: Sequence[tuple[str, Interval]]) -> list[str]:
    """What an unbiased judge would not show: positions, lengths and names that change verdicts."""
    position = judged.diagnostics.position or PositionBias()
    pairs, length = position.pairwise or PairBias(), judged.diagnostics.length or LengthBias()
    found = [
        ("the first answer shown", pairs.first_preferred),
        ("the longer answer", length.longer_preferred),
    ]
    half = Scale("Preference, whoever wrote it", "percent; 50 means no bias", digits=1, times=100, center=0.5)
    lines = [Dot(name, (score,), 5) for name, score in found if score is not None]
    made = [dots_svg(lines, [half], f"{half.title}, percent")] if lines else []
    agree = Scale("Both orders agree", "percent of pairs", digits=1, times=100)
    named = Scale(
        "Effect of the name", "points of win rate; 0 means none", low=-0.05, high=0.05, digits=1, times=100, center=0
    )
    made += [*_paired(judged, "consistency", agree), *_paired(judged, "name_effect", named)]
    if lengths:
        scale = Scale("Win rate by length", "percent, by length over the baseline’s", digits=1, times=100, center=0.5)
        made.append(dots_svg([Dot(name, (score,), 5) for name, score in lengths], [scale], "Win rate by length"))
    places = (position.listwise or ListBias()).mean_rank_by_place
    return [*made, _places(places)] if len(places) > 1 else made


def _paired(judged: JudgingResult, measure: str, scale: Scale) -> list[str]:
    """One panel of a measure in pairs, or none."""

    def score(one: SystemFigures) -> Interval | None:
        found: Metric = getattr(one.pairwise, measure)
        return found

    return _dots(judged, judged.judged("pairwise"), score, scale)


def _dots(
    judged: JudgingResult,
    models: Sequence[SystemFigures],
    score: Callable[[SystemFigures], Interval | None],
    scale: Scale,
) -> list[str]:
    """One panel, or none where there is nothing to draw."""
    series = series_of(judged)
    lines = [Dot(_plot_name(one), (score(one),), series[one.name]) for one in models]
    found = [line.scores[0] for line in lines]
    if not any(score is not None for score in found):
        return []
    step = 0.5 if scale.times == 1 else 0.1
    return [dots_svg(lines, [spread(scale, found, step=step)], f"{scale.title}, {scale.axis}")]


def _plot_name(model: SystemFigures) -> str:
    """A system's name, and that it is a canary where the name does not say so."""
    return f"{label(model.name, 18)} (canary)" if model.band and model.band in model.marks else model.name


def spread(scale: Scale, scores: Sequence[Interval | None], *, step: float = 0.1) -> Scale:
    """The scale, widened in whole steps until it holds every interval and the center; never narrowed, never empty."""
    known = [score for score in scores if score is not None]
    ends = [end for score in known for end in (score.mean, *(score.ends or ()))]
    ends += [] if scale.center is None else [scale.center]
    low, high = min(ends, default=scale.low), max(ends, default=scale.high)
    low, high = (math.floor(round(low / step, 6)) * step, math.ceil(round(high / step, 6)) * step)
    low, high = min(scale.low, low), max(scale.high, high)
    return replace(scale, low=low, high=high) if low < high else replace(scale, low=low - step, high=high + step)


def _places(means: Sequence[float]) -> str:
    """Mean rank at each position of a list, around the rank that every position would have without bias."""
    middle = (1 + len(means)) / 2
    words = f"rank; {middle:g} everywhere means no bias"
    scale = Scale("Mean rank by position in the list", words, middle - 0.5, middle + 0.5, digits=2, center=middle)
    known = [Interval(mean) for mean in means]
    lines = [Dot(f"shown at position {at}", (score,), 5) for at, score in enumerate(known, start=1)]
    return dots_svg(lines, [spread(scale, known, step=0.5)], scale.title)


def _last_places(judged: JudgingResult) -> tuple[int, int]:
    """The last place of a model in the lists, and the last of all: a canary's, which is ranked among all the models."""
    lists = judged.judged("listwise")
    canaries = sum(one.kind == "canary" for one in lists)
    ranked = max(len(lists) - canaries, 2)
    return ranked, ranked + (canaries > 0)


def role_heat(judged: JudgingResult, design: Design) -> Heat | None:
    """Roles by systems: win rates in pairs, average ranks in lists."""
    roles, models = judged.places(design, "by_role"), judged.judged(design)
    if not roles:
        return None
    series = series_of(judged)
    values, numbers = [one.group(design, "by_role") for one in models], [series[one.name] for one in models]
    if design == "pairwise":
        return Heat("Win rate by role, %", roles, values, numbers)
    # Low ranks are good, and the colors of "more" stand for good.
    return Heat("Average rank by role", roles, values, numbers, float(_last_places(judged)[1]), 1.0, 1, 1.0)
