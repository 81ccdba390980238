"""``rolellm report``: results as one page, as a leaderboard (``--site``), or two runs compared (``--compare``)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rolellm.cli.options import AsJson, DataDir, with_options
from rolellm.cli.output import format_estimate, print_result, print_table, say, show_table
from rolellm.core.sanitize import label, make_visible
from rolellm.core.settings import dump
from rolellm.core.table import ABSENT
from rolellm.judging.settings import CompareSettings
from rolellm.reporting.settings import ReportOptions
from rolellm.scoring.settings import ScoreOptions

if TYPE_CHECKING:
    from rolellm.reporting.build import BuiltReport

_NAME, _VALUE, _TEXT = 40, 60, 300


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
    from rolellm.reporting.check_sections import drift_tables
    from rolellm.reporting.safety_section import safety_tables

    for finding in built.content.findings:
        say(finding)
    for table in (*drift_tables(built.content.drift), *safety_tables(built.content.safety)[:1]):
        show_table(table)
    for part in built.content.parts:
        show_table(replace(part.summary_table(), title=part.title or "Scores"))
        show_table(replace(part.table, title="All figures"))
        if part.judged and not part.judged.valid:
            words = "; ".join(part.judged.problems)
            typer.echo(make_visible(f"warning: {part.title}: the run is not valid: {words}"), err=True)
    typer.echo(f"Report: {built.page}")


@with_options
def run_report_site(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...")],
    options: ScoreOptions,
    out: Path = Path("leaderboard"),
    mixed: bool = False,
    config: str | None = None,
    split: str | None = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Write a leaderboard of runs as a static site.

    Scores with ranks, and the replies and commands behind them.

    Args:
        runs: Prediction files or harness logs (P.jsonl, NAME=P.jsonl), scores (rolellm score --json) next to their
            replies, or folders of predictions or of a judging run; and folders of rolellm check safety ([NAME=]DIR).
        out: Folder of the site.
        mixed: Also show runs with different recipes, each ranked among runs with the same recipe.
        config: Config of runs that do not name their own.
        split: Split of runs that do not name their own.
    """
    from rolellm.measures import leaderboard

    chosen = dump(replace(options, config=config, split=split, data_dir=data_dir))
    findings = leaderboard(runs, out, mixed=mixed, **chosen)
    print_result(findings, lambda findings: show_table(findings.tables()[0]), as_json)
    if not as_json:
        typer.echo(f"Leaderboard: {out / 'index.html'}")


@with_options
def run_report_compare(
    first: Annotated[str, typer.Argument(metavar="RUN_A")],
    second: Annotated[str, typer.Argument(metavar="RUN_B")],
    settings: CompareSettings,
    as_json: AsJson = False,
) -> None:
    """Compare two runs: what changed, and what is significant.

    Args:
        first: Folder of a judging run, or a prediction file (P.jsonl).
        second: A second one of the same kind.
    """
    from rolellm.measures import compare

    print_result(compare(first, second, **dump(settings)), _show_changes, as_json)


def _show_changes(result: Mapping[str, Any]) -> None:
    from rolellm.scoring.settings import name_intervals
    from rolellm.scoring.statistics.intervals import select_intervals

    for problem in result["problems"]:
        typer.echo(f"warning: {make_visible(problem)}", err=True)
    shared = result["shared"]
    typer.echo(make_visible(f"A: {result['a']['name']}\nB: {result['b']['name']}"))
    typer.echo(f"{shared['rows']:,} rows in both, {shared['questions']:,} questions")
    for run in ("a", "b"):
        if names := shared[f"only_{run}"]:
            typer.echo(f"In {run.upper()} alone: {', '.join(label(name, _NAME) for name in names)}")
    settings = [
        (label(change["name"], _NAME * 2), _format_value(change["before"]), _format_value(change["after"]))
        for change in result["settings"]
    ]
    if settings:
        print_table("What changed", ("setting", "A", "B"), settings)
    else:
        typer.echo("No setting differs.")
    if result["anonymous"]:
        typer.echo("A answered the fame-free twins of B: B - A is what the names add.")
    columns = ("system", "measure", "A", "B", "B - A", "p (Holm)", "p for new roles (Holm)", "rows")
    title = f"What is significant: on the rows of both, {name_intervals(result['config'])}"
    print_table(
        title,
        columns,
        [_format_change(change, select_intervals(change, result["config"])) for change in result["changes"]],
    )
    for number, move in enumerate(result["moved"], start=1):
        _print_move(number, move)


def _format_change(change: Mapping[str, Any], intervals: Mapping[str, Any]) -> tuple[str, ...]:
    scale, digits = (
        (100, 1) if change["measure"] == "win_rate" else (1, 2 if change["measure"] == "average_rank" else 3)
    )
    names = {"win_rate": "win rate %", "average_rank": "average rank"}
    values = (format_estimate(intervals[key], scale=scale, digits=digits) for key in ("before", "after", "difference"))
    tests = (ABSENT if change[key] is None else f"{change[key]:.4f}" for key in ("p_adjusted", "p_adjusted_new_roles"))
    rows = change["before"]["n"]
    return (_name_system(change), names.get(change["measure"], change["measure"]), *values, *tests, f"{rows:,}")


def _name_system(change: Mapping[str, Any]) -> str:
    names = dict.fromkeys((change["system"], change["system_b"]))
    return " → ".join(label(name, _NAME) for name in names)


def _format_value(value: Any) -> str:
    if value is None:
        return ABSENT
    return label(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False), _VALUE)


def _print_move(number: int, move: Mapping[str, Any]) -> None:
    before, after = (f"{move[key]:.4g}" for key in ("before", "after"))
    typer.echo(f"\n{number}. {_name_system(move)}, {move['measure'].replace('_', ' ')} {before} → {after}")
    typer.echo(f"   {label(move['role'], _NAME)}: {label(move['question'], _TEXT)} ({label(move['row'], _NAME)})")
    before, after = (
        ABSENT if move[key] is None else label(move[key], _TEXT) for key in ("answer_before", "answer_after")
    )
    typer.echo(f"   A and B: {before}" if move["same_answer"] else f"   A: {before}\n   B: {after}")
