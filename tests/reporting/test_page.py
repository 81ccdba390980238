"""A report's page, its tables and its pictures: the numbers are the results', and every text stays a text."""

import io
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console

from rolellm.core.errors import DataError
from rolellm.core.table import Table
from rolellm.judging.result import JudgingResult
from rolellm.reporting.blocks import lay_out_made
from rolellm.reporting.findings import LeadingAnswer
from rolellm.reporting.page import PageContent, Section, write_page
from rolellm.reporting.plots import MARKERS, SERIES, plot_scores, plot_verdicts
from rolellm.reporting.tables import (
    differences_table,
    group_table,
    role_table,
    system_table,
)
from rolellm.scoring.published import PUBLISHED
from rolellm.scoring.score_report import ScoreReport
from rolellm.version import __version__

from .conftest import MADE, PAYLOADS, make_content, make_hostile, make_values, parse, read_reports
from .judged_run import MODELS
from .rendered import SVG, assert_harmless, list_texts, render_page, squeeze

Values = dict[str, dict[str, Any]]
_TAGS = (
    "html head meta title style body header main section footer h1 h2 h3 h4 p b code span ul li details summary nav a"
    " figure figcaption div table caption thead tbody tr th td pre svg path text rect"
)
HTML_TAGS = set(re.findall(r"\w+", _TAGS))


def test_one_file_that_needs_nothing_else(content: PageContent, tmp_path: Path) -> None:
    out = write_page(tmp_path / "new folder" / "report.html", content)
    assert [file.name for file in out.parent.iterdir()] == ["report.html"]
    html = out.read_text(encoding="utf-8")
    page = parse(html)
    assert html.startswith("<!doctype html>")
    assert_harmless(html, page)
    assert "http" not in html.replace("http-equiv", "")
    assert "//" not in page.styles and "@import" not in page.styles and "url(" not in html


def test_everything_that_was_measured_is_there(values: Values, content: PageContent) -> None:
    page = parse(render_page(content))
    text = squeeze(page.text)
    for name, report in values.items():
        assert name in text and report["fingerprint"]["predictions"]["sha256"] in text
        line = next(row for row in page.rows if row[0] == name and len(row) == 5)
        for cell, metric in zip(line[1:4], ("CUS", "RAW", "SPE"), strict=True):
            score = report["metrics"][metric]
            low, high = score["ci95"]
            assert squeeze(cell) == f"{score['mean']:.3f} [{low:.3f}, {high:.3f}]"
        assert squeeze(line[4]) == f"{report['metrics']['avg']['mean']:.3f}"
    for role in ("Sherlock Holmes", "Captain Ahab", "孙悟空"):
        assert sum(role in cell for row in page.rows for cell in row) == 1
    assert page.tags.count("svg") == 1 and page.text.count("Download as SVG") == 1
    assert content.title in text and content.split_note in text and content.summary in text
    assert [row[1:] for row in page.rows if row[0] == "untuned"][-1] == ["1", "2"]
    assert f"rolellm {__version__}" in text and '"name": "adamw"' in text


def test_the_first_screen_is_a_verdict_its_evidence_and_a_picture(content: PageContent) -> None:
    answers = [
        LeadingAnswer("tuned is ahead of untuned in style.", "By 0.2.", ("Not decided: accuracy.",), "It fails.")
    ]
    html = render_page(replace(content, answers=answers, findings=["More."], warnings=["Careful."]))
    page = parse(html)
    words = ("Careful.", *answers[0].sentences[:2], "Not decided", "It fails.", "More.")
    places = [squeeze(page.text).index(word) for word in words]
    assert places == sorted(places) and html.index("<svg") < html.index("<details") < html.index("<table")


def test_roles_made_from_scripts_have_counts_and_pairs(content: PageContent) -> None:
    assert 'id="made"' not in render_page(content)
    page = parse(render_page(replace(content, blocks=[lay_out_made(MADE)])))
    assert page.unbalanced == [] and page.ids.count("made") == 1
    text = squeeze(page.text)
    assert text.count("63 question pairs made, 51 kept, 60 styled replies") == 2
    assert "Rules answered." in text and text.count("script-based Ada, who moors here? I do!") == 2


def test_the_least_that_is_a_report() -> None:
    bare = {"protocol": "paper", "metrics": {"CUS": {"mean": 0.25, "ci95": None, "n": None}}}
    html = render_page(make_content(read_reports({"x": {**bare, "warnings": ["<b>2</b> were empty"]}})))
    assert "<li>x: &lt;b&gt;2&lt;/b&gt; were empty</li>" in html
    page = parse(html)
    assert [cell.strip() for cell in page.rows[1]] == ["x", "0.250", "–", "–", "–"]
    assert page.unbalanced == [] and page.tags.count("svg") == 1
    for nothing in ([], [Section("", {})]):
        with pytest.raises(DataError, match="at least one system"):
            render_page(PageContent("None", nothing))


@pytest.mark.parametrize("payload", PAYLOADS)
def test_text_is_only_text(tmp_path: Path, payload: str) -> None:
    system, role = f"S{payload}", f"R{payload}"
    values = make_values(systems={system: 0.2, "other": 0.4}, roles=[role])
    values[system] |= {"fingerprint": {payload: [payload, {"x": payload}]}, "config": payload, "warnings": [payload]}
    section = Section(payload, read_reports(values))
    content = PageContent(
        payload,
        [section],
        answers=[LeadingAnswer(payload, payload, (payload,), payload)],
        split_note=payload,
        summary=payload,
        warnings=[payload],
        findings=[payload],
        recipe={payload: payload},
        blocks=[lay_out_made(make_hostile(MADE, payload))],
    )
    html = write_page(tmp_path / "report.html", content).read_bytes().decode("utf-8")
    page = parse(html)
    assert_harmless(html, page)
    assert set(page.tags) <= HTML_TAGS and len(html) < 400_000
    assert page.tags.count("svg") == 1
    if len(payload) < 1_000 and payload.isprintable():
        assert page.text.count(payload) >= 8


def test_a_report_on_all_of_rolebench_stays_small() -> None:
    systems = {"untuned": 0.1, "tuned": 0.3, "RoleGPT": 0.5, "other": 0.4}
    values = make_values(systems=systems, roles=[f"role {at}" for at in range(130)])
    html = render_page(make_content(read_reports(values)))
    assert len(html) < 700_000
    assert sum(len(row) == 5 and row[0].startswith("role ") for row in parse(html).rows) == 130


def test_a_recipe_of_any_depth_and_size_is_bounded(content: PageContent) -> None:
    deep: Any = "bottom"
    for _ in range(500):
        deep = {"in": [deep]}
    html = render_page(replace(content, recipe={"deep": deep}))
    assert "nested too deeply" in html and len(html) < 200_000
    html = render_page(replace(content, recipe={str(number): number for number in range(10_000)}))
    assert " more characters" in html and len(html) < 200_000


# --- tables


Reports = dict[str, ScoreReport]


def show_in_terminal(table: Table) -> str:
    stream = io.StringIO()
    Console(file=stream, width=160, force_terminal=True, color_system=None).print(table.to_rich())
    return stream.getvalue()


def list_cells(markdown: str) -> list[list[str]]:
    lines = [line for line in markdown.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def test_what_is_absent_is_a_dash_everywhere(values: Values) -> None:
    values["tuned"]["metrics"] |= {"RAW": None, "SPE": {"mean": 0.0, "ci95": None, "n": 3}}
    table = system_table(read_reports(values))
    line = list_cells(table.to_markdown())[3]
    assert (line[2], line[3]) == ("–", "0.000 (n = 3)")
    assert [cell.strip() for cell in parse(table.to_html()).rows[2]][2:4] == ["–", "0.000 n = 3"]
    row = next(line for line in show_in_terminal(table).splitlines() if " tuned " in line)
    assert [cell.strip() for cell in row.split("│")][3:5] == ["–", "n=3  0.000"]


def test_a_broken_metric_of_a_report_is_named(values: Values) -> None:
    value = {"mean": 0.5, "ci95": [0.4], "n": 3}
    values["tuned"]["by_role"]["Captain Ahab"]["RAW"] = value
    with pytest.raises(DataError, match=r"by_role\.Captain Ahab\.RAW: "):
        ScoreReport.from_dict(values["tuned"])


def test_by_role_names_each_role_once_and_each_system_under_it(reports: Reports) -> None:
    table = role_table(reports) or pytest.fail("no roles")
    assert [line[:2] for line in list_cells(table.to_markdown())[2:5]] == [
        ["Sherlock Holmes", "untuned"],
        ["", "tuned"],
        ["", "RoleGPT (released baseline)"],
    ]
    page = parse(table.to_html())
    assert [value for tag, name, value in page.attributes if name == "rowspan"] == ["3", "3", "3"]
    assert [len(row) for row in page.rows] == [5, 5, 4, 4, 5, 4, 4, 5, 4, 4]
    shown = show_in_terminal(table)
    assert shown.count("孙悟空") == 1 and shown.count("RoleGPT (released baseline)") == 3


def test_baseline_first_canaries_last_and_each_marked_for_what_it_is(result: dict[str, Any]) -> None:
    table = system_table({}, JudgingResult.from_dict(result), PUBLISHED["instruction-generalization-eng"])
    bands = [row.band for row in table.rows]
    assert bands == ["published"] * 6 + [""] * 5 + ["canary"] * 2
    # A rule under the published rows, and one over the canaries.
    assert [index for index, line in enumerate(table.render_rows()) if line.closes] == [5, 10]
    marks = {row.names[0]: row.marks for row in table.rows[6:]}
    assert marks["RoleGPT"] == ("baseline",) and marks["RoleLLaMA-7B"] == ("judged by own family",) == marks["LLaMA-7B"]
    assert marks["Vicuna-13B"] == () == marks["canary: echo"]
    # A canary by another name is marked.
    models = [dict(one, name="nothing") if one["name"] == "canary: echo" else one for one in result["models"]]
    renamed = system_table({}, JudgingResult.from_dict({**result, "models": models}))
    assert {row.names[0]: row.marks for row in renamed.rows}["nothing"] == ("canary",)


@pytest.mark.parametrize(("p", "shown"), [(0.0004, "< 0.001"), (0.0496, "0.050"), (None, "–")])
def test_a_p_value_is_not_printed_as_0(result: dict[str, Any], p: float | None, shown: str) -> None:
    test = {**result["tests"][0], "p": p, "p_adjusted": p}
    table = differences_table(JudgingResult.from_dict({**result, "tests": [test]})) or pytest.fail("no tests")
    cells = list_cells(table.to_markdown())[2]
    assert cells[3].replace("\\", "") == shown
    assert cells[2].startswith(f"{100 * test['difference']['mean']:.2f}")


def test_what_was_not_judged_is_a_dash_and_not_0(result: dict[str, Any], judged: JudgingResult) -> None:
    by_role = group_table(judged, "by_role") or pytest.fail("no roles")
    assert len(by_role.rows) == 6 and by_role.columns[:1] == ("RoleLLaMA-7B",)
    nothing = {**result["diagnostics"], "biases": {}}
    nothing["copied"] = dict.fromkeys(nothing["copied"])
    bare = JudgingResult.from_dict({**result, "diagnostics": nothing})
    assert [row.cells[0] for row in bare.build_bias_table().rows] == [None] * 5
    unpaired = JudgingResult.from_dict({**result, "models": [{**one, "pairwise": None} for one in result["models"]]})
    assert group_table(unpaired, "by_role") is None


# --- pictures


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
