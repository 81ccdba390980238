"""``rolellm train``: tune a model on role data, from a recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rolellm.cli.options import with_options
from rolellm.cli.output import build_resume_line
from rolellm.core.result import Result


@with_options
def run_train(
    invocation: typer.Context,
    recipe: Annotated[str, typer.Argument()],
    out: Path | None = None,
    base: Annotated[str | None, typer.Option(metavar="FOLDER|HUB_ID")] = None,
    data: Annotated[str | None, typer.Option(metavar="FILE|FOLDER|HUB_ID")] = None,
    columns: Annotated[list[str] | None, typer.Option(metavar="NAME=COLUMN,...")] = None,
    skip_bad: bool = False,
    data_dir: Path | None = None,
    settings: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE")] = None,
    preview: bool = False,
    limit: Annotated[int, typer.Option(min=1)] = 2,
    resume: bool = False,
    overwrite: bool = False,
) -> Result:
    """Tune a model on role data by a recipe.

    The same code as accelerate launch recipes/rocit.py --config RECIPE.

    Args:
        recipe: YAML file, or the name of a recipe that ships, such as smoke-cpu.
        out: The run's folder, in place of output.dir.
        base: Model to tune, in place of the recipe's base.
        data: Train on rows of your own: messages, prompt and completion, ShareGPT, Alpaca, RoleBench's columns, or
            chats of SillyTavern.
        columns: With --data: columns that have other names, such as prompt=question,completion=answer.
        skip_bad: With --data: skip bad rows and count them.
        data_dir: Local copy of the release, or a data set of `rolellm role release`, in place of data.data_dir.
        settings: Override one value; may be repeated.
        preview: Show each token, trained or not; then exit.
        limit: With --preview: number of rows to show.
        resume: Continue the unfinished run in the folder.
        overwrite: Replace the run in the folder.
    """
    from rolellm.data.own_rows import parse_columns
    from rolellm.training.recipe_files import load_recipe, override_data
    from rolellm.training.run_folder import explain_stop

    own_rows = override_data(data_dir, data, parse_columns(columns or []), skip_bad)
    overrides = [*(settings or []), *own_rows]
    chosen = load_recipe(recipe, overrides, base=base)
    folder = out or chosen.output.dir
    if preview:
        from rolellm.training.preview import preview as preview_recipe

        return preview_recipe(chosen, folder, limit)
    again = build_resume_line(invocation, *(["--overwrite"] if overwrite else []))
    going_on = build_resume_line(invocation, *([] if resume else ["--resume"]))
    with explain_stop(folder, again=again, resume=going_on):
        # The imports take seconds, and Ctrl-C may come within them.
        from rolellm.training.train import train

        return train(chosen, out=folder, overwrite=overwrite, resume=resume)
