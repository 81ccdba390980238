"""``rolellm eval``: everything that RoleBench says of models, in one folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rolellm.cli.options import with_options
from rolellm.core.settings import dump
from rolellm.journeys.evaluation import EvalResult, EvalSettings


@with_options
def run_eval(
    models: Annotated[list[str], typer.Argument(metavar="[NAME=]MODEL...")],
    options: EvalSettings,
    judge: Path | None = None,
    out: Path = Path("eval"),
) -> EvalResult:
    """Answer, score and judge, and say on one page what came out.

    The same command again continues, and asks for nothing twice.

    Args:
        models: Folders, Hub ids or settings files of endpoints (llm.yaml).
        judge: Settings file of the models that compare the answers; without it, nothing is judged.
        out: Folder of answers, scores, verdicts and the page.
    """
    from rolellm.core.threads import wait_briefly

    wait_briefly()
    from rolellm.journeys.evaluation import evaluate

    return evaluate(models, judge=judge, out=out, **dump(options))
