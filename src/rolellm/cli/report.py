"""``rolellm report``: results as one page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rolellm.cli.options import AsJson, with_options
from rolellm.cli.output import print_result, say, show_table
from rolellm.core.sanitize import make_visible
from rolellm.core.settings import dump
from rolellm.reporting.settings import ReportOptions

if TYPE_CHECKING:
    from rolellm.reporting.build import BuiltReport


@with_options
def run_report(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...")],
    options: ReportOptions,
    out: Path = Path("report.html"),
    tables: Path | None = None,
    as_json: AsJson = False,
) -> None:
    """Report results on one page: tables, plots, every question.

    Several runs, such as one per config, become sections of one page.

    Args:
        runs: Folders of judging runs or of `rolellm check drift` or `safety`, or predictions ([NAME=]P.jsonl) with
            --config.
        out: The page to write: one self-contained HTML file.
        tables: Also write every table to this folder as Markdown, CSV and LaTeX.
    """
    from rolellm.reporting.build import report

    built = report(runs, out, tables, **dump(options))
    print_result(built, _show_report, as_json)
    if built.files and not as_json:
        typer.echo(f"Tables: {tables} ({len(built.files)} files)")


def _show_report(built: BuiltReport) -> None:

    for finding in built.content.findings:
        say(finding)
    drift = built.content.drift
    for table in (*(drift.tables() if drift else ()), *(check.named_table for check in built.content.safety[:1])):
        show_table(table)
    for part in built.content.parts:
        show_table(replace(part.summary_table(), title=part.title or "Scores"))
        show_table(replace(part.table, title="All figures"))
        if part.judged and not part.judged.valid:
            words = "; ".join(part.judged.problems)
            typer.echo(make_visible(f"warning: {part.title}: the run is not valid: {words}"), err=True)
    typer.echo(f"Report: {built.page}")
