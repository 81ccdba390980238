"""``rolellm harness``: where the tasks for lm-evaluation-harness are."""

from __future__ import annotations

import typer

from rolellm.cli.options import AsJson, with_options
from rolellm.cli.output import print_json


@with_options
def harness(as_json: AsJson = False) -> None:
    """Print the folder of RoleBench's tasks for lm-evaluation-harness, for its --include_path."""
    from rolellm.harness.tasks import tasks_folder

    folder = str(tasks_folder())
    if as_json:
        print_json({"include_path": folder})
    else:
        typer.echo(folder)
