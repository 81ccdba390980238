import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rolellm.core.errors import DataError
from rolellm.core.records import Row
from rolellm.report.page import PageContent, render_page, write_page
from rolellm.version import __version__

Reports = dict[str, dict[str, Any]]
HTML_TAGS = set(
    re.findall(
        r"\w+",
        "html head meta title style body header main section footer h1 h2 h3 h4 p b code span ul li details summary"
        " article figure figcaption div table caption thead tbody tr th td dl dt dd"
        " svg g defs path use text clippath rect",
    )
)


def squeezed(text: str) -> str:
    return " ".join(text.split())


def test_one_file_that_needs_nothing_else(content: PageContent, parse: Callable[[str], Any], tmp_path: Path) -> None:
    out = write_page(tmp_path / "new folder" / "report.html", content)
    assert [file.name for file in out.parent.iterdir()] == ["report.html"]
    html = out.read_text(encoding="utf-8")
    page = parse(html)
    assert html.startswith("<!doctype html>") and page.unbalanced == []
    assert "http" not in html.replace("http-equiv", "")
    assert "//" not in page.styles and "@import" not in page.styles
    assert set(re.findall(r"url\(([^)]*)", html)) == {f"#{name}" for name in page.ids if f"url(#{name})" in html}
    assert all(reference.startswith("#") and reference[1:] in page.ids for reference in page.references)
    assert "script" not in page.tags and not [name for _, name, _ in page.attributes if name.startswith("on")]
    assert "default-src 'none'" in html
    assert len(page.ids) == len(set(page.ids))
    assert set(page.tags) <= HTML_TAGS


def test_everything_that_was_measured_is_there(content: PageContent, parse: Callable[[str], Any]) -> None:
    page = parse(render_page(content))
    text = squeezed(page.text)
    for name, report in content.reports.items():
        assert name in text and report["fingerprint"]["predictions"]["sha256"] in text
        line = next(row for row in page.rows if row[0] == name)
        for cell, metric in zip(line[1:4], ("CUS", "RAW", "SPE"), strict=True):
            score = report["metrics"][metric]
            low, high = score["ci95"]
            assert squeezed(cell) == f"{score['mean']:.3f} [{low:.3f}, {high:.3f}] n = 40"
        assert squeezed(line[4]) == f"{report['metrics']['avg']['mean']:.3f}"
    for role in ("Sherlock Holmes", "Captain Ahab", "孙悟空"):
        # A heading over its answers, a line of the table, and a label in each of three plots.
        assert sum(role in cell for row in page.rows for cell in row) == 1
        assert len(re.findall(re.escape(role), page.text)) >= 5
    assert page.tags.count("svg") == 6
    for word in ("CUS", "RAW", "SPE", "avg", "95 % interval", content.title, content.split_note, content.summary):
        assert word.replace("\xa0", " ") in text.replace("\xa0", " ")
    assert [row[1:] for row in page.rows if row[0] == "untuned"][-1] == ["1", "2"]
    assert f"rolellm {__version__}" in text
    assert "<dt>optimizer.name</dt><dd>adamw</dd>" in render_page(content)


def test_answers_stand_side_by_side(content: PageContent, parse: Callable[[str], Any]) -> None:
    html = render_page(content)
    text = squeezed(parse(html).text)
    shown = [row for row in content.rows if row.id in re.findall(r"<code>([^<]*)", html)]
    assert len(shown) == 6
    for row in shown:
        assert squeezed(row.question) in text and f"untuned says {row.id}" in text
        assert row.rolegpt is None or row.rolegpt in text
    assert (
        text.count("no answer") == 6 - 1 * (content.rows[0] in shown) + 3
    )  # tuned; and RoleGPT's on role-specific rows
    assert html.count("Reference 1 of 2") == 3 and html.count("Role-free target") == 3
    assert html.count('lang="zh"') > 0


def test_an_empty_answer_is_not_a_missing_one(content: PageContent) -> None:
    html = render_page(replace(content, answers={"tuned": {row.id: " \n" for row in content.rows}}, baseline=None))
    assert html.count("an empty answer") == 6 and html.count("no answer") == 2 * 6


def test_a_system_with_its_own_answers_is_not_overruled(content: PageContent) -> None:
    name = content.baseline
    html = render_page(replace(content, answers={name: {row.id: "its own words" for row in content.rows}}))
    assert html.count("its own words") == 6 and "a wren" not in html


def test_what_is_absent_is_a_dash(content: PageContent, reports: Reports, parse: Callable[[str], Any]) -> None:
    for report in reports.values():
        report["metrics"]["RAW"] = None
        report["metrics"].pop("avg")
        report["unmatched"] = None
        for metrics in report["by_role"].values():
            metrics["RAW"] = None
    page = parse(render_page(content))
    assert page.tags.count("svg") == 4
    for row in page.rows:
        if row[0] in reports and len(row) == 5:
            assert [row[2].strip(), row[4].strip()] == ["–", "–"]
        if row[0] in reports and len(row) == 3:
            assert row[1:] == ["–", "–"]
        if len(row) == 5 and row[1] in reports:
            assert row[3].strip() == "–"
    assert "RAW: accuracy" not in page.text and "0.000" not in page.text


def test_the_least_that_is_a_report(parse: Callable[[str], Any]) -> None:
    bare = {"metrics": {"CUS": {"mean": 0.25, "ci95": None, "n": None}}}
    page = parse(render_page(PageContent(title="Bare", reports={"x": bare}, split_note="None was.")))
    assert [cell.strip() for cell in page.rows[1]] == ["x", "0.250", "–", "–", "–"]
    assert page.unbalanced == [] and page.tags.count("svg") == 1
    with pytest.raises(DataError, match="at least one system"):
        render_page(PageContent(title="None", reports={}, split_note=""))


def test_numbers_that_do_not_compare_are_said_not_to(content: PageContent, reports: Reports) -> None:
    assert "do not compare" not in render_page(content)
    reports["tuned"]["protocol"] = "paper"
    html = squeezed(render_page(content))
    assert "These numbers do not compare." in html and "They differ in protocol: rouge-score, paper." in html


def test_what_scoring_found_is_said(content: PageContent, reports: Reports) -> None:
    reports["tuned"]["warnings"] = ["4 of 72 rows have no prediction", "<b>2</b> were empty"]
    html = render_page(content)
    assert html.count("To be read with its scores") == 1
    assert "<li>4 of 72 rows have no prediction</li>" in html and "<li>&lt;b&gt;2&lt;/b&gt; were empty</li>" in html


def test_shared_recipe_is_said_once(content: PageContent, reports: Reports) -> None:
    html = render_page(content)
    assert html.count("<dt>tokenizer.en</dt>") == 1 and html.count("<dt>predictions.sha256</dt>") == 3
    reports["tuned"]["fingerprint"]["tokenizer"]["en"] = "words"
    assert render_page(content).count("<dt>tokenizer.en</dt>") == 3


PAYLOADS = [
    pytest.param("<script>alert(1)</script>", id="script"),
    pytest.param("</style></title></svg><script>alert(1)</script>", id="closing-tags"),
    pytest.param('"><img src=x onerror=alert(1)>', id="attribute-breaker"),
    pytest.param("<img src='https://example.org/x.png'>", id="remote-image"),
    pytest.param("<!-- <![CDATA[ --> ]]>", id="comment-and-cdata"),
    pytest.param("&lt;b&gt; &amp;amp; &#60;script&#62;", id="entities"),
    pytest.param("\x1b[31mred\x1b]8;;https://example.org\x07", id="ansi"),
    pytest.param("\u202edna\u2066x\u200b\ufeff\U000e0041", id="bidi-and-zero-width"),
    pytest.param("a\x00b\x0c\x7f\x85\u2028", id="controls"),
    pytest.param("\ud800\udfff \uffff", id="surrogates-and-noncharacters"),
    pytest.param("{{ 7 * 7 }}{% include 'x' %}{# #}", id="template"),
    pytest.param("$\\frac{1}$ \\N{x}", id="mathematics"),
    pytest.param("</div></details></article>" * 3, id="structure"),
    pytest.param("Z̸̢͍" + "\u0301" * 400, id="stacked-marks"),
    pytest.param("x" * 10_000_000, id="ten-megabytes"),
]


@pytest.mark.parametrize("payload", PAYLOADS)
def test_text_is_only_text(
    make_reports: Callable[..., Reports], rows: list[Row], parse: Callable[[str], Any], tmp_path: Path, payload: str
) -> None:
    system, role = f"S{payload}", f"R{payload}"
    reports = make_reports(systems={system: 0.2, "other": 0.4}, roles=[role])
    reports[system] |= {"fingerprint": {payload: [payload, {"x": payload}]}, "config": payload, "warnings": [payload]}
    row = replace(rows[0], id=payload, role=role, question=payload, references=(payload, payload), rolegpt=payload)
    content = PageContent(
        title=payload,
        reports=reports,
        split_note=payload,
        summary=payload,
        rows=[replace(row, raw_reference=payload)],
        answers={system: {payload: f"A{payload}"}},
        baseline=payload,
        recipe={payload: payload},
    )
    html = write_page(tmp_path / "report.html", content).read_bytes().decode("utf-8")
    page = parse(html)
    assert page.unbalanced == [] and set(page.tags) <= HTML_TAGS
    assert not [name for _, name, _ in page.attributes if name.startswith("on")]
    assert all(reference.startswith("#") for reference in page.references)
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff\uffff]", html)
    assert len(html) < 400_000
    assert page.tags.count("svg") == 6 and page.tags.count("article") == 1
    if len(payload) < 1_000 and payload.isprintable():
        assert f"A{payload}" in page.text


def test_the_same_content_gives_the_same_bytes(content: PageContent) -> None:
    shuffled = replace(content, rows=list(reversed(content.rows)))
    assert render_page(content) == render_page(content) == render_page(shuffled)


def test_a_report_on_all_of_rolebench_stays_small(
    make_reports: Callable[..., Reports], rows: list[Row], parse: Callable[[str], Any]
) -> None:
    roles = [f"role {at}" for at in range(130)]
    many = [replace(row, id=f"{role} {row.id}", role=role) for role in roles for row in rows[:6]]
    systems = {"untuned": 0.1, "tuned": 0.3, "RoleGPT": 0.5, "other": 0.4}
    content = PageContent("Large", make_reports(systems=systems, roles=roles), "None.", rows=many)
    html = render_page(content)
    assert len(html) < 2_500_000
    assert "The first 120 of 130 roles are drawn" in squeezed(html)
    assert sum(len(row) == 5 and row[0].startswith("role ") for row in parse(html).rows) == 130


def test_a_failed_write_leaves_the_old_report(content: PageContent, reports: Reports, tmp_path: Path) -> None:
    out = write_page(tmp_path / "report.html", content)
    before = out.read_bytes()
    reports["tuned"]["metrics"]["CUS"] = "broken"
    with pytest.raises(DataError, match="CUS"):
        write_page(out, content)
    assert out.read_bytes() == before and list(tmp_path.iterdir()) == [out]
