"""The options that every command which asks models shares, and what they come to.

A command declares one parameter of the type `LLM` and is decorated with `takes_llm`, which puts the options in its
place (``--llm``, ``--base-url``, ``--model``, ``--api-key-env``, ``--tokenizer``, ``--concurrency``,
``--max-attempts``, ``--budget``, ``--batch``, ``--retry-failed``, ``--dry-run``)::

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
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rolellm.core.errors import SettingsError
from rolellm.core.sanitize import visible
from rolellm.llm.model import RunOptions

if TYPE_CHECKING:
    from rolellm.llm.estimate import Estimate
    from rolellm.llm.model import Model, Request
    from rolellm.llm.settings import LLMSettings, MakeScripted, ModelSettings
    from rolellm.llm.tokens import TokenCounter

_PANEL = "Model"
_WAYS = (
    "Give a server (--base-url https://api.openai.com/v1 --model NAME --api-key-env OPENAI_API_KEY), one on this "
    "machine (--base-url http://localhost:8000/v1 --model NAME), or a settings file (--llm FILE.yaml), which can also "
    "name a model to load here (backend: local); docs/endpoints.md tells more"
)

LlmFile = Annotated[
    Path | None,
    typer.Option("--llm", help="Settings of one or more models, YAML (docs/endpoints.md).", rich_help_panel=_PANEL),
]
BaseUrl = Annotated[
    str | None,
    typer.Option(
        "--base-url", help="An OpenAI-compatible endpoint, such as http://localhost:8000/v1.", rich_help_panel=_PANEL
    ),
]
ModelName = Annotated[
    str | None, typer.Option("--model", help="With --base-url, the model to ask there.", rich_help_panel=_PANEL)
]
ApiKeyEnv = Annotated[
    str | None,
    typer.Option("--api-key-env", help="The environment variable that holds its key.", rich_help_panel=_PANEL),
]
Tokenizer = Annotated[
    str | None,
    typer.Option(
        "--tokenizer", help="The model's tokenizer (a folder), to count instead of estimate.", rich_help_panel=_PANEL
    ),
]
Concurrency = Annotated[
    int | None,
    typer.Option("--concurrency", min=1, max=4096, help="Calls at once to each endpoint.", rich_help_panel=_PANEL),
]
MaxAttempts = Annotated[
    int | None,
    typer.Option("--max-attempts", min=1, max=100, help="The most calls for one request.", rich_help_panel=_PANEL),
]
Budget = Annotated[
    float | None,
    typer.Option("--budget", min=0, help="US dollars that may be spent in all; needs prices.", rich_help_panel=_PANEL),
]
Batch = Annotated[
    bool, typer.Option("--batch", help="Use the OpenAI Batch API: half the price, hours later.", rich_help_panel=_PANEL)
]
AllowMissing = Annotated[
    float,
    typer.Option(
        "--allow-missing",
        min=0,
        max=1,
        metavar="SHARE",
        help="Share of requests that may stay unanswered; with more, the exit code is 3.",
        rich_help_panel=_PANEL,
    ),
]
#: As for `rolellm judge`: enough for what a content filter takes here and there.
ALLOWED_MISSING = 0.01
RetryFailed = Annotated[
    bool, typer.Option("--retry-failed", help="Ask again what an earlier run gave up on.", rich_help_panel=_PANEL)
]
DryRun = Annotated[
    bool,
    typer.Option("--dry-run", help="Print calls, tokens and cost, and ask nobody.", rich_help_panel=_PANEL),
]


@dataclass(frozen=True)
class LLM:
    """What the shared options come to.

    Attributes:
        settings: The models and how they are reached; `LLMSettings.describe` is for manifests.
        options: For the `Client`.
        dry_run: Whether only an estimate is wanted.
        tokenizer: A tokenizer to count with, where there is one.
    """

    settings: LLMSettings
    options: RunOptions
    dry_run: bool = False
    tokenizer: str | None = None

    @functools.cached_property
    def models(self) -> list[Model]:
        """The models, for the `Client`; made when first needed. No socket is opened.

        Raises:
            SettingsError: For an environment variable that holds no key.
            ModelError: For a model on this machine that cannot be loaded.
            MissingExtraError: Without the packages that a backend needs.
        """
        from rolellm.llm.settings import load_models

        return load_models(self.settings, scripted_models())

    @functools.cached_property
    def counter(self) -> TokenCounter:
        """Counts tokens: with the tokenizer, else by estimate.

        Raises:
            SettingsError: For a tokenizer that is not there.
        """
        from rolellm.llm.tokens import TokenCounter

        return TokenCounter(self.tokenizer)

    def estimate(self, requests: Iterable[Request]) -> Estimate:
        """What it would take to ask these; neither a key nor a server is needed. Estimates of several stages add up."""
        from rolellm.llm.estimate import estimate

        return estimate(
            requests,
            self.settings.endpoints,
            max_attempts=self.options.max_attempts,
            counter=self.counter,
            batch=self.options.batch,
        )


def scripted_models() -> dict[str, MakeScripted]:
    """What the names under ``rules:`` stand for."""
    from rolellm.construct.scripted import scripted_model
    from rolellm.judging.overlap_judge import words_judge

    return {"quotes": scripted_model, "words": words_judge}


def takes_llm(
    command: Callable[..., None], *, unless: str | Callable[[Mapping[str, Any]], bool] | None = None
) -> Callable[..., None]:
    """Give a command the shared options in the place of its parameter of the type `LLM`.

    Args:
        command: The command.
        unless: A flag of the command's own with which it asks nobody, so that no model need be named; or a function
            that tells it from the command's options.
    """
    signature = inspect.signature(command, eval_str=True)
    (name,) = [parameter.name for parameter in signature.parameters.values() if parameter.annotation is LLM]

    @functools.wraps(command)
    def with_options(**values: Any) -> None:
        chosen = {option: values.pop(option) for option in _OPTIONS}
        named = any(chosen[way] is not None for way in ("llm_file", "base_url", "model"))
        quiet = unless(values) if callable(unless) else unless is not None and values[unless]
        idle = quiet and not named
        command(**values, **{name: _nobody(chosen) if idle else chosen_llm(**chosen)})

    parameters: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        own = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)]
        parameters += list(_OPTIONS.values()) if parameter.name == name else own
    with_options.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return with_options


def _nobody(given: dict[str, Any]) -> LLM:
    from rolellm.llm.settings import LLMSettings

    return LLM(LLMSettings(endpoints=()), RunOptions(), given["dry_run"], given["tokenizer"])


def _option(name: str, annotation: Any, default: Any = None) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


_OPTIONS = {
    parameter.name: parameter
    for parameter in (
        _option("llm_file", LlmFile),
        _option("base_url", BaseUrl),
        _option("model", ModelName),
        _option("api_key_env", ApiKeyEnv),
        _option("tokenizer", Tokenizer),
        _option("concurrency", Concurrency),
        _option("max_attempts", MaxAttempts),
        _option("budget", Budget),
        _option("batch", Batch, False),
        _option("retry_failed", RetryFailed, False),
        _option("dry_run", DryRun, False),
    )
}


def chosen_llm(**given: Any) -> LLM:
    """What the shared options come to, by the names of their parameters.

    Raises:
        SettingsError: When they name no model or two ways to one, and for what a settings file cannot say.
    """
    settings = _settings(given)
    budget, attempts = given["budget"], given["max_attempts"]
    options = RunOptions(
        max_attempts=settings.max_attempts if attempts is None else attempts,
        budget=settings.budget if budget is None else budget,
        retry_failed=given["retry_failed"],
        batch=given["batch"],
    )
    return LLM(settings, options, given["dry_run"], given["tokenizer"] or settings.tokenizer)


def _settings(given: dict[str, Any]) -> LLMSettings:
    from rolellm.llm.settings import LLMSettings, ModelSettings, checked, load_settings

    file, base_url, model = given["llm_file"], given["base_url"], given["model"]
    at_once = given["concurrency"]
    if file is not None:
        for option, value in (("--base-url", base_url), ("--model", model), ("--api-key-env", given["api_key_env"])):
            if value is not None:
                raise SettingsError(f"{option} does not go with --llm; say it in {file}")
        settings = load_settings(file)
        return replace(settings, endpoints=tuple(_with(entry, at_once) for entry in settings.endpoints))
    if not base_url or not model:
        one = "" if base_url or model is None else " --model needs --base-url."
        one = " --base-url needs --model." if base_url else one
        raise SettingsError(f"no model is named.{one} {_WAYS}")
    entry = ModelSettings(base_url=base_url, model=model, api_key_env=given["api_key_env"], concurrency=at_once)
    return checked(LLMSettings(endpoints=(entry,)))


def _with(entry: ModelSettings, at_once: int | None) -> ModelSettings:
    return entry if at_once is None or entry.backend == "local" else replace(entry, concurrency=at_once)


def show_estimate(estimate: Estimate, as_json: bool) -> None:
    """Print what a dry run found: one JSON object, or a table with what it rests on."""
    from rolellm.cli.output import print_json, print_table

    if as_json:
        print_json(estimate.to_dict())
        return
    columns, rows = estimate.table()
    print_table(f"{estimate.requests:,} requests; nothing was asked", columns, rows)
    for note in estimate.notes():
        typer.echo(visible(note))
