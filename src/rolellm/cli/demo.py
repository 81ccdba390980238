"""``rolellm demo``: the whole loop on the embedded sample."""

from __future__ import annotations

from pathlib import Path

import typer

from rolellm.cli.options import AsJson, with_options
from rolellm.cli.output import print_json, print_table, show_table


@with_options
def demo(out: Path = Path("rolellm-demo"), as_json: AsJson = False) -> None:
    """Make roles of scripts; answer and score with an untuned model, tune it, do both again; judge; and report.

    On the embedded sample, offline, on a CPU, in minutes.

    Args:
        out: Where models, answers, scores and the report go; an earlier demo is replaced.
    """
    from rolellm.demo import run_demo

    result = run_demo(out, say=lambda line: typer.echo(line, err=True))
    if as_json:
        print_json(result.to_dict())
        return
    from rolellm.cli.judge import show_result
    from rolellm.report.construct_section import made_table
    from rolellm.report.score_table import score_table, to_rich

    columns, rows = made_table(result.made)
    print_table("Made from scripts, by rules in place of a language model; not tuned on", columns, rows)
    show_table(to_rich(score_table(result.reports)))
    show_result(result.judged)
    typer.echo(f"Report: {result.page}")
    typer.echo(f"A data set of two roles made from scripts: {result.made.release}")
    typer.echo(f"Answers, scores and models: {result.out} ({sum(result.seconds.values()):.0f} s in all)")
