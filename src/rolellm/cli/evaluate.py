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
    models: Annotated[list[str], typer.Argument(metavar="[NAME=]MODEL")],
    options: EvalSettings,
    data: Annotated[str | None, typer.Option(metavar="FILE|FOLDER|HUB_ID")] = None,
    columns: Annotated[list[str] | None, typer.Option(metavar="NAME=COLUMN,...")] = None,
    skip_bad: bool = False,
    scenes: Annotated[list[Path] | None, typer.Option("--scene", metavar="SCENE.yaml")] = None,
    judge: Path | None = None,
    out: Path = Path("eval"),
) -> EvalResult:
    """Answer, score and judge, and say on one page what came out.

    The same command again continues, and asks for nothing twice.

    Args:
        models: Folders, Hub ids or settings files of endpoints (llm.yaml).
        data: Answer rows of your own, in any form that `rolellm train --data` takes; by default what the first run was
            trained on. Dialogues that a model was trained on are left out.
        columns: With --data: columns that have other names, such as prompt=question,completion=answer.
        skip_bad: With --data: skip bad rows and count them.
        scenes: A scene that each model plays alone (docs/scenes.md); repeatable. Without --data, --data-dir and
            --config, scenes are all that is done.
        judge: Settings file of the models that compare the answers, and direct scenes; without it, nothing is judged,
            and each model directs its own.
        out: Folder of answers, scores, verdicts and the page.
    """
    from rolellm.data.own_rows import parse_columns
    from rolellm.journeys.evaluation import evaluate

    named_columns = parse_columns(columns) if columns else None
    return evaluate(
        models,
        data=data,
        columns=named_columns,
        skip_bad=skip_bad,
        scenes=scenes or (),
        judge=judge,
        out=out,
        **dump(options),
    )
