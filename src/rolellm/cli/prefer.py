"""``rolellm prefer``: pairs of replies for DPO, from data, runs and chats."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rolellm.cli.options import AsJson, with_options
from rolellm.cli.output import print_result, say, show_table
from rolellm.making.settings import PreferSettings

if TYPE_CHECKING:
    from rolellm.runs import Run


@with_options
def run_prefer(
    out: Path,
    settings: PreferSettings,
    sources: Annotated[list[Path] | None, typer.Argument(metavar="[SOURCE...]")] = None,
    as_json: AsJson = False,
) -> None:
    """Make pairs of replies for DPO from data, runs and chats.

    Asks no model. Pairs go to RUN/pairs.jsonl; questions and roles of test splits are left out.

    Args:
        out: The run's folder.
        sources: Folders of runs of instruct, judge and check converse, of votes, chats of SillyTavern, and the
            cards or folders of their roles.
    """
    from rolellm.preferences import Prefer
    from rolellm.runs import run_step

    run = run_step(Prefer(tuple(sources or ()), settings), None, out)
    print_result(run, _show, as_json)


def _show(run: Run[Any]) -> None:
    from rolellm.preferences import PAIRS, make_table

    show_table(make_table(run.summary))
    tests = ", ".join(run.summary["held_out"]["tests"])
    say(f"Held out: {tests}." if tests else "note: no test split is known, so nothing was held out; name --config")
    if run.summary["pairs"]:
        say(f"Go on with: rolellm train rocit-dpo --base TUNED --set data.path={run.folder / PAIRS}")
    else:
        say("note: no pair is left; the table says why. --no-balance keeps pairs whatever their lengths")
