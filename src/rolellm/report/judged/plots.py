"""The pictures of a judging run: win rates and ranks with intervals, heat maps by role, and the judges' habits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from rolellm.core.sanitize import label, width
from rolellm.report.canvas import (
    EM,
    HEAT,
    INK,
    MARKERS,
    MAX_ROLES,
    SERIES,
    SVG_FONTS,
    Panel,
    Scale,
    panels,
    spread,
    svg,
)
from rolellm.report.cells import ABSENT, number
from rolellm.report.judged.result import Design, Judged, Model
from rolellm.report.plots import Dot, dots_svg
from rolellm.report.scores import Estimate


@dataclass(frozen=True, slots=True)
class Heat:
    """A heat map: rows downwards, a column a system.

    Attributes:
        title: Above it.
        rows: Names, such as roles; the first 120 are drawn.
        values: A column's estimates by row name.
        series: The number of each column's colour and marker, which stand at its head.
        low: What gets the first colour.
        high: What gets the last one.
        digits: Of the numbers in the cells.
        times: What they are multiplied by.
    """

    title: str
    rows: Sequence[str]
    values: Sequence[Mapping[str, Estimate]]
    series: Sequence[int]
    low: float = 0.0
    high: float = 1.0
    digits: int = 0
    times: float = 100.0


def series_of(judged: Judged) -> dict[str, int]:
    """Contestant to the number of its colour and marker, the same in all pictures of a part."""
    return {one.name: at for at, one in enumerate(judged.models)}


def plot_name(model: Model) -> str:
    """A contestant's name, and that it is a canary where the name does not say so."""
    return f"{label(model.name, 18)} (canary)" if model.band and model.band in model.marks else model.name


def standing_plots(judged: Judged) -> list[str]:
    """Win rates raw and length-controlled on one scale; share of lists above the baseline, rank and strength."""
    base = label(judged.baseline or "the baseline", 22)
    half = Scale(f"Win rate against {base}", "percent; both orders, ties half", digits=1, times=100, centre=0.5)
    free = replace(half, title="The same, length-controlled", axis="percent; as if as long as the baseline")
    above = replace(half, title=f"Ranked above {base}", axis="percent of lists; ties half")
    ranked, last = _last_places(judged)
    rank = Scale("Average rank", f"from 1 (best) to {last}", low=1, high=last, digits=2, centre=(1 + ranked) / 2)
    zero = f"{base} is 0" if judged.baseline else "their mean is 0"
    strength = Scale("Strength (Bradley-Terry)", f"log-odds; {zero}", low=0, high=0, digits=2, centre=0)
    pairs, lists = judged.judged("pairwise"), judged.judged("listwise")
    others = [one for one in lists if one.kind != "baseline"]
    return [
        *_dots(judged, pairs, lambda one: one.estimate("pairwise", "win_rate"), half),
        *_dots(judged, pairs, lambda one: one.estimate("pairwise", "lc_win_rate"), free),
        *_dots(judged, others, lambda one: one.estimate("listwise", "win_rate"), above),
        *_dots(judged, lists, lambda one: one.estimate("listwise", "average_rank"), rank),
        *_dots(judged, lists, lambda one: one.strength, strength),
    ]


def habit_plots(judged: Judged, lengths: Sequence[tuple[str, Estimate]]) -> list[str]:
    """What an unbiased judge would not show: places, lengths and names that change verdicts."""
    half = Scale("Preferred whoever gave it", "percent; 50 is no habit", digits=1, times=100, centre=0.5)
    found = [
        ("the first answer shown", judged.bias("position", "pairwise", "first_preferred")),
        ("the longer answer", judged.bias("length", "longer_preferred")),
    ]
    lines = [Dot(name, (score,), 5) for name, score in found if score is not None]
    made = [dots_svg(lines, [half], f"{half.title}, percent")] if lines else []
    agree = Scale("Both orders agree", "percent of pairs", digits=1, times=100)
    pairs = judged.judged("pairwise")
    made += _dots(judged, pairs, lambda one: one.estimate("pairwise", "consistency"), agree)
    named = Scale(
        "Effect of the name", "points of win rate; 0 is none", low=-0.05, high=0.05, digits=1, times=100, centre=0
    )
    made += _dots(judged, pairs, lambda one: one.estimate("pairwise", "name_effect"), named)
    if lengths:
        scale = Scale("Win rate by length", "percent, by length over the baseline’s", digits=1, times=100, centre=0.5)
        made.append(dots_svg([Dot(name, (score,), 5) for name, score in lengths], [scale], "Win rate by length"))
    places = judged.diagnostic("position", "listwise", "mean_rank_by_place") or []
    if len(places) > 1:
        made.append(_places(places))
    return made


def _dots(
    judged: Judged, models: Sequence[Model], score: Callable[[Model], Estimate | None], scale: Scale
) -> list[str]:
    """One panel, or none where there is nothing to draw."""
    series = series_of(judged)
    lines = [Dot(plot_name(one), (score(one),), series[one.name]) for one in models]
    found = [line.scores[0] for line in lines]
    if not any(score is not None for score in found):
        return []
    step = 0.5 if scale.times == 1 else 0.1
    return [dots_svg(lines, [spread(scale, found, step=step)], f"{scale.title}, {scale.axis}")]


def _places(means: Sequence[float]) -> str:
    """Mean rank at each place of a list, as bars from the rank that every place would have without a habit."""
    middle = (1 + len(means)) / 2
    scale = Scale("Mean rank by place in the list", f"rank; {middle:g} everywhere is no habit", digits=2, centre=middle)
    known = [Estimate(float(mean)) for mean in means]
    wide = spread(
        Scale(scale.title, scale.axis, low=middle, high=middle, digits=2, centre=middle),
        [*known, Estimate(middle - 0.5), Estimate(middle + 0.5)],
        step=0.5,
    )
    lines = [Dot(f"shown at place {at}", (score,), 5) for at, score in enumerate(known, start=1)]
    return dots_svg(lines, [wide], scale.title)


def _last_places(judged: Judged) -> tuple[int, int]:
    """The last place of a model in the lists, and the last of all: a canary's, which is ranked among all the models."""
    lists = judged.judged("listwise")
    canaries = sum(one.kind == "canary" for one in lists)
    ranked = max(len(lists) - canaries, 2)
    return ranked, ranked + (canaries > 0)


def role_heat(judged: Judged, design: Design) -> Heat | None:
    """Roles by contestants: win rates in pairs, average ranks in lists."""
    roles, models = judged.places(design, "by_role"), judged.judged(design)
    if not roles:
        return None
    series = series_of(judged)
    values, numbers = [one.group(design, "by_role") for one in models], [series[one.name] for one in models]
    if design == "pairwise":
        return Heat("Win rate by role, %", roles, values, numbers)
    # Low ranks are good, and the colours of "more" stand for good.
    return Heat("Average rank by role", roles, values, numbers, float(_last_places(judged)[1]), 1.0, 1, 1.0)


def heat_svg(heat: Heat) -> str:
    """The heat map as an ``<svg>`` element; the same bytes for the same values."""
    from matplotlib.patches import Rectangle

    shown = list(heat.rows)[:MAX_ROLES]
    names = [label(name, 20) for name in shown]
    left = 0.12 + EM * max(map(width, names), default=0)
    scale = Scale(heat.title, "")
    figure, (panel,) = panels([scale], SVG_FONTS, rows_high=0.22 * (len(shown) + 1), left=left, below=-0.32)
    columns = len(heat.values)
    panel.axes.set_xlim(0, columns)
    panel.axes.set_ylim(len(shown), -1)
    panel.axes.axis("off")
    panel.axes.set_title(
        heat.title, loc="left", pad=8, color=INK, fontsize=10, fontweight="bold", x=-left / (3.54 - left)
    )
    for column, (series, values) in enumerate(zip(heat.series, heat.values, strict=True)):
        colour, marker = SERIES[series % len(SERIES)], list(MARKERS)[series % len(MARKERS)]
        panel.axes.plot([column + 0.5], [-0.5], marker, color=colour, markersize=5.2, clip_on=False)
        for row, name in enumerate(shown):
            score = values.get(name)
            if score is not None:
                box = Rectangle((column + 0.03, row + 0.05), 0.94, 0.9, color=_heat(score.mean, heat), linewidth=0)
                panel.axes.add_artist(box)  # no limits to find anew, which takes most of the time
            _cell(panel, (column + 0.5) / columns, row + 0.5, score, heat)
    for row, name in enumerate(names):
        panel.text(0, row + 0.5, name, shift=(-6, 0), ha="right")
    return svg(figure, heat.title)


def _cell(panel: Panel, x: float, y: float, score: Estimate | None, heat: Heat) -> None:
    text = ABSENT if score is None else number(score.mean * heat.times, heat.digits)
    panel.text(x, y, text, ha="center", fontsize=8, alpha=0.6 if score is None else 1.0)


def _heat(value: float, heat: Heat) -> str:
    share = (value - heat.low) / (heat.high - heat.low) if heat.high != heat.low else 0.5
    return HEAT[min(max(int(share * len(HEAT)), 0), len(HEAT) - 1)]
