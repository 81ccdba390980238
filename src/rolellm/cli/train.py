"""``rolellm train``: tune a model on role data, from a recipe."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rolellm.cli.options import AsJson, with_options
from rolellm.cli.output import build_resume_line, print_json

if TYPE_CHECKING:
    from rolellm.training.recipe import Recipe


@with_options
def run_train(
    context: typer.Context,
    recipe: Annotated[str, typer.Argument()],
    out: Path | None = None,
    base: Annotated[str | None, typer.Option(metavar="FOLDER|HUB_ID")] = None,
    data_dir: Path | None = None,
    settings: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE")] = None,
    preview: bool = False,
    limit: Annotated[int, typer.Option(min=1)] = 2,
    resume: bool = False,
    overwrite: bool = False,
    as_json: AsJson = False,
) -> None:
    """Tune a model on role data by a recipe.

    The same code as accelerate launch recipes/rocit.py --config RECIPE.

    Args:
        recipe: YAML file, or the name of a recipe that ships, such as smoke-cpu.
        out: The run's folder, in place of output.dir.
        base: Model to tune, in place of the recipe's base.
        data_dir: Local copy of the release, or a data set of `rolellm role release`, in place of data.data_dir.
        settings: Override one value; may be repeated.
        preview: Show each token, trained or not, and exit.
        limit: With --preview: number of rows to show.
        resume: Continue the unfinished run in the folder.
        overwrite: Replace the run in the folder.
    """
    from rolellm.core.threads import wait_briefly
    from rolellm.training.recipe_files import load_recipe
    from rolellm.training.run_folder import explain_stop

    wait_briefly()
    # JSON text is YAML text, whatever the path holds.
    moved = [] if data_dir is None else [f"data.data_dir={json.dumps(str(data_dir), ensure_ascii=False)}"]
    chosen = load_recipe(recipe, [*(settings or []), *moved], base=base)
    folder = out or chosen.output.dir
    if preview:
        _print_preview(chosen, folder, limit, as_json)
        return
    again = build_resume_line(context, *(["--overwrite"] if overwrite else []))
    going_on = build_resume_line(context, *([] if resume else ["--resume"]))
    with explain_stop(folder, again=again, resume=going_on):
        # The imports take seconds, and Ctrl-C may come within them.
        from rolellm.training.train import train as run_recipe

        run = run_recipe(chosen, out=folder, overwrite=overwrite, resume=resume)
    if as_json:
        print_json(run.to_dict())
        return
    if run.hacked is not None:
        typer.echo(run.hacked)
    typer.echo(
        f"{run.steps} steps on {run.examples} replies of {run.rows} rows: "
        f"loss {run.first_loss:.3f} → {run.last_loss:.3f} in {run.seconds:.0f} s\n{run.out}"
    )
    if run.url is not None:
        typer.echo(run.url)


def _print_preview(recipe: Recipe, out: Path, count: int, as_json: bool) -> None:
    from rolellm.core.errors import RecipeError
    from rolellm.training import preview
    from rolellm.training.train import prepare

    prepared = prepare(recipe, out)
    if recipe.training.trainer != "sft":
        raise RecipeError(f"--preview shows training by trainer: sft, not {recipe.training.trainer}")
    examples = [example for example in prepared.examples if example.reference == 0][:count]
    if as_json:
        print_json({"examples": [preview.to_dict(example, prepared.tokenizer) for example in examples]})
    elif sys.stdout.isatty():
        from rich.console import Console

        Console().print(preview.format_rich(examples, prepared.tokenizer))
    else:
        for line in preview.format_plain(examples, prepared.tokenizer):
            typer.echo(line)
