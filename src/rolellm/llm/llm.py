"""The language model that a stage asks: endpoints, how often and for how much to ask them, and a token counter."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import fields, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rolellm.core.errors import SettingsError, require
from rolellm.core.settings import Advanced, Field, settings, suggest_keywords
from rolellm.llm.model import Limits, Model, Request, RunOptions
from rolellm.llm.settings import LLMSettings, MakeScripted, ModelSettings, describe_model, find_key, load_settings

if TYPE_CHECKING:
    from rolellm.llm.estimate import Estimate
    from rolellm.llm.tokens import TokenCounter

_SCHEMES = ("http://", "https://")
_WAYS = (
    "Give a server (--llm https://api.openai.com/v1 --model NAME --set api_key_env=OPENAI_API_KEY), one on this "
    "machine (--llm http://localhost:8000/v1 --model NAME), or a settings file (--llm FILE.yaml), which can also "
    "name a model to load here (backend: local); see docs/models.md"
)


@settings
class ModelOptions:
    """Model.

    Attributes:
        llm: YAML settings of models (docs/models.md), or an OpenAI-compatible server, such as http://HOST:8000/v1.
        model: The model to ask at the server.
        api_key_env: Environment variable that holds the API key.
    """

    llm: str | None = Field(default=None, json_schema_extra={"metavar": "FILE|URL"})
    model: str | None = None
    api_key_env: Advanced[str | None] = None

    @property
    def is_named(self) -> bool:
        """True if a model is named."""
        return bool(self.llm or self.model)


@settings
class CallOptions:
    """Model.

    Attributes:
        budget: Maximum US dollars in all; needs prices.
        retry_failed: Retry requests that an earlier run gave up on.
        dry_run: Estimate calls, tokens and cost; ask no model.
    """

    budget: float | None = Field(default=None, ge=0)
    retry_failed: Advanced[bool] = False
    dry_run: bool = False


@settings
class PlayedOptions(ModelOptions):
    """Model.

    Attributes:
        model: A folder with a model, adapter or run of `rolellm train`, or a Hub id; or the model to ask at the
            server.
    """

    model: str | None = None


@settings
class EngineOptions(PlayedOptions):
    """Model.

    Attributes:
        engine: For a local model: builtin, vllm, or vLLM's path; auto: vLLM where found with a GPU.
    """

    engine: str = "auto"


class LLM:
    """A language model to ask, for the ``llm=`` of every stage. No socket is opened and nothing loaded until needed.

    >>> llm = LLM(base_url="http://localhost:8000/v1", model="qwen", concurrency=4, max_attempts=3)
    >>> llm.settings.endpoints[0].name, llm.options.max_attempts
    ('localhost:8000/qwen', 3)

    Args:
        base_url: An OpenAI-compatible endpoint.
        model: The model's name there; with ``backend="local"``, a folder or Hub id.
        api_key_env: The environment variable that holds the key.
        retry_failed: Retry requests that an earlier run in the same folder gave up on.
        scripted: What the names under ``rules:`` refer to.
        more: Other keys of the settings file, such as ``budget``, ``batch``, ``ray``, ``price`` or ``extra_body``.

    Attributes:
        settings: The endpoints and limits; without endpoints where it was made of a model object.
        options: Options for a `rolellm.llm.client.Client`.
        dry_run: Whether only an estimate is wanted.

    Raises:
        SettingsError: For a key that is unknown, or a value that cannot be used.
    """

    options: RunOptions

    @suggest_keywords(LLMSettings, ModelSettings)
    def __init__(
        self,
        *,
        base_url: str | None = None,
        model: str | None = None,
        api_key_env: str | None = None,
        retry_failed: bool = False,
        scripted: Mapping[str, MakeScripted] | None = None,
        **more: Any,
    ) -> None:
        endpoint = {"base_url": base_url, "model": model, "api_key_env": api_key_env}
        llm_settings = load_settings(_drop_none(endpoint) | more)
        self._set(llm_settings, scripted, retry_failed)

    def _set(
        self,
        llm_settings: LLMSettings,
        scripted: Mapping[str, MakeScripted] | None = None,
        retry_failed: bool = False,
    ) -> LLM:
        self.settings, self.dry_run, self._scripted = llm_settings, False, scripted
        limits = {item.name: getattr(llm_settings, item.name) for item in fields(Limits)}
        self.options = RunOptions(retry_failed=retry_failed, **limits)
        return self

    @classmethod
    def of(cls, source: object, scripted: Mapping[str, MakeScripted] | None = None) -> LLM:
        """The language model that a user names.

        Args:
            source: A settings file, a dict of the same form, settings that were read from one, an `LLM`, or a
                `rolellm.llm.model.Model` object.
            scripted: What the names under ``rules:`` refer to.

        Raises:
            SettingsError: For anything else, and as `rolellm.llm.settings.load_settings`.
        """
        if isinstance(source, LLM):
            source._scripted = source._scripted or scripted
            return source
        if isinstance(source, str) and source.startswith(_SCHEMES):
            raise SettingsError(f"a server needs the model's name; give rolellm.LLM(base_url={source!r}, model=…)")
        if isinstance(source, str | Path | Mapping):
            source = load_settings(source)
        if isinstance(source, LLMSettings):
            return cls.__new__(cls)._set(source, scripted)
        if isinstance(source, Model):
            llm = cls.__new__(cls)._set(LLMSettings())
            llm.models = [source]
            return llm
        raise SettingsError(
            f"llm is {type(source).__name__}; give a settings file (docs/models.md), a dict of the same form, "
            "rolellm.LLM(base_url=…, model=…), or a model object"
        )

    @classmethod
    def resolve(cls, source: object, adapter: str | None = None, engine: str = "auto") -> LLM:
        """The language model that a user names, or a model to load here: a folder, or a Hub id.

        Args:
            source: As for `of`, or the model.
            adapter: A PEFT adapter to put on it.
            engine: What answers for it; see `rolellm.llm.settings.ModelSettings`.

        Raises:
            SettingsError: As `of`, and for an adapter where no model is loaded.
        """
        if isinstance(source, str | Path):
            path = Path(source)
            if not path.is_file() and path.suffix not in (".yaml", ".yml"):
                return cls(backend="local", model=str(source), adapter=adapter, engine=engine)
        if adapter is not None:
            raise SettingsError("an adapter needs a model folder or a Hub id; name it in the model's settings file")
        return cls.of(source)

    @classmethod
    def from_options(
        cls,
        chosen: ModelOptions,
        calls: CallOptions | None = None,
        scripted: Mapping[str, MakeScripted] | None = None,
        *,
        required: bool = True,
    ) -> LLM:
        """The language model that command-line options name.

        Args:
            chosen: The options that name it.
            calls: Those that say how it is called.
            scripted: What the names under ``rules:`` refer to.
            required: Whether a model has to be named.

        Raises:
            SettingsError: When they name no model, or two ways to one.
        """
        llm_settings = _read_options(chosen) if required or chosen.is_named else LLMSettings()
        return cls.__new__(cls)._set(llm_settings, scripted).limit(calls or CallOptions())

    def limit(self, chosen: CallOptions) -> LLM:
        """Set how it is called, by options of the command line; returns itself."""
        llm_settings = self.settings
        if chosen.budget is not None:
            llm_settings = replace(llm_settings, budget=chosen.budget)
        self._set(llm_settings, self._scripted, chosen.retry_failed)
        self.dry_run = chosen.dry_run
        return self

    def with_budget(self, budget: float | None) -> LLM:
        """Return the same models with another budget; itself for ``None``."""
        if budget is None:
            return self
        limited = copy(self)
        limited.options = replace(self.options, budget=budget)
        return limited

    @classmethod
    def join(cls, *llms: LLM) -> LLM:
        """The models of several as those of one, in order, with the options of the first."""
        entries = tuple(chain.from_iterable(llm.settings.endpoints for llm in llms))
        joined = cls.__new__(cls)._set(replace(llms[0].settings, endpoints=entries), llms[0]._scripted)
        if not entries:
            joined.models = list(chain.from_iterable(llm.models for llm in llms))
        return joined

    def __repr__(self) -> str:
        names = [model.name for model in self.settings.endpoints or self.models]
        return f"LLM({', '.join(names)})"

    @property
    def is_named(self) -> bool:
        """True if there is a model to ask."""
        return bool(self.settings.endpoints or self.__dict__.get("models"))

    @functools.cached_property
    def models(self) -> list[Model]:
        """The models, made when first needed.

        Raises:
            SettingsError: For an environment variable that holds no key.
            ModelError: For a local model that cannot be loaded.
            MissingExtraError: Without the packages that a backend needs.
        """
        from rolellm.llm.vllm import share_server

        models = []
        for entry in self.settings.endpoints:
            if entry.backend == "local" and self.settings.ray:
                entry = replace(entry, engine="builtin")
            models.append(make_model(entry, self._scripted))
        is_required = any(entry.engine != "auto" for entry in self.settings.endpoints)
        return share_server(models, required=is_required)

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
        return {
            "endpoints": [describe_model(model) for model in self.models],
            "max_attempts": self.settings.max_attempts,
            "budget": self.settings.budget,
        }

    def estimate(self, requests: Iterable[Request], only: ModelSettings | None = None) -> Estimate:
        """Estimate calls, tokens and cost of some requests, with all models or only one.

        Needs neither a key nor a server; estimates of several stages add up.
        """
        from rolellm.llm.estimate import estimate

        models = [only] if only else self.settings.endpoints or self.models
        return estimate(
            requests,
            models,
            max_attempts=self.options.max_attempts,
            counter=self.counter,
            batch=self.options.batch,
        )


def make_model(entry: ModelSettings, scripted: Mapping[str, MakeScripted] | None = None) -> Model:
    """Make a model of its settings, ready to be asked. No socket is opened.

    Args:
        entry: The settings.
        scripted: What the names under ``rules:`` refer to.

    Raises:
        SettingsError: For a key that is not in its environment variable, and for unknown rules.
        ModelError: For a local model that is missing.
        MissingExtraError: Without the packages that a backend needs.
    """
    if entry.backend == "openai":
        require("openai", extra="llm")
        from rolellm.llm.endpoint import Endpoint

        # A missing key is found before the first call.
        find_key(entry.base_url or "", entry.api_key_env, plain_http=entry.allow_plain_http)
        return Endpoint(entry)
    if entry.backend == "scripted":
        make = (scripted or {}).get(entry.rules or "")
        if make is None:
            names = ", ".join(sorted(scripted or ())) or "none; in Python, pass them by name (scripted=…)"
            raise SettingsError(f"unknown rules {entry.rules!r}; known: {names}")
        return make(concurrency=entry.concurrency, price=entry.price)
    from rolellm.llm.local import LocalChat
    from rolellm.llm.vllm import VLLMChat, find_vllm, has_gpu
    from rolellm.models.local_model import LocalModel, choose_dtype

    command = find_vllm(entry.engine, entry.device)
    local = LocalModel(entry.model or "", adapter=entry.adapter, device=entry.device, dtype=entry.dtype)
    if command is None:
        return LocalChat(local, batch_size=entry.batch_size)
    require("openai", extra="llm")
    if has_gpu(entry.device):
        local.dtype = choose_dtype(entry.dtype, "cuda", local.config)
    return VLLMChat(local, command)


def _read_options(chosen: ModelOptions) -> LLMSettings:
    engine = chosen.engine if isinstance(chosen, EngineOptions) else "builtin"
    if chosen.model and chosen.model.startswith(_SCHEMES):
        raise SettingsError(
            f"--model {chosen.model} is a server's address; give it as --llm, and the model's name there"
        )
    if chosen.llm is None:
        if isinstance(chosen, PlayedOptions) and chosen.model:
            return LLM.resolve(chosen.model, engine=engine).settings
        raise SettingsError(f"no model is named.{' --model needs --llm URL.' if chosen.model else ''} {_WAYS}")
    if engine not in ("auto", "builtin"):
        raise SettingsError("--engine is for a model on this machine; name it by --model, or set engine in the file")
    if chosen.llm.startswith(_SCHEMES):
        if chosen.model is None:
            raise SettingsError(f"no model is named. A server needs --model. {_WAYS}")
        return LLMSettings(
            endpoints=(ModelSettings(base_url=chosen.llm, model=chosen.model, api_key_env=chosen.api_key_env),)
        )
    if not Path(chosen.llm).exists():
        raise SettingsError(f"--llm {chosen.llm}: no such file; a server's address starts with http:// or https://")
    for option, value in (("--model", chosen.model), ("api_key_env", chosen.api_key_env)):
        if value is not None:
            raise SettingsError(f"{option} is for a server; put it in {chosen.llm}")
    return load_settings(chosen.llm)


def _drop_none(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
