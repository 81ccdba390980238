"""The language model that a stage asks: endpoints, how often and for how much to ask them, and a token counter."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rolellm.core.errors import SettingsError
from rolellm.core.settings import Field, settings
from rolellm.llm.model import Model, Request, RunOptions
from rolellm.llm.settings import LLMSettings, MakeScripted, ModelSettings, described, load_models, load_settings

if TYPE_CHECKING:
    from rolellm.llm.estimate import Estimate
    from rolellm.llm.tokens import TokenCounter

_WAYS = (
    "Give a server (--base-url https://api.openai.com/v1 --model NAME --api-key-env OPENAI_API_KEY), one on this "
    "machine (--base-url http://localhost:8000/v1 --model NAME), or a settings file (--llm FILE.yaml), which can also "
    "name a model to load here (backend: local); see docs/endpoints.md"
)


@settings
class LLMOptions:
    """Model.

    Attributes:
        llm_file: YAML settings of one or more models (docs/endpoints.md).
        base_url: An OpenAI-compatible endpoint, such as http://localhost:8000/v1.
        model: With --base-url: the model to ask there.
        api_key_env: Environment variable that holds the API key.
        tokenizer: The model's tokenizer (a folder), to count tokens instead of estimating them.
        concurrency: Maximum calls at once to each endpoint.
        max_attempts: Maximum attempts per request.
        budget: Maximum US dollars in all; needs prices.
        batch: Use the OpenAI Batch API: half the price, hours later.
        ray: Ray cluster whose workers send the requests: its address, or local (docs/scale.md).
        workers: With --ray: number of workers; defaults to one per CPU, for local models one per GPU.
        retry_failed: Retry requests that an earlier run gave up on.
        dry_run: Print calls, tokens and cost without asking any model.
    """

    llm_file: Path | None = Field(default=None, json_schema_extra={"flag": "llm"})
    base_url: str | None = None
    model: str | None = None
    api_key_env: str | None = None
    tokenizer: str | None = None
    concurrency: int | None = Field(default=None, ge=1, le=4096)
    max_attempts: int | None = Field(default=None, ge=1, le=100)
    budget: float | None = Field(default=None, ge=0)
    batch: bool = False
    ray: str | None = None
    workers: int | None = Field(default=None, ge=1)
    retry_failed: bool = False
    dry_run: bool = False


class LLM:
    """A language model to ask, for the ``llm=`` of every stage. No socket is opened and nothing loaded until needed.

    >>> llm = LLM(base_url="http://localhost:8000/v1", model="qwen", concurrency=4, max_attempts=3)
    >>> llm.settings.endpoints[0].name, llm.options.max_attempts
    ('localhost:8000/qwen', 3)

    Args:
        base_url: An OpenAI-compatible endpoint.
        model: The model's name there; with ``backend="local"``, a folder or Hub id.
        api_key_env: The environment variable that holds the key.
        batch: Use the OpenAI Batch API.
        ray: Ray cluster whose workers send the requests: its address, or ``local`` (docs/scale.md).
        workers: With `ray`: how many; by default one per CPU, for local models one per GPU.
        retry_failed: Retry requests that an earlier run in the same folder gave up on.
        scripted: What the names under ``rules:`` refer to.
        more: Other keys of the settings file, such as ``budget``, ``tokenizer``, ``price`` or ``extra_body``.

    Attributes:
        settings: The endpoints and limits; without endpoints where it was made of a model object.
        options: Options for a `rolellm.llm.client.Client`.
        dry_run: Whether only an estimate is wanted.

    Raises:
        SettingsError: For a key that is unknown, or a value that cannot be used.
    """

    options: RunOptions

    def __init__(
        self,
        *,
        base_url: str | None = None,
        model: str | None = None,
        api_key_env: str | None = None,
        batch: bool = False,
        ray: str | None = None,
        workers: int | None = None,
        retry_failed: bool = False,
        scripted: Mapping[str, MakeScripted] | None = None,
        **more: Any,
    ) -> None:
        given = {"base_url": base_url, "model": model, "api_key_env": api_key_env}
        self._set(load_settings({name: value for name, value in given.items() if value is not None} | more), scripted)
        self.options = replace(self.options, retry_failed=retry_failed, batch=batch, ray=ray, workers=workers)

    def _set(self, found: LLMSettings, scripted: Mapping[str, MakeScripted] | None = None) -> LLM:
        self.settings, self.dry_run, self._scripted = found, False, scripted
        self.options = RunOptions(max_attempts=found.max_attempts, budget=found.budget)
        return self

    @classmethod
    def of(cls, given: object, scripted: Mapping[str, MakeScripted] | None = None) -> LLM:
        """The language model that a user names.

        Args:
            given: A settings file, a dict of the same form, an `LLM`, or a `rolellm.llm.model.Model` object.
            scripted: What the names under ``rules:`` refer to.

        Raises:
            SettingsError: For anything else, and as `rolellm.llm.settings.load_settings`.
        """
        if isinstance(given, LLM):
            given._scripted = given._scripted or scripted
            return given
        if isinstance(given, str | Path | Mapping):
            return cls.__new__(cls)._set(load_settings(given), scripted)
        if isinstance(given, Model):
            made = cls.__new__(cls)._set(LLMSettings())
            made.models = [given]
            return made
        raise SettingsError(
            f"llm is {type(given).__name__}; give a settings file (docs/endpoints.md), a dict of the same form, "
            "rolellm.LLM(base_url=…, model=…), or a model object"
        )

    @classmethod
    def from_options(
        cls, chosen: LLMOptions, scripted: Mapping[str, MakeScripted] | None = None, *, required: bool = True
    ) -> LLM:
        """The language model that command-line options name.

        Args:
            chosen: The options.
            scripted: What the names under ``rules:`` refer to.
            required: Whether a model has to be named.

        Raises:
            SettingsError: When they name no model, or two ways to one.
        """
        named = chosen.llm_file or chosen.base_url or chosen.model
        found = _settings(chosen) if required or named else LLMSettings()
        changed = {name: getattr(chosen, name) for name in ("max_attempts", "budget", "tokenizer")}
        found = replace(found, **{name: value for name, value in changed.items() if value is not None})
        made = cls.__new__(cls)._set(found, scripted)
        how = {name: getattr(chosen, name) for name in ("batch", "ray", "workers", "retry_failed")}
        made.options = replace(made.options, **how)
        made.dry_run = chosen.dry_run
        return made

    def __repr__(self) -> str:
        return f"LLM({', '.join(model.name for model in self.settings.endpoints or self.models)})"

    @functools.cached_property
    def models(self) -> list[Model]:
        """The models, made when first needed.

        Raises:
            SettingsError: For an environment variable that holds no key.
            ModelError: For a local model that cannot be loaded.
            MissingExtraError: Without the packages that a backend needs.
        """
        return load_models(self.settings, self._scripted)

    @functools.cached_property
    def counter(self) -> TokenCounter:
        """Counts tokens: with the tokenizer, else by estimate.

        Raises:
            SettingsError: For a tokenizer that is missing.
        """
        from rolellm.llm.tokens import TokenCounter

        return TokenCounter(self.settings.tokenizer)

    def describe(self) -> dict[str, Any]:
        """Models, attempts and budget, for manifests; without keys and paths."""
        if self.settings.endpoints:
            return self.settings.describe()
        return {
            **self.settings.describe(),
            "endpoints": [described(model) for model in self.models],
        }

    def estimate(self, requests: Iterable[Request], only: ModelSettings | None = None) -> Estimate:
        """What asking these would take, of all models or only one; needs neither a key nor a server.

        Estimates of several stages add up.
        """
        from rolellm.llm.estimate import estimate

        return estimate(
            requests,
            [only] if only else self.settings.endpoints or self.models,
            max_attempts=self.options.max_attempts,
            counter=self.counter,
            batch=self.options.batch,
        )


def _settings(chosen: LLMOptions) -> LLMSettings:
    given = {name: getattr(chosen, name) for name in ("base_url", "model", "api_key_env")}
    given = {name: value for name, value in given.items() if value is not None}
    if chosen.llm_file is not None:
        for name in given:
            option = "--" + name.replace("_", "-")
            raise SettingsError(f"{option} cannot be combined with --llm; put it in {chosen.llm_file}")
        found = load_settings(chosen.llm_file)
    elif not chosen.base_url or not chosen.model:
        lone = " --base-url needs --model." if chosen.base_url else " --model needs --base-url." if chosen.model else ""
        raise SettingsError(f"no model is named.{lone} {_WAYS}")
    else:
        found = LLMSettings(endpoints=(ModelSettings(**given),))
    if chosen.concurrency is None:
        return found
    entries = (
        entry if entry.backend == "local" else replace(entry, concurrency=chosen.concurrency)
        for entry in found.endpoints
    )
    return replace(found, endpoints=tuple(entries))
