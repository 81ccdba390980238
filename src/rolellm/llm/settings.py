"""Settings of models: endpoints, how often to ask, and what may be spent (docs/models.md has the file's form).

A key is in an environment variable, which the settings name; settings that hold a key are refused.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Literal, TypeVar, overload
from urllib.parse import urlsplit

from rolellm.core.errors import SettingsError
from rolellm.core.settings import Field, Values, read, read_file, settings
from rolellm.llm.model import Limits, Model, Price


def check_url(base_url: str) -> str:
    """A base URL without a slash at its end.

    Raises:
        SettingsError: For one that is no ``http://`` or ``https://`` address, or that holds a user name, a password, a
            query or a fragment: it is part of messages and records, where no secret may be. The message does not repeat
            it.
    """
    base_url = base_url.strip()
    try:
        parts = urlsplit(base_url)
        port_is_number = parts.port is None or parts.port >= 0
    except ValueError:
        parts, port_is_number = urlsplit(""), False
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise SettingsError(
            "base_url contains a user name, a password or a query; put the key into an environment variable, name the "
            "variable in api_key_env, and keep base_url as plain as http://localhost:8000/v1"
        )
    if parts.scheme not in ("http", "https") or not parts.hostname or not port_is_number:
        raise SettingsError("base_url is not a server address; expected something like http://localhost:8000/v1")
    if not base_url.isprintable() or " " in base_url:
        raise SettingsError("base_url contains spaces or control characters")
    return base_url.rstrip("/")


def is_near(host: str, *, this_machine: bool = False) -> bool:
    """Tell whether a host is on this machine or, unless ``this_machine``, on a private network: usually without a key.

    >>> is_near("127.0.0.1"), is_near("10.0.0.7"), is_near("gpu-box"), is_near("api.openai.com")
    (True, True, True, False)
    """
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return not this_machine and "." not in host
    return address.is_loopback or (not this_machine and address.is_private)


def find_key(base_url: str, named: str | None, *, plain_http: bool = False) -> str:
    """The key for an address, from the environment as it is now; empty where none is sent.

    OpenAI's own variable goes to OpenAI alone, and to others only where it is named for them.

    Args:
        base_url: The address.
        named: The variable as the user set it; ``None`` where nothing was said, empty for no key.
        plain_http: Whether a key may go over http to another machine, where anybody on the way can read it.

    Raises:
        SettingsError: Where a key is needed and there is none, what is there can be none, or it would go over plain
            http to another machine. Never shows it.
    """
    host = urlsplit(base_url).hostname or ""
    variable = named
    if variable is None and host == "api.openai.com":
        variable = "OPENAI_API_KEY"
    if variable is None and not is_near(host):
        raise SettingsError(
            f"no API key for {host}, which is not on this machine or a private network; name the environment "
            'variable that holds it in api_key_env (--set api_key_env=…), or set api_key_env: "" if it needs none'
        )
    if not variable:
        return ""
    key = os.environ.get(variable, "").strip()
    if not key and not is_near(host):
        raise SettingsError(f"the environment variable {variable} holds no key for {host}; set it and try again")
    if not (key.isascii() and key.isprintable() and " " not in key):
        raise SettingsError(
            f"the environment variable {variable} does not hold a valid API key: it contains characters that API keys "
            "never use"
        )
    is_readable = urlsplit(base_url).scheme == "http" and not is_near(host, this_machine=True)
    if key and is_readable and not plain_http:
        raise SettingsError(
            f"the API key in {variable} would go to {host} over plain http, where anybody on the way can read it; use "
            'an https address, send no key (api_key_env: ""), or set allow_plain_http: true in the settings file'
        )
    return key


#: Names of fields whose values are secrets, in lower case and without marks.
_SECRET = re.compile(
    r"(.*(apikey|secret|password|passwd|credential|authorization|bearer|accesstoken|authtoken|apitoken|hftoken)s?|token|key|auth)"
)
#: Fields that a request decides, or that change what a call costs behind its back.
_DECIDED = frozenset(
    {"model", "messages", "prompt", "stream", "n", "best_of", "max_tokens", "max_completion_tokens", "response_format"}
)


def check_fields(extra_body: Mapping[str, Any], location: str) -> None:
    """Refuse fields that are decided elsewhere or named like a key. Nothing of the value is shown.

    Raises:
        SettingsError: With the place and the way out.
    """
    for name in sorted(_DECIDED & extra_body.keys()):
        raise SettingsError(f"{location}.{name}: this is set for each request; leave it out")
    for name in _iterate_names(extra_body):
        if _SECRET.fullmatch(re.sub("[^a-z]", "", name.lower())):
            raise SettingsError(
                f"{location}.{name}: a secret does not belong in a file; put it into an environment variable, and name "
                "that: api_key_env: OPENAI_API_KEY"
            )


def describe_model(model: Model) -> dict[str, Any]:
    """A model that was asked, for manifests."""
    return {"name": model.name, **model.identity}


def _iterate_names(value: Any) -> Iterator[str]:
    """Every name within the fields of a request."""
    if isinstance(value, Mapping):
        yield from value
        value = list(value.values())
    if isinstance(value, list):
        for part in value:
            yield from _iterate_names(part)


Backend = Literal["openai", "local", "scripted"]

_VARIABLE = re.compile("[A-Z_][A-Z0-9_]{0,99}")
#: The keys of each backend; those with a star are required.
_KEYS: Mapping[Backend, str] = {
    "openai": (
        "base_url* model* api_key_env allow_plain_http concurrency timeout price structured max_tokens_field extra_body"
    ),
    "local": "model* adapter engine device dtype batch_size",
    "scripted": "rules* concurrency price",
}


#: Makes a scripted model, of `concurrency` and `price`; what a name under ``rules:`` refers to.
MakeScripted = Callable[..., Model]


@settings
class ModelSettings:
    """One model; the keys it may have depend on `backend`.

    Attributes:
        backend: openai (any OpenAI-compatible server), local (a model on this machine) or scripted (fixed rules).
        price: US dollars per million tokens.
        base_url: The server's address, without a key in it.
        model: Its name on the server; for local, a folder (relative to the file) or a Hub id.
        api_key_env: Environment variable that holds the key, read at each call; empty for no key. Defaults to
            OPENAI_API_KEY for OpenAI itself.
        allow_plain_http: Whether the key may go over http to another machine.
        concurrency: Maximum calls at once.
        timeout: Seconds allowed for a whole call.
        structured: How to ask for JSON; auto starts with the schema and falls back to what the server takes.
        max_tokens_field: The server's name for the token limit; newer OpenAI models need the longer one.
        extra_body: More fields for each request, such as top_k; null removes a field.
        adapter: For local: a PEFT adapter.
        engine: For local: builtin, vllm, or vLLM's path, with flags where needed; auto: vLLM where found with a GPU.
        device: For local: where the model runs.
        dtype: For local: the weights' type.
        batch_size: For local: prompts in one forward pass; by default 8 on a CPU, 256 on a GPU where they fit.
        rules: For scripted: the name of the rules.
    """

    backend: Backend = "openai"
    price: Price = Field(default_factory=Price)
    base_url: str | None = None
    model: str | None = None
    api_key_env: str | None = None
    allow_plain_http: bool = False
    concurrency: int = Field(default=8, ge=1, le=4096)
    timeout: float = Field(default=180.0, gt=0, le=86_400)
    structured: Literal["auto", "json_schema", "json_object", "none"] = "auto"
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    extra_body: dict[str, Any] = Field(default_factory=dict)
    adapter: str | None = None
    engine: str = "auto"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    batch_size: int | None = Field(default=None, ge=1)
    rules: str | None = None

    def __post_init__(self) -> None:
        for name, default in _DEFAULTS.items():
            if name not in ("backend", *self._keys) and getattr(self, name) != default:
                raise SettingsError(
                    f"{name}: unknown key for the {self.backend} backend; it has {', '.join(self._keys)}"
                )
        for key in _KEYS[self.backend].split():
            if key.endswith("*") and not getattr(self, key[:-1]):
                raise SettingsError(f"{key[:-1]} is missing; the {self.backend} backend needs it")
        if self.backend == "openai":
            object.__setattr__(self, "base_url", check_url(self.base_url or ""))
            check_fields(self.extra_body, "extra_body")
            if not (self.model or "").isprintable():
                raise SettingsError(f"the model name is {self.model!r}; give it as the server knows it")
        if self.api_key_env and not _VARIABLE.fullmatch(self.api_key_env):
            raise SettingsError(
                "api_key_env is not the name of an environment variable in capitals, such as OPENAI_API_KEY; the value "
                "may be a key itself and is not shown"
            )

    @property
    def _keys(self) -> list[str]:
        return _KEYS[self.backend].replace("*", "").split()

    @property
    def name(self) -> str:
        """The name in messages: host and model, or the model alone."""
        if self.backend == "openai":
            return f"{urlsplit(self.base_url or '').netloc}/{self.model}"
        if self.backend == "local":
            return f"local/{_get_last_part(self.model or '')}"
        return f"scripted/{self.rules}"


_DEFAULTS: Values = {
    name: info.get_default(call_default_factory=True)
    for name, info in ModelSettings.__pydantic_fields__.items()  # type: ignore[attr-defined]
}


@settings
class LLMSettings(Limits):
    """A settings file.

    Attributes:
        endpoints: The models to ask; with several, each request goes to one that is free.
        tokenizer: The model's tokenizer, to count tokens: a folder (relative to the file) or a Hub id.
    """

    endpoints: tuple[ModelSettings, ...] = ()
    tokenizer: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ray and any(entry.engine not in ("auto", "builtin") for entry in self.endpoints):
            raise SettingsError(
                "ray and engine: vllm exclude each other; run `vllm serve` on each machine and list the servers"
            )
        paced = {name: _DEFAULTS[name] for name in ("price", "concurrency", "timeout")}
        bare = [replace(entry, **paced) for entry in self.endpoints]
        for number, entry in enumerate(bare):
            if entry in bare[:number]:
                raise SettingsError(
                    f"endpoints[{number}]: {entry.name} is listed twice; list it once, with more concurrency"
                )


_Settings = TypeVar("_Settings", bound=LLMSettings)


@overload
def load_settings(source: str | Path | Mapping[str, Any]) -> LLMSettings: ...
@overload
def load_settings(source: str | Path | Mapping[str, Any], kind: type[_Settings]) -> _Settings: ...
def load_settings(source: str | Path | Mapping[str, Any], kind: type[LLMSettings] = LLMSettings) -> LLMSettings:
    """Read a settings file, or a dict of the same form; nothing is loaded, looked up or asked.

    Args:
        source: The file or the dict.
        kind: The class of its keys.

    Raises:
        SettingsError: For a file that is missing or not YAML, an unknown key (with the nearest known one), a value of
            the wrong type or out of range, keys that do not fit the backend, and settings that hold a secret.
    """
    if isinstance(source, Mapping):
        values, source_name, folder = dict(source), "llm", Path()
    else:
        values, source_name, folder = read_file(source), str(source), Path(source).absolute().parent
    if isinstance(source, Mapping) and "endpoints" not in values:
        # In Python, one endpoint needs no list.
        names = values.keys() & {item.name for item in fields(kind)}
        shared = {name: values.pop(name) for name in names}
        values = {"endpoints": [values], **shared}
    problem = ""
    try:
        loaded = read(kind, values, source_name, secret=True)
    except SettingsError as error:
        problem = str(error)
    if problem:
        # Outside of the handler: what pydantic raised holds the values, and one of them may be a key.
        raise SettingsError(problem)
    if not loaded.endpoints:
        raise SettingsError(f"{source_name}: endpoints is missing or empty; it lists the models to ask")

    entries = []
    for entry in loaded.endpoints:
        if entry.backend == "local":
            model, adapter = _resolve_folder(entry.model, folder), _resolve_folder(entry.adapter, folder)
            entry = replace(entry, model=model, adapter=adapter)
        entries.append(entry)
    return replace(loaded, endpoints=tuple(entries), tokenizer=_resolve_folder(loaded.tokenizer, folder))


def _resolve_folder(name: str | None, parent: Path) -> str | None:
    """A folder by its path relative to the file's; what is not a folder there is a Hub id."""
    path = parent / Path(name or "").expanduser()
    return str(path) if name and path.is_dir() else name


def _get_last_part(name: str) -> str:
    return Path(name).name if Path(name).is_dir() else name
