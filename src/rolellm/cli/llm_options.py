"""What every command that asks models shares.

A command has a parameter of the types `ModelOptions` and `CallOptions`, and asks what `make_llm` makes of them::

    @with_options
    def greet(model: ModelOptions, calls: CallOptions, out: Path) -> Run[Greetings]:
        return run_or_estimate(Greet(), make_llm(model, calls), out)
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from rolellm.cli.output import RETRY
from rolellm.core.errors import StoppedShortError
from rolellm.core.result import Result
from rolellm.llm.llm import LLM, CallOptions, ModelOptions

if TYPE_CHECKING:
    from rolellm.llm.settings import MakeScripted
    from rolellm.runs import R, Run, Step

#: Share of requests that may stay unanswered, as for verdicts: what a content filter takes here and there.
_ALLOWED_MISSING: Final = 0.01


class EstimatedError(Exception):
    """Raised with ``--dry-run`` in place of the work; `estimate` is printed."""

    def __init__(self, estimate: Result) -> None:
        self.estimate = estimate


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


def run_or_estimate(step: Step[R], llm: LLM, out: Path) -> Run[R]:
    """Run a stage into a folder; with ``--dry-run`` say only what it would take."""
    from rolellm.runs import run_step

    stop_if_dry(step, llm)
    return run_step(step, llm, out)


def stop_if_dry(step: Step[R], llm: LLM) -> None:
    """Stop with ``--dry-run`` for what a stage would take.

    Raises:
        EstimatedError: With the estimate.
    """
    from rolellm.runs import estimate_step

    if llm.dry_run:
        raise EstimatedError(estimate_step(step, llm))


def explain_missing(result: Result) -> StoppedShortError | None:
    """Make the error of a result in which more requests than `_ALLOWED_MISSING` have no answer, if it is one."""
    missing, total = getattr(result, "failed", 0), getattr(result, "asked", 0)
    if missing <= _ALLOWED_MISSING * total:
        return None
    return StoppedShortError(
        f"{missing:,} of {total:,} requests have no answer ({missing / total:.1%}); at most {_ALLOWED_MISSING:.0%} may "
        f"be missing. The answers are written; failed.jsonl says why the others failed, and --set {RETRY} asks again",
        resume="the same command",
    )
