"""``rolellm push``: a run of ``rolellm train`` becomes a model on the Hub."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rolellm.hub import Pushed


def push(
    run: Annotated[Path, typer.Argument(metavar="DIR", help="A finished run of rolellm train.")],
    repo: Annotated[str, typer.Argument(metavar="REPO", help="Model on the Hub, OWNER/NAME.")],
    license_: Annotated[
        str | None,
        typer.Option("--license", help="License; defaults to the recipe's output.license."),
    ] = None,
    merge: Annotated[bool, typer.Option("--merge", help="Publish the adapter merged into its base.")] = False,
    base_model: Annotated[
        str | None,
        typer.Option("--base-model", help="Base model on the Hub, OWNER/NAME, if the run used a local folder."),
    ] = None,
    scores: Annotated[
        list[Path] | None, typer.Option("--scores", help="Output of rolellm score --json; may be repeated.")
    ] = None,
    private: Annotated[
        bool, typer.Option("--private/--public", help="Make a newly created repository private.")
    ] = True,
    revision: Annotated[str, typer.Option("--revision", help="Branch to push to; created if missing.")] = "main",
    message: Annotated[str | None, typer.Option("--message", help="Commit title.")] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace files of the same name that rolellm did not write.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List what would be sent; send nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Publish a run as one commit: adapter or merged model, tokenizer with its chat template, and a model card."""
    from rolellm.rocit.publish import push as publish

    pushed = publish(
        run,
        repo,
        license=license_,
        merge=merge,
        base_model=base_model,
        scores=scores or (),
        private=private,
        branch=revision,
        message=message or "Publish with rolellm",
        overwrite=overwrite,
        dry_run=dry_run,
    )
    show(pushed, as_json=as_json)


def show(pushed: Pushed, *, as_json: bool) -> None:
    """Print what a push did."""
    from rolellm.cli.output import print_json, print_table

    if as_json:
        print_json(pushed.to_dict())
        return
    if pushed.changed is False:
        typer.echo(f"nothing to do: {pushed.url} is up to date at {pushed.revision}")
        return
    rows = [(path, f"{size:,}") for path, size in pushed.sent.items()] + [(path, "removed") for path in pushed.removed]
    done = "Would send to" if pushed.changed is None else "Sent to"
    print_table(f"{done} {pushed.url}", ("file", "bytes"), rows)
    if pushed.changed:
        typer.echo(f"revision {pushed.revision}")
