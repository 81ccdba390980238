import importlib.util
import os
import re
import subprocess
import sys
import warnings
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rolellm.core.errors import DataError, MissingExtraError
from rolellm.core.sanitize import visible
from rolellm.report.plots import (
    MAX_ROLES,
    SERIES,
    intervals_figure,
    intervals_svg,
    role_intervals_figure,
    role_intervals_svg,
)

Reports = dict[str, dict[str, Any]]
SVG = "{http://www.w3.org/2000/svg}"


def texts(svg: str) -> list[str]:
    return [element.text or "" for element in ET.fromstring(svg).iter(f"{SVG}text")]


def dots(svg: str) -> list[tuple[int, float, float]]:
    """Each dot's series (from 1) and where it stands."""
    found = []
    for use in ET.fromstring(svg).iter(f"{SVG}use"):
        series = re.search(r"fill: var\(--series-(\d)", use.get("style", ""))
        if series:
            found.append((int(series[1]), float(use.attrib["x"]), float(use.attrib["y"])))
    return found


def whiskers(svg: str) -> list[tuple[float, float]]:
    paths = [path.attrib for path in ET.fromstring(svg).iter(f"{SVG}path")]
    lines = [
        path["d"] for path in paths if "stroke: var(--series" in path.get("style", "") and path["d"].count("L") == 1
    ]
    ends = [[float(number) for number in re.findall(r"-?[\d.]+", line)] for line in lines]
    return [(x0, x1) for x0, _, x1, _ in ends]


def scale(svg: str) -> Callable[[float], float]:
    """From a score to where it must stand, by the numbers under the axis."""
    centred = [e for e in ET.fromstring(svg).iter(f"{SVG}text") if "text-anchor: middle" in e.get("style", "")]
    ticks = [e for e in centred if re.fullmatch(r"[\d.]+", e.text or "")]
    (low, x_low), (high, x_high) = [(float(t.text or ""), float(t.attrib["x"])) for t in (ticks[0], ticks[-1])]
    return lambda score: x_low + (score - low) / (high - low) * (x_high - x_low)


def test_dots_and_whiskers_stand_where_the_scores_are(reports: Reports) -> None:
    svg = intervals_svg(reports, metrics=["RAW"])
    place = scale(svg)
    expected = [report["metrics"]["RAW"] for report in reports.values()]
    assert [series for series, _, _ in dots(svg)] == [1, 2, 3]
    assert [x for _, x, _ in dots(svg)] == pytest.approx([place(score["mean"]) for score in expected], abs=0.01)
    flat = [end for pair in whiskers(svg) for end in pair]
    assert flat == pytest.approx([place(end) for score in expected for end in score["ci95"]], abs=0.01)


def test_panels_share_one_scale(reports: Reports) -> None:
    reports["untuned"]["metrics"]["SPE"] = {"mean": 0.72, "ci95": [0.7, 0.83], "n": 9}
    alone, together = intervals_svg(reports, metrics=["CUS"]), intervals_svg(reports)
    assert texts(alone)[:5] == ["0", "0.2", "0.4", "0.6", "0.8"]
    assert texts(together).count("0.8") == 3


def test_by_role_draws_every_role_under_every_system(reports: Reports) -> None:
    svg = role_intervals_svg(reports, metrics=["SPE"])
    place, roles = scale(svg), list(reports["tuned"]["by_role"])
    assert set(roles) | set(reports) | {"SPE: role knowledge", "Rouge-L (0 to 1)"} <= set(texts(svg))
    drawn = sorted(dots(svg), key=lambda dot: dot[2])[: 3 * len(roles)]
    expected = [report["by_role"][role]["SPE"]["mean"] for role in roles for report in reports.values()]
    by_height = [x for _, x, _ in sorted(drawn, key=lambda dot: dot[2])]
    assert by_height == pytest.approx([place(mean) for mean in expected], abs=0.01)


@pytest.mark.parametrize("draw", [intervals_svg, role_intervals_svg])
def test_what_is_absent_is_not_drawn(reports: Reports, draw: Callable[..., str]) -> None:
    full = len(dots(draw(reports, metrics=["CUS"])))
    reports["tuned"]["metrics"]["CUS"] = None
    reports["tuned"]["by_role"]["Captain Ahab"]["CUS"] = None
    assert len(dots(draw(reports, metrics=["CUS"]))) == full - 1
    reports["tuned"]["metrics"]["CUS"] = {"mean": 0.0, "ci95": None, "n": 3}
    reports["tuned"]["by_role"]["Captain Ahab"]["CUS"] = {"mean": 0.0, "ci95": None, "n": 1}
    svg = draw(reports, metrics=["CUS"])
    assert len(dots(svg)) == full
    assert min(x for _, x, _ in dots(svg)[:9]) == pytest.approx(scale(svg)(0), abs=0.01)


def test_a_dash_stands_for_what_is_absent(reports: Reports) -> None:
    for report in reports.values():
        report["metrics"]["RAW"] = None
        report["by_role"]["Captain Ahab"]["RAW"] = None
    assert texts(intervals_svg(reports, metrics=["RAW"])).count("–") == 3
    assert texts(role_intervals_svg(reports, metrics=["RAW"])).count("–") == 1


@pytest.mark.parametrize("draw", [intervals_svg, role_intervals_svg])
def test_stands_alone_and_follows_the_page(reports: Reports, draw: Callable[..., str]) -> None:
    svg = draw(reports)
    root = ET.fromstring(svg)
    assert root.tag == f"{SVG}svg" and root.get("role") == "img" and "Rouge-L" in root.get("aria-label", "")
    assert svg.count("http") == 1  # the name space
    assert "DejaVu" not in svg and "<style" not in svg and "<metadata" not in svg
    assert not set(re.findall(r"#[0-9a-f]{6}", svg)) - set(SERIES)
    ids = [element.get("id") for element in root.iter() if element.get("id")]
    used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', svg))
    assert len(ids) == len(set(ids)) and used == set(ids)
    sizes = [float(size) for size in re.findall(r"font-size: ([\d.]+)px", svg)]
    assert min(sizes) >= 8


def test_the_same_bytes_in_another_process(reports: Reports, tmp_path: Path) -> None:
    script = (
        "import json, sys; from rolellm.report.plots import *; r = json.load(sys.stdin);"
        "sys.stdout.buffer.write((intervals_svg(r) + role_intervals_svg(r)).encode())"
    )
    import json

    written = [
        subprocess.run(
            [sys.executable, "-W", "error", "-c", script],
            input=json.dumps(reports).encode(),
            env=os.environ | {"PYTHONHASHSEED": seed, "MPLCONFIGDIR": str(tmp_path), "SOURCE_DATE_EPOCH": seed},
            capture_output=True,
            check=True,
        ).stdout.decode()
        for seed in ("1", "2")
    ]
    assert written[0] == written[1] == intervals_svg(reports) + role_intervals_svg(reports)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("$\\frac{$ 100 %", id="mathematics"),
        pytest.param("_underscore", id="underscore"),
        pytest.param("</text></svg><script>alert(1)</script>", id="closing-tags"),
        pytest.param('" onload="alert(1)', id="attribute"),
        pytest.param('x id="axes_1" #0072b2', id="looks-like-our-markup"),
        pytest.param("]]><!-- -->&amp;", id="entities"),
        pytest.param("\x1b[31m\u202ea\x00b\ud800\uffff", id="controls"),
        pytest.param("孙悟空 🐒 한국어 العربية", id="scripts"),
        pytest.param("", id="empty"),
    ],
)
def test_a_name_is_only_text(make_reports: Callable[..., Reports], name: str) -> None:
    reports = make_reports(systems={name: 0.2}, roles=[name])
    for svg in (intervals_svg(reports, metrics=["CUS"]), role_intervals_svg(reports, metrics=["CUS"])):
        tags = {element.tag.removeprefix(SVG) for element in ET.fromstring(svg).iter()}
        assert tags <= {"svg", "g", "defs", "path", "use", "text", "clipPath", "rect"}
        shown = " ".join(visible(name).split())
        assert (
            any(text == shown or (text.endswith("…") and shown.startswith(text[:-1])) for text in texts(svg))
            or not name
        )


@given(name=st.text(st.characters(), max_size=40), role=st.text(st.characters(), max_size=40))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_names_make_a_well_formed_picture(make_reports: Callable[..., Reports], name: str, role: str) -> None:
    reports = make_reports(systems={name: 0.2}, roles=[role])
    ET.fromstring(intervals_svg(reports, metrics=["CUS"]))
    ET.fromstring(role_intervals_svg(reports, metrics=["CUS"]))


def test_text_with_our_colour_in_it_is_left_alone(make_reports: Callable[..., Reports]) -> None:
    assert 'ink #1b1f24 id="m1"' in texts(intervals_svg(make_reports(systems={'ink #1b1f24 id="m1"': 0.2})))


def test_many_systems_and_roles_stay_bounded(make_reports: Callable[..., Reports]) -> None:
    systems = {f"system {at}": 0.05 * at for at in range(1, 15)}
    reports = make_reports(systems=systems, roles=[f"role {at}" for at in range(MAX_ROLES + 30)])
    svg = role_intervals_svg(reports, metrics=["CUS"])
    assert len(svg) < 900_000
    drawn = set(texts(svg))
    assert {f"role {MAX_ROLES - 1}", "system 14"} <= drawn and f"role {MAX_ROLES}" not in drawn
    marks = {(use.get("href"), use.get("style")) for use in ET.fromstring(svg).iter(f"{SVG}use")}
    assert len({mark for mark in marks if "var(--series" in (mark[1] or "")}) == 14


def test_nothing_to_draw_is_still_a_picture(make_reports: Callable[..., Reports]) -> None:
    bare = {"x": {"metrics": {}}}
    none = role_intervals_svg(make_reports(roles=[]), legend=False)
    for svg in (intervals_svg(bare), role_intervals_svg(bare, legend=False), none):
        assert dots(svg) == [] and ET.fromstring(svg).tag == f"{SVG}svg"


@pytest.mark.parametrize("draw", [intervals_figure, role_intervals_figure])
def test_figures_for_notebooks(make_reports: Callable[..., Reports], draw: Callable[..., Any], tmp_path: Path) -> None:
    from matplotlib.figure import Figure

    figure = draw(make_reports(roles=["Sherlock Holmes", "Captain Ahab"]), metrics=["CUS", "SPE"])
    assert isinstance(figure, Figure) and len(figure.axes) == 2
    figure.savefig(tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 5_000


def test_drawing_leaves_matplotlib_and_warnings_as_they_were(reports: Reports) -> None:
    import matplotlib

    settings_before, filters_before = dict(matplotlib.rcParams), list(warnings.filters)
    role_intervals_svg(reports)
    assert dict(matplotlib.rcParams) == settings_before and warnings.filters == filters_before


def test_without_matplotlib_the_extra_is_named(reports: Reports, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "matplotlib" else find(name, *rest)
    )
    for draw in (intervals_svg, intervals_figure, role_intervals_figure):
        with pytest.raises(MissingExtraError, match=r"pip install \"rolellm\[demo\]\""):
            draw(reports)


def test_a_broken_report_is_refused(reports: Reports) -> None:
    reports["tuned"]["metrics"]["CUS"]["mean"] = float("nan")
    with pytest.raises(DataError, match="must be finite"):
        intervals_svg(reports)
