"""``rolellm make``: from a card or a script to a tuned and measured character, in one folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rolellm.cli.options import AsJson, with_options
from rolellm.cli.output import print_result, resumable, say, show_table
from rolellm.core.settings import dump
from rolellm.journeys.making import MakeResult, MakeSettings


@with_options
def run_make(
    context: typer.Context,
    source: Annotated[Path, typer.Argument(metavar="SOURCE")],
    options: MakeSettings,
    llm: Path | None = None,
    out: Path | None = None,
    budget: Annotated[float | None, typer.Option(min=0)] = None,
    dry_run: bool = False,
    as_json: AsJson = False,
) -> None:
    """Make a data set of a card or script and, with --base, an adapter.

    The same command again continues, and pays for nothing twice.

    Args:
        source: A card; a script, novel or chat with --role; or a character's folder.
        llm: Settings file of the model that makes the data; by default the base does.
        out: The character's folder; named after the source by default.
        budget: US dollars that all stages may cost together.
        dry_run: Estimate calls, tokens, dollars and minutes of each stage; ask no model.
    """
    from rolellm.core.threads import wait_briefly

    wait_briefly()
    defaults = dump(MakeSettings())
    given = {name: value for name, value in dump(options).items() if value != defaults[name]}
    with resumable(context):
        from rolellm.journeys.making import estimate_make, make

        if dry_run:
            estimated = estimate_make(source, llm, out, **given)
            print_result(estimated, lambda estimated: show_table(estimated.table), as_json)
            return
        result = make(source, llm, out, budget=budget, **given)
    print_result(result, _show, as_json)


def _show(result: MakeResult) -> None:
    show_table(result._table())
    for sentence in result.findings:
        say(sentence)
    if result.page is not None:
        say(f"Report: {result.page}")
    say("Go on with:")
    for line in result.following:
        say(f"  {line}")
