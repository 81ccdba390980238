"""``rolellm report``: judging runs and predictions as one page, and as tables for a paper."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN...",
            help="Folders of judging runs, or files of predictions (P.jsonl, NAME=P.jsonl) with --config.",
        ),
    ],
    out: Annotated[
        Path, typer.Option("--out", help="The page to write: one HTML file that needs nothing else.")
    ] = Path("report.html"),
    tables: Annotated[
        Path | None, typer.Option("--tables", help="Write every table here as Markdown, CSV and LaTeX, too.")
    ] = None,
    protocol: Annotated[
        str | None,
        typer.Option("--protocol", help="paper (default where the paper has a table of the config) or rouge-score."),
    ] = None,
    config: Annotated[str | None, typer.Option("--config", help="Config of the files of predictions.")] = None,
    split: Annotated[str, typer.Option("--split", help="Split of the files of predictions.")] = "test",
    data_dir: Annotated[
        Path | None, typer.Option("--data-dir", help="A local copy of the release; else $ROLEBENCH_DIR, else the Hub.")
    ] = None,
    title: Annotated[str | None, typer.Option("--title", help="Stands at the top of the page.")] = None,
    processes: Annotated[int, typer.Option("--processes", min=1, help="Processes that compute Rouge-L.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Report judging runs or predictions: tables, plots, and every question, in one HTML file.

    Several runs, such as one a config, are parts of one page.
    """
    from rolellm.cli.output import print_json, progress_bar, show_table
    from rolellm.core.sanitize import visible
    from rolellm.report.build import ReportOptions, build_report
    from rolellm.report.exports import write_tables
    from rolellm.report.page import write_page
    from rolellm.report.score_table import to_rich

    options = ReportOptions(
        title=title, protocol=protocol, config=config, split=split, data_dir=data_dir, processes=processes
    )
    with progress_bar("Reading") as progress:
        built = build_report(runs, options, progress=progress)
        progress("Writing the page", 0, 1)
        page = write_page(out, built.content)
    written = write_tables(tables, built.tables) if tables else []
    if as_json:
        print_json({"report": str(page), "tables": [str(path) for path in written], **built.to_dict()})
        return
    for part in built.content.parts:
        show_table(to_rich(part.table, digits=3))
        if part.judged and not part.judged.valid:
            words = "; ".join(part.judged.problems)
            typer.echo(visible(f"warning: {part.title}: the run is not valid: {words}"), err=True)
    typer.echo(f"Report: {page}")
    if written:
        typer.echo(f"Tables: {tables} ({len(written)} files)")
