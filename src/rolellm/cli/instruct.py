"""``rolellm instruct``: Context-Instruct, from a character's folder to questions and answers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from rolellm.cli.llm_options import AskedForAll, make_llm, run_or_estimate
from rolellm.cli.options import AsJson, Profile, with_options
from rolellm.cli.output import build_next_line, check_missing, print_result, print_table, say
from rolellm.core.sanitize import label
from rolellm.llm.llm import ModelOptions
from rolellm.making.settings import InstructSettings

if TYPE_CHECKING:
    from rolellm.making.instruct.run import InstructResult
    from rolellm.runs import Run

_EXAMPLES = 3


@with_options
def run_instruct(
    context: typer.Context,
    profile: Profile,
    model_options: ModelOptions,
    call_options: AskedForAll,
    settings: InstructSettings,
    out: Path | None = None,
    as_json: AsJson = False,
) -> None:
    """Make questions and answers for a role, and filter them.

    Pairs that pass the filters go to RUN/kept.jsonl; the others go to RUN/dropped.jsonl, with the reason.

    Args:
        out: The run's folder; defaults to PROFILE/instruct.
    """
    from rolellm.characters.cards.folder import open_character
    from rolellm.llm.client import FAILED
    from rolellm.making.instruct.run import Instruct

    llm = make_llm(model_options, call_options)
    character, home = open_character(profile, make=not llm.dry_run)
    profile = home or profile
    run = run_or_estimate(context, Instruct(character, settings), llm, out or profile / "instruct", as_json)
    result = run.result
    if result.shortfall:
        typer.echo(f"warning: {result.shortfall}.", err=True)
    elif run.failed:
        say(f"note: requests without a usable reply: {run.failed:,}; {run.folder / FAILED} says why", err=True)
    print_result(run, _show, as_json)
    if not result.verdicts:
        raise typer.Exit(1)
    check_missing(context, run.failed, run.asked)
    if result.kept and not as_json:
        say(f"Go on with: {build_next_line(context, 'rolellm', 'respond', str(profile), '--instructions', 'sample')}")
        say("That takes the embedded instructions; a JSON Lines file takes your own.")


def _show(run: Run[InstructResult]) -> None:
    counts = run.summary["counts"]
    examples: dict[str, list[str]] = {}
    for verdict in run.result.dropped:
        examples.setdefault(str(verdict.by), []).append(label(verdict.reason or "", 80))
    rows: list[tuple[str, int, str]] = [("kept", counts["kept"], "")]
    for name, number in counts["dropped"].items():
        reasons = list(dict.fromkeys(examples.get(name, [])))[:_EXAMPLES]
        rows.append((f"dropped: {name}", number, "\n".join(reasons)))
    title = (
        f"{counts['candidates']:,} candidates for {label(run.summary['role'], 40)}, {counts['distinct']:,} different"
    )
    print_table(title, ("verdict", "pairs", "such as"), rows)
    if counts["verified"]:
        checked = [(rated, *outcomes.values()) for rated, outcomes in counts["verified"].items()]
        print_table("Checked against the material", ("rated by the model", "supported", "unsupported"), checked)
    spent = run.manifest["spent"]
    by_type = ", ".join(f"{number:,} {name}" for name, number in counts["kept_by_type"].items())
    typer.echo(f"Kept: {by_type}; {spent['calls']:,} calls, {spent['from_journal']:,} requests from the journal.")
    say(f"{run.folder / 'kept.jsonl'} and, with reasons, {run.folder / 'dropped.jsonl'}")
