"""``rolellm generate``: a local model answers a split of the benchmark."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import typer

from rolellm.cli.options import from_settings
from rolellm.cli.output import resume_line
from rolellm.evaluation.settings import GenerateSettings


@from_settings
def generate(
    context: typer.Context,
    model: Annotated[
        str, typer.Option("--model", help="A folder with a model, adapter or run of `rolellm train`; or a Hub id.")
    ],
    config: Annotated[str, typer.Option("--config", help="Config of the dataset, such as sample.")],
    out: Annotated[Path, typer.Option("--out", help="Predictions file, JSON Lines; continued if it exists.")],
    settings: GenerateSettings,
    split: Annotated[str, typer.Option("--split", help="Split of the dataset.")] = "test",
    data_dir: Annotated[
        Path | None,
        typer.Option("--data-dir", help="A local copy of the release; default: $ROLEBENCH_DIR, then the Hub."),
    ] = None,
    role: Annotated[list[str] | None, typer.Option("--role", help="Answer only this role; repeatable.")] = None,
    subset: Annotated[
        Literal["general", "role_specific"] | None, typer.Option("--subset", help="Answer only this subset.")
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Answer only the first N rows.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Answer a split of RoleBench with a local model, in batches; an interrupted run continues where it stopped."""
    from rolellm.evaluation.resume import stopped_short
    from rolellm.runtime.threads import wait_briefly

    wait_briefly()

    untouched = resume_line(context, "--overwrite") if settings.overwrite else None
    with stopped_short(out, resume_line(context), untouched=untouched):
        # The imports take seconds, and Ctrl-C may come within them.
        from rolellm import dataset_fingerprint, load_rolebench
        from rolellm.evaluation.generate import answer_rows, check
        from rolellm.evaluation.rows import rows_of

        settings = replace(settings, model=model, config=config, split=split, data_dir=data_dir)
        # Fetching the data may take minutes: refuse what can be refused without it.
        check(settings)
        data = load_rolebench(config, split, data_dir=data_dir)
        rows = rows_of(data, role or [], subset, limit, needed=("role", "question"))
        settings = replace(settings, dataset_fingerprint=dataset_fingerprint(config, data_dir))
        summary = answer_rows(rows, out, settings)
    if as_json:
        from rolellm.cli.output import print_json

        print_json(summary.to_dict())
        return
    if summary.capped:
        text = f"{summary.capped} rows had less than {settings.max_new_tokens} tokens left in the model's context."
        typer.echo(text, err=True)
    rate = summary.to_dict()["tokens_per_second"]
    speed = f" ({rate:,.0f} tokens/s)" if rate else ""
    typer.echo(
        f"{summary.rows} predictions in {out}, {summary.generated} of them new{speed}: {summary.stop} complete, "
        f"{summary.length} truncated at the token limit, {summary.empty} empty."
    )
    place = [] if data_dir is None else ["--data-dir", str(data_dir)]
    part = [] if split == "test" else ["--split", split]
    typer.echo(f"Score them with: {shlex.join(['rolellm', 'score', str(out), '--config', config, *part, *place])}")
