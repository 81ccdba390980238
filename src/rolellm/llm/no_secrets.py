"""What settings must not hold: keys, which are refused and not shown, and fields that each request decides."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from rolellm.errors import RecipeError

#: Keys of mappings whose values are secrets, in lower case and without marks.
_SECRET = re.compile(
    r"(.*(apikey|secret|password|passwd|authorization|bearer|accesstoken|authtoken|apitoken|hftoken)|token|key|auth)"
)
_NOT_SECRET = frozenset({"api_key_env"})
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]{0,99}")
#: Fields that a request decides, or that change what a call costs behind its back.
_DECIDED = frozenset(
    {"model", "messages", "prompt", "stream", "n", "best_of", "max_tokens", "max_completion_tokens", "response_format"}
)


def refuse_keys(values: Any) -> None:
    """Refuse settings with a key in them. Nothing of the value is shown.

    Raises:
        RecipeError: With the place and the way out.
    """
    for place in _secret_places(values, ""):
        raise RecipeError(
            f"{place}: a secret does not belong in a file; put it into an environment variable, and name that: "
            "api_key_env: OPENAI_API_KEY"
        )


def refuse_decided(extra_body: Mapping[str, Any], place: str) -> None:
    """Refuse fields that are decided elsewhere.

    Raises:
        RecipeError: For a field that the request decides, or that would make a call cost more than it is counted with.
    """
    decided = sorted(_DECIDED & extra_body.keys())
    if decided:
        raise RecipeError(f"{place}.{decided[0]}: this is decided request by request; leave it out")


def variable_name(name: str | None, place: str) -> None:
    """Refuse what is no name of an environment variable, as it may be a key; it is not shown.

    Raises:
        RecipeError: For anything but capitals, digits and underscores.
    """
    if name and _VARIABLE.fullmatch(name) is None:
        raise RecipeError(
            f"{place}: expected the name of an environment variable in capitals, such as OPENAI_API_KEY; what is there "
            "may be a key itself and is not shown"
        )


def _secret_places(values: Any, dotted: str) -> Iterator[str]:
    waiting = [(values, dotted)]
    seen: set[int] = set()
    while waiting:
        value, place = waiting.pop()
        if id(value) in seen or not isinstance(value, dict | list):
            continue
        seen.add(id(value))
        if isinstance(value, list):
            waiting += [(item, f"{place}[{number}]") for number, item in enumerate(value)]
            continue
        for key, item in value.items():
            name = f"{place}.{key}" if place else str(key)
            if key not in _NOT_SECRET and _SECRET.fullmatch(re.sub("[^a-z]", "", str(key).lower())):
                yield name
            waiting.append((item, name))
