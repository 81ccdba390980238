"""``rolellm make``: from a card or a script to a tuned and measured character, in one folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rolellm.cli.options import with_options
from rolellm.core.result import Result
from rolellm.core.settings import dump
from rolellm.journeys.making import MakeSettings


@with_options
def run_make(
    source: Annotated[Path, typer.Argument()],
    options: MakeSettings,
    llm: Path | None = None,
    out: Path | None = None,
    budget: Annotated[float | None, typer.Option(min=0)] = None,
    dry_run: bool = False,
) -> Result:
    """Make a data set of a card or script and, with --base, an adapter.

    The same command again continues, and pays for nothing twice.

    Args:
        source: A card; a script, novel or chat with --role; or a character's folder.
        llm: Settings file of the model that makes the data; by default the base does.
        out: The character's folder; named after the source by default.
        budget: US dollars that all stages may cost together.
        dry_run: Estimate calls, tokens, dollars and minutes of each stage; ask no model.
    """
    defaults = dump(MakeSettings())
    changed = {name: value for name, value in dump(options).items() if value != defaults[name]}
    from rolellm.journeys.making import estimate_make, make

    if dry_run:
        return estimate_make(source, llm, out, **changed)
    return make(source, llm, out, budget=budget, **changed)
