import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rolellm.core.errors import DataError
from rolellm.reporting.blocks import lay_out_made
from rolellm.reporting.findings import LeadingAnswer
from rolellm.reporting.page import PageContent, Section, write_page
from rolellm.version import __version__

from .conftest import MADE, PAYLOADS, make_content, make_hostile, make_values, parse, read_reports
from .rendered import assert_harmless, render_page, squeeze

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
