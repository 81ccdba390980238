"""``rolellm converse`` and ``rolellm drift``: many turns with roles, and how long they stay in character."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rolellm.cli.options import AsJson, with_options
from rolellm.cli.output import print_json, print_table, resumable, say
from rolellm.cli.play import Played
from rolellm.playing.settings import ConverseSettings


@with_options
def converse(
    run: typer.Context,
    roles: Annotated[list[str], typer.Argument(metavar="ROLE...")],
    asked: Played,
    how: ConverseSettings,
    out: Path,
    user: Path | None = None,
    as_json: AsJson = False,
) -> None:
    """Have a simulated user, or a script, talk with roles for many turns; all roles at once.

    Args:
        roles: Characters' folders, cards, or names of roles of RoleBench; a role given twice has two sessions.
        out: The run's folder; the same command continues a run that stopped.
        user: YAML settings of the model that is the user; by default the one that plays the roles.
    """
    from rolellm.cli.llm_options import scripted_models
    from rolellm.cli.play import language_model
    from rolellm.llm.llm import LLM
    from rolellm.playing.converse import converse as talk

    talker = None if user is None else LLM.of(user, scripted_models())
    with resumable(run):
        summary = talk(roles, language_model(asked), out, how, talker=talker)
    if as_json:
        print_json(summary)
        return
    spent = summary["spent"]["roles"]
    rows = [
        ("sessions", summary["sessions"]),
        ("replies", summary["replies"]),
        ("ended early", len(summary["ended_early"])),
        ("calls; replies from the journal", f"{spent['calls']:,}; {spent['from_journal']:,}"),
    ]
    print_table("sessions", ("", ""), rows)
    for name, reason in summary["ended_early"].items():
        say(f"note: {name} ended early: {reason}", err=True)
    say(f"Go on with: rolellm drift {summary['out']}")
