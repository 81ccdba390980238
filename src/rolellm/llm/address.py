"""Addresses of servers: which ones are taken, which are near, and whose key a request carries."""

from __future__ import annotations

import ipaddress
import os
from urllib.parse import urlsplit

from rolellm.errors import RecipeError

OPENAI = "https://api.openai.com/v1"
_OPENAI_KEY = "OPENAI_API_KEY"


def checked_url(base_url: str) -> str:
    """A base URL without a slash at its end.

    Raises:
        RecipeError: For one that is no ``http://`` or ``https://`` address, or that holds a user name, a password, a
            query or a fragment: it stands in messages and records, where no secret may be. The message does not repeat
            it.
    """
    try:
        parts = urlsplit(base_url.strip())
        port_is_number = parts.port is None or parts.port >= 0
    except ValueError:
        parts, port_is_number = urlsplit(""), False
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise RecipeError(
            "base_url holds a user name, a password or a query; put the key into an environment variable, name that in "
            "api_key_env, and leave base_url as plain as http://localhost:8000/v1"
        )
    if parts.scheme not in ("http", "https") or not parts.hostname or not port_is_number:
        raise RecipeError("base_url is no address of a server; expected something like http://localhost:8000/v1")
    if not base_url.strip().isprintable() or " " in base_url.strip():
        raise RecipeError("base_url holds characters that no address has; give it without spaces or control characters")
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
        RecipeError: Where a key is needed and there is none, or what is there can be none. Never shows it.
    """
    variable = key_variable(base_url, named)
    host = urlsplit(base_url).hostname or ""
    if not variable:
        if named is None and not is_near(host):
            raise RecipeError(
                f"there is no key for {host}, which is not on this machine or a private network; name the environment "
                'variable that holds it in api_key_env (--api-key-env), or give api_key_env: "" if none is wanted'
            )
        return ""
    key = os.environ.get(variable, "").strip()
    if not key and not is_near(host):
        raise RecipeError(f"the environment variable {variable} holds no key for {host}; set it, and try again")
    if not (key.isascii() and key.isprintable() and " " not in key):
        raise RecipeError(f"what the environment variable {variable} holds is no key: it has characters that none has")
    return key
