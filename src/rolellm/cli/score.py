"""``rolellm score``: CUS, RAW, SPE and avg of predictions, or which role they sound like (``--style``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rolellm.cli.options import AnsweredSplit, AsJson, Config, DataDir, with_options
from rolellm.cli.output import format_estimate, print_result, print_table, say, show_table
from rolellm.core.settings import dump
from rolellm.scoring.settings import ScoreOptions

if TYPE_CHECKING:
    from rolellm.measures import Findings
    from rolellm.scoring.score_report import ScoreReport


@with_options
def run_score(
    files: Annotated[list[Path], typer.Argument(metavar="P.jsonl...")],
    options: ScoreOptions,
    config: Config = None,
    split: AnsweredSplit = None,
    data_dir: DataDir = None,
    by_role: bool = False,
    rows_out: Path | None = None,
    as_json: AsJson = False,
) -> None:
    """Score predictions by Rouge-L: CUS, RAW, SPE and avg.

    With 95 % intervals, the unmatched rows, and the recipe.

    Args:
        files: Predictions, or the release's baseline files; several count as one.
        by_role: Also print a table by role.
        rows_out: Write each row's score to this file, JSON Lines.
    """
    from rolellm.core.jsonl import write_jsonl
    from rolellm.scoring.score import score

    report = score(files, **dump(replace(options, config=config, split=split, data_dir=data_dir)))
    if rows_out:
        write_jsonl(rows_out, (asdict(item) for item in report.scores))
    for finding in report.findings:
        examples = "".join(f"\n  {example}" for example in finding.examples)
        typer.echo(f"{'warning' if finding.refused else 'note'}: {finding.text}{examples}", err=True)
    print_result(report, lambda report: _show_scores(report, by_role=by_role), as_json)


def _show_scores(report: ScoreReport, *, by_role: bool) -> None:
    from rolellm.reporting.tables import published_for, published_table
    from rolellm.scoring.score_report import summary_table

    report = report.leading
    tables = [summary_table("Rouge-L", "Rows", report.parts, report.caption)]
    if by_role:
        tables.append(summary_table("By role", "Role", report.by_role))
    scored = {item.id for item in report.scores}
    rows = [row for row in report.rows if row.id in scored]
    published = published_for(report.options.config, report.options.split, rows)
    if published and published.protocol == report.options.protocol:
        tables.append(published_table(published))
    for table in tables:
        show_table(table)


@with_options
def run_score_style(
    config: Config = None,
    files: Annotated[list[Path] | None, typer.Argument(metavar="[P.jsonl...]")] = None,
    split: AnsweredSplit = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Measure which role replies sound like; no language model is asked.

    Shown next to the meter's accuracy on the references.

    Args:
        files: Predictions, as for `rolellm score`; without any, the meter alone is measured.
    """
    from rolellm.measures import style
    from rolellm.scoring.predictions import complete_source

    config, split, data_dir = complete_source(files or [], config, split, data_dir)
    findings = style(files or [], config, split=split, data_dir=data_dir)
    print_result(findings, lambda findings: _show_style(findings, config), as_json)


def _show_style(findings: Findings, config: str) -> None:
    from rolellm.scoring.statistics.intervals import select_intervals

    for warning in findings["warnings"]:
        say(f"warning: {warning}", err=True)
    show_table(findings.tables()[0])
    for language, measures in select_intervals(findings["languages"], config).items():
        parts = [measures[name] for name in ("meter", "replies") if name in measures]
        rows = [
            (
                role,
                *(_format_percent(part["by_role"].get(role, {}).get("top1")) for part in parts),
                _list_likeliest(counts),
            )
            for role, counts in parts[-1]["confusion"].items()
        ]
        columns = ("role", *("top-1 % of references", "top-1 % of replies")[: len(parts)], "sounds like, %")
        print_table(f"By role ({language}, {measures['subset'].replace('_', '-')} rows)", columns, rows)


def _list_likeliest(counts: Mapping[str, int]) -> str:
    total = sum(counts.values())
    return ", ".join(f"{role} {100 * count / total:.0f}" for role, count in list(counts.items())[:4])


def _format_percent(value: Mapping[str, Any] | None) -> str:
    return format_estimate(value, digits=1, scale=100, counted=True)
