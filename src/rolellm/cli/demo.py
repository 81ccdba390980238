"""``rolellm demo``: the whole loop on the embedded sample."""

from __future__ import annotations

import shlex
from pathlib import Path

import typer

from rolellm.cli.options import AsJson, with_options
from rolellm.cli.output import print_json, print_table, show_table
from rolellm.core.sanitize import visible
from rolellm.core.text import safe_name


@with_options
def demo(
    context: typer.Context, out: Path = Path("rolellm-demo"), llm: Path | None = None, as_json: AsJson = False
) -> None:
    """Run the whole loop: make roles from scripts, tune a model, score it before and after, judge, and report.

    On the embedded sample, offline, on a CPU, in minutes.

    Args:
        out: Where models, answers, scores and the report go; an earlier demo is replaced.
        llm: YAML settings of a model that makes the roles and judges, instead of rules (docs/endpoints.md).
    """
    from rolellm.cli.output import resumable
    from rolellm.demo import run_demo

    with resumable(context):
        result = run_demo(out, say=lambda line: typer.echo(line, err=True), llm=llm)
    if as_json:
        print_json(result.to_dict())
        return
    from rolellm.cli.judge import show_result
    from rolellm.report.construct_section import made_table
    from rolellm.report.score_table import score_table, to_rich

    columns, rows = made_table(result.made)
    by = "rules in place of a language model" if llm is None else "a language model"
    print_table(f"Made from scripts, by {by}; not tuned on", columns, rows)
    show_table(to_rich(score_table(result.reports)))
    show_result(result.judged)
    typer.echo(f"Report: {result.page}")
    typer.echo(f"A data set of two roles made from scripts: {result.made.release}")
    typer.echo(f"Answers, scores and models: {result.out} ({sum(result.seconds.values()):.0f} s in all)")
    # A folder is found wherever RoleBench is.
    role, run = (
        shlex.quote(str(result.out / name)) for name in (f"made/{safe_name(result.made.roles[0].role)}", "run")
    )
    typer.echo(f"Talk to the tuned role: {visible(f'rolellm chat {role} --model {run}')}")
