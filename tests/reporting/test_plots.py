import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rolellm.reporting.plots import MARKERS, MAX_ROLES, SERIES, intervals_svg, rouge_heat
from rolellm.scoring.score_report import ScoreReport

from .conftest import make_values, read_reports
from .rendered import SVG, list_texts

Values = dict[str, dict[str, Any]]
Reports = dict[str, ScoreReport]


def paths(svg: str, kind: str) -> list[dict[str, str]]:
    return [path.attrib for path in ET.fromstring(svg).iter(f"{SVG}path") if path.get("class") == kind]


def heat(reports: Reports, metric: str) -> str:
    return rouge_heat(reports, metric, {name: at for at, name in enumerate(reports)}) or pytest.fail("no roles")


def dots(svg: str) -> list[tuple[int, float, float]]:
    """Each dot's series (from 1) and where it is."""
    found = []
    for mark in paths(svg, "mark"):
        x, y = map(float, re.findall(r"[\d.]+", mark["transform"]))
        found.append((int(re.findall(r"--series-(\d)", mark["fill"])[0]), x, y))
    return found


def whiskers(svg: str) -> list[tuple[float, float]]:
    ends = [[float(number) for number in re.findall(r"-?[\d.]+", line["d"])] for line in paths(svg, "whisker")]
    return [(x0, x1) for x0, _, x1, _ in ends]


def scale(svg: str) -> Callable[[float], float]:
    """From a score to where it must be, by the numbers under the axis."""
    centered = [e for e in ET.fromstring(svg).iter(f"{SVG}text") if e.get("text-anchor") == "middle"]
    ticks = [e for e in centered if re.fullmatch(r"[\d.]+", e.text or "")]
    (low, x_low), (high, x_high) = [(float(t.text or ""), float(t.attrib["x"])) for t in (ticks[0], ticks[-1])]
    return lambda score: x_low + (score - low) / (high - low) * (x_high - x_low)


def test_dots_and_whiskers_are_where_the_scores_are(values: Values, reports: Reports) -> None:
    svg = intervals_svg(reports, "RAW")
    place = scale(svg)
    expected = [report["metrics"]["RAW"] for report in values.values()]
    assert [series for series, _, _ in dots(svg)] == [1, 2, 3]
    assert [x for _, x, _ in dots(svg)] == pytest.approx([place(score["mean"]) for score in expected], abs=0.01)
    flat = [end for pair in whiskers(svg) for end in pair]
    assert flat == pytest.approx([place(end) for score in expected for end in score["ci95"]], abs=0.01)


def test_panels_share_one_scale(values: Values) -> None:
    values["untuned"]["metrics"]["SPE"] = {"mean": 0.72, "ci95": [0.7, 0.83], "n": 9}
    reports = read_reports(values)
    for metric in ("CUS", "RAW", "SPE"):
        shown = [text for text in list_texts(intervals_svg(reports, metric)) if re.fullmatch(r"[\d.]+", text)]
        assert shown[:5] == ["0", "0.2", "0.4", "0.6", "0.8"]


def test_what_is_absent_is_not_drawn(values: Values) -> None:
    full = len(dots(intervals_svg(read_reports(values), "CUS")))
    values["tuned"]["metrics"]["CUS"] = None
    assert len(dots(intervals_svg(read_reports(values), "CUS"))) == full - 1
    nothing = {"mean": 0.0, "ci95": None, "n": 3}
    values["tuned"]["metrics"]["CUS"] = nothing
    svg = intervals_svg(read_reports(values), "CUS")
    assert len(dots(svg)) == full
    assert min(x for _, x, _ in dots(svg)[:9]) == pytest.approx(scale(svg)(0), abs=0.01)


def test_stands_alone_and_follows_the_page(reports: Reports) -> None:
    svg = intervals_svg(reports, "CUS")
    root = ET.fromstring(svg)
    assert root.tag == f"{SVG}svg" and root.get("role") == "img" and "Rouge-L" in root.get("aria-label", "")
    assert svg.count("http") == 1  # the name space
    assert "<style" not in svg and "<metadata" not in svg and " id=" not in svg
    assert not set(re.findall(r"#[0-9a-f]{6}", svg)) - set(SERIES)
    assert min(float(size) for size in re.findall(r'font-size="([\d.]+)"', svg)) >= 8


@given(name=st.text(st.characters(), max_size=40), role=st.text(st.characters(), max_size=40))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_names_make_a_well_formed_picture(name: str, role: str) -> None:
    reports = read_reports(make_values(systems={name: 0.2}, roles=[role]))
    ET.fromstring(intervals_svg(reports, "CUS"))
    ET.fromstring(heat(reports, "CUS"))


def test_many_systems_and_roles_stay_bounded() -> None:
    systems = {f"system {at}": 0.05 * at for at in range(1, 15)}
    reports = read_reports(make_values(systems=systems, roles=[f"role {at}" for at in range(MAX_ROLES + 30)]))
    svg = heat(reports, "CUS")
    assert len(svg) < 900_000
    drawn = set(list_texts(svg))
    assert f"role {MAX_ROLES - 1}" in drawn and f"role {MAX_ROLES}" not in drawn
    marks = {(mark["d"], mark["fill"]) for mark in paths(svg, "mark")}
    assert len(marks) == 14 < len(MARKERS) * len(SERIES)


def test_nothing_to_draw_is_still_a_picture() -> None:
    bare = read_reports({"x": {"protocol": "paper", "metrics": {}}})
    for svg in (intervals_svg(bare, "CUS"), intervals_svg({}, "CUS")):
        assert dots(svg) == [] and ET.fromstring(svg).tag == f"{SVG}svg"
    assert rouge_heat(bare, "CUS", {"x": 0}) is None
