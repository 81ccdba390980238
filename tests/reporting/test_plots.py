"""Pictures: dots and whiskers are where the scores are, no line crosses a text, and absent scores stay absent."""

import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rolellm.judging.result import JudgingResult
from rolellm.reporting.plots import MARKERS, SERIES, plot_scores, plot_verdicts
from rolellm.scoring.score_report import ScoreReport

from .conftest import make_values, read_reports
from .judged_run import MODELS
from .rendered import SVG, list_texts

Values = dict[str, dict[str, Any]]
Reports = dict[str, ScoreReport]


def number(names: Any) -> dict[str, int]:
    return {name: index for index, name in enumerate(names)}


def plot(reports: Reports) -> str:
    return plot_scores(reports, number(reports)) or pytest.fail("no scores")


def paths(svg: str, kind: str) -> list[dict[str, str]]:
    return [path.attrib for path in ET.fromstring(svg).iter(f"{SVG}path") if path.get("class") == kind]


def list_x(values: list[str]) -> list[float]:
    return [float(re.findall(r"-?[\d.]+", value)[0]) for value in values]


def find_dots(svg: str) -> list[tuple[int, float]]:
    """Each dot's series, from 1, and where it is."""
    marks = paths(svg, "mark")
    places = list_x([mark["transform"] for mark in marks])
    return [(int(re.findall(r"--series-(\d)", mark["fill"])[0]), x) for mark, x in zip(marks, places, strict=True)]


def find_whiskers(svg: str) -> list[float]:
    ends = [[float(value) for value in re.findall(r"-?[\d.]+", line["d"])] for line in paths(svg, "whisker")]
    return [x for x0, _, x1, _ in ends for x in (x0, x1)]


def read_scale(svg: str) -> Callable[[float], float]:
    """From a score to where it must be, by the numbers under the axis."""
    ticks = [e for e in ET.fromstring(svg).iter(f"{SVG}text") if e.get("text-anchor") == "middle"]
    (low, x_low), (high, x_high) = [(float(t.text or ""), float(t.attrib["x"])) for t in (ticks[0], ticks[-1])]
    return lambda score: x_low + (score - low) / (high - low) * (x_high - x_low)


def test_dots_and_whiskers_are_where_the_scores_are_and_texts_are_beside_them(values: Values) -> None:
    values["untuned"]["metrics"]["SPE"] = {"mean": 0.72, "ci95": [0.7, 0.83], "n": 9}
    svg = plot(read_reports(values))
    assert svg.count("http") == 1 and "<style" not in svg and " id=" not in svg, "it stands alone"
    place = read_scale(svg)
    expected = [report["metrics"][metric] for metric in ("CUS", "RAW", "SPE") for report in values.values()]
    assert [series for series, _ in find_dots(svg)] == [1, 2, 3] * 3
    assert [x for _, x in find_dots(svg)] == pytest.approx([place(score["mean"]) for score in expected], abs=0.01)
    ends = [place(end) for score in expected for end in score["ci95"]]
    assert find_whiskers(svg) == pytest.approx(ends, abs=0.01)
    heights = [float(re.findall(r"-?[\d.]+", line["d"])[1]) for line in paths(svg, "whisker")]
    for text in ET.fromstring(svg).iter(f"{SVG}text"):
        if min(abs(float(text.attrib["y"]) - height) for height in heights) < 6:
            width = 5.2 * len(text.text or "")
            x = float(text.attrib["x"])
            is_right = text.get("text-anchor") == "end"
            assert x - width > max(ends) if is_right else x + width < place(0)
    assert "0.720 [0.700, 0.830]" in list_texts(svg)


def test_what_is_absent_is_not_drawn_and_zero_is(values: Values) -> None:
    full = len(find_dots(plot(read_reports(values))))
    values["tuned"]["metrics"]["CUS"] = None
    assert len(find_dots(plot(read_reports(values)))) == full - 1
    values["tuned"]["metrics"]["CUS"] = {"mean": 0.0, "ci95": None, "n": 3}
    svg = plot(read_reports(values))
    assert len(find_dots(svg)) == full
    assert min(x for _, x in find_dots(svg)) == pytest.approx(read_scale(svg)(0), abs=0.01)
    bare = read_reports({"x": {"protocol": "paper", "metrics": {}}})
    assert plot_scores(bare, {"x": 0}) is None


@given(name=st.text(st.characters(), max_size=40))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_names_make_a_well_formed_picture(name: str) -> None:
    ET.fromstring(plot(read_reports(make_values(systems={name: 0.2}))))


def test_many_systems_have_a_mark_each() -> None:
    systems = {f"system {index}": 0.05 * index for index in range(1, 15)}
    svg = plot(read_reports(make_values(systems=systems)))
    marks = {(mark["d"], mark["fill"]) for mark in paths(svg, "mark")}
    assert len(marks) == 14 < len(MARKERS) * len(SERIES)


def test_verdicts_have_an_even_line_and_the_highest_canary_as_floor(judged: JudgingResult) -> None:
    svg = plot_verdicts(judged, number(model.name for model in judged.models)) or pytest.fail("no verdicts")
    place = read_scale(svg)
    assert set(MODELS) <= set(list_texts(svg)) and "RoleGPT" not in list_texts(svg)
    score = next(model for model in judged.models if model.name == "Vicuna-13B").measures()["win_rate"]
    canaries = [model.measures()["win_rate"] for model in judged.models if model.kind == "canary"]
    floor = max(rate.mean for rate in canaries if rate)
    assert score is not None and any(text.startswith(f"{100 * score.mean:.1f} [") for text in list_texts(svg))
    even = list_x([line["d"] for line in paths(svg, "center")])
    assert even == pytest.approx([place(50)] * 3, abs=0.01)
    assert list_x([line["d"] for line in paths(svg, "floor")])[0] == pytest.approx(place(100 * floor), abs=0.01)
