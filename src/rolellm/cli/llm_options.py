"""The options that every command which asks models shares.

A command has a parameter of the type `AskedModel`, and asks what `language_model` makes of it::

    @with_options
    def instruct(profile: Path, asked: AskedModel, as_json: AsJson = False) -> None:
        llm = language_model(asked)
        requests = ...
        if llm.dry_run:
            show_estimate(llm.estimate(requests), as_json)
        else:
            with Client(folder, llm.models, llm.options) as client: ...
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rolellm.cli.output import print_json, print_table, say
from rolellm.core.settings import Field, settings
from rolellm.llm.llm import LLM, LLMOptions

if TYPE_CHECKING:
    from rolellm.llm.estimate import Estimate
    from rolellm.llm.settings import MakeScripted


@settings
class _ModelForAll(LLMOptions):
    """Model.

    Attributes:
        allow_missing: Share of requests that may stay unanswered; above it, the exit code is 3.
    """

    # As for `rolellm judge`: enough for what a content filter takes here and there (our choice).
    allow_missing: float = Field(default=0.01, ge=0, le=1, json_schema_extra={"metavar": "SHARE"})


@settings
class AskedModel:
    """The model to ask; a section, so that its options have a panel of their own in the help."""

    model: LLMOptions


@settings
class AskedForAll(AskedModel):
    """The model to ask, where `rolellm.cli.output.check_missing` looks at how many requests have no answer."""

    model: _ModelForAll


def scripted_models() -> dict[str, MakeScripted]:
    """What the names under ``rules:`` refer to."""
    from rolellm.construct.scripted import scripted_model
    from rolellm.judging.overlap_judge import words_judge

    return {"quotes": scripted_model, "words": words_judge}


def language_model(asked: AskedModel, *, required: bool = True) -> LLM:
    """The language model that the options name; none where none is required.

    Raises:
        SettingsError: When they name no model, or two ways to one.
    """
    return LLM.from_options(asked.model, scripted_models(), required=required)


def show_estimate(estimate: Estimate, as_json: bool) -> None:
    """Print what a dry run found: one JSON object, or a table with its assumptions."""
    if as_json:
        print_json(estimate.to_dict())
        return
    columns, rows = estimate.table()
    print_table(f"{estimate.requests:,} requests; no model was asked", columns, rows)
    for note in estimate.notes():
        say(note)
