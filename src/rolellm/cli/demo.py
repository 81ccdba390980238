"""``rolellm demo``: the whole loop on the embedded sample."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from rolellm.cli.options import AsJson, with_options
from rolellm.cli.output import print_result, say, show_table

if TYPE_CHECKING:
    from rolellm.demo import DemoResult


@with_options
def run_demo(out: Path = Path("rolellm-demo"), as_json: AsJson = False) -> None:
    """Run the whole loop on the embedded sample, offline, in minutes.

    Makes roles from scripts, tunes a model, scores it before and after, judges, and reports; on a CPU.

    Args:
        out: Where models, answers, scores and the report go; an earlier demo is replaced.
    """
    from rolellm.demo import run_whole_loop

    result = run_whole_loop(out, say=lambda line: typer.echo(line, err=True))
    print_result(result, _show, as_json)


def _show(result: DemoResult) -> None:
    from rolellm.reporting.tables import score_table

    for finding in result.findings:
        say(finding)
    show_table(score_table(result.reports))
    say(f"Report: {result.page}")
    say(f"A data set of two roles made from scripts: {result.made['release']}")
    say(f"Answers, scores and models: {result.out} ({sum(result.seconds.values()):.0f} s in all)")
    say("The tuned model is tiny: it has learned to sound like its roles, and makes little sense.")
    say("For a role worth talking to, take a model of your own: rolellm make CARD --base MODEL")
