"""``rolellm instruct``: Context-Instruct, from a character's folder to questions and answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rolellm.cli.llm_options import make_llm, run_or_estimate
from rolellm.cli.options import Profile, with_options
from rolellm.cli.output import build_next_line
from rolellm.llm.llm import CallOptions, ModelOptions
from rolellm.making.settings import InstructSettings
from rolellm.runs import Run


@with_options
def run_instruct(
    profile: Profile,
    model_options: ModelOptions,
    call_options: CallOptions,
    settings: InstructSettings,
    out: Path | None = None,
) -> Run[Any]:
    """Make questions and answers for a role, and filter them.

    Pairs that pass the filters go to RUN/kept.jsonl; the others go to RUN/dropped.jsonl, with the reason.

    Args:
        out: The run's folder; defaults to PROFILE/instruct.
    """
    from rolellm.characters.folder import open_character
    from rolellm.making.instruct.run import Instruct

    llm = make_llm(model_options, call_options)
    character, home = open_character(profile, make=not llm.dry_run)
    profile = home or profile
    run = run_or_estimate(Instruct(character, settings), llm, out or profile / "instruct")
    return run.continue_with(
        build_next_line(model_options, "rolellm", "respond", str(profile), "--instructions", "sample")
    )
