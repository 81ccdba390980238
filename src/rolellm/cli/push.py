"""``rolellm push``: a run of ``rolellm train`` becomes a model on the Hub."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rolellm.cli.options import with_options
from rolellm.core.settings import Advanced, dump
from rolellm.data.hub.push import Pushed, PushOptions


@with_options
def run_push(
    run: Annotated[Path, typer.Argument()],
    repo: Annotated[str, typer.Argument()],
    options: PushOptions,
    license: str | None = None,
    merge: bool = False,
    base_model: Advanced[str | None] = None,
    scores: list[Path] | None = None,
    safety: Advanced[Path | None] = None,
) -> Pushed:
    """Publish a training run as a model on the Hub.

    One commit: adapter or merged model, tokenizer with its chat template, and a model card.

    Args:
        run: A finished run of rolellm train.
        repo: Model on the Hub, OWNER/NAME.
        license: License, as the Hub spells it.
        merge: Publish the adapter merged into its base.
        base_model: Base model on the Hub, OWNER/NAME, if the run used a local folder.
        scores: Output of rolellm score --json; may be repeated.
        safety: Folder of rolellm check safety, for the card; defaults to one in RUN.
    """
    from rolellm.training.publish import push

    return push(
        run,
        repo,
        license=license,
        merge=merge,
        base_model=base_model,
        scores=scores or (),
        safety=safety,
        **dump(options),
    )
