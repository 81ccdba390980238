"""The form in which OpenAI-compatible servers are asked and answer: a request as a body, a body as a reply."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Literal

from rolellm.core.fingerprint import hash_json
from rolellm.core.sanitize import show_on_line
from rolellm.core.text import replace_surrogates
from rolellm.llm.model import Finish, Json, Reply, Request, UnacceptableError, Usage
from rolellm.llm.tokens import TokenCounter

if TYPE_CHECKING:
    from rolellm.llm.settings import ModelSettings

#: How structured output is asked for: by schema, as any JSON object, or not at all.
Structured = Literal["json_schema", "json_object", "none"]

#: The name under which a body that is not a JSON object is kept in a raw reply.
UNREADABLE = "unreadable"
_KEPT = 1 << 16
_SHOWN = 120
_COUNTER = TokenCounter()
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
_VERSION = re.compile(r"[-:@](latest|main|\d{3,8}|\d{4}-\d\d-\d\d)$")

#: What servers call the end of a reply that is whole; without any word of theirs it counts as whole, too.
_WHOLE = frozenset({"stop", "eos", "eos_token", "end_turn", "stop_sequence", "tool_calls", "function_call"})
_CUT = frozenset({"length", "max_tokens", "model_length"})
_FILTERED = frozenset({"content_filter", "safety", "recitation", "blocklist", "prohibited_content"})


def request_body(request: Request, settings: ModelSettings, attempt: int, structured: Structured) -> dict[str, Any]:
    """The body of a request for a chat completion.

    The seed of a first reply is sent as it is; those of repeats and of further attempts are drawn from it. The prompt
    is sent as it stands also where the schema is not: it has to say what form it wants.

    Args:
        request: What is asked.
        settings: The model's name there, the name of its limit, and fields to put in or, where null, to leave out.
        attempt: The how-many-th reply to this request it is to be, from 1.
        structured: How the request's schema is sent.
    """
    sampling = request.sampling
    seed = sampling.seed
    if seed is not None:
        seed = _compute_seed(seed, request.repeat, attempt)
    body: dict[str, Any] = {
        "model": settings.model or "",
        "messages": [asdict(message) for message in request.messages],
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        settings.max_tokens_field: sampling.max_tokens,
        "seed": seed,
        "logprobs": sampling.top_logprobs > 0 or None,
        "top_logprobs": sampling.top_logprobs or None,
    }
    if request.schema is not None and structured == "json_schema":
        schema = {"name": request.schema.name, "schema": request.schema.schema, "strict": True}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    elif request.schema is not None and structured == "json_object":
        body["response_format"] = {"type": "json_object"}
    body |= settings.extra_body
    return {name: value for name, value in body.items() if value is not None}


def _compute_seed(seed: int, repeat: int, attempt: int) -> int:
    if repeat == 0 and attempt == 1:
        return seed
    # Some servers take no more than 31 bits.
    return int(hash_json([seed, repeat, attempt])[:8], 16) & 0x7FFFFFFF


def encode_body(body: Mapping[str, Any]) -> bytes:
    """A body as JSON in UTF-8; half surrogate pairs, which have no UTF-8, are sent as their escapes."""
    try:
        return _ENCODER.encode(body).encode("utf-8")
    except UnicodeEncodeError:
        return json.dumps(body, separators=(",", ":")).encode("ascii")


def parse_body(content: bytes) -> dict[str, Any]:
    """A response's body as a raw reply; one that is not a JSON object is kept as text, up to 65,536 characters."""
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        value = None
    if isinstance(value, dict):
        return value
    return {UNREADABLE: content[:_KEPT].decode("utf-8", errors="replace")}


def add_usage(raw: dict[str, Any], request: Request) -> dict[str, Any]:
    """A raw reply with our own count as ``usage`` where the server gives none."""
    if UNREADABLE in raw or _read_usage(raw) is not None:
        return raw
    usage = {
        "prompt_tokens": _COUNTER.request(request),
        "completion_tokens": sum(map(_COUNTER.count, _list_contents(raw))),
        "estimated": True,
    }
    return {**raw, "usage": usage}


def is_same_model(requested: str, answered: str) -> bool:
    """Tell whether two names may be one model's, apart from owners, hosts and folders, case, a version and ``.gguf``.

    >>> is_same_model("host/gpt-4o", "gpt-4o-2024-08-06"), is_same_model("host/gpt-4o", "gpt-4o-mini")
    (True, False)
    """
    return _get_bare_name(requested) == _get_bare_name(answered)


def _get_bare_name(name: str) -> str:
    last = name.rstrip("/").rpartition("/")[2]
    return _VERSION.sub("", last.casefold().removesuffix(".gguf"))


def read_body(raw: Json, model: str, endpoint: str) -> Reply:
    """Read a raw reply.

    Args:
        raw: As `parse_body` gave it.
        model: Who was asked, for a reply that names nobody.
        endpoint: The endpoint's name.

    Raises:
        UnacceptableError: With the kind ``malformed``, for a body that is not a chat completion.
    """
    if UNREADABLE in raw:
        raise UnacceptableError(f"the body is not a JSON object: {_make_excerpt(raw[UNREADABLE])}", "malformed")
    try:
        # An empty list is an empty reply.
        choices = raw["choices"] or [{}]
        choice = choices[0]
        message = choice.get("message") or {}
        text = replace_surrogates(read_content(message.get("content")))
    except (AttributeError, KeyError, TypeError):
        excerpt = _make_excerpt(json.dumps(raw, ensure_ascii=False))
        raise UnacceptableError(f"the body is not a chat completion: {excerpt}", "malformed") from None
    name = raw.get("model")
    if isinstance(name, str):
        model = replace_surrogates(name)
    finish = read_finish(choice, message, text)
    return Reply(text, finish, _read_usage(raw) or Usage(), model, endpoint, raw)


def _make_excerpt(text: str) -> str:
    excerpt = show_on_line(text[:_SHOWN])
    return f"{excerpt or 'empty'}; check base_url"


def read_content(content: Any) -> str:
    """The text of a message: as it is, or that of its parts, one after the other.

    Raises:
        UnacceptableError: With the kind ``malformed``, for anything else.
    """
    if content is None or isinstance(content, str):
        return content or ""
    try:
        texts = [part.get("text", "") for part in content if part.get("type", "text") == "text"]
        return "".join(texts)
    except (AttributeError, TypeError):
        raise UnacceptableError("`content` is not text", "malformed") from None


def read_finish(choice: Json, message: Json, text: str) -> Finish:
    """Read how a reply ended from what the server says."""
    reason = choice.get("finish_reason")
    word = reason.casefold() if isinstance(reason, str) else "stop"
    if message.get("refusal"):
        return "refused"
    if word in _FILTERED:
        return "filtered"
    if word in _CUT:
        return "length"
    # A word that is not known, such as "error" or "abort", does not mean that the reply is whole.
    return "stop" if text.strip() and word in _WHOLE else "empty"


def _list_contents(raw: Json) -> list[str]:
    """List the texts that a reply is charged for: its contents and the thoughts before them."""
    texts = []
    try:
        for choice in raw["choices"]:
            for name in ("content", "reasoning_content", "reasoning"):
                texts.append(read_content(choice["message"].get(name)))
        return texts
    except (KeyError, TypeError, AttributeError, UnacceptableError):
        return []


def _read_usage(raw: Json) -> Usage | None:
    usage = raw.get("usage")
    if not isinstance(usage, dict):
        return None
    prompt, completion = _read_count(usage, "prompt_tokens"), _read_count(usage, "completion_tokens")
    if prompt is None or completion is None:
        return None
    details = usage.get("prompt_tokens_details")
    cached = None
    if isinstance(details, dict):
        cached = _read_count(details, "cached_tokens")
    return Usage(prompt, completion, min(cached or 0, prompt))


def _read_count(counts: Json, name: str) -> int | None:
    value = counts.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        return None
    return min(value, 1 << 31)
