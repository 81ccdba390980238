"""The options that every command which asks models shares.

A command has a parameter of the types `ModelOptions` and `CallOptions`, and asks what `make_llm` makes of them::

    @with_options
    def greet(context: typer.Context, model: ModelOptions, calls: CallOptions, out: Path) -> Run[Greetings]:
        return run_or_estimate(context, Greet(), make_llm(model, calls), out)
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from rolellm.cli.output import build_resume_line, print_result, resumable
from rolellm.core.errors import StoppedShortError
from rolellm.core.settings import Advanced, Field, settings
from rolellm.llm.llm import LLM, CallOptions, ModelOptions

if TYPE_CHECKING:
    from rolellm.llm.settings import MakeScripted
    from rolellm.runs import R, Run, Step


@settings
class AskedForAll(CallOptions):
    """Model.

    `check_missing` compares requests without an answer with `allow_missing`.

    Attributes:
        allow_missing: Share of requests that may stay unanswered; above it, the exit code is 3.
    """

    # As for `rolellm judge`: enough for what a content filter takes here and there (our choice).
    allow_missing: Advanced[float] = Field(default=0.01, ge=0, le=1, json_schema_extra={"metavar": "SHARE"})


def get_scripted_models() -> dict[str, MakeScripted]:
    """Return the models that the names under ``rules:`` refer to."""
    from rolellm.judging.overlap_judge import make_words_judge
    from rolellm.making.scripted import scripted_model

    return {"quotes": scripted_model, "words": make_words_judge}


def make_llm(model: ModelOptions, calls: CallOptions, *, required: bool = True) -> LLM:
    """Return the language model that the options name; none where none is required.

    Raises:
        SettingsError: When they name no model, or two ways to one.
    """
    return LLM.from_options(model, calls, get_scripted_models(), required=required)


def run_or_estimate(context: typer.Context, step: Step[R], llm: LLM, out: Path) -> Run[R]:
    """Run a stage into a folder; with ``--dry-run`` print what it would take, and leave.

    Raises:
        StoppedShortError: With the command line that continues.
    """
    from rolellm.runs import run_step

    estimate_if_dry(context, step, llm)
    with resumable(context):
        return run_step(step, llm, out)


def estimate_if_dry(context: typer.Context, step: Step[R], llm: LLM) -> None:
    """With ``--dry-run``, print what a stage would take, and leave."""
    from rolellm.runs import estimate_step

    if llm.dry_run:
        print_result(estimate_step(step, llm), as_json=context.params["as_json"])
        raise typer.Exit


def check_missing(context: typer.Context, calls: AskedForAll, missing: int, total: int) -> None:
    """Refuse to call a run done in which more is missing than `AskedForAll.allow_missing` lets pass.

    Raises:
        StoppedShortError: As `explain_missing`.
    """
    error = explain_missing(context, calls, missing, total)
    if error is not None:
        raise error


def explain_missing(context: typer.Context, calls: AskedForAll, missing: int, total: int) -> StoppedShortError | None:
    """Make the error of a run in which more is missing than `AskedForAll.allow_missing` lets pass.

    Args:
        context: The command's context.
        calls: How models were called.
        missing: How many requests have no answer.
        total: How many there are.

    Returns:
        The error, with the command line that asks for what is missing; ``None`` for a run that is done.
    """
    allowed = calls.allow_missing
    if missing <= allowed * total:
        return None
    more = () if calls.retry_failed else ("--set", "retry_failed=true")
    return StoppedShortError(
        f"{missing:,} of {total:,} requests have no answer ({missing / total:.1%}); allow_missing is {allowed:.1%}. "
        "The answers are written; failed.jsonl says why the others failed",
        resume=build_resume_line(context, *more),
    )
