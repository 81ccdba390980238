"""``rolellm leaderboard``: runs as a static site, every row with its replies and the command that scores them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from rolellm.cli.options import AsJson, DataDir, with_options
from rolellm.evaluation.settings import ScoreOptions


@with_options
def leaderboard(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...")],
    options: ScoreOptions,
    out: Path = Path("leaderboard"),
    mixed: bool = False,
    config: str | None = None,
    split: str | None = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Write a leaderboard of runs as a static site: scores with ranks, and the replies and commands behind them.

    Args:
        runs: Prediction files or harness logs (P.jsonl, NAME=P.jsonl), scores (rolellm score --json) next to their
            replies, or folders of predictions or of a judging run.
        out: Folder of the site.
        mixed: Also show runs with different recipes, each ranked among runs with the same recipe.
        config: Config of runs that do not name their own.
        split: Split of runs that do not name their own.
    """
    from rolellm.cli.output import print_json, show_table
    from rolellm.report.leaderboard import leaderboard as build
    from rolellm.report.score_table import score_table, to_rich

    entries = build(runs, out, replace(options, config=config, split=split, data_dir=data_dir), mixed=mixed)
    if as_json:
        print_json({"site": str(out), "rows": [{"name": one.name, "command": one.command} for one in entries]})
        return
    show_table(to_rich(score_table({entry.name: entry.report for entry in entries}, title="RoleBench leaderboard")))
    typer.echo(f"Leaderboard: {out / 'index.html'}")
