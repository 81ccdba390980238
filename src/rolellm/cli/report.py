"""``rolellm report``: judging runs and predictions as one page, and as tables for a paper."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rolellm.cli.options import AsJson, with_options
from rolellm.core.settings import dump
from rolellm.report.settings import ReportOptions


@with_options
def report(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...")],
    options: ReportOptions,
    out: Path = Path("report.html"),
    tables: Path | None = None,
    as_json: AsJson = False,
) -> None:
    """Report judging runs or predictions: tables, plots, and every question, in one HTML file.

    Several runs, such as one per config, become sections of one page.

    Args:
        runs: Folders of judging runs or of `rolellm drift`, or prediction files (P.jsonl, NAME=P.jsonl) with --config.
        out: The page to write: one self-contained HTML file.
        tables: Also write every table to this folder as Markdown, CSV and LaTeX.
    """
    from rolellm.cli.output import print_json, show_table
    from rolellm.core.sanitize import visible
    from rolellm.report.build import report as build
    from rolellm.report.drift_section import drift_tables
    from rolellm.report.score_table import to_rich

    built = build(runs, out, tables, **dump(options))
    if as_json:
        print_json(built.to_dict())
        return
    for table in drift_tables(built.content.drift):
        show_table(to_rich(table, digits=1))
    for part in built.content.parts:
        show_table(to_rich(part.table, digits=3))
        if part.judged and not part.judged.valid:
            words = "; ".join(part.judged.problems)
            typer.echo(visible(f"warning: {part.title}: the run is not valid: {words}"), err=True)
    typer.echo(f"Report: {built.page}")
    if built.files:
        typer.echo(f"Tables: {tables} ({len(built.files)} files)")
