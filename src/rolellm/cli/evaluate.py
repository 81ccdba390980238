"""``rolellm score``: CUS, RAW, SPE and avg of predictions, with intervals and the recipe behind them."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rolellm.cli.options import AsJson, Config, DataDir, Split, with_options
from rolellm.cli.output import print_json, show_table
from rolellm.core.settings import dump
from rolellm.evaluation.settings import ScoreOptions

if TYPE_CHECKING:
    from rolellm.evaluation.score import ScoreReport


@with_options
def score(
    files: Annotated[list[Path], typer.Argument(metavar="P.jsonl...")],
    config: Config,
    options: ScoreOptions,
    split: Split = "test",
    data_dir: DataDir = None,
    by_role: bool = False,
    rows_out: Path | None = None,
    as_json: AsJson = False,
) -> None:
    """Score predictions: CUS, RAW, SPE and avg with 95 % intervals, the unmatched rows, and the recipe.

    Args:
        files: Predictions, or the release's baseline files; several count as one.
        by_role: Also print a table by role.
        rows_out: Write each row's score to this file, JSON Lines.
    """
    from rolellm.core.jsonl import write_jsonl
    from rolellm.evaluation.score import score as run

    report = run(files, **dump(replace(options, config=config, split=split, data_dir=data_dir)))
    if rows_out:
        write_jsonl(rows_out, (asdict(item) for item in report.scores))
    for finding in report.findings:
        examples = "".join(f"\n  {example}" for example in finding.examples)
        typer.echo(f"{'warning' if finding.refused else 'note'}: {finding.text}{examples}", err=True)
    if as_json:
        print_json(report.to_dict())
    else:
        _print(report, by_role=by_role)


def _print(report: ScoreReport, *, by_role: bool) -> None:
    from rolellm.report.published import published_for
    from rolellm.report.score_table import published_table, summary_table, to_rich

    tables = [summary_table("Rouge-L, with 95 % intervals", "Rows", report.parts, report.caption)]
    if by_role:
        tables.append(summary_table("By role", "Role", report.by_role))
    scored = {item.id for item in report.scores}
    rows = [row for row in report.rows if row.id in scored]
    published = published_for(report.options.config, report.options.split, rows)
    if published and published.protocol == report.options.protocol:
        tables.append(published_table(published))
    for table in tables:
        show_table(to_rich(table))
