"""``rolellm improve``: a tuned adapter, trained further and compared with itself before."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rolellm.cli.options import with_options
from rolellm.core.settings import dump
from rolellm.journeys.evaluation import EvalResult
from rolellm.journeys.improving import ImproveSettings


@with_options
def run_improve(
    run: Annotated[Path, typer.Argument()],
    options: ImproveSettings,
    judge: Path | None = None,
    out: Path = Path("improved"),
) -> EvalResult:
    """Train an adapter further by rewards or pairs; say if it helped.

    The same command again continues.

    Args:
        run: Folder of a tuned adapter.
        judge: Settings file of the models that compare the answers; without it, nothing is judged.
        out: Folder of pairs, adapter, answers and the page.
    """
    from rolellm.journeys.improving import improve

    return improve(run, judge=judge, out=out, **dump(options))
