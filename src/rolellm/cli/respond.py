"""``rolellm respond``: RoleGPT's replies to instructions in a role's voice."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from rolellm.cli.llm_options import make_llm, run_or_estimate
from rolellm.cli.options import Profile, with_options
from rolellm.cli.output import say
from rolellm.llm.llm import CallOptions, EngineOptions
from rolellm.making.settings import RespondSettings
from rolellm.runs import Run


@with_options
def run_respond(
    profile: Profile,
    instructions: Path,
    model_options: EngineOptions,
    call_options: CallOptions,
    settings: RespondSettings,
    out: Path | None = None,
    limit: Annotated[int | None, typer.Option(min=1)] = None,
) -> Run[Any]:
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
    note = describe_language_mismatch(character, chosen.asked)
    if note:
        say(f"note: {note}", err=True)
    run = run_or_estimate(Respond(character, chosen, settings), llm, out or profile / "respond")
    data = f"{profile.resolve().name}-data"
    words = ["rolellm", "role", "release", str(profile), "--out", data]
    if Path(data).exists():
        words.append("--overwrite")
    return run.continue_with(shlex.join(words))
