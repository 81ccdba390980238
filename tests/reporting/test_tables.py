import io
import re
from dataclasses import replace
from typing import Any

from rich.console import Console

from rolellm.core.table import Table
from rolellm.reporting.tables import role_table, score_table
from rolellm.scoring.score_report import ScoreReport

from .conftest import parse, read_reports

Values = dict[str, dict[str, Any]]
Reports = dict[str, ScoreReport]


def in_terminal(table: Table, digits: int = 3) -> str:
    stream = io.StringIO()
    Console(file=stream, width=160, force_terminal=True, color_system=None).print(
        replace(table, digits=digits).to_rich()
    )
    return stream.getvalue()


def cells(markdown: str) -> list[list[str]]:
    lines = [line for line in markdown.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def test_what_is_absent_is_a_dash_everywhere(values: Values) -> None:
    values["tuned"]["metrics"] |= {"RAW": None, "SPE": {"mean": 0.0, "ci95": None, "n": 3}}
    table = score_table(read_reports(values))
    line = cells(table.to_markdown())[3]
    assert (line[2], line[3]) == ("–", "0.000 (n = 3)")
    assert [cell.strip() for cell in parse(table.to_html()).rows[2]][2:4] == ["–", "0.000 n = 3"]
    row = next(line for line in in_terminal(table).splitlines() if " tuned " in line)
    assert [cell.strip() for cell in row.split("│")][3:5] == ["–", "n=3  0.000"]


def test_by_role_names_each_role_once_and_each_system_under_it(reports: Reports) -> None:
    table = role_table(reports)
    assert [line[:2] for line in cells(table.to_markdown())[2:5]] == [
        ["Sherlock Holmes", "untuned"],
        ["", "tuned"],
        ["", "RoleGPT (released baseline)"],
    ]
    page = parse(table.to_html())
    assert [value for tag, name, value in page.attributes if name == "rowspan"] == ["3", "3", "3"]
    assert [len(row) for row in page.rows] == [5, 5, 4, 4, 5, 4, 4, 5, 4, 4]
    shown = in_terminal(table, digits=3)
    assert shown.count("孙悟空") == 1 and shown.count("RoleGPT (released baseline)") == 3


def test_the_recipe_goes_with_the_numbers(values: Values, reports: Reports) -> None:
    assert score_table(reports).to_markdown().endswith("\n\nprotocol rouge-score, config sample, split test\n")
    values["tuned"]["protocol"] = "paper"
    reports = read_reports(values)
    for shown in (score_table(reports).to_markdown(), in_terminal(score_table(reports)), role_table(reports).to_html()):
        assert "Not comparable: the lines differ in protocol: rouge-score, paper." in " ".join(shown.split())
