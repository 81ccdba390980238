"""What goes wrong between here and the Hub: which of it passes, and what to say of the rest.

httpx2, which the Hub's client speaks through, comes with it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from rolellm.errors import HubError, HubLoginError, HubUnreachableError
from rolellm.scrub import without_hub_token

_Found = TypeVar("_Found")
_PASSING = (408, 425, 429, 500, 502, 503, 504)
CONFLICT = (409, 412)


@dataclass(frozen=True, slots=True)
class Patience:
    """How often something is tried, and how long to wait in between; our choice.

    Attributes:
        tries: At most so many.
        first_wait: Seconds before the second try; doubled before each one after.
    """

    tries: int = 5
    first_wait: float = 1.0

    def attempts(self) -> Iterator[bool]:
        """One item a try, after the wait before it: whether it is the last."""
        for number in range(self.tries):
            if number:
                time.sleep(self.first_wait * 2 ** (number - 1))
            yield number == self.tries - 1

    def call(self, run: Callable[[], _Found]) -> _Found:
        """Call something that may fail for a moment."""
        for last in self.attempts():
            try:
                return run()
            except Exception as error:
                if last or not passes(error):
                    raise
        raise ValueError("Patience.tries has to be at least 1")


def status_of(error: BaseException) -> int | None:
    """The HTTP status behind an error, if it is an answer from the Hub."""
    for cause in _chain(error):
        status: int | None = getattr(getattr(cause, "response", None), "status_code", None)
        if status is not None:
            return status
    return None


def passes(error: BaseException) -> bool:
    """Whether the same request may do better in a moment."""
    import httpx2

    status = status_of(error)
    if status is not None:
        return status in _PASSING
    # The client reads JSON out of what may be a gateway's error page.
    return any(isinstance(cause, httpx2.TransportError | json.JSONDecodeError) for cause in _chain(error))


def translated(error: BaseException, repo: str, endpoint: str) -> HubError:
    """An error of the Hub's client as one of ours, with the way out.

    Args:
        error: What the client raised.
        repo: The repository that is published to.
        endpoint: The Hub's address.
    """
    status, reason = status_of(error), _reason(error)
    if status == 401:
        return HubLoginError(
            f"{endpoint} does not take the token ({reason}); log in anew with `hf auth login`, or set HF_TOKEN"
        )
    if status == 403:
        return HubLoginError(
            f"this token may not write to {repo} ({reason}); take one with write access, or a repository of your own"
        )
    if status in CONFLICT:
        return HubError(
            f"{repo} changed under every try to publish to it ({reason}); nothing was published, run it again"
        )
    if passes(error):
        return HubUnreachableError(
            f"{endpoint} could not be used ({reason}). What was on {repo} before can still be loaded; run the same "
            "again, and it goes on from what has arrived"
        )
    return HubError(f"{repo} could not be published: {reason}")


@contextmanager
def refusals(repo: str) -> Iterator[None]:
    """Make an error of ours of what the client says by `ValueError`, such as bad metadata; bugs elsewhere stay bugs."""
    try:
        yield
    except json.JSONDecodeError:
        raise
    except ValueError as error:
        raise HubError(f"{repo} could not be published: {without_hub_token(str(error))}") from None


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        seen = seen.__cause__


def _reason(error: BaseException) -> str:
    """The last word on what went wrong: the server's, or the deepest cause's."""
    for cause in _chain(error):
        said = getattr(cause, "server_message", None)
        if said:
            return f"{status_of(cause)}: {without_hub_token(said)}"
    deepest = list(_chain(error))[-1]
    lines = without_hub_token(str(deepest)).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(deepest).__name__
