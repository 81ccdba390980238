"""What all pictures share: panels laid out by the inch, ink, axes and signs, and the way to one ``<svg>`` element.

An ``<svg>`` takes its colours from the page around it (``currentColor``, ``--series-1`` to ``--series-6`` and
``--heat-1`` to ``--heat-11`` where the page sets them) and its fonts from the reader, so that Chinese names show
wherever the reader has a font for them.
"""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from rolellm.core import errors as extras
from rolellm.report.scores import Estimate
from rolellm.report.svg import tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SERIES = ("#0072b2", "#d55e00", "#008a64", "#aa4499", "#a97800", "#667085")
"""A colour a system, apart for colour-blind readers (after Okabe and Ito, darkened to stand on white)."""

MARKERS = MappingProxyType({"o": "●", "s": "■", "D": "◆", "^": "▲", "v": "▼", "P": "✚", "X": "✖"})
"""A marker a system, as matplotlib and as text name it, so that colour never carries the meaning alone.

One more than there are colours, so that the pairs of both repeat only after 42 systems.
"""

HEAT = (
    *("#e2935a", "#ebad80", "#f2c7a6", "#f7ddc8", "#faeee3"),
    "#f3f3ef",
    *("#e3eef6", "#c8deee", "#a5cae3", "#7fb3d6", "#5a9bc8"),
)
"""From least to most, in steps that a page may replace; the middle one says neither."""

MAX_ROLES = 120
"""Roles drawn in one picture; a table has no such bound."""

INK = "#1b1f24"
PANEL = 3.7  # inches; about the width of a phone's screen
FONT = 9.0  # points
EM = 0.56 * FONT / 72  # inches; a column of text, a little above the mean of sans-serif fonts
SVG_FONTS = ("DejaVu Sans",)  # comes with matplotlib, so that the layout is the same everywhere
_CJK_FONTS = frozenset(
    {
        "Noto Sans CJK SC",
        "Noto Sans SC",
        "Source Han Sans SC",
        "PingFang SC",
        "Hiragino Sans GB",
        "Microsoft YaHei",
        "WenQuanYi Micro Hei",
        "WenQuanYi Zen Hei",
        "SimHei",
        "Arial Unicode MS",
    }
)


@dataclass(frozen=True, slots=True)
class Scale:
    """What a panel shows along its axis.

    Attributes:
        title: Above the panel.
        axis: Under it.
        low: Where the axis begins, in the unit of the estimates.
        high: Where it ends.
        digits: Of a number written beside a dot.
        times: What an estimate is multiplied by to be written, such as 100 for percent.
        centre: Where a line stands for "no difference"; ``None`` for no such line.
    """

    title: str
    axis: str
    low: float = 0.0
    high: float = 1.0
    digits: int = 3
    times: float = 1.0
    centre: float | None = None


@dataclass(frozen=True, slots=True)
class Panel:
    """A place to draw in."""

    axes: Axes
    scale: Scale
    fonts: tuple[str, ...]

    def text(self, x: float, y: float, text: str, *, shift: tuple[float, float] = (0, 0), **style: Any) -> None:
        """Write what people wrote, which is never mathematics; ``x`` in axes, ``y`` in data, ``shift`` in points."""
        base: dict[str, Any] = {"fontsize": FONT, "color": INK, "fontfamily": list(self.fonts)}
        base |= {"xycoords": self.axes.get_yaxis_transform(), "va": "center_baseline"}
        self.axes.annotate(
            text,
            (x, y),
            xytext=shift,
            textcoords="offset points",
            annotation_clip=False,
            parse_math=False,
            **(base | style),
        )

    def scores(self, placed: Sequence[tuple[float, Estimate]], series: int) -> None:
        """Draw a system's scores, each at its height: a dot, and a whisker over the 95 % interval where it is known."""
        colour, marker, times = SERIES[series % len(SERIES)], list(MARKERS)[series % len(MARKERS)], self.scale.times
        spans = [(y, *(end * times for end in score.interval)) for y, score in placed if score.interval is not None]
        if spans:
            self.axes.hlines(*zip(*spans, strict=True), color=colour, linewidth=1.8, clip_on=False)
        means, heights = [score.mean * times for _, score in placed], [y for y, _ in placed]
        self.axes.plot(means, heights, marker, color=colour, markersize=5.2, clip_on=False)


def installed_fonts() -> tuple[str, ...]:
    """Fonts for a picture that brings its own glyphs: matplotlib's, then whichever Chinese ones this computer has."""
    extras.require("matplotlib", extra="demo")
    from matplotlib import font_manager

    return (*SVG_FONTS, *sorted(_CJK_FONTS & set(font_manager.get_font_names())))


def panels(
    scales: Sequence[Scale], fonts: tuple[str, ...], *, rows_high: float, left: float, below: float = 0.0
) -> tuple[Figure, list[Panel]]:
    """Lay out panels side by side by the inch: measuring text would tie the layout to the fonts of one computer.

    Args:
        scales: What each panel shows.
        fonts: Families, the first for all but names.
        rows_high: Height of the part that is drawn in, in inches.
        left: Room for names at the left of each panel, in inches.
        below: Room under all of them, in inches.

    Raises:
        MissingExtraError: Without matplotlib; names the extra that brings it.
    """
    extras.require("matplotlib", extra="demo")
    from matplotlib.figure import Figure

    above, under, right = 0.36, 0.42 + below, 0.16
    rows_high = max(rows_high, 0.5)
    wide, high = PANEL * len(scales), above + rows_high + under
    figure = Figure(figsize=(wide, high))
    made = []
    for at, scale in enumerate(scales):
        box = ((at * PANEL + left) / wide, under / high, (PANEL - left - right) / wide, rows_high / high)
        panel = Panel(figure.add_axes(box), scale, fonts)
        _frame(panel)
        made.append(panel)
    return figure, made


def _frame(panel: Panel) -> None:
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter

    axes, scale = panel.axes, panel.scale
    axes.set_xlim(scale.low * scale.times, scale.high * scale.times)
    bare(panel)
    axes.spines["bottom"].set_visible(True)
    axes.spines["bottom"].set_color(INK)
    axes.spines["bottom"].set_alpha(0.4)
    axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.tick_params(axis="x", length=0, colors=INK, labelsize=FONT - 0.5, labelfontfamily=panel.fonts[0])
    axes.grid(axis="x", color=INK, alpha=0.14, linewidth=0.6)
    axes.set_axisbelow(True)
    if scale.centre is not None:
        axes.axvline(scale.centre * scale.times, color=INK, alpha=0.55, linewidth=0.9, linestyle=(0, (4, 3)))


def bare(panel: Panel) -> None:
    """Take all lines and ticks away; the title and the words under the axis stay."""
    axes = panel.axes
    axes.patch.set_visible(False)
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_visible(False)
    words: dict[str, Any] = {"color": INK, "fontfamily": panel.fonts[0]}
    axes.set_xlabel(panel.scale.axis, fontsize=FONT - 0.5, labelpad=3, parse_math=False, **words)
    title: dict[str, Any] = words | {"fontsize": FONT + 1, "fontweight": "bold", "parse_math": False}
    axes.set_title(panel.scale.title, loc="left", pad=8, **title)


def legend(figure: Figure, names: Sequence[str], in_a_line: int, fonts: tuple[str, ...]) -> None:
    """Say at the bottom which colour and marker is which name."""
    from matplotlib.lines import Line2D

    keys = [
        Line2D([], [], color=SERIES[at % len(SERIES)], marker=list(MARKERS)[at % len(MARKERS)], markersize=5.2)
        for at in range(len(names))
    ]
    style: dict[str, Any] = {"family": list(fonts), "size": FONT}
    shown = figure.legend(keys, names, loc="lower left", ncols=in_a_line, frameon=False, prop=style)
    for text in shown.get_texts():
        text.set_parse_math(False)
        text.set_color(INK)


def spread(scale: Scale, scores: Sequence[Estimate | None], *, step: float = 0.1) -> Scale:
    """The scale, widened in whole steps until it holds every interval and the centre; never narrowed, never empty."""
    known = [score for score in scores if score is not None]
    ends = [end for score in known for end in (score.mean, *(score.interval or ()))]
    ends += [] if scale.centre is None else [scale.centre]
    low, high = min(ends, default=scale.low), max(ends, default=scale.high)
    low, high = (math.floor(round(low / step, 6)) * step, math.ceil(round(high / step, 6)) * step)
    low, high = min(scale.low, low), max(scale.high, high)
    return replace(scale, low=low, high=high) if low < high else replace(scale, low=low - step, high=high + step)


def svg(figure: Figure, title: str) -> str:
    """The figure as one ``<svg>`` element; the same bytes for the same picture.

    Args:
        figure: Drawn in the colours of this module.
        title: What it shows, for those who cannot see it.
    """
    from matplotlib import rc_context

    colours = {INK: "currentColor"} | {c: f"var(--series-{at}, {c})" for at, c in enumerate(SERIES, start=1)}
    colours |= {c: f"var(--heat-{at}, {c})" for at, c in enumerate(HEAT, start=1)}
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    stream = io.StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "rolellm"}), warnings.catch_warnings():
        # The text stays text and the reader's fonts show it, so what matplotlib's own font lacks is of no matter.
        warnings.filterwarnings("ignore", message=r"Glyph \d+ .*missing from font", category=UserWarning)
        figure.savefig(stream, format="svg", metadata=nothing, transparent=True)
    return tidy(stream.getvalue(), title=title, colours=colours)
