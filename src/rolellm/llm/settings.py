"""The settings of models: a YAML file with endpoints, how often to ask, and what may be spent (docs/endpoints.md).

Keys stand in environment variables, which a file names; a file that holds a key is refused.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, Protocol
from urllib.parse import urlsplit

from rolellm.core.errors import SettingsError
from rolellm.core.scrub import HIDDEN
from rolellm.core.typed_yaml import Form, build, describe, parse_yaml, typed
from rolellm.llm.model import Model, Price

# --- Addresses of servers: which ones are taken, which are near, and whose key a request carries


OPENAI = "https://api.openai.com/v1"
_OPENAI_KEY = "OPENAI_API_KEY"


def checked_url(base_url: str) -> str:
    """A base URL without a slash at its end.

    Raises:
        SettingsError: For one that is no ``http://`` or ``https://`` address, or that holds a user name, a password, a
            query or a fragment: it stands in messages and records, where no secret may be. The message does not repeat
            it.
    """
    try:
        parts = urlsplit(base_url.strip())
        port_is_number = parts.port is None or parts.port >= 0
    except ValueError:
        parts, port_is_number = urlsplit(""), False
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise SettingsError(
            "base_url holds a user name, a password or a query; put the key into an environment variable, name that in "
            "api_key_env, and leave base_url as plain as http://localhost:8000/v1"
        )
    if parts.scheme not in ("http", "https") or not parts.hostname or not port_is_number:
        raise SettingsError("base_url is no address of a server; expected something like http://localhost:8000/v1")
    if not base_url.strip().isprintable() or " " in base_url.strip():
        raise SettingsError(
            "base_url holds characters that no address has; give it without spaces or control characters"
        )
    return base_url.strip().rstrip("/")


def is_near(host: str, *, this_machine: bool = False) -> bool:
    """Whether a host is on this machine or, unless ``this_machine``, on a private network: there, no key is usual.

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


def key_variable(base_url: str, named: str | None) -> str:
    """The environment variable that holds the key for an address; empty where none is sent.

    OpenAI's own variable goes to OpenAI alone, and to others only where it is named for them.

    Args:
        base_url: The address.
        named: As the user set it; ``None`` where nothing was said, empty for no key.
    """
    if named is not None:
        return named
    return _OPENAI_KEY if urlsplit(base_url).hostname == urlsplit(OPENAI).hostname else ""


def find_key(base_url: str, named: str | None) -> str:
    """The key for an address, from the environment as it is now; empty where none is sent.

    Raises:
        SettingsError: Where a key is needed and there is none, or what is there can be none. Never shows it.
    """
    variable = key_variable(base_url, named)
    host = urlsplit(base_url).hostname or ""
    if not variable:
        if named is None and not is_near(host):
            raise SettingsError(
                f"there is no key for {host}, which is not on this machine or a private network; name the environment "
                'variable that holds it in api_key_env (--api-key-env), or give api_key_env: "" if none is wanted'
            )
        return ""
    key = os.environ.get(variable, "").strip()
    if not key and not is_near(host):
        raise SettingsError(f"the environment variable {variable} holds no key for {host}; set it, and try again")
    if not (key.isascii() and key.isprintable() and " " not in key):
        raise SettingsError(
            f"what the environment variable {variable} holds is no key: it has characters that none has"
        )
    return key


# --- What more fields of a request must not hold, and what manifests show of a model: what is known to be no


#: Names of fields whose values are secrets, in lower case and without marks.
_SECRET = re.compile(
    r"(.*(apikey|secret|password|passwd|authorization|bearer|accesstoken|authtoken|apitoken|hftoken)|token|key|auth)"
)
#: Fields that a request decides, or that change what a call costs behind its back.
_DECIDED = frozenset(
    {"model", "messages", "prompt", "stream", "n", "best_of", "max_tokens", "max_completion_tokens", "response_format"}
)
#: Fields that manifests show, where their value is a number, a truth value or a word.
_SHOWN = frozenset(
    {
        *("temperature", "top_p", "top_k", "top_a", "min_p", "typical_p", "min_tokens", "seed", "ignore_eos"),
        *("presence_penalty", "frequency_penalty", "repetition_penalty", "length_penalty", "logprobs", "top_logprobs"),
        *("reasoning_effort", "effort", "verbosity", "type", "thinking", "enable_thinking", "thinking_budget"),
        *("budget_tokens", "add_generation_prompt", "skip_special_tokens"),
    }
)
_WORD = re.compile("[a-z_.]{1,80}")
_PATH = re.compile(r"|v\d+(alpha|beta)?|api|openai|beta|paas|inference|compatible-mode|deployments|chat|engines|llm|ai")
_MAY_BE_KEY = re.compile(r"(?=.*\d)(?=.*[A-Za-z])[!-~]{16,}")


def check_fields(extra_body: Mapping[str, Any], place: str) -> None:
    """Refuse fields that are decided elsewhere or named like a key. Nothing of the value is shown.

    Raises:
        SettingsError: With the place and the way out.
    """
    for name in sorted(_DECIDED & extra_body.keys()):
        raise SettingsError(f"{place}.{name}: this is decided request by request; leave it out")
    for name, _ in _fields(extra_body):
        if any(_SECRET.fullmatch(re.sub("[^a-z]", "", part.lower())) for part in name.split(".")):
            raise SettingsError(
                f"{place}.{name}: a secret does not belong in a file; put it into an environment variable, and name "
                "that: api_key_env: OPENAI_API_KEY"
            )


def shown(facts: Mapping[str, Any]) -> dict[str, Any]:
    """What a manifest says of a model: all but what of its address and of `extra_body` is not known to be harmless.

    Args:
        facts: Settings or the identity of a model.
    """
    made = dict(facts)
    if isinstance(url := made.get("base_url"), str):
        parts = [part if part == made.get("model") or _PATH.fullmatch(part) else HIDDEN for part in _path(url)]
        made["base_url"] = f"{urlsplit(url).scheme}://{urlsplit(url).netloc}{'/'.join(parts)}"
    if made.get("extra_body"):
        made["extra_body"] = {
            name if _WORD.fullmatch(name) else HIDDEN: value if _is_harmless(name, value) else HIDDEN
            for name, value in _fields(made["extra_body"])
        }
    return made


def described(model: Model) -> dict[str, Any]:
    """A model that was asked, for manifests."""
    return {"name": model.name, **shown(model.identity)}


def hidden_keys(base_url: str, extra_body: Mapping[str, Any]) -> tuple[str, ...]:
    """What may be a key in what `shown` hides, and has to be hidden where a server echoes it.

    That is a word of 16 characters or more with letters and digits (our choice); names of models are said in replies.
    """
    fields = [str(value) for name, value in _fields(extra_body) if "model" not in name]
    words = [word for text in (*_path(base_url), *fields) for word in re.split("[;=& ]", text)[-2:]]
    return tuple(filter(_MAY_BE_KEY.fullmatch, words))


def _is_harmless(name: str, value: Any) -> bool:
    plain = value is None or isinstance(value, bool | int | float) or _WORD.fullmatch(str(value)) is not None
    return plain and name.rpartition(".")[2] in _SHOWN


def _path(url: str) -> list[str]:
    return urlsplit(url).path.split("/")


def _fields(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Every value within the fields of a request, with its dotted name."""
    if isinstance(value, Mapping):
        for name, part in value.items():
            yield from _fields(part, f"{place}.{name}" if place else name)
    elif isinstance(value, list):
        for part in value:
            yield from _fields(part, place)
    else:
        yield place, value


# --- The settings of models: a YAML file with endpoints, how often to ask, and what may be spent


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
        SettingsError: For a file that is not there or not YAML, an unknown key (with the nearest known one), a value of
            a wrong type or out of range, keys that do not go with the backend, and a file that holds a secret.
    """
    file = Path(path)
    values = parse_yaml(_text(file), str(file))
    if not isinstance(values, dict):
        raise SettingsError(f"{file}: expected the key endpoints: with a list, found {describe(values)}")
    try:
        made = typed(Form(LLMSettings), values, file.absolute().parent)
        if "endpoints" not in made:
            raise SettingsError("endpoints: is missing; it lists the models to ask")
        for number, (entry, given) in enumerate(zip(made["endpoints"], values["endpoints"], strict=True)):
            _check_keys(entry.get("backend", "openai"), given, f"endpoints[{number}]")
        return checked(_beside(build(LLMSettings, made), file.absolute().parent))
    except SettingsError as error:
        raise SettingsError(f"{file}: {error}") from error


def checked(settings: LLMSettings) -> LLMSettings:
    """The settings, once each entry is known to be one that can be asked.

    Raises:
        SettingsError: For an address, a variable's name or a request field that cannot be, or one entry given twice.
    """
    for number, entry in enumerate(settings.endpoints):
        place = f"endpoints[{number}]"
        for key in _NEEDED[entry.backend]:
            if not getattr(entry, key):
                raise SettingsError(f"{place}.{key}: is missing; the backend {entry.backend} needs it")
        if entry.backend != "openai":
            continue
        check_fields(entry.extra_body, f"{place}.extra_body")
        try:
            _endpoint_settings(entry)
        except SettingsError as error:
            raise SettingsError(f"{place}: {error}") from error
    bare = [replace(entry, price=Price(), concurrency=None, timeout=None) for entry in settings.endpoints]
    for number, entry in enumerate(bare):
        if entry in bare[:number]:
            raise SettingsError(
                f"endpoints[{number}]: {entry.name} is there twice; give it once, with more concurrency"
            )
    return settings


def load_models(settings: LLMSettings | str | Path, scripted: Mapping[str, MakeScripted] | None = None) -> list[Model]:
    """Make the models of a settings file, ready to be asked. No socket is opened.

    Args:
        settings: The settings, or their file.
        scripted: What the names under ``rules:`` stand for.

    Raises:
        SettingsError: As `load_settings`, for a key that is not in its environment variable, and for unknown rules.
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
            raise SettingsError(
                f"there are no rules {entry.rules!r}; known: "
                f"{', '.join(sorted(scripted)) or 'none; in Python they are given by name, see `load_models`'}"
            )
        return make(concurrency=entry.concurrency or _AT_ONCE, price=entry.price)
    from rolellm.llm.local import LocalChat
    from rolellm.models.local_model import LocalModel

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
        raise SettingsError(f"{place}.{odd[0]}: the backend {backend} has no such key; it has {known}")


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
        raise SettingsError(f"no settings file at {file}")
    if file.stat().st_size > _MOST_BYTES:
        raise SettingsError(f"{file}: larger than {_MOST_BYTES:,} bytes; that is no settings file")
    try:
        return file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise SettingsError(f"{file}: not UTF-8 text ({error.reason} at byte {error.start})") from error


def _last_part(name: str) -> str:
    return Path(name).name if Path(name).is_dir() else name
