"""``rolellm demo``: the whole loop on the embedded sample."""

from __future__ import annotations

from pathlib import Path

import typer

from rolellm.cli.options import with_options
from rolellm.core.result import Result


@with_options
def run_demo(out: Path = Path("rolellm-demo")) -> Result:
    """Run the whole loop on the embedded sample, offline, in minutes.

    Makes roles from scripts, tunes a model, scores it before and after, judges, and reports; on a CPU.

    Args:
        out: Where models, answers, scores and the report go; an earlier demo is replaced.
    """
    from rolellm.demo import run_whole_loop

    return run_whole_loop(out, say=lambda line: typer.echo(line, err=True))
