"""``rolellm prefer``: pairs of replies for DPO, from data, judging runs, scenes and chats."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from rolellm.cli.options import with_options
from rolellm.making.settings import PreferSettings
from rolellm.runs import Run


@with_options
def run_prefer(
    out: Path,
    settings: PreferSettings,
    sources: Annotated[list[Path] | None, typer.Argument(metavar="SOURCE")] = None,
) -> Run[Any]:
    """Make pairs of replies for DPO from data, judging runs, scenes and chats.

    Asks no model. Pairs go to RUN/pairs.jsonl; questions and roles of test splits are left out.

    Args:
        out: The run's folder.
        sources: Folders of judging runs and scenes, chats of SillyTavern, and the cards or folders of their roles.
    """
    from rolellm.preferences import PAIRS, Prefer
    from rolellm.runs import run_step

    run = run_step(Prefer(tuple(sources or ()), settings), None, out)
    if not run.result.pairs:
        return run
    return run.continue_with(f"rolellm train rocit-dpo --base TUNED --data {shlex.quote(str(run.folder / PAIRS))}")
