"""``rolellm role release``: characters with their questions and replies, as data that trains and tests."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer


def release(
    profiles: Annotated[
        list[Path], typer.Argument(metavar="PROFILE…", help="Characters' folders, after `instruct` and `respond`.")
    ],
    out: Annotated[Path, typer.Option("--out", help="The folder to write, in the layout of the RoleBench release.")],
    test_share: Annotated[float, typer.Option("--test-share", help="Of the questions, for test.")] = 0.2,
    held_out: Annotated[
        list[str] | None,
        typer.Option("--held-out", metavar="ROLE", help="Hold this role out for role generalization; may be repeated."),
    ] = None,
    role_share: Annotated[
        float, typer.Option("--role-share", help="Of the roles, held out where none are named.")
    ] = 0.1,
    seed: Annotated[int, typer.Option("--seed", help="Another seed holds out other questions and roles.")] = 0,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier release in --out.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Write a folder that load_dataset("rolebench", CONFIG, data_dir=OUT) loads, with splits by rule and a manifest."""
    from rolellm.construct.release import SplitRule, gather, write_release

    rule = SplitRule(test_share, role_share, tuple(held_out or ()), seed)
    summary = write_release([gather(folder) for folder in profiles], out, rule, overwrite=overwrite)
    if as_json:
        from rolellm.cli.output import print_json

        print_json(summary.to_dict())
        return
    from rolellm.cli.output import print_table
    from rolellm.inert import visible

    rows = [[visible(name), f"{count:,}"] for name, count in summary.rows.items()]
    print_table(visible(str(out)), ["file", "rows"], rows)
    for note in summary.notes:
        typer.echo(f"note: {visible(note)}")
    if summary.held_out:
        typer.echo(f"held out for role generalization: {visible(', '.join(summary.held_out))}")
    # As Python takes it: the name "rolebench" is known once rolellm is imported.
    typer.echo("Load it with:\n  import rolellm\n  from datasets import load_dataset")
    for config in summary.configs:
        typer.echo(f"  load_dataset({'rolebench'!r}, {config!r}, data_dir={str(out)!r})")
    typer.echo(f"Or look at it with: rolellm data stats --data-dir {visible(shlex.quote(str(out)))}")
