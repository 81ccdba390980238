"""The settings of models: a YAML file with endpoints, how often to ask, and what may be spent (docs/endpoints.md).

Keys stand in environment variables, which a file names; a file that holds a key is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, Protocol
from urllib.parse import urlsplit

from rolellm.errors import RecipeError
from rolellm.llm.model import Model, Price
from rolellm.llm.no_secrets import check_fields, shown
from rolellm.typed_yaml import Form, build, describe, parse_yaml, typed

Backend = Literal["openai", "local", "scripted"]

_MOST_BYTES = 1 << 20
_AT_ONCE = 8
_KEYS: Mapping[Backend, set[str]] = {
    "openai": {
        *("backend", "base_url", "model", "api_key_env", "concurrency", "timeout", "price"),
        *("structured", "max_tokens_field", "extra_body"),
    },
    "local": {"backend", "model", "adapter", "device", "dtype", "batch_size"},
    "scripted": {"backend", "rules", "concurrency", "price"},
}
_NEEDED: Mapping[Backend, tuple[str, ...]] = {
    "openai": ("base_url", "model"),
    "local": ("model",),
    "scripted": ("rules",),
}


class MakeScripted(Protocol):
    """Makes a scripted model; what a name under ``rules:`` stands for."""

    def __call__(self, *, concurrency: int, price: Price) -> Model:
        """Make it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """One entry of ``endpoints:``; which keys there may be depends on `backend`.

    Attributes:
        backend: ``openai`` (any OpenAI-compatible server), ``local`` (a model on this machine) or ``scripted`` (rules
            that come with the library).
        price: US dollars a million tokens.
        base_url: Of a server.
        model: Its name on a server; for ``local`` a folder (relative to the file) or an id on the Hub.
        api_key_env: The environment variable that holds the key; empty for no key.
        concurrency: Calls at once; by default 8.
        timeout: Seconds for a whole call; by default 180.
        structured: How a JSON schema is asked for; ``auto`` tries what the server takes.
        max_tokens_field: What the server calls the limit of a reply.
        extra_body: More fields for each request.
        adapter: For ``local``, a PEFT adapter.
        device: For ``local``.
        dtype: For ``local``.
        batch_size: For ``local``, prompts in one forward pass; by default 8.
        rules: For ``scripted``, the name of the rules.
    """

    backend: Backend = "openai"
    price: Price = field(default_factory=Price)
    base_url: str | None = None
    model: str | None = None
    api_key_env: str | None = None
    concurrency: int | None = field(default=None, metadata={"low": 1, "high": 4096})
    timeout: float | None = field(default=None, metadata={"above": 0, "high": 86_400})
    structured: Literal["auto", "json_schema", "json_object", "none"] = "auto"
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    extra_body: dict[str, Any] = field(default_factory=dict)
    adapter: str | None = None
    device: Literal["auto", "cpu", "cuda"] = "auto"
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    batch_size: int | None = field(default=None, metadata={"low": 1})
    rules: str | None = None

    @property
    def name(self) -> str:
        """What messages call it: host and model, or the model alone."""
        if self.backend == "openai":
            return f"{urlsplit(self.base_url or '').netloc}/{self.model}"
        return f"local/{_last_part(self.model or '')}" if self.backend == "local" else f"scripted/{self.rules}"

    def describe(self) -> dict[str, Any]:
        """What it is, as one JSON object for manifests: what differs from the defaults, without paths and keys."""
        defaults = {item.name: item.default for item in fields(self)}
        known: dict[str, Any] = {"backend": self.backend}
        for name in sorted(_KEYS[self.backend] - {"backend", "api_key_env", "price"}):
            value = getattr(self, name)
            if value not in (None, {}, defaults[name]):
                local = self.backend == "local" and name in ("model", "adapter")
                known[name] = _last_part(value) if local else value
        if self.price != Price():
            known["price"] = {name: getattr(self.price, name) for name in Price.__slots__}
        return shown(known)


@dataclass(frozen=True, slots=True, kw_only=True)
class LLMSettings:
    """A settings file.

    Attributes:
        endpoints: The models to ask; with several, each request goes to one that is free.
        max_attempts: The most calls for one request.
        budget: US dollars that a run folder may cost in all.
        tokenizer: The model's tokenizer, to count with; a folder (relative to the file) or an id on the Hub.
    """

    endpoints: tuple[ModelSettings, ...]
    max_attempts: int = field(default=5, metadata={"low": 1, "high": 100})
    budget: float | None = field(default=None, metadata={"low": 0})
    tokenizer: str | None = None

    def describe(self) -> dict[str, Any]:
        """Models, attempts and budget as one JSON object, for manifests; without keys and paths."""
        return {
            "endpoints": [entry.describe() for entry in self.endpoints],
            "max_attempts": self.max_attempts,
            "budget": self.budget,
        }


def load_settings(path: str | Path) -> LLMSettings:
    """Read a settings file; nothing is loaded, looked up or asked.

    Raises:
        RecipeError: For a file that is not there or not YAML, an unknown key (with the nearest known one), a value of
            a wrong type or out of range, keys that do not go with the backend, and a file that holds a secret.
    """
    file = Path(path)
    values = parse_yaml(_text(file), str(file))
    if not isinstance(values, dict):
        raise RecipeError(f"{file}: expected the key endpoints: with a list, found {describe(values)}")
    try:
        made = typed(Form(LLMSettings), values, file.absolute().parent)
        if "endpoints" not in made:
            raise RecipeError("endpoints: is missing; it lists the models to ask")
        for number, (entry, given) in enumerate(zip(made["endpoints"], values["endpoints"], strict=True)):
            _check_keys(entry.get("backend", "openai"), given, f"endpoints[{number}]")
        return checked(_beside(build(LLMSettings, made), file.absolute().parent))
    except RecipeError as error:
        raise RecipeError(f"{file}: {error}") from error


def checked(settings: LLMSettings) -> LLMSettings:
    """The settings, once each entry is known to be one that can be asked.

    Raises:
        RecipeError: For an address, a variable's name or a request field that cannot be, or one entry given twice.
    """
    for number, entry in enumerate(settings.endpoints):
        place = f"endpoints[{number}]"
        for key in _NEEDED[entry.backend]:
            if not getattr(entry, key):
                raise RecipeError(f"{place}.{key}: is missing; the backend {entry.backend} needs it")
        if entry.backend != "openai":
            continue
        check_fields(entry.extra_body, f"{place}.extra_body")
        try:
            _endpoint_settings(entry)
        except RecipeError as error:
            raise RecipeError(f"{place}: {error}") from error
    bare = [replace(entry, price=Price(), concurrency=None, timeout=None) for entry in settings.endpoints]
    for number, entry in enumerate(bare):
        if entry in bare[:number]:
            raise RecipeError(f"endpoints[{number}]: {entry.name} is there twice; give it once, with more concurrency")
    return settings


def load_models(settings: LLMSettings | str | Path, scripted: Mapping[str, MakeScripted] | None = None) -> list[Model]:
    """Make the models of a settings file, ready to be asked. No socket is opened.

    Args:
        settings: The settings, or their file.
        scripted: What the names under ``rules:`` stand for.

    Raises:
        RecipeError: As `load_settings`, for a key that is not in its environment variable, and for unknown rules.
        ModelError: For a model on this machine that is not there.
        MissingExtraError: Without the packages that a backend needs.
    """
    known = settings if isinstance(settings, LLMSettings) else load_settings(settings)
    return [_model(entry, scripted or {}) for entry in known.endpoints]


def _model(entry: ModelSettings, scripted: Mapping[str, MakeScripted]) -> Model:
    if entry.backend == "openai":
        from rolellm.llm.endpoint import Endpoint

        endpoint = Endpoint(_endpoint_settings(entry))
        endpoint.check()
        return endpoint
    if entry.backend == "scripted":
        make = scripted.get(entry.rules or "")
        if make is None:
            raise RecipeError(
                f"there are no rules {entry.rules!r}; known: "
                f"{', '.join(sorted(scripted)) or 'none; in Python they are given by name, see `load_models`'}"
            )
        return make(concurrency=entry.concurrency or _AT_ONCE, price=entry.price)
    from rolellm.llm.local import LocalChat
    from rolellm.llm.local_model import LocalModel

    local = LocalModel(entry.model or "", adapter=entry.adapter, device=entry.device, dtype=entry.dtype)
    return LocalChat(local, batch_size=entry.batch_size or _AT_ONCE)


def _endpoint_settings(entry: ModelSettings) -> Any:
    from rolellm.llm.endpoint import EndpointSettings

    names = ("base_url", "model", "api_key_env", "price", "structured", "max_tokens_field", "extra_body")
    more = {name: getattr(entry, name) for name in ("concurrency", "timeout") if getattr(entry, name) is not None}
    return EndpointSettings(**{name: getattr(entry, name) for name in names}, **more)


def _check_keys(backend: Backend, given: Mapping[str, Any], place: str) -> None:
    odd = [key for key in given if key not in _KEYS[backend]]
    if odd:
        known = ", ".join(sorted(_KEYS[backend]))
        raise RecipeError(f"{place}.{odd[0]}: the backend {backend} has no such key; it has {known}")


def _beside(settings: LLMSettings, folder: Path) -> LLMSettings:
    """Folders named relative to the file, found; what is no folder there is an id on the Hub."""

    def found(name: str | None) -> str | None:
        return str(folder / Path(name).expanduser()) if name and (folder / Path(name).expanduser()).is_dir() else name

    entries = tuple(
        replace(entry, model=found(entry.model), adapter=found(entry.adapter)) if entry.backend == "local" else entry
        for entry in settings.endpoints
    )
    return replace(settings, endpoints=entries, tokenizer=found(settings.tokenizer))


def _text(file: Path) -> str:
    if not file.is_file():
        raise RecipeError(f"no settings file at {file}")
    if file.stat().st_size > _MOST_BYTES:
        raise RecipeError(f"{file}: larger than {_MOST_BYTES:,} bytes; that is no settings file")
    try:
        return file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise RecipeError(f"{file}: not UTF-8 text ({error.reason} at byte {error.start})") from error


def _last_part(name: str) -> str:
    return Path(name).name if Path(name).is_dir() else name
