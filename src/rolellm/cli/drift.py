"""``rolellm converse`` and ``rolellm drift``: many turns with roles, and how long they stay in character."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from rolellm.cli.llm_options import AskedModel, language_model, show_estimate
from rolellm.cli.options import AsJson, with_options
from rolellm.cli.output import print_json, resumable, say, show_table
from rolellm.cli.play import Played, played_model
from rolellm.core.text import number_of
from rolellm.evaluation.settings import Bootstrap
from rolellm.playing.settings import ConverseSettings


@with_options
def converse(
    run: typer.Context,
    roles: Annotated[list[str], typer.Argument(metavar="ROLE...")],
    asked: Played,
    how: ConverseSettings,
    out: Path,
    user: Path | None = None,
    ray: str | None = None,
    workers: Annotated[int | None, typer.Option(min=1)] = None,
    as_json: AsJson = False,
) -> None:
    """Have a simulated user, or a script, talk with roles for many turns; all roles at once.

    Args:
        roles: Characters' folders, cards, or names of roles of RoleBench; a role given twice has two sessions.
        out: The run's folder; the same command continues a run that stopped.
        user: YAML settings of the model that plays the user; defaults to the one that plays the roles.
        ray: Ask from the workers of a Ray cluster: its address, or local (docs/scale.md).
        workers: With --ray: number of workers; defaults to one per CPU, for local models one per GPU.
    """
    from rolellm.cli.llm_options import scripted_models
    from rolellm.llm.llm import LLM
    from rolellm.playing.converse import converse as talk

    played = played_model(asked)
    talker = None if user is None else LLM.of(user, scripted_models())
    for llm in filter(None, (played, talker)):
        llm.options = replace(llm.options, ray=ray, workers=workers)
    with resumable(run):
        summary = talk(roles, played, out, how, talker=talker)
    if as_json:
        print_json(summary)
    else:
        _show(summary)
    if not summary["replies"]:
        raise typer.Exit(1)
    if not as_json:
        say(f"Go on with: rolellm drift {summary['out']}")


def _show(summary: dict[str, Any]) -> None:
    spent = summary["spent"]["roles"]
    counts = f"{number_of(spent['calls'], 'call')}, {spent['from_journal']:,} from the journal"
    replies = number_of(summary["replies"], "reply", "replies")
    say(f"{replies} in {number_of(summary['sessions'], 'session')}; {counts}")
    for name, reason in summary["ended_early"].items():
        say(f"note: {name} ended early: {reason}", err=True)


@with_options
def drift(
    context: typer.Context,
    sessions: Annotated[list[str], typer.Argument(metavar="[NAME=]SESSIONS...")],
    asked: AskedModel,
    bootstrap: Bootstrap,
    out: Path = Path("drift"),
    as_json: AsJson = False,
) -> None:
    """Measure how long roles stay in character, and what changes over the turns; with a model, also by its judgment.

    Args:
        sessions: Files or folders of `rolellm converse`; those with the same NAME (default: the model) are joined.
        out: Folder for drift.json, which `rolellm report` shows, and turns.jsonl, every reply with its measures.
    """
    from rolellm.judging.drift import drift as run
    from rolellm.judging.drift import systems_of
    from rolellm.judging.drift_judge import judge_talks, planned
    from rolellm.report.drift_section import drift_tables
    from rolellm.report.score_table import to_rich

    llm = language_model(asked, required=asked.model.dry_run)
    systems = systems_of(sessions)
    judged = bool(llm.settings.endpoints)
    if llm.dry_run:
        show_estimate(llm.estimate(request for talks in systems.values() for request in planned(talks)), as_json)
        return
    with resumable(context):
        judge = (lambda talks, measured: judge_talks(talks, measured, out, llm)) if judged else None
        found = run(systems, out, bootstrap, judge)
    if as_json:
        print_json(found)
        return
    for table in drift_tables(found["systems"]):
        show_table(to_rich(table, digits=1))
    for name, one in found["systems"].items():
        if one.get("judge") and one["judge"]["unscored"]:
            say(
                f"note: {name}: {one['judge']['unscored']} of {one['judge']['of']} judgements gave no verdict", err=True
            )
    say(f"Go on with: rolellm report {out}")
