"""``rolellm instruct``: Context-Instruct, from a character's folder to questions and answers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rolellm.cli.llm_options import ALLOWED_MISSING, LLM, AllowMissing, show_estimate, takes_llm
from rolellm.cli.options import from_settings
from rolellm.construct.settings import InstructSettings

if TYPE_CHECKING:
    from rolellm.construct.context_instruct.run import InstructResult

_EXAMPLES = 3


@takes_llm
@from_settings
def instruct(
    context: typer.Context,
    profile: Annotated[Path, typer.Argument(metavar="PROFILE", help="A character's folder; see `rolellm role`.")],
    llm: LLM,
    settings: InstructSettings,
    allow_missing: AllowMissing = ALLOWED_MISSING,
    out: Annotated[Path | None, typer.Option("--out", help="The run's folder; defaults to PROFILE/instruct.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Make questions and answers for a role from its profile and script, and filter them.

    Pairs that pass the filters go to RUN/kept.jsonl; the others go to RUN/dropped.jsonl, with the reason.
    """
    from rolellm.cli.output import check_missing, next_line, resumable
    from rolellm.construct.context_instruct.run import instruct_folder, planned_requests
    from rolellm.construct.sheet import read_sheet
    from rolellm.core.sanitize import visible
    from rolellm.llm.client import FAILED

    character, folder = read_sheet(profile), out or profile / "instruct"
    if llm.dry_run:
        show_estimate(llm.estimate(planned_requests(character, settings, count=llm.counter.count)), as_json)
        return
    with resumable(context):
        result, manifest = instruct_folder(character, folder, settings, llm)
    if result.shortfall:
        typer.echo(f"warning: {result.shortfall}.", err=True)
    elif result.failures:
        failed = visible(str(folder / FAILED))
        typer.echo(f"note: requests without a usable reply: {len(result.failures):,}; {failed} says why", err=True)
    if as_json:
        _print(result, folder, manifest)
    else:
        _show(result, folder, manifest)
    if not result.verdicts:
        raise typer.Exit(1)
    check_missing(context, len(result.failures), sum(sum(one["requests"].values()) for one in result.rounds))
    if result.kept and not as_json:
        words = ("rolellm", "respond", str(profile), "--instructions", "general.jsonl")
        typer.echo(f"Go on with: {visible(next_line(context, *words))}")
        typer.echo("Draw general.jsonl with: rolellm instructions sample DATASET --out general.jsonl")


def _print(result: InstructResult, out: Path, manifest: dict[str, Any]) -> None:
    from rolellm.cli.output import print_json

    names = ("role", "counts", "shortfall", "failed", "spent")
    print_json({"out": str(out), "enough": result.shortfall is None, **{name: manifest[name] for name in names}})


def _show(result: InstructResult, out: Path, manifest: dict[str, Any]) -> None:
    from rolellm.cli.output import print_table
    from rolellm.core.sanitize import label, visible

    counts = manifest["counts"]
    examples: dict[str, list[str]] = {}
    for verdict in result.dropped:
        examples.setdefault(str(verdict.by), []).append(label(verdict.reason or "", 80))
    rows = [("kept", f"{counts['kept']:,}", "")]
    for name, number in counts["dropped"].items():
        seen = list(dict.fromkeys(examples.get(name, [])))[:_EXAMPLES]
        rows.append((f"dropped: {name}", f"{number:,}", "\n".join(seen)))
    title = (
        f"{counts['candidates']:,} candidates for {label(result.character.role, 40)}, {counts['distinct']:,} different"
    )
    print_table(title, ("verdict", "pairs", "such as"), rows)
    spent = manifest["spent"]
    by_type = ", ".join(f"{number:,} {name}" for name, number in counts["kept_by_type"].items())
    typer.echo(f"Kept: {by_type}; {spent['calls']:,} calls, {spent['from_journal']:,} requests from the journal.")
    typer.echo(visible(f"{out / 'kept.jsonl'} and, with reasons, {out / 'dropped.jsonl'}"))
