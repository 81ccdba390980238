"""What more fields of a request must not hold, and what manifests show of a model: what is known to be no secret."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from rolellm.errors import RecipeError
from rolellm.llm.model import Model
from rolellm.scrub import HIDDEN

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
        RecipeError: With the place and the way out.
    """
    for name in sorted(_DECIDED & extra_body.keys()):
        raise RecipeError(f"{place}.{name}: this is decided request by request; leave it out")
    for name, _ in _fields(extra_body):
        if any(_SECRET.fullmatch(re.sub("[^a-z]", "", part.lower())) for part in name.split(".")):
            raise RecipeError(
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
