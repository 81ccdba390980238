"""The options that every command which asks models shares.

A command declares one parameter of the type `LLM` and is decorated with `takes_llm`, which puts the options of
`rolellm.llm.llm.LLMOptions` in its place::

    @takes_llm
    def instruct(profile: Path, llm: LLM, as_json: bool = False) -> None:
        requests = ...
        if llm.dry_run:
            show_estimate(llm.estimate(requests), as_json)
        else:
            with Client(folder, llm.models, llm.options) as client: ...
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rolellm.cli.options import from_settings
from rolellm.cli.output import print_json, print_table, say
from rolellm.core.settings import settings
from rolellm.llm.llm import LLM, LLMOptions

if TYPE_CHECKING:
    from rolellm.llm.estimate import Estimate
    from rolellm.llm.settings import MakeScripted

__all__ = ["LLM", "scripted_models", "show_estimate", "takes_llm"]

#: As for `rolellm judge`: enough for what a content filter takes here and there (our choice).
ALLOWED_MISSING = 0.01
AllowMissing = Annotated[
    float,
    typer.Option(
        "--allow-missing",
        min=0,
        max=1,
        metavar="SHARE",
        help="Share of requests that may stay unanswered; above it, the exit code is 3.",
        rich_help_panel="Model",
    ),
]


@settings
class _Shared:
    # A section, so that its options have a panel of their own in the help.
    model: LLMOptions


def scripted_models() -> dict[str, MakeScripted]:
    """What the names under ``rules:`` refer to."""
    from rolellm.construct.scripted import scripted_model
    from rolellm.judging.overlap_judge import words_judge

    return {"quotes": scripted_model, "words": words_judge}


def takes_llm(
    command: Callable[..., None], *, unless: str | Callable[[Mapping[str, Any]], bool] | None = None
) -> Callable[..., None]:
    """Give a command the shared options in place of its parameter of the type `LLM`.

    Args:
        command: The command.
        unless: A flag of the command's own with which it asks no model, so that none has to be named; or a function
            that tells so from the command's options.
    """
    signature = inspect.signature(command, eval_str=True)
    (name,) = [parameter.name for parameter in signature.parameters.values() if parameter.annotation is LLM]

    @functools.wraps(command)
    def with_llm(**values: Any) -> None:
        shared: _Shared = values.pop(name)
        idle = unless(values) if callable(unless) else unless is not None and values[unless]
        command(**values, **{name: LLM.from_options(shared.model, scripted_models(), required=not idle)})

    replaced = [
        parameter.replace(annotation=_Shared) if parameter.name == name else parameter
        for parameter in signature.parameters.values()
    ]
    with_llm.__signature__ = signature.replace(parameters=replaced)  # type: ignore[attr-defined]
    return from_settings(with_llm)


def show_estimate(estimate: Estimate, as_json: bool) -> None:
    """Print what a dry run found: one JSON object, or a table with its assumptions."""
    if as_json:
        print_json(estimate.to_dict())
        return
    columns, rows = estimate.table()
    print_table(f"{estimate.requests:,} requests; no model was asked", columns, rows)
    for note in estimate.notes():
        say(note)
