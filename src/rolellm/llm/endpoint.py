"""A model behind an OpenAI-compatible HTTP endpoint, asked through the `openai` SDK.

The SDK retries nothing here, sends no header of its own from the environment, and follows no redirect; retries are the
run's. No key, header or environment value gets into what is returned or raised.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from rolellm.errors import RecipeError
from rolellm.extras import require
from rolellm.llm.address import checked_url, find_key
from rolellm.llm.model import CallError, Json, Price, Reply, Request
from rolellm.llm.no_secrets import hidden_keys
from rolellm.llm.refusals import refusal, wants_other_form
from rolellm.llm.wire import (
    UNREADABLE,
    MaxTokensField,
    Structured,
    encode_body,
    parse_body,
    read_body,
    request_body,
    with_usage,
)
from rolellm.scrub import Scrubber, scrubber

if TYPE_CHECKING:
    from openai import AsyncOpenAI

_VARIABLE = re.compile("[A-Z_][A-Z0-9_]{0,99}")
_FORMS: tuple[Structured, ...] = ("json_schema", "json_object", "none")


@dataclass(frozen=True, slots=True)
class EndpointSettings:
    """Where a model is, and how it is asked.

    Attributes:
        model: Its name there.
        base_url: The address; without a key in it.
        api_key_env: The environment variable that holds the key, read at each call. By default ``OPENAI_API_KEY`` for
            OpenAI itself, and no key for other addresses; empty for none where one would be expected.
        concurrency: Calls at once.
        timeout: Seconds for a whole call, however slowly its answer drips in.
        price: What its tokens cost.
        structured: How a JSON schema is asked for. ``auto`` asks by schema; where the server refuses that form, as any
            JSON object; where it refuses that, too, not at all. What it found out holds for the endpoint's lifetime.
        max_tokens_field: Newer models of OpenAI know ``max_completion_tokens`` only.
        extra_body: Fields for every request, such as ``{"top_k": 20}``; a null takes a field out.
        most_bytes: The longest body that is read.

    Raises:
        RecipeError: For a value that cannot be carried out.
    """

    model: str
    base_url: str = "https://api.openai.com/v1"
    api_key_env: str | None = None
    concurrency: int = 8
    timeout: float = 180.0
    price: Price = field(default_factory=Price)
    structured: Literal["auto", "json_schema", "json_object", "none"] = "auto"
    max_tokens_field: MaxTokensField = "max_tokens"
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    most_bytes: int = 8 << 20

    def __post_init__(self) -> None:
        object.__setattr__(self, "base_url", checked_url(self.base_url))
        if not self.model or not self.model.isprintable():
            raise RecipeError(f"the model's name is {self.model!r}; give it as the server knows it")
        if self.api_key_env and not _VARIABLE.fullmatch(self.api_key_env):
            raise RecipeError(
                "api_key_env is not the name of an environment variable in capitals, such as OPENAI_API_KEY; what is "
                "there may be a key itself and is not shown"
            )
        if self.concurrency < 1:
            raise RecipeError(f"concurrency is {self.concurrency}; it has to be at least 1")
        if not 0 < self.timeout < float("inf"):
            raise RecipeError(f"timeout is {self.timeout}; it has to be a number of seconds above 0")
        if self.structured not in ("auto", *_FORMS):
            raise RecipeError(f"structured is {self.structured!r}; known: auto, {', '.join(_FORMS)}")
        if self.max_tokens_field not in ("max_tokens", "max_completion_tokens"):
            raise RecipeError(
                f"max_tokens_field is {self.max_tokens_field!r}; known: max_tokens, max_completion_tokens"
            )
        if self.most_bytes < 1:
            raise RecipeError(f"most_bytes is {self.most_bytes}; it has to be at least 1")


class Endpoint:
    """A `rolellm.llm.model.Model` at an endpoint. No socket is opened before the first call.

    Args:
        settings: Where it is.

    Attributes:
        structured: How the next schema is asked for.

    Raises:
        MissingExtraError: Without the `openai` SDK.
    """

    def __init__(self, settings: EndpointSettings) -> None:
        require("openai", "aiohttp", extra="llm")
        self.settings = settings
        self.structured: Structured = "json_schema" if settings.structured == "auto" else settings.structured
        self._hidden = hidden_keys(settings.base_url, settings.extra_body)
        self._sdk: AsyncOpenAI | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def __repr__(self) -> str:
        return f"Endpoint({self.name})"

    @property
    def name(self) -> str:
        """Host and model."""
        return f"{urlsplit(self.settings.base_url).netloc}/{self.settings.model}"

    @property
    def identity(self) -> Json:
        """Address, model, and what else of the settings decides replies."""
        settings = self.settings
        return {
            "backend": "openai",
            "base_url": settings.base_url,
            "model": settings.model,
            "structured": settings.structured,
            "extra_body": dict(settings.extra_body),
        }

    @property
    def concurrency(self) -> int:
        """Calls at once."""
        return self.settings.concurrency

    @property
    def price(self) -> Price:
        """What its tokens cost."""
        return self.settings.price

    def check(self) -> None:
        """Refuse before the first call what no call could do.

        Raises:
            RecipeError: Where there is no key and one is needed.
        """
        self._key()

    async def call(self, request: Request, attempt: int = 1) -> Json:
        """Ask once.

        A server that refuses the form in which a schema is asked for is asked again in the next form; that costs
        nothing, and is no attempt.

        Raises:
            CallError: When no reply came.
            RecipeError: Where there is no key and one is needed.
        """
        while True:
            form = self.structured
            status, headers, content = await self._post(encode_body(self.body(request, attempt)))
            if status < 300:
                return self._raw(content, request)
            if request.schema is not None and self.learns_form(form, status, content):
                continue
            raise self.refusal(status, content, headers)

    def learns_form(self, form: Structured, status: int, content: bytes) -> bool:
        """Go over to the next form of structured output where a server refuses one; whether asking again may help.

        Calls that are on their way together all learn of a refusal; only the first of them moves on.

        Args:
            form: In which was asked.
            status: Of the answer.
            content: Its body.
        """
        if self.settings.structured != "auto" or form == "none" or not wants_other_form(status, content):
            return False
        if self.structured == form:
            self.structured = _FORMS[_FORMS.index(form) + 1]
        return True

    def refusal(self, status: int, content: bytes, headers: Mapping[str, str] | None = None) -> CallError:
        """The error that an answer other than 2xx stands for, secrets taken out."""
        return refusal(status, headers or {}, content, self._hide().text)

    def body(self, request: Request, attempt: int = 1) -> dict[str, Any]:
        """The body of a call, as it is sent now."""
        settings = self.settings
        return request_body(
            request, settings.model, attempt, self.structured, settings.max_tokens_field, settings.extra_body
        )

    def read(self, raw: Json) -> Reply:
        """Read a raw reply.

        Raises:
            UnacceptableError: With the kind ``malformed``, for one that is no chat completion.
        """
        return read_body(raw, self.settings.model, self.name)

    def received(self, raw: dict[str, Any], request: Request | None) -> Json:
        """A parsed body as what is kept of it: secrets taken out, and tokens counted where the server's cannot be true.

        Args:
            raw: The body.
            request: What was asked, for the count.

        Raises:
            CallError: For an error where a reply should be.
        """
        try:
            raw = self._hide().json(raw)
        except RecursionError:
            return {UNREADABLE: "nested too deeply"}
        if raw.get("error") and not raw.get("choices"):
            error = raw["error"]
            code = error.get("code") if isinstance(error, dict) else None
            status = code if isinstance(code, int) and 400 <= code < 600 else 500
            refused = self.refusal(status, encode_body(raw))
            # It broke off at some point behind the server's back; what was said until then may be charged.
            raise CallError(refused.kind, refused.reason, retry=refused.retry, billed=True)
        return raw if request is None else self.counted(raw, request)

    def counted(self, raw: dict[str, Any], request: Request) -> Json:
        """A raw reply with tokens that can be true, see `rolellm.llm.wire.with_usage`."""
        return with_usage(raw, request, self.settings.extra_body)

    async def close(self) -> None:
        """Close connections; the next call opens new ones."""
        sdk, self._sdk = self._sdk, None
        if sdk is not None and self._loop is asyncio.get_running_loop():
            await sdk.close()

    def sdk(self) -> AsyncOpenAI:
        """The SDK's client for the running event loop; every request needs `headers`."""
        from rolellm.llm.transport import sdk_client

        loop = asyncio.get_running_loop()
        if self._sdk is None or self._loop is not loop:
            self._sdk, self._loop = sdk_client(self.settings.base_url, self.settings.most_bytes, self.concurrency), loop
        return self._sdk

    def headers(self) -> dict[str, Any]:
        """What carries the key, as the SDK takes it for one request.

        Raises:
            RecipeError: Where there is no key and one is needed.
        """
        from openai import omit

        key = self._key()
        return {"Authorization": f"Bearer {key}" if key else omit}

    def _key(self) -> str:
        return find_key(self.settings.base_url, self.settings.api_key_env)

    def _hide(self) -> Scrubber:
        return scrubber(self._key(), *self._hidden)

    def _raw(self, content: bytes, request: Request) -> Json:
        return self.received(parse_body(content), request)

    async def _post(self, content: bytes) -> tuple[int, Mapping[str, str], bytes]:
        """Status, headers and body of the answer."""
        import httpx2
        import openai

        sdk, headers = self.sdk(), self.headers()
        failure: CallError
        try:
            async with asyncio.timeout(self.settings.timeout):
                response = await sdk.post(
                    "/chat/completions", cast_to=httpx2.Response, content=content, options={"headers": headers}
                )
            return response.status_code, response.headers, response.content
        except openai.APIStatusError as error:
            return error.status_code, error.response.headers, error.response.content
        except TimeoutError:
            reason = f"no whole answer within {self.settings.timeout:g} seconds"
            failure = CallError("timeout", reason, retry=True, billed=True)
        except CallError as error:
            failure = CallError(error.kind, error.reason, retry=error.retry, billed=error.billed)
        except (openai.OpenAIError, httpx2.HTTPError, ValueError, RecursionError) as error:
            failure = CallError(
                "malformed", f"the answer cannot be read ({type(error).__name__})", retry=True, billed=True
            )
        # Outside of the handlers: what the SDK raised holds headers, and would hang on to this.
        raise failure
