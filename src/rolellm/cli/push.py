"""``rolellm push``: a run of ``rolellm train`` becomes a model on the Hub."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rolellm.cli.options import AsJson, with_options
from rolellm.cli.output import print_result, print_table
from rolellm.core.settings import dump
from rolellm.data.hub.push import PushOptions

if TYPE_CHECKING:
    from rolellm.data.hub.push import Pushed


@with_options
def run_push(
    run: Annotated[Path, typer.Argument(metavar="DIR")],
    repo: Annotated[str, typer.Argument(metavar="REPO")],
    options: PushOptions,
    license: str | None = None,
    merge: bool = False,
    base_model: str | None = None,
    scores: list[Path] | None = None,
    safety: Path | None = None,
    as_json: AsJson = False,
) -> None:
    """Publish a training run as a model on the Hub.

    One commit: adapter or merged model, tokenizer with its chat template, and a model card.

    Args:
        run: A finished run of rolellm train.
        repo: Model on the Hub, OWNER/NAME.
        license: License; defaults to the recipe's output.license.
        merge: Publish the adapter merged into its base.
        base_model: Base model on the Hub, OWNER/NAME, if the run used a local folder.
        scores: Output of rolellm score --json; may be repeated.
        safety: Folder of rolellm check safety, for the card; defaults to one in DIR.
    """
    from rolellm.training.publish import push

    named = {"license": license, "merge": merge, "base_model": base_model, "scores": scores or (), "safety": safety}
    print_result(push(run, repo, **(dump(options) | named)), show_push, as_json)


def show_push(pushed: Pushed) -> None:
    """Print what a push did."""
    if pushed.changed is False:
        typer.echo(f"nothing to do: {pushed.url} is up to date at {pushed.revision}")
        return
    rows: list[tuple[str, str | int]] = [*pushed.sent.items(), *((path, "removed") for path in pushed.removed)]
    done = "Would send to" if pushed.changed is None else "Sent to"
    print_table(f"{done} {pushed.url}", ("file", "bytes"), rows)
    if pushed.changed:
        typer.echo(f"revision {pushed.revision}")
