"""A result as tables and pictures: the numbers that stand there are the result's, and absent ones stay absent."""

import re
import xml.etree.ElementTree as ET
from typing import Any

import pytest

from rolellm.judging.records import DatasetName
from rolellm.judging.result import JudgingResult
from rolellm.judging.settings import JudgingSettings
from rolellm.reporting.plots import HEAT, Dot, Scale, dots_svg, habit_plots, heat_svg, spread, standing_plots
from rolellm.reporting.tables import (
    differences_table,
    group_table,
    judges_table,
    main_table,
    pairwise_table,
)
from rolellm.scoring.published import PUBLISHED
from rolellm.scoring.statistics.intervals import Interval

from ..judge_runs import summarize
from .judged_run import MODELS, draw_judgements, judge, make_comparison, make_rows
from .rendered import SVG, list_texts


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    comparison = make_comparison(make_rows())
    judges = [judge("llama-judge"), judge("other-judge")]
    judged = draw_judgements(comparison, ["llama-judge", "other-judge"])
    return summarize(comparison, judged, judges, JudgingSettings(), DatasetName("sample", "test"))


def test_baseline_first_canaries_last_and_each_marked_for_what_it_is(result: dict[str, Any]) -> None:
    table = main_table("All", {}, JudgingResult.from_dict(result), PUBLISHED["instruction-generalization-eng"])
    bands = [row.band for row in table.rows]
    assert bands == ["published"] * 6 + [""] * 5 + ["canary"] * 2
    # A rule under the published rows, and one over the canaries.
    assert [at for at, line in enumerate(table.render_rows()) if line.closes] == [5, 10]
    marks = {row.names[0]: row.marks for row in table.rows[6:]}
    assert marks["RoleGPT"] == ("baseline",) and marks["RoleLLaMA-7B"] == ("judged by own family",) == marks["LLaMA-7B"]
    assert marks["Vicuna-13B"] == () == marks["canary: echo"]
    # A canary by another name is marked.
    models = [dict(one, name="nothing") if one["name"] == "canary: echo" else one for one in result["models"]]
    renamed = pairwise_table(JudgingResult.from_dict({**result, "models": models})) or pytest.fail("no pairs")
    assert {row.names[0]: row.marks for row in renamed.rows}["nothing"] == ("canary",)


def test_tables_print_the_results_numbers(result: dict[str, Any]) -> None:
    judged = JudgingResult.from_dict(result)
    markdown = (differences_table(judged) or pytest.fail("no tests")).to_markdown()
    assert markdown.count("RoleLLaMA-7B − Vicuna-13B") == 2 and "canary" not in markdown
    first = result["tests"][0]
    assert f"{100 * first['difference']['mean']:.2f}" in markdown
    by_role = group_table(judged, "pairwise", "by_role")
    assert by_role is not None and len(by_role.rows) == 6 and by_role.columns[:1] == ("RoleLLaMA-7B",)
    assert (
        "llama" in judges_table(judged).to_html()
        and "pairwise: role-pairwise 1 (080808080808)" in judges_table(judged).to_html()
    )


@pytest.mark.parametrize(
    ("p", "shown"),
    [
        pytest.param(0.0004, "< 0.001", id="tiny"),
        pytest.param(0.0496, "0.050", id="small"),
        pytest.param(None, "–", id="none"),
    ],
)
def test_a_p_value_is_not_printed_as_0(result: dict[str, Any], p: float | None, shown: str) -> None:
    test = {**result["tests"][0], "p": p, "p_adjusted": p}
    table = differences_table(JudgingResult.from_dict({**result, "tests": [test]}))
    assert table is not None
    assert table.to_markdown().splitlines()[2].split("|")[4].strip().replace("\\", "") == shown


def test_what_was_not_judged_is_a_dash_and_not_0(result: dict[str, Any]) -> None:
    nothing = {**result["diagnostics"], "biases": {}}
    nothing["copied"] = dict.fromkeys(nothing["copied"])
    judged = JudgingResult.from_dict({**result, "diagnostics": nothing})
    assert [row.cells[0] for row in judged.build_bias_table().rows] == [None] * 8
    without = [{**one, "pairwise": None} for one in result["models"]]
    assert pairwise_table(JudgingResult.from_dict({**result, "models": without})) is None
    assert group_table(JudgingResult.from_dict({**result, "models": without}), "pairwise", "by_role") is None


def test_pictures_hold_every_system_and_its_numbers(result: dict[str, Any]) -> None:
    judged = JudgingResult.from_dict(result)
    win, free, above, rank = (list_texts(one) for one in standing_plots(judged))
    for shown in (win, free, above, rank):
        assert {*MODELS, "canary: echo"} <= set(shown)
    assert "RoleGPT" in rank and "RoleGPT" not in win
    score = next(one for one in judged.models if one.name == "Vicuna-13B").pairwise.win_rate
    assert score is not None and any(text.startswith(f"{100 * score.mean:.1f} [") for text in win)
    assert len(habit_plots(judged)) == 3


def test_a_dashed_line_stands_at_no_difference() -> None:
    scale = Scale("Win", "percent", times=100, center=0.5)
    svg = dots_svg([Dot("a", Interval(0.5, 0.4, 0.6))], scale, "Win")
    paths = [path.attrib for path in ET.fromstring(svg).iter(f"{SVG}path")]
    (line,) = [path["d"] for path in paths if "stroke-dasharray" in path]
    (dot,) = [path["transform"] for path in paths if path.get("class") == "mark"]
    first, second = (float(re.findall(r"[\d.]+", place)[0]) for place in (line, dot))
    assert first == pytest.approx(second, abs=0.01)


def test_a_scale_holds_all_that_is_drawn_and_is_never_narrowed() -> None:
    scale = Scale("x", "y", low=-0.05, high=0.05, center=0)
    assert spread(scale, []) == scale
    wide = spread(scale, [Interval(0.1, -0.23, 0.31), None])
    assert (wide.low, wide.high) == (pytest.approx(-0.3), pytest.approx(0.4))
    # All even, as where every list is a tie.
    even = spread(Scale("x", "y", low=0, high=0, center=0), [Interval(0.0, 0.0, 0.0)], step=0.5)
    assert (even.low, even.high) == (-0.5, 0.5)


def test_heat_runs_from_the_first_colour_to_the_last_and_leaves_gaps() -> None:
    values = [{"a": Interval(0.0), "b": Interval(1.0)}, {"a": Interval(0.5)}]
    svg = heat_svg("Win rate", ["a", "b"], values, [0, 7])
    used = re.findall(r'fill="(var\(--heat-\d+), (#\w+)\)"', svg)
    assert used == [("var(--heat-1", HEAT[0]), ("var(--heat-11", HEAT[-1]), ("var(--heat-6", HEAT[5])]
    assert sorted(text for text in list_texts(svg) if text in ("0", "50", "100", "–")) == ["0", "100", "50", "–"]
    # The colour and mark of the page's key, of the eighth system too.
    assert "var(--series-1" in svg and "var(--series-2" in svg
    ranks = heat_svg("Rank", ["a"], [{"a": Interval(1.0)}, {"a": Interval(3.0)}], [0, 1], ends=(3.0, 1.0), times=1.0)
    assert [step for step, _ in re.findall(r'fill="(var\(--heat-\d+), (#\w+)\)"', ranks)] == [
        "var(--heat-11",
        "var(--heat-1",
    ]
