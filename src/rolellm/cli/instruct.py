"""``rolellm instruct``: Context-Instruct, from a character's folder to questions and answers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from rolellm.cli.llm_options import AskedForAll, language_model, show_estimate
from rolellm.cli.options import AsJson, Profile, with_options
from rolellm.cli.output import check_missing, next_line, print_json, print_table, resumable, say
from rolellm.construct.settings import InstructSettings
from rolellm.core.sanitize import label

if TYPE_CHECKING:
    from rolellm.construct.context_instruct.run import InstructResult

_EXAMPLES = 3


@with_options
def instruct(
    context: typer.Context,
    profile: Profile,
    asked: AskedForAll,
    settings: InstructSettings,
    out: Path | None = None,
    as_json: AsJson = False,
) -> None:
    """Make questions and answers for a role from its profile and script, and filter them.

    Pairs that pass the filters go to RUN/kept.jsonl; the others go to RUN/dropped.jsonl, with the reason.

    Args:
        out: The run's folder; defaults to PROFILE/instruct.
    """
    from rolellm.construct.context_instruct.run import instruct_folder, planned_requests
    from rolellm.construct.sheet import read_sheet
    from rolellm.llm.client import FAILED

    llm = language_model(asked)
    character, folder = read_sheet(profile), out or profile / "instruct"
    if llm.dry_run:
        show_estimate(llm.estimate(planned_requests(character, settings, count=llm.counter.count)), as_json)
        return
    with resumable(context):
        result, manifest = instruct_folder(character, folder, settings, llm)
    if result.shortfall:
        typer.echo(f"warning: {result.shortfall}.", err=True)
    elif result.failures:
        count = len(result.failures)
        say(f"note: requests without a usable reply: {count:,}; {folder / FAILED} says why", err=True)
    if as_json:
        found = {name: manifest[name] for name in ("role", "counts", "shortfall", "failed", "spent")}
        print_json({"out": str(folder), "enough": result.shortfall is None, **found})
    else:
        _show(result, folder, manifest)
    if not result.verdicts:
        raise typer.Exit(1)
    check_missing(context, len(result.failures), sum(sum(one["requests"].values()) for one in result.rounds))
    if result.kept and not as_json:
        words = ("rolellm", "respond", str(profile), "--instructions", "general.jsonl")
        say(f"Go on with: {next_line(context, *words)}")
        typer.echo("Draw general.jsonl with: rolellm instructions sample DATASET --out general.jsonl")


def _show(result: InstructResult, out: Path, manifest: dict[str, Any]) -> None:
    counts = manifest["counts"]
    examples: dict[str, list[str]] = {}
    for verdict in result.dropped:
        examples.setdefault(str(verdict.by), []).append(label(verdict.reason or "", 80))
    rows: list[tuple[str, int, str]] = [("kept", counts["kept"], "")]
    for name, number in counts["dropped"].items():
        seen = list(dict.fromkeys(examples.get(name, [])))[:_EXAMPLES]
        rows.append((f"dropped: {name}", number, "\n".join(seen)))
    title = (
        f"{counts['candidates']:,} candidates for {label(result.character.role, 40)}, {counts['distinct']:,} different"
    )
    print_table(title, ("verdict", "pairs", "such as"), rows)
    if counts["verified"]:
        checked = [(rated, *found.values()) for rated, found in counts["verified"].items()]
        print_table("Checked against the material", ("rated by the model", "borne out", "not borne out"), checked)
    spent = manifest["spent"]
    by_type = ", ".join(f"{number:,} {name}" for name, number in counts["kept_by_type"].items())
    typer.echo(f"Kept: {by_type}; {spent['calls']:,} calls, {spent['from_journal']:,} requests from the journal.")
    say(f"{out / 'kept.jsonl'} and, with reasons, {out / 'dropped.jsonl'}")
