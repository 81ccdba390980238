"""Taking keys out of what comes back: servers echo them in replies and in errors."""

from __future__ import annotations

from typing import Final

HIDDEN: Final = "[hidden]"
# Shorter ones are what people put where a server wants no key, such as EMPTY or none; replies use some of these words.
_LEAST = 8


def hide(text: str, *secrets: str) -> str:
    """A text with each secret replaced by ``[hidden]``.

    >>> hide("Invalid key sk-0123456789", "sk-0123456789", "none")
    'Invalid key [hidden]'
    """
    for secret in secrets:
        if len(secret) >= _LEAST:
            text = text.replace(secret, HIDDEN)
    return text


def hide_hub_token(message: object, token: object = None) -> str:
    """A text or an error's words without the token for the Hub, which servers and proxies echo.

    Args:
        message: The text or error that repeats their words.
        token: Another token that was sent, as the Hub's client takes it.
    """
    from huggingface_hub import get_token

    tokens = [value for value in (get_token(), token) if isinstance(value, str)]
    return hide(str(message), *tokens)
