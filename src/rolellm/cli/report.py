"""``rolellm report``: results as one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rolellm.cli.options import with_options
from rolellm.core.result import Result
from rolellm.core.settings import dump
from rolellm.reporting.settings import ReportOptions


@with_options
def run_report(
    runs: Annotated[list[str], typer.Argument(metavar="RUN")],
    options: ReportOptions,
    out: Path = Path("report.html"),
    tables: Path | None = None,
) -> Result:
    """Report results on one page: tables, plots, questions.

    Several runs, such as one per config, become sections of one page; all questions are next to it as JSON Lines.

    Args:
        runs: Folders of judging runs or of `rolellm check drift` or `safety`, or predictions ([NAME=]P.jsonl) with
            --config.
        out: The page to write: one self-contained HTML file.
        tables: Also write every table to this folder as Markdown, CSV and LaTeX.
    """
    from rolellm.reporting.build import report

    return report(runs, out, tables, **dump(options))
