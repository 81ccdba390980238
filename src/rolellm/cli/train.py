"""``rolellm train``: stage 4, role-conditioned tuning, from a YAML recipe."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rolellm.cli.output import print_json, resume_line

if TYPE_CHECKING:
    from rolellm.rocit.recipe import Recipe


def train(
    context: typer.Context,
    recipe: Annotated[str, typer.Argument(help="A YAML file, or the name of a recipe that ships, such as smoke-cpu.")],
    out: Annotated[Path | None, typer.Option("--out", help="The run's folder, in place of output.dir.")] = None,
    data_dir: Annotated[
        Path | None, typer.Option("--data-dir", help="A local copy of the release, in place of data.data_dir.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override one value; may be repeated.")
    ] = None,
    preview: Annotated[bool, typer.Option("--preview", help="Show each token, trained or not, and leave.")] = False,
    rows: Annotated[int, typer.Option("--rows", min=1, help="How many rows --preview shows.")] = 2,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the unfinished run in the folder.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run that is in the folder.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Tune a model on RoleBench by a recipe; the same code as accelerate launch recipes/rocit.py --config RECIPE."""
    from rolellm.rocit.callbacks import stopped_short
    from rolellm.rocit.recipe import find_recipe, load_recipe
    from rolellm.runtime.threads import wait_briefly

    wait_briefly()
    # JSON text is YAML text, whatever the path holds.
    moved = [] if data_dir is None else [f"data.data_dir={json.dumps(str(data_dir), ensure_ascii=False)}"]
    chosen = load_recipe(find_recipe(recipe), [*(settings or []), *moved])
    if preview:
        _preview(chosen, out, rows, as_json)
        return
    again = resume_line(context, *(["--overwrite"] if overwrite else []))
    going_on = resume_line(context, *([] if resume else ["--resume"]))
    with stopped_short(out or chosen.output.dir, again=again, resume=going_on):
        # The imports take seconds, and Ctrl-C may come within them.
        from rolellm.rocit.train import train as run_recipe

        result = run_recipe(chosen, out, overwrite=overwrite, resume=resume)
    if as_json:
        print_json(result.to_dict())
        return
    typer.echo(
        f"{result.steps} steps on {result.examples} replies of {result.rows} rows: "
        f"loss {result.first_loss:.3f} → {result.last_loss:.3f} in {result.seconds:.0f} s\n{result.out}"
    )
    if result.url is not None:
        typer.echo(result.url)


def _preview(recipe: Recipe, out: Path | None, count: int, as_json: bool) -> None:
    from rolellm.rocit import preview
    from rolellm.rocit.prepare import prepare

    prepared = prepare(recipe, out or recipe.output.dir)
    shown = [example for example in prepared.examples if example.reference == 0][:count]
    if as_json:
        print_json({"examples": [preview.to_dict(example, prepared.tokenizer) for example in shown]})
    elif sys.stdout.isatty():
        from rich.console import Console

        Console().print(preview.rich_text(shown, prepared.tokenizer))
    else:
        for line in preview.plain(shown, prepared.tokenizer):
            typer.echo(line)
