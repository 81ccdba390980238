"""Tables of scores and verdicts: the numbers are the result's, absent ones stay absent, and the recipe is with them."""

import io
import re
from typing import Any

import pytest
from rich.console import Console

from rolellm.core.errors import DataError
from rolellm.core.table import Table
from rolellm.judging.result import JudgingResult
from rolellm.reporting.tables import (
    differences_table,
    group_table,
    role_table,
    system_table,
)
from rolellm.scoring.published import PUBLISHED
from rolellm.scoring.score_report import ScoreReport

from .conftest import parse, read_reports

Values = dict[str, dict[str, Any]]
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


@pytest.mark.parametrize(
    "value", [{"mean": 0.5, "ci95": [0.4], "n": 3}, {"mean": float("nan"), "ci95": None, "n": 0}], ids=["half", "nan"]
)
def test_a_broken_metric_of_a_report_is_named(values: Values, value: Any) -> None:
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
