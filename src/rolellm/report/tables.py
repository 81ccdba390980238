"""Score tables: built once, shown in a terminal, in Markdown and in HTML, with the interval beside every mean.

For files there are CSV and LaTeX as well, see :mod:`rolellm.report.exports`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rolellm.core.sanitize import visible, width
from rolellm.report.cells import ABSENT, ScoreTable, Shown, TableRow, head_text, interval, lines, names_of, number
from rolellm.report.published import PublishedTable
from rolellm.report.scores import COLUMNS, METRICS, Estimate, Reports, disagreements, estimate, role_estimate, roles
from rolellm.report.templates import environment

if TYPE_CHECKING:
    from rich.table import Table as RichTable
    from rich.text import Text as RichText

__all__ = [
    "ABSENT",
    "ScoreTable",
    "TableRow",
    "interval",
    "lines",
    "markdown_text",
    "number",
    "published_table",
    "role_table",
    "score_table",
    "to_html",
    "to_markdown",
    "to_rich",
]

_NAME = 18
_MARKDOWN = str.maketrans({mark: f"\\{mark}" for mark in "\\`*_[]<>&|~#!"})


def score_table(reports: Reports, *, title: str = "Rouge-L") -> ScoreTable:
    """Systems by CUS, RAW, SPE and avg.

    Args:
        reports: System name to its score report.
        title: What stands above the table.

    Raises:
        DataError: When a report has another shape.
    """
    rows = tuple(TableRow((name,), tuple(estimate(one, m) for m in COLUMNS)) for name, one in reports.items())
    return ScoreTable(title, ("System",), COLUMNS, rows, _note(reports))


def role_table(reports: Reports, *, title: str = "Rouge-L by role") -> ScoreTable:
    """Roles, and within each role the systems, by CUS, RAW and SPE.

    Args:
        reports: System name to its score report, with ``by_role``.
        title: What stands above the table.

    Raises:
        DataError: When a report has another shape.
    """
    rows = tuple(
        TableRow((role, name), tuple(role_estimate(report, role, metric) for metric in METRICS))
        for role in roles(reports)
        for name, report in reports.items()
    )
    return ScoreTable(title, ("Role", "System"), METRICS, rows, _note(reports))


def published_table(table: PublishedTable) -> ScoreTable:
    """A table of the paper in the form of ours; the paper gives neither intervals nor counts."""
    rows = tuple(
        TableRow((row.system,), tuple(Estimate(mean) for mean in (row.cus, row.raw, row.spe, row.avg)))
        for row in table.rows
    )
    return ScoreTable(table.title, ("System",), COLUMNS, rows, f"Published: {table.source}; protocol {table.protocol}.")


def _note(reports: Reports) -> str:
    """The recipe that all lines share, or a warning that they share none."""
    odd = disagreements(reports)
    if odd:
        found = "; ".join(f"{field}: {', '.join(values)}" for field, values in odd.items())
        return f"Not comparable: the lines differ in {found}."
    report = next(iter(reports.values()), {})
    return ", ".join(f"{field} {report[field]}" for field in ("protocol", "config", "split") if report.get(field))


def to_rich(table: ScoreTable, *, digits: int = 4) -> RichTable:
    """The table for a terminal.

    Args:
        table: What to show.
        digits: Digits after the point; the paper prints four.
    """
    from rich.table import Table
    from rich.text import Text

    shown = Table(title=Text(visible(table.title)), caption=Text(visible(table.note)) if table.note else None)
    longest = max((width(name) for row in table.rows for name in row.names), default=0)
    for head in table.heads:
        # Numbers fold between their parts; a name has to be read.
        shown.add_column(Text(visible(head)), overflow="fold", min_width=min(longest, _NAME))
    for head in table.columns:
        shown.add_column(Text(visible(head_text(table, head))), justify="left" if head in table.left else "right")
    for line in lines(table):
        names = [Text(visible(name)) for name in names_of(line)]
        cells = (_rich_score(cell) for cell in table.shown(line.scores, digits))
        shown.add_row(*names, *cells, end_section=line.closes)
    return shown


def _rich_score(cell: Shown) -> RichText:
    from rich.text import Text

    if cell.kind != "score":
        return Text(visible(cell.text), style="dim" if cell.kind == "none" else "")
    count = f"n={cell.count}  " if cell.count else ""
    ends = f"\n{cell.interval}" if cell.interval else ""
    return Text.assemble((count, "dim"), (cell.text, "bold"), (ends, "dim"))


def to_markdown(table: ScoreTable, *, digits: int = 4) -> str:
    """The table in GitHub's Markdown, names escaped, with the note under it.

    Args:
        table: What to show.
        digits: Digits after the point; the paper prints four.
    """
    columns = [head_text(table, column) for column in table.columns]
    rows = [
        (*table.heads, *columns),
        (*("---" for _ in table.heads), *("---" if head in table.left else "---:" for head in table.columns)),
    ]
    head = [f"| {' | '.join(markdown_text(cell) for cell in rows[0])} |", f"| {' | '.join(rows[1])} |"]
    body = []
    for line in lines(table):
        names = [markdown_text(name) for name in names_of(line)]
        cells = [_markdown_score(cell) for cell in table.shown(line.scores, digits)]
        body.append(f"| {' | '.join([*names, *cells])} |")
    note = ["", markdown_text(table.note)] if table.note else []
    return "\n".join([*head, *body, *note]) + "\n"


def markdown_text(text: str) -> str:
    """Text on one line, with nothing in it that Markdown would obey."""
    return " ".join(visible(text).split()).translate(_MARKDOWN)


def _markdown_score(cell: Shown) -> str:
    if cell.kind != "score":
        return markdown_text(cell.text)
    count = f"n = {cell.count}" if cell.count else ""
    details = ", ".join(part for part in (cell.interval, count) if part)
    return cell.text + (f" ({details})" if details else "")


def to_html(table: ScoreTable, *, digits: int = 4) -> str:
    """The table as one ``<table>`` element, all text escaped; the page's style sheet gives it its looks.

    Args:
        table: What to show.
        digits: Digits after the point; the paper prints four.
    """
    template = environment().get_template("table.html.jinja")
    body = [(line, table.shown(line.scores, digits)) for line in lines(table)]
    return template.render(table=table, lines=body, counts=table.counts())
