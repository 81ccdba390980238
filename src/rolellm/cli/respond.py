"""``rolellm respond``: RoleGPT's replies to instructions in a role's voice."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rolellm.cli.llm_options import AskedForAll, check_missing, make_llm, run_or_estimate
from rolellm.cli.options import AsJson, Profile, with_options
from rolellm.cli.output import print_result, print_table, say
from rolellm.core.sanitize import label
from rolellm.llm.llm import ModelOptions
from rolellm.making.settings import RespondSettings

if TYPE_CHECKING:
    from rolellm.runs import Run

_WIDE = 60


@with_options
def run_respond(
    context: typer.Context,
    profile: Profile,
    instructions: Path,
    model_options: ModelOptions,
    call_options: AskedForAll,
    settings: RespondSettings,
    out: Path | None = None,
    limit: Annotated[int | None, typer.Option(min=1)] = None,
    as_json: AsJson = False,
) -> None:
    """Ask a role each instruction several times, in its own voice.

    Five replies are references, the sixth is held out as the baseline.

    Args:
        instructions: File with instructions (JSON Lines, JSON, CSV, Parquet), or sample for the embedded ones.
        out: The run's folder; defaults to PROFILE/respond.
        limit: Use only the first N instructions.
    """
    from rolellm.characters.folder import open_character
    from rolellm.making.respond import Respond, describe_language_mismatch, read_instructions

    llm = make_llm(model_options, call_options)
    character, home = open_character(profile, make=not llm.dry_run)
    profile = home or profile
    chosen = read_instructions(instructions, character, limit)
    if note := describe_language_mismatch(character, chosen.asked):
        say(f"note: {note}", err=True)
    step = Respond(character, chosen, settings)
    run = run_or_estimate(context, step, llm, out or profile / "respond")
    print_result(run, _show, as_json)
    if run.failed == run.asked:
        raise typer.Exit(1)
    check_missing(context, call_options, run.failed, run.asked)
    if not as_json:
        words = ["rolellm", "role", "release", str(profile), *_choose_release_words(f"{profile.resolve().name}-data")]
        say(f"Go on with: {shlex.join(words)}")


def _choose_release_words(name: str) -> list[str]:
    """Return what `role release` needs to write a data set: a folder that is free, or has an earlier one to replace."""
    from rolellm.data.rolebench.source import find_own_manifest

    names = (name, *(f"{name}-{number}" for number in range(2, 100)))
    out = next((path for path in names if find_own_manifest(path) or not Path(path).exists()), name)
    return ["--out", out, *(["--overwrite"] if Path(out).exists() else [])]


def _show(run: Run[Any]) -> None:
    summary, folder = run.to_dict(), run.folder
    expected = summary["replies"] + summary["missing"]
    rows: list[tuple[str, str | int]] = [
        ("instructions", summary["instructions"]),
        ("replies", f"{summary['replies']:,} of {expected:,}"),
        ("held out as the baseline", summary["held_out"]),
        *((f"rejected by the rule {name}", count) for name, count in summary["turned_down"].items()),
        ("demonstrations left out by the budget", summary["demonstrations_dropped"]),
        ("calls; replies from the journal", f"{summary['spent']['calls']:,}; {summary['spent']['from_journal']:,}"),
        *([("US dollars in total", f"{cost:.4f}")] if (cost := summary["spent"]["cost"]) else []),
    ]
    print_table(f"{label(summary['role'], _WIDE)}, {summary['strategy']}", ("", ""), rows)
    if summary["missing"]:
        reason, count = next(iter(summary["failed"].items()))
        say(
            f"note: {summary['missing']:,} of {expected:,} replies are missing, most often ({count:,}): "
            f"{label(reason, 200)}; {folder / 'failed.jsonl'} lists all; --set retry_failed=true "
            "retries them",
            err=True,
        )
    say(f"The replies are in {folder / 'replies.jsonl'}.")
